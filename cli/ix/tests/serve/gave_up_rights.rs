//! Processes of one program that do not trust each other: a root program's child that has given
//! root's rights up has descriptors of what its parent executes and shares.
use crate::support::{Nic, PATIENCE, TestNet};
use ix_skip::{Need, skip};

const PYTHON: &str = "/usr/bin/python3";
/// A server of root with a child that is nobody. The child attacks each file in memory that it has,
/// and the server tells how it fares.
const PROGRAM: &str = "
import mmap, os, socket
server = socket.socket()
server.bind(('10.88.0.2', 8080))
server.listen(5)
if os.fork() == 0:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    names = {}
    for number in os.listdir('/proc/self/fd'):
        try:
            name = os.readlink('/proc/self/fd/' + number)
        except OSError:
            continue
        if name.startswith('/memfd:'):
            names[int(number)] = name.split(':')[1].split(' ')[0]
    done = []
    def tries(what, number, act):
        try:
            act(number)
            done.append(what + ' ' + names[number])
        except (OSError, ValueError):
            pass
    trap = b'\\xcc' * 4096
    def cuts(number):
        os.ftruncate(number, 0)
    def grows(number):
        os.ftruncate(number, os.fstat(number).st_size + 4096)
    def writes(number):
        for at in range(0, os.fstat(number).st_size, len(trap)):
            os.pwrite(number, trap, at)
    def maps(number):
        again = os.open('/proc/self/fd/%d' % number, os.O_RDWR)
        mmap.mmap(again, 4096)[:] = trap
    print('has', *sorted(set(names.values())), flush=True)
    for number in names:
        tries('cuts', number, cuts)
        tries('grows', number, grows)
        # What the processes say to one another is theirs to say.
        if names[number] not in ('ix-commons', 'ix-own-calls'):
            tries('writes', number, writes)
            tries('maps', number, maps)
    print('changed:', *sorted(done), flush=True)
    os._exit(0)
os.wait()
socket.socket().close()
print('goes on', os.getuid(), flush=True)
server.accept()
";

#[test]
fn what_a_root_program_executes_is_not_its_childrens_to_change() {
    let test = "what_a_root_program_executes_is_not_its_childrens_to_change";
    if !std::path::Path::new(PYTHON).exists() {
        return skip(test, Need::Program("apt-get install python3"), "no python3");
    }
    let Some(net) = TestNet::new(test, Nic::Tap, 1) else { return };
    // Root of a namespace, and of the machine.
    for user in [&[][..], &["--user", "root"]] {
        let flags = [&["--domain", "process"], user].concat();
        let service = net.start_env(&[], &flags, &[PYTHON, "-c", PROGRAM]);
        let has = service.process.wait_for("has ", PATIENCE);
        assert!(has.contains("libix-posix.so") && has.contains("ix-commons"), "{has}");
        let changed = service.process.wait_for("changed:", PATIENCE);
        assert_eq!(changed.trim(), "changed:");
        assert_eq!(service.process.wait_for("goes on", PATIENCE), "goes on 0");
        service.process.terminate();
    }
}

/// Runs `ix run` on a terminal of its own, as a shell does, and prints what it has read there.
const ON_A_TERMINAL: &str = "
import os, pty, sys
child, terminal = pty.fork()
if child == 0:
    os.execv(sys.argv[1], sys.argv[1:])
text = b''
while True:
    try:
        part = os.read(terminal, 4096)
    except OSError:
        break
    if not part:
        break
    text += part
sys.stdout.buffer.write(text)
";
/// Types a command for whoever reads on the terminal next.
const TYPES: &str = "
import fcntl, os, termios
typed = 0
for key in b'id\\n':
    try:
        fcntl.ioctl(0, termios.TIOCSTI, bytes([key]))
        typed += 1
    except OSError:
        pass
size = fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8))
print('typed', typed, 'as', os.getuid(), flush=True)
";

#[test]
fn a_program_of_another_user_types_on_no_terminal() {
    let test = "a_program_of_another_user_types_on_no_terminal";
    if !std::path::Path::new(PYTHON).exists() {
        return skip(test, Need::Program("apt-get install python3"), "no python3");
    }
    let Some(net) = TestNet::new(test, Nic::Tap, 1) else { return };
    for (user, number) in [(&["--user", "65534"][..], "65534"), (&[], "0")] {
        let mut command = net.server.command(PYTHON, None);
        command.args(["-c", ON_A_TERMINAL, env!("CARGO_BIN_EXE_ix"), "run", "--domain", "process"]);
        command.args(["--nic", "tap:ixtty0", "--addr", "10.88.0.2/16"]).args(user);
        let output = command.args(["--", PYTHON, "-c", TYPES]).output().expect("python3");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains(&format!("typed 0 as {number}")), "{said}");
    }
}
