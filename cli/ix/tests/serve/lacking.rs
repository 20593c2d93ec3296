//! Machines and containers that lack what the wall is made of: one line says what, and what to do.
use super::kills::BROKER;
use super::restart::FAMILY;
use crate::support::PATIENCE;
use crate::support::lacking::{Lacks, lack};
use crate::support::memif::MemifNet;
use crate::support::process::{Process, is_alive, signal};
use ix_skip::{Need, skip};
use ix_sys::process::is_root;
use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// The first argument asks for a user namespace.
const NEW_USER_NAMESPACE: Option<(usize, u32, u32)> =
    Some((0, libc::CLONE_NEWUSER as u32, libc::CLONE_NEWUSER as u32));

/// `ix run` with these flags and an echo service, on a link of its own.
fn run(net: &MemifNet, flags: &[&str]) -> Command {
    let echo = crate::support::build_echo();
    run_program(net, flags, &[echo.to_str().expect("text"), "64"])
}

/// The same with another program.
fn run_program(net: &MemifNet, flags: &[&str], program: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ix"));
    command.args(["run", "--addr", "10.99.0.1/24", "--nic"]);
    command.arg(format!("memif:{}", net.path().display())).args(flags);
    command.arg("--").args(program);
    command
}

#[test]
fn each_system_call_that_is_refused_is_named_with_what_to_do() {
    let name = "each_system_call_that_is_refused_is_named_with_what_to_do";
    if !is_root() {
        return skip(name, Need::Root, "a filter of system calls needs root");
    }
    let Some(net) = MemifNet::new(name, 1) else { return };
    let seal = Lacks { call: libc::SYS_fcntl, only: Some((1, u32::MAX, libc::F_ADD_SEALS as u32)) };
    let users = [libc::SYS_setresuid, libc::SYS_setuid, libc::SYS_setresgid].map(Lacks::call);
    let [unshare, clone] =
        [libc::SYS_unshare, libc::SYS_clone].map(|call| Lacks { call, only: NEW_USER_NAMESPACE });
    let spaces = [unshare, clone, Lacks::call(libc::SYS_clone3)];
    let cases: [(&[Lacks], i32, &[&str]); 5] = [
        (&[seal], libc::EPERM, &["packet memory", "F_ADD_SEALS"]),
        (&[Lacks::call(libc::SYS_memfd_create)], libc::ENOSYS, &["packet memory", "memfd_create"]),
        (&[Lacks::call(libc::SYS_pidfd_open)], libc::ENOSYS, &["pidfd_open", "6.12"]),
        (&users, libc::EPERM, &["protect the broker", "CAP_SETUID"]),
        (&spaces, libc::EPERM, &["user namespace", "--user"]),
    ];
    for (lacks, errno, words) in cases {
        let mut command = run(&net, &[]);
        lack(&mut command, lacks, errno);
        let (status, said) = Process::start(command).wait(PATIENCE);
        let last = said.last().expect("a line");
        let tells = words.iter().all(|word| last.contains(word)) && last.starts_with("ix: cannot");
        assert!(status.code() == Some(125) && tells, "{words:?}: {status}: {said:#?}");
    }
}

/// Without control groups a run goes on, and refuses only what needs one.
#[test]
fn a_machine_without_control_groups_serves_and_refuses_bounds() {
    let name = "a_machine_without_control_groups_serves_and_refuses_bounds";
    if !is_root() {
        return skip(name, Need::Root, "a file system cannot be mounted");
    }
    let Some(net) = MemifNet::new(name, 1) else { return };
    without_groups(&run(&net, &[])).wait_for("ready", PATIENCE);
    let (status, said) = without_groups(&run(&net, &["--pids-max", "10"])).wait(PATIENCE);
    let refused = said.last().is_some_and(|line| {
        line.starts_with("ix: cannot bound the program with --pids-max") && line.contains("cgroup2")
    });
    assert!(status.code() == Some(125) && refused, "{status}: {said:#?}");
}

/// Runs a command where no control groups are mounted.
fn without_groups(run: &Command) -> Process {
    let mut command = Command::new("unshare");
    let hide = "mount -t tmpfs none /sys/fs/cgroup && exec \"$@\"";
    command.args(["-m", "sh", "-c", hide, "sh"]);
    command.arg(run.get_program()).args(run.get_args());
    Process::start(command)
}

/// What [`FAMILY`] does, in a child whose first thread has ended. It says the child's number, and
/// that of the thread which is left.
const HEADLESS: &str = "
import ctypes, os, threading, time
say, words = os.pipe()
if os.fork() == 0:
    def stays():
        os.write(words, b'family %d %d\\n' % (os.getpid(), threading.get_native_id()))
        while True: time.sleep(10)
    threading.Thread(target=stays).start()
    ctypes.CDLL(None).syscall(60, 0)
print(os.read(say, 100).decode(), end='', flush=True)
while True: time.sleep(10)
";

/// A server that is root, and whose child has become another user.
const BECOMES: &str = "
import os, time
child = os.fork()
if child == 0:
    os.setgid(65534)
    os.setuid(65534)
    print('family', os.getpid(), flush=True)
while True: time.sleep(10)
";

/// Then its processes are known by whom they run as, and by what they have inherited.
#[test]
fn a_killed_broker_takes_its_program_along_without_control_groups_too() {
    let name = "a_killed_broker_takes_its_program_along_without_control_groups_too";
    if !is_root() {
        return skip(name, Need::Root, "a file system cannot be mounted");
    }
    if !Path::new("/usr/bin/python3").exists() {
        return skip(name, Need::Program("apt install python3"), "no python3");
    }
    let users = [&[][..], &["--user", "65534"], &["--user", "own"], &["--domain", "none"]];
    let cases = users.into_iter().flat_map(|user| [(user, FAMILY), (user, HEADLESS)]);
    let roots = [&[][..], &["--user", "root"]].map(|user| (user, BECOMES));
    for (user, family) in cases.chain(roots) {
        let Some(net) = MemifNet::new(name, 1) else { return };
        let family = ["/usr/bin/python3", "-c", family];
        let broker = without_groups(&run_program(&net, user, &family));
        let line = broker.wait_for("family", PATIENCE);
        let family: Vec<i32> =
            line.split(' ').skip(1).map(|word| word.parse().expect("a number")).collect();
        // It is no process of the run, though it has the user of one.
        let mut other = Command::new("sleep").arg("60").uid(65534).spawn().expect("sleep");
        signal(broker.pid(), libc::SIGKILL);
        broker.wait(PATIENCE);
        let since = Instant::now();
        // Each of them is the number of a thread too, which may be all that is left of a process.
        let is_alive = |pid: &i32| is_alive(*pid);
        while family.iter().any(is_alive) && since.elapsed() < BROKER {
            std::thread::sleep(Duration::from_millis(10));
        }
        let left: Vec<i32> = family.into_iter().filter(is_alive).collect();
        left.iter().for_each(|pid| signal(*pid, libc::SIGKILL));
        let others_end = other.try_wait().expect("a child");
        other.kill().and_then(|()| other.wait()).expect("ended");
        assert!(
            left.is_empty() && others_end.is_none(),
            "{user:?}: {left:?} are left, {others_end:?}"
        );
    }
}

/// Forks and ends without a pause, in eight lines: no list of processes has those that live. The
/// first argument is a file, into which each writes.
const FLEES: &str = "
import os, sys, time
file = os.open(sys.argv[1], os.O_WRONLY)
for line in range(8):
    if os.fork() == 0:
        os.setsid()
        for n in range(1 << 30):
            if not os.path.exists(sys.argv[1]): os._exit(0)
            os.pwrite(file, str(n).encode(), 16 * line)
            if os.fork(): os._exit(0)
print('flees', flush=True)
while True: time.sleep(10)
";

/// Where nobody else has the program's user or namespace, none of it escapes by forking.
#[test]
fn a_killed_broker_takes_a_program_along_that_forks_without_a_pause() {
    let name = "a_killed_broker_takes_a_program_along_that_forks_without_a_pause";
    if !is_root() {
        return skip(name, Need::Root, "a file system cannot be mounted");
    }
    if !Path::new("/usr/bin/python3").exists() {
        return skip(name, Need::Program("apt install python3"), "no python3");
    }
    let file = std::env::temp_dir().join(format!("ix-flees-{}", std::process::id()));
    let written = || std::fs::read(&file).expect("the file");
    for user in [&[][..], &["--user", "own"]] {
        let Some(net) = MemifNet::new(name, 1) else { return };
        std::fs::write(&file, "").expect("the file");
        let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o666);
        std::fs::set_permissions(&file, everybody).expect("a mode");
        let path = file.to_str().expect("text");
        let program = ["/usr/bin/python3", "-c", FLEES, path];
        let broker = without_groups(&run_program(&net, user, &program));
        broker.wait_for("flees", PATIENCE);
        let mut other = Command::new("sleep").arg("60").uid(65534).spawn().expect("sleep");
        let before = written();
        std::thread::sleep(Duration::from_millis(100));
        assert_ne!(before, written(), "it does not fork");
        signal(broker.pid(), libc::SIGKILL);
        broker.wait(PATIENCE);
        std::thread::sleep(BROKER);
        let then = written();
        std::thread::sleep(Duration::from_millis(200));
        let goes_on = then != written();
        if goes_on {
            // Nothing else ends it: it is told to.
            std::fs::remove_file(&file).expect("removed");
        }
        let others_end = other.try_wait().expect("a child");
        other.kill().and_then(|()| other.wait()).expect("ended");
        assert!(!goes_on && others_end.is_none(), "{user:?}: {goes_on}, {others_end:?}");
    }
    std::fs::remove_file(&file).expect("removed");
}

/// It knows nothing of them; a run that sees them removes them.
#[test]
fn a_run_that_sees_no_control_groups_leaves_those_of_a_killed_run_to_others() {
    let name = "a_run_that_sees_no_control_groups_leaves_those_of_a_killed_run_to_others";
    if !is_root() {
        return skip(name, Need::Root, "a file system cannot be mounted");
    }
    let Some(net) = MemifNet::new(name, 1) else { return };
    let killed = Process::start(run(&net, &[]));
    killed.wait_for("ready", PATIENCE);
    let pid = killed.pid();
    let claims = std::fs::read_dir("/run/ix/groups").expect("claims").flatten();
    let is_its = |name: &str| name.starts_with(&format!("ix-{pid}-"));
    let claim = claims
        .map(|file| file.path())
        .find(|path| path.file_name().and_then(OsStr::to_str).is_some_and(is_its));
    let listed = claim.map_or(String::new(), |path| std::fs::read_to_string(path).expect("text"));
    let groups: Vec<&Path> = listed.split('\0').map(Path::new).collect();
    if !groups.iter().any(|group| group.exists()) {
        return skip(name, Need::Kernel("control groups that can be written"), "no group");
    }
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.expect("children");
    let is_warden = |pid: &i32| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "exe\n")
    };
    let mut children = children.split_ascii_whitespace().map(|pid| pid.parse().expect("a number"));
    signal(children.find(is_warden).expect("a warden"), libc::SIGKILL);
    signal(pid, libc::SIGKILL);
    killed.wait(PATIENCE);
    for blind in [true, false] {
        let command = run(&net, &[]);
        let next = if blind { without_groups(&command) } else { Process::start(command) };
        next.wait_for("ready", PATIENCE);
        next.terminate();
    }
    let left: Vec<_> = groups.iter().filter(|group| group.exists()).collect();
    assert!(left.is_empty(), "{left:?} are left");
}

#[test]
fn hardware_threads_that_may_not_be_used_are_refused_with_those_that_may() {
    let name = "hardware_threads_that_may_not_be_used_are_refused_with_those_that_may";
    let Some(net) = MemifNet::new(name, 1) else { return };
    for list in ["9999", "x", "", "1-"] {
        let run = run(&net, &["--cpus", "0", "--program-cpus", list]);
        let (status, said) = Process::start(run).wait(PATIENCE);
        let last = said.last().expect("a line");
        let tells =
            last.contains(&format!("--program-cpus {list}")) && last.contains("choose among");
        assert!(status.code() == Some(125) && tells, "{list:?}: {status}: {said:#?}");
    }
}
