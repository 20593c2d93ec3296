//! OpenSSH's server: each connection goes through processes that it forks and executes, one of
//! which forbids itself nearly all system calls and every descriptor.
use super::{Program, folder, has, run, start};
use crate::support::process::{Process, signal};
use crate::support::{PATIENCE, SERVICE, TestNet, eventually};
use ix_random::Rng;
use std::path::Path;
use std::process::Command;

pub const PROGRAM: Program = Program {
    name: "sshd",
    version: "OpenSSH 9.2p1",
    started: "/usr/sbin/sshd -D",
    test: "sshd_copies_files_both_ways_and_reloads",
    shown: "`scp` both ways, four at a time; a session that lives through SIGHUP; one that is killed",
    watch: "name it by its whole path, as sshd wants. `ps` and what a session starts have IX, too. \
            `setrlimit(RLIMIT_NOFILE)` leaves at least three descriptors",
};

const SSHD: &str = "/usr/sbin/sshd";
/// Bytes of the file that is copied.
const FILE_BYTES: usize = 3_000_000;

struct Client<'a> {
    net: &'a TestNet,
    key: &'a Path,
}

impl Client<'_> {
    fn command(&self, program: &str) -> Command {
        let mut command = self.net.client.command(program, None);
        let port = if program == "scp" { "-P" } else { "-p" };
        command.arg(port).arg(SERVICE.port().to_string()).arg("-i").arg(self.key);
        for option in [
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            "LogLevel=ERROR",
            "BatchMode=yes",
            "ConnectTimeout=20",
        ] {
            command.args(["-o", option]);
        }
        command
    }

    fn ssh(&self, what: &str) -> String {
        let mut command = self.command("ssh");
        command.arg(format!("root@{}", SERVICE.ip())).arg(what);
        run(command)
    }

    fn scp(&self, from: &str, to: &str) {
        let mut command = self.command("scp");
        command.args(["-q", from, to]);
        run(command);
    }
}

#[test]
fn sshd_copies_files_both_ways_and_reloads() {
    let test = "sshd_copies_files_both_ways_and_reloads";
    if !has(test, &[SSHD, "/usr/bin/scp"], "openssh-server openssh-client") {
        return;
    }
    let folder = folder(test);
    for name in ["host", "own"] {
        let mut keygen = Command::new("ssh-keygen");
        keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(folder.join(name));
        run(keygen);
    }
    std::fs::create_dir_all("/run/sshd").expect("where its children are confined");
    let (at, port) = (folder.display(), SERVICE.port());
    let config = format!(
        "Port {port}\nListenAddress {}\nHostKey {at}/host\nAuthorizedKeysFile {at}/own.pub\n\
         PidFile {at}/pid\nStrictModes no\nPermitRootLogin yes\nUsePAM no\n\
         Subsystem sftp internal-sftp\n",
        SERVICE.ip()
    );
    std::fs::write(folder.join("config"), config).expect("a configuration");
    let config = folder.join("config");
    let words = [SSHD, "-D", "-e", "-f", config.to_str().expect("text")];
    let Some((net, service)) = start(test, &[], &words) else { return };
    service.process.wait_for("Server listening on", PATIENCE);
    let key = folder.join("own");
    let client = Client { net: &net, key: &key };
    let mut bytes = vec![0; FILE_BYTES];
    let mut random = Rng::new(1);
    bytes.fill_with(|| random.next_u64() as u8);
    let file = folder.join("file");
    std::fs::write(&file, &bytes).expect("a file");
    let remote = |name: &str| format!("root@{}:{at}/{name}", SERVICE.ip());
    std::thread::scope(|scope| {
        for n in 0..4 {
            let (client, remote, folder, bytes, file) = (&client, &remote, &folder, &bytes, &file);
            scope.spawn(move || {
                let (up, down) = (format!("up{n}"), format!("down{n}"));
                client.scp(file.to_str().expect("text"), &remote(&up));
                assert!(std::fs::read(folder.join(&up)).expect("a copy") == *bytes, "{up}");
                let to = folder.join(&down);
                client.scp(&remote(&up), to.to_str().expect("text"));
                assert!(std::fs::read(to).expect("a copy") == *bytes, "{down}");
            });
        }
    });
    // What a session starts is a child of its, with a clean environment.
    let said = client.ssh("env; echo it is $PPID");
    assert!(!said.contains("LD_PRELOAD") && !said.contains("IX_IMAGE"), "{said}");
    // It lives on while the server executes itself anew.
    let mut session = client.command("ssh");
    session.arg(format!("root@{}", SERVICE.ip())).arg("echo it is $PPID $$; exec sleep 1000");
    let session = Process::start(session);
    let line = session.wait_for("it is ", PATIENCE);
    let mut pids = line["it is ".len()..].split(' ').map(|pid| pid.parse().expect("a number"));
    let (pid, sleeps): (i32, i32) = (pids.next().expect("one"), pids.next().expect("two"));
    signal(super::pid_in(&folder.join("pid")), libc::SIGHUP);
    service.process.wait_for_nth("Server listening on", 2, PATIENCE);
    assert!(client.ssh("echo again").contains("again"));
    assert!(Path::new(&format!("/proc/{pid}")).exists(), "the session lives: {session}");
    // Who is killed takes its own connection along, and no other one.
    signal(pid, libc::SIGKILL);
    let (status, _) = session.wait(PATIENCE);
    assert!(!status.success(), "the client is told");
    signal(sleeps, libc::SIGKILL);
    assert!(client.ssh("echo still").contains("still"));
    let stats = service.stats();
    assert!(stats.total("accepted") >= 12, "it was IX that served: {stats}");
    signal(super::pid_in(&folder.join("pid")), libc::SIGTERM);
    let (status, said) = service.process.wait(PATIENCE);
    assert!(status.code().is_some(), "{said:#?}");
    eventually("no process is left", || !Path::new(&format!("/proc/{pid}")).exists());
}
