//! A user who is logged in by the interface that IX shares notices nothing: a real ssh session goes
//! on byte for byte, and all ports are as Linux alone has them, but for the program's.
use super::shared_ipv6::on_both_families;
use crate::support::process::{Process, signal};
use crate::support::traffic::{Crowd, echo};
use crate::support::{PATIENCE, SERVICE, SERVICE_V6, TestNet, build_echo, connect_to, eventually};
use ix_random::Rng;
use ix_skip::{Need, skip};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const SSHD: &str = "/usr/sbin/sshd";
/// Bytes of a message of the session.
const MESSAGE_BYTES: usize = 2000;

/// A session of OpenSSH on Linux, through which bytes go there and back all the time.
struct Ssh {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
    talker: Option<std::thread::JoinHandle<ChildStdin>>,
    client: Child,
    _server: Process,
}

impl Ssh {
    fn start(net: &TestNet) -> Ssh {
        let folder = net.file("ssh");
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::create_dir_all("/run/sshd").expect("where its children are confined");
        for name in ["host", "own"] {
            let mut keygen = Command::new("ssh-keygen");
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(folder.join(name));
            assert!(keygen.status().expect("ssh-keygen").success());
        }
        let at = folder.display();
        let config = format!(
            "Port 22\nHostKey {at}/host\nAuthorizedKeysFile {at}/own.pub\nPidFile none\n\
             StrictModes no\nPermitRootLogin yes\nUsePAM no\n"
        );
        std::fs::write(folder.join("config"), config).expect("a configuration");
        let mut command = net.server.command(SSHD, None);
        command.args(["-D", "-e", "-f"]).arg(folder.join("config"));
        let server = Process::start(command);
        server.wait_for("Server listening on", PATIENCE);
        let mut command = net.client.command("ssh", None);
        command.arg("-i").arg(folder.join("own"));
        for option in ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR"]
        {
            command.args(["-o", option]);
        }
        command.args(["-o", "BatchMode=yes", &format!("root@{}", SERVICE.ip()), "exec cat"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut client = command.spawn().expect("ssh");
        let (mut to, mut from) =
            (client.stdin.take().expect("piped"), client.stdout.take().expect("piped"));
        let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stops, counts) = (stop.clone(), count.clone());
        let talker = std::thread::spawn(move || {
            let mut random = Rng::new(22);
            let (mut said, mut heard) = (vec![0; MESSAGE_BYTES], vec![0; MESSAGE_BYTES]);
            while !stops.load(Ordering::Relaxed) {
                random.fill(&mut said);
                to.write_all(&said).expect("the session sends");
                from.read_exact(&mut heard).expect("the session goes on");
                assert!(said == heard, "byte for byte");
                counts.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
            to
        });
        Ssh { stop, count, talker: Some(talker), client, _server: server }
    }

    #[track_caller]
    fn goes_on(&self) {
        let before = self.count.load(Ordering::Relaxed);
        eventually("ssh goes on", || self.count.load(Ordering::Relaxed) > before + 20);
    }

    /// It ends as its user ends it.
    fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        drop(self.talker.take().expect("once").join().expect("never disturbed"));
        assert!(self.client.wait().expect("ssh").success());
    }
}

fn run(net: &TestNet) -> Process {
    let echo = build_echo();
    let words = [echo.to_str().expect("text"), "64", "--addr", "::"];
    let process = net.start_shared(&words).process;
    process.wait_for("ready", PATIENCE);
    process
}

/// A real session of ssh over the interface goes on while IX starts, serves a load, is killed, and
/// starts again.
#[test]
fn an_ssh_session_goes_on_whatever_ix_does() {
    let test = "an_ssh_session_goes_on_whatever_ix_does";
    if !Path::new(SSHD).exists() {
        return skip(
            test,
            Need::Program("apt-get install openssh-server openssh-client"),
            "no sshd",
        );
    }
    let Some(net) = on_both_families(test) else { return };
    let ssh = Ssh::start(&net);
    ssh.goes_on();
    for round in 0..3 {
        let process = run(&net);
        ssh.goes_on();
        let crowd = Crowd { service: SERVICE, size: 64, turnover: true };
        let echoed = crowd.during(&net.client, || {
            ssh.goes_on();
            std::thread::sleep(Duration::from_millis(500));
        });
        assert!(echoed > 100, "{echoed}");
        if round == 2 {
            process.terminate();
        } else {
            let mut stream = net.client.run(|| connect_to(SERVICE));
            echo(&mut stream, round, 64);
            signal(process.pid(), libc::SIGKILL);
            process.wait(PATIENCE);
        }
        ssh.goes_on();
    }
    eventually("the interface is as before", || {
        net.server.xdp_program("ixs0").expect("asked").is_none()
    });
    ssh.end();
}

/// The ports of an address that answer, and those that answer otherwise than by a refusal.
fn scan(net: &TestNet, own: IpAddr) -> Vec<(u16, String)> {
    const SCANNERS: u16 = 4;
    let part = |first: u16| {
        (0..=u16::MAX).skip(first.into()).step_by(SCANNERS.into()).filter_map(move |port| {
            if port == 0 {
                return None;
            }
            match TcpStream::connect_timeout(&SocketAddr::from((own, port)), PATIENCE) {
                Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => None,
                Err(e) => Some((port, e.kind().to_string())),
                Ok(_) => Some((port, "open".to_owned())),
            }
        })
    };
    let mut all: Vec<_> = std::thread::scope(|scope| {
        let scan =
            |first: u16| scope.spawn(move || net.client.run(|| part(first).collect::<Vec<_>>()));
        let scanners: Vec<_> = (0..SCANNERS).map(scan).collect();
        scanners.into_iter().flat_map(|of| of.join().expect("scanned")).collect::<Vec<_>>()
    });
    all.sort();
    all
}

/// From outside every port of both families is as with Linux alone, and the program's is open.
#[test]
fn a_scan_of_all_ports_finds_linux_and_the_program() {
    let test = "a_scan_of_all_ports_finds_linux_and_the_program";
    let Some(net) = on_both_families(test) else { return };
    let listeners: Vec<_> = [22, 443, 60_000]
        .map(|port| net.server.run(|| std::net::TcpListener::bind(("::", port))))
        .into_iter()
        .map(|bound| bound.expect("free"))
        .collect();
    let families = [IpAddr::from(*SERVICE.ip()), SERVICE_V6.into()];
    // The block of IX is where Linux has its own ports for connections.
    let before = families.map(|own| scan(&net, own));
    let open: Vec<_> = [22, 443, 60_000].map(|port| (port, "open".to_owned())).to_vec();
    assert_eq!(before, [open.clone(), open.clone()]);
    let process = run(&net);
    net.client.run(|| {
        let mut stream = connect_to(SERVICE);
        echo(&mut stream, 1, 64);
    });
    let mut expected = open;
    expected.insert(0, (SERVICE.port(), "open".to_owned()));
    assert_eq!(families.map(|own| scan(&net, own)), [expected.clone(), expected]);
    process.terminate();
    assert_eq!(families.map(|own| scan(&net, own)), before);
    drop(listeners);
}
