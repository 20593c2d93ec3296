//! The address of Linux, shared by port: what the program's sockets own is IX's, and all else goes
//! on as if there were no IX.
use super::shared_kinds::judged;
use crate::support::process::{Process, signal};
use crate::support::stats::Stats;
use crate::support::traffic::echo;
use crate::support::{CLIENT, Nic, PATIENCE, PREFIX, SERVICE, TestNet, build_echo, connect_to};
use crate::support::{SERVICE_V6, domain, eventually};
use ix_skip::{Need, skip};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// A service of Linux on the same address, such as ssh.
pub const LINUX: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 88, 0, 2), 22);

/// A private link on whose near end Linux has the service's address.
pub fn on_linux_address(test: &str) -> Option<TestNet> {
    let net = TestNet::new(test, Nic::Afxdp, 1)?;
    net.server.add_address("ixs0", *SERVICE.ip(), PREFIX).expect("an address");
    Some(net)
}

fn run(net: &TestNet, program: &[&str]) -> Process {
    net.start_shared(program).process
}

pub fn run_echo(net: &TestNet) -> Process {
    let echo = build_echo();
    let process = run(net, &[echo.to_str().expect("text"), "64"]);
    process.wait_for("ready", PATIENCE);
    process
}

/// A session of Linux that goes on for as long as this lives: each byte must come back.
pub struct Session {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
    client: Option<std::thread::JoinHandle<()>>,
}

impl Session {
    pub fn start(net: &TestNet) -> Session {
        let listener = net.server.run(|| TcpListener::bind(LINUX)).expect("Linux listens");
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || {
                    let (mut from, mut to) = (stream.try_clone().expect("a copy"), stream);
                    std::io::copy(&mut from, &mut to)
                });
            }
        });
        let mut stream = net.client.run(|| connect_to(LINUX));
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stops, counts) = (stop.clone(), count.clone());
        let client = std::thread::spawn(move || {
            while !stops.load(Ordering::Relaxed) {
                let number = counts.load(Ordering::Relaxed);
                stream.write_all(&number.to_le_bytes()).expect("the session sends");
                let mut back = [0; 8];
                stream.read_exact(&mut back).expect("the session goes on");
                assert_eq!(u64::from_le_bytes(back), number, "byte for byte");
                counts.store(number + 1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Session { stop, count, client: Some(client) }
    }

    /// Some more messages come back.
    #[track_caller]
    pub fn goes_on(&self) {
        let before = self.count.load(Ordering::Relaxed);
        eventually("the session of Linux goes on", || {
            self.count.load(Ordering::Relaxed) > before + 20
        });
    }

    pub fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.client.take().expect("once").join().expect("the session was never disturbed");
    }
}

/// What a client of the other host is told of each of these ports.
fn scan(net: &TestNet, ports: &[u16]) -> Vec<Result<(), ErrorKind>> {
    let ask = |port: &u16| {
        let to = SocketAddrV4::new(*SERVICE.ip(), *port).into();
        TcpStream::connect_timeout(&to, PATIENCE).map(drop).map_err(|e| e.kind())
    };
    net.client.run(|| ports.iter().map(ask).collect())
}

#[test]
fn a_session_of_linux_goes_on_beside_a_program_of_ix() {
    let Some(net) = on_linux_address("a_session_of_linux_goes_on_beside_a_program_of_ix") else {
        return;
    };
    let ports = [1, 7, 22, 80, 443, 11211, 65535];
    let session = Session::start(&net);
    session.goes_on();
    let before = scan(&net, &ports);
    for round in 0..2 {
        let process = run_echo(&net);
        session.goes_on();
        let mut stream = net.client.run(|| connect_to(SERVICE));
        for id in 0..100 {
            echo(&mut stream, id, 64);
        }
        session.goes_on();
        let mut with = before.clone();
        with[1] = Ok(());
        assert_eq!(scan(&net, &ports), with, "what Linux alone tells, and the program's port");
        assert!(net.client.run(|| ping(*SERVICE.ip())), "Linux answers to ping");
        // The program is killed with its broker: Linux has everything again at once.
        signal(process.pid(), if round == 0 { libc::SIGKILL } else { libc::SIGTERM });
        process.wait(PATIENCE);
        session.goes_on();
        eventually("Linux has the ports again", || scan(&net, &ports) == before);
    }
    session.end();
}

fn ping(to: Ipv4Addr) -> bool {
    let mut ping = std::process::Command::new("ping");
    match ping.args(["-c", "1", "-W", "5", "-q"]).arg(to.to_string()).output() {
        Ok(output) => output.status.success(),
        Err(_) => true,
    }
}

#[test]
fn a_port_is_one_of_the_twos() {
    let Some(net) = on_linux_address("a_port_is_one_of_the_twos") else { return };
    // Linux has the port: the program hears so.
    let listener = net.server.run(|| TcpListener::bind(SERVICE)).expect("free");
    let echo_path = build_echo();
    let refused = run(&net, &[echo_path.to_str().expect("text"), "64"]);
    let (status, said) = refused.wait(PATIENCE);
    assert!(!status.success(), "{said:#?}");
    assert!(said.iter().any(|line| line.contains("already in use")), "{said:#?}");
    drop(listener);
    // IX has it: a program of Linux hears so, whatever it sets.
    let process = run_echo(&net);
    net.server.run(|| {
        for at in [*SERVICE.ip(), Ipv4Addr::UNSPECIFIED] {
            // It sets SO_REUSEADDR.
            let e = TcpListener::bind((at, SERVICE.port())).expect_err("IX has it");
            assert_eq!(e.kind(), ErrorKind::AddrInUse, "{at}");
        }
        TcpListener::bind((Ipv4Addr::LOCALHOST, SERVICE.port())).expect("another address");
        UdpSocket::bind(SERVICE).expect("another protocol");
    });
    process.terminate();
    net.server.run(|| TcpListener::bind(SERVICE)).expect("free again");
}

/// Serves at an address and port: says whom it serves, and, asked for an address, what it hears
/// there.
const PROGRAM: &str = "
import socket, sys
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind((sys.argv[1], int(sys.argv[2])))
server.listen(16)
print('ready', flush=True)
while True:
    client, peer = server.accept()
    words = client.recv(100).decode().split()
    if words:
        there = socket.create_connection((words[0], int(words[1])), 5)
        client.sendall(there.recv(100))
        there.close()
    client.sendall(('%s %d' % peer).encode())
    client.close()
";

/// One question to a service of [`PROGRAM`].
pub fn ask(to: SocketAddrV4, words: &str) -> String {
    let mut stream = connect_to(to);
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.write_all(if words.is_empty() { b" " } else { words.as_bytes() }).expect("write");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

/// A service that tells each client its port.
fn tells_ports(at: SocketAddrV4) {
    let listener = TcpListener::bind(at).expect("free");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let port = stream.peer_addr().expect("a peer").port();
            let _ = stream.write_all(format!("from {port} ").as_bytes());
        }
    });
}

/// An unmodified program: other hosts reach it by IX, the host itself by Linux, and it reaches both
/// others and services of Linux on its own address.
#[test]
fn an_unmodified_program_shares_the_address() {
    let test = "an_unmodified_program_shares_the_address";
    const PYTHON: &str = "/usr/bin/python3";
    if !std::path::Path::new(PYTHON).exists() {
        return skip(test, Need::Program("apt-get install python3"), "no python3");
    }
    let Some(net) = on_linux_address(test) else { return };
    net.server.set_up("lo", true).expect("loopback");
    let beyond = SocketAddrV4::new(CLIENT, 9);
    net.client.run(|| tells_ports(beyond));
    net.server.run(|| tells_ports(LINUX));
    for own in [*SERVICE.ip(), Ipv4Addr::UNSPECIFIED] {
        let at = SocketAddrV4::new(*SERVICE.ip(), 8080);
        let process = run(&net, &[PYTHON, "-c", PROGRAM, &own.to_string(), "8080"]);
        process.wait_for("ready", PATIENCE);
        let shares = process.wait_for("ix: shares 10.88.0.2 with Linux on ixs0", PATIENCE);
        // From another host, first of all: it waits until the program does.
        assert!(net.client.run(|| ask(at, "")).starts_with("10.88.0.1 "));
        // From the host itself.
        let local = net.server.run(|| ask(at, ""));
        assert!(local.starts_with("10.88.0.2 "), "{local}");
        // To another host, from a port of IX.
        let heard = net.client.run(|| ask(at, &beyond.to_string().replace(':', " ")));
        let port = heard.split(' ').nth(1).expect("a port");
        let block = shares.split(' ').find_map(|word| word.split_once('-')).expect("a range");
        assert!((block.0..=block.1).contains(&port), "{heard}: {shares}");
        // To a service of Linux on its own address.
        let heard = net.client.run(|| ask(at, &LINUX.to_string().replace(':', " ")));
        assert!(heard.starts_with("from "), "{heard}");
        // Three clients came from another host, and one connection went there.
        eventually("IX has served the others, and Linux the host itself", || {
            let stats = Stats::ask(&net.file("control.sock"));
            (stats.total("accepted"), stats.total("connects")) == (3, 1)
        });
        // A second one is refused, as on Linux.
        let taken = net.server.run(|| TcpListener::bind(at)).expect_err("IX has it");
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
        process.terminate();
    }
    // Linux has the port: the program hears so when it binds.
    let _taken = net.server.run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 8080))).expect("free");
    let refused = run(&net, &[PYTHON, "-c", PROGRAM, "10.88.0.2", "8080"]);
    let (status, said) = refused.wait(PATIENCE);
    assert_eq!(status.code(), Some(1), "{said:#?}");
    assert!(said.iter().any(|line| line.contains("Address already in use")), "{said:#?}");
}

/// memcached becomes another user before it listens, and Linux lets only one user share a port.
#[test]
fn a_program_that_becomes_another_user_shares_the_address() {
    let test = "a_program_that_becomes_another_user_shares_the_address";
    if std::process::Command::new("memcached").arg("-V").output().is_err() {
        return skip(test, Need::Program("apt-get install memcached"), "no memcached");
    }
    let Some(net) = on_linux_address(test) else { return };
    net.server.set_up("lo", true).expect("loopback");
    let process = run(&net, &["memcached", "-u", "nobody", "-U", "0"]);
    let at = SocketAddrV4::new(*SERVICE.ip(), 11211);
    // From another host by IX, and from the host itself by Linux.
    for namespace in [&net.client, &net.server] {
        eventually("memcached answers", || {
            let Ok(mut stream) = namespace.run(|| TcpStream::connect(at)) else { return false };
            stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            stream.write_all(b"version\r\n").expect("ask");
            let mut answer = [0; 8];
            stream.read_exact(&mut answer).is_ok() && &answer == b"VERSION "
        });
    }
    let stats = Stats::ask(&net.file("control.sock"));
    assert_eq!(stats.total("accepted"), 1, "IX served the other host alone");
    process.signal(libc::SIGTERM);
    let (status, said) = process.wait(PATIENCE);
    assert!(status.success(), "{status}: {said:#?}");
}

/// The dataplane dies, not the program: its ports are not Linux's meanwhile, and another dataplane
/// has them.
#[test]
fn ports_outlive_a_dataplane() {
    if domain() != "process" {
        return;
    }
    let Some(net) = on_linux_address("ports_outlive_a_dataplane") else { return };
    let session = Session::start(&net);
    let echo_path = build_echo();
    let service = net.start_shared(&[echo_path.to_str().expect("text"), "64"]);
    service.process.wait_for("ready", PATIENCE);
    for round in 0..2 {
        let mut stream = net.client.run(|| connect_to(SERVICE));
        echo(&mut stream, round, 64);
        session.goes_on();
        signal(service.dataplane(), libc::SIGKILL);
        let taken = net.server.run(|| TcpListener::bind(SERVICE)).expect_err("it is IX's");
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
        service.process.wait_for_nth("ix: device afxdp:ixs0", round as usize + 2, PATIENCE);
        // Until the program listens there, the new dataplane refuses connections itself.
        eventually("it is served again", || scan(&net, &[SERVICE.port()]) == [Ok(())]);
        session.goes_on();
    }
    let mut stream = net.client.run(|| connect_to(SERVICE));
    echo(&mut stream, 9, 64);
    session.end();
    service.process.terminate();
}

/// Tells who sends a datagram how long it is.
const DATAGRAMS: &str = "
import socket, sys
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind((sys.argv[1], 5353))
print('ready', flush=True)
while True:
    data, peer = server.recvfrom(4000)
    server.sendto(str(len(data)).encode(), peer)
";

#[test]
fn datagrams_and_their_fragments_reach_their_owner() {
    let test = "datagrams_and_their_fragments_reach_their_owner";
    const PYTHON: &str = "/usr/bin/python3";
    if !std::path::Path::new(PYTHON).exists() {
        return skip(test, Need::Program("apt-get install python3"), "no python3");
    }
    let Some(net) = on_linux_address(test) else { return };
    let sent = |client: &UdpSocket, port: u16, bytes: usize| {
        client.send_to(&vec![7; bytes], (*SERVICE.ip(), port)).expect("sent");
        let mut back = [0; 16];
        client.recv(&mut back).map(|n| String::from_utf8_lossy(&back[..n]).into_owned())
    };
    let linux = net.server.run(|| UdpSocket::bind((*SERVICE.ip(), 54))).expect("free");
    std::thread::spawn(move || {
        let mut data = [0; 4000];
        while let Ok((n, peer)) = linux.recv_from(&mut data) {
            let _ = linux.send_to(format!("Linux {n}").as_bytes(), peer);
        }
    });
    for own in [*SERVICE.ip(), Ipv4Addr::UNSPECIFIED] {
        let process = run(&net, &[PYTHON, "-c", DATAGRAMS, &own.to_string()]);
        process.wait_for("ready", PATIENCE);
        process.wait_for("ix: device afxdp:ixs0", PATIENCE);
        let client = net.client.run(|| UdpSocket::bind((CLIENT, 0))).expect("free");
        client.set_read_timeout(Some(Duration::from_millis(300))).expect("a timeout");
        // The port is claimed after the program says that it is ready.
        eventually("it serves", || sent(&client, 5353, 1).is_ok_and(|n| n == "1"));
        // Those that Linux has kept from before the claim are answered too.
        while client.recv(&mut [0; 16]).is_ok() {}
        // No socket gets a datagram that arrives after the claim and before the bind.
        let before = Stats::ask(&net.file("control.sock")).drops();
        client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        // The longest one that IX takes, in two fragments.
        for bytes in [10, 1400, 1900] {
            assert_eq!(sent(&client, 5353, bytes).expect("an answer"), bytes.to_string());
            assert_eq!(sent(&client, 54, bytes).expect("an answer"), format!("Linux {bytes}"));
        }
        let stats = Stats::ask(&net.file("control.sock"));
        assert_eq!(stats.drops(), before, "{stats}");
        process.terminate();
        client.set_read_timeout(Some(Duration::from_millis(300))).expect("a timeout");
        let gone = sent(&client, 5353, 1);
        assert!(gone.is_err() || sent(&client, 5353, 1).is_err(), "Linux says so: {gone:?}");
    }
}

/// The neighbour's Ethernet address changes: Linux notices, and IX with it.
#[test]
fn neighbours_are_those_of_linux() {
    let Some(net) = on_linux_address("neighbours_are_those_of_linux") else { return };
    let process = run_echo(&net);
    let mut stream = net.client.run(|| connect_to(SERVICE));
    echo(&mut stream, 1, 64);
    net.client.set_mac("ixc0", [2, 0, 0, 0, 0x77, 1]).expect("another address");
    // It says so as any host does.
    net.client.run(|| {
        let mut arping = std::process::Command::new("ip");
        arping.args(["neigh", "flush", "all"]).status().expect("ip");
        assert!(ping(*SERVICE.ip()));
    });
    for id in 2..10 {
        echo(&mut stream, id, 64);
    }
    assert_eq!(CLIENT, Ipv4Addr::new(10, 88, 0, 1));
    process.terminate();
}

/// IX has packets before Linux's firewall: its rules are named, and refused until the user says
/// that they do not matter.
#[test]
fn a_firewall_that_would_be_passed_by_is_named() {
    let test = "a_firewall_that_would_be_passed_by_is_named";
    let Some(net) = on_linux_address(test) else { return };
    let nft = |command: &str| {
        let run = || std::process::Command::new("nft").arg(command).output();
        net.server.run(run).is_ok_and(|output| output.status.success())
    };
    if !nft("add table inet guard") {
        return skip(test, Need::Program("apt-get install nftables"), "no nft");
    }
    // No rule, and what accepts or is another interface's: nothing is passed by.
    let accepts = "{ type filter hook input priority 0; policy accept; }";
    assert!(nft(&format!("add chain inet guard arrives {accepts}")));
    let forwards = "{ type filter hook forward priority 0; policy drop; }";
    assert!(nft(&format!("add chain inet guard passes {forwards}")));
    for other in ["iifname eth7 drop", "iifname \"docker*\" drop", "iifname != ixs0 drop"] {
        assert!(nft(&format!("add rule inet guard arrives {other}")), "{other}");
    }
    run_echo(&net).terminate();
    assert!(nft("add rule inet guard arrives iifname \"ixs*\" tcp dport 9 drop"));
    // A family's own.
    net.server.enable_ipv6("ixs0").expect("IPv6");
    net.server.add_address("ixs0", SERVICE_V6, 64).expect("an address");
    assert!(nft("add table ip6 six") && nft(&format!("add chain ip6 six arrives {accepts}")));
    assert!(nft("add rule ip6 six arrives tcp dport 9 drop"));
    let echo = build_echo();
    let program = [echo.to_str().expect("text"), "64"];
    let (status, said) = run(&net, &program).wait(PATIENCE);
    let last = said.last().expect("a line");
    let chains = ["inet guard arrives", "ip6 six arrives"];
    let tells = [&["cannot share", "--ignore-firewall", "--addr"][..], &chains].concat();
    let tells = tells.iter().all(|word| last.contains(word)) && !last.contains("passes");
    assert!(status.code() == Some(125) && tells, "{status}: {said:#?}");
    let next = "ix run --nic ixs0 --ignore-firewall PROGRAM";
    chains.iter().for_each(|chain| judged(&net, "ixs0", chain, next));
    let ignored = net.start_shared_with(&["--ignore-firewall"], &program).process;
    ignored.wait_for("ready", PATIENCE);
    let names = |line: &String| chains.iter().all(|chain| line.contains(chain));
    assert!(ignored.said().iter().any(names), "{ignored}");
    // Rules that come later are named once, those that are known are not.
    let late = "{ type filter hook input priority 10; policy accept; }";
    assert!(nft("add rule inet guard arrives tcp dport 10 drop"));
    assert!(nft(&format!("add chain inet guard late {late}")));
    assert!(nft("add rule inet guard late tcp dport 64 drop"));
    ignored.wait_for("ix: Linux's firewall has new rules for ixs0", PATIENCE);
    let told: Vec<_> =
        ignored.said().into_iter().filter(|line| line.contains("new rules")).collect();
    let is_one = told.len() == 1 && told[0].ends_with("ports: inet guard late");
    assert!(is_one, "{told:#?}");
    ignored.terminate();
}
