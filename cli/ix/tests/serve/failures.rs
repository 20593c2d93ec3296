//! Links that go, peers that vanish, programs that crash: what is left keeps running, and nothing
//! stays behind.
use crate::support;
use crate::support::frames::{self, ACK, Macs, PSH, RST, SYN, Seen, Segment};
use crate::support::process::{
    Process, cpu_time, descriptors_below, is_alive, signal, state_and_parent,
};
use crate::support::traffic::{self, Steady, close, echo, message};
use crate::support::{Nic, PATIENCE, SERVICE, Service, TestNet, connect, eventually};
use ix_testbed::PacketSocket;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn connections_outlive_a_link_that_goes_down() {
    for nic in Nic::ALL {
        let name = "connections_outlive_a_link_that_goes_down";
        let Some(net) = TestNet::new(name, nic, 1) else { return };
        let service = net.serve(&["1000"]);
        let (namespace, link) = net.service_link();
        net.client.run(|| {
            Steady::during(1000, |steady| {
                for down_ms in [0, 50, 500] {
                    steady.goes_on();
                    namespace.set_up(link, false).expect("down");
                    std::thread::sleep(Duration::from_millis(down_ms));
                    namespace.set_up(link, true).expect("up");
                    steady.goes_on();
                    close(connect());
                }
            });
        });
        service.process.wait_for(&format!("ix: link {link} is down"), PATIENCE);
        service.process.wait_for(&format!("ix: link {link} is up"), PATIENCE);
        service.finish(PATIENCE);
    }
}

/// Only the Linux end goes down: the carrier is lost.
#[test]
fn connections_outlive_a_lost_carrier() {
    let Some(net) = TestNet::new("connections_outlive_a_lost_carrier", Nic::Afxdp, 1) else {
        return;
    };
    let service = net.serve(&["1000"]);
    net.client.run(|| {
        Steady::during(1000, |steady| {
            steady.goes_on();
            net.client.set_up(net.client_link(), false).expect("down");
            std::thread::sleep(Duration::from_millis(300));
            net.client.set_up(net.client_link(), true).expect("up");
            steady.goes_on();
        });
    });
    service.finish(PATIENCE);
}

/// The interface is taken away: no way to serve, but no crash and no busy loop either.
#[test]
fn an_interface_that_is_removed_is_told() {
    for nic in Nic::ALL {
        let name = "an_interface_that_is_removed_is_told";
        let Some(net) = TestNet::new(name, nic, 1) else { return };
        let mut service = net.serve(&["64"]);
        let mut stream = net.connect();
        echo(&mut stream, 1, 64);
        let (namespace, link) = net.service_link();
        namespace.delete_link(link).expect("removed");
        service.process.wait_for(&format!("ix: link {link} is gone"), PATIENCE);
        std::thread::sleep(Duration::from_millis(500));
        let program = service.program();
        let before = cpu_time(program);
        std::thread::sleep(Duration::from_secs(1));
        let used = cpu_time(program) - before;
        assert!(used < Duration::from_millis(200), "{nic:?}: a busy loop: {used:?} in a second");
        service.process.check();
        service.process.terminate();
    }
}

/// `ix run` has no descriptor left when clients of all its sockets connect. They wait; it does not
/// spin, and serves them when it has descriptors again.
#[test]
fn a_broker_without_descriptors_accepts_later() {
    const MOST: u64 = 128;
    /// What it inherits leaves room for fewer clients than it takes.
    const LIMITED: &str = "
ulimit -n 128
for ((n = 40; n <= 110; n++)); do eval \"exec $n</dev/null\"; done
exec \"$@\"
";
    let folder = std::env::temp_dir().join(format!("ix-descriptors-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let (control, link) = (folder.join("control.sock"), folder.join("link"));
    let mut command = Command::new("bash");
    command.args(["-c", LIMITED, "bash", env!("CARGO_BIN_EXE_ix"), "run"]);
    command.args(["--domain", "process", "--addr", "10.79.0.2/24", "--nic"]);
    command.arg(format!("memif:{},role=server", link.display()));
    command.args(["--metrics", "127.0.0.1:0", "--control"]).arg(&control);
    command.arg("--").arg(support::build_echo()).arg("64");
    let process = Process::start(command);
    process.wait_for("ready", PATIENCE);
    let metrics = process.wait_for("ix: metrics at http://", PATIENCE);
    let metrics = metrics.trim_start_matches("ix: metrics at http://").trim_end_matches("/metrics");
    let greeted = |stream: &UnixStream| {
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).expect("a greeting");
        assert!(line.contains("hello"), "{line}");
    };
    // Clients that it has already take what is left.
    let read_only = control.with_extension("ro.sock");
    let mut clients = Vec::new();
    while descriptors_below(process.pid(), MOST) < MOST {
        let client = UnixStream::connect(&read_only).expect("connects");
        greeted(&client);
        clients.push(client);
        assert!(clients.len() < 32, "one takes another one's place");
    }
    let operators = [&control, &read_only].map(|path| UnixStream::connect(path).expect("connects"));
    let mut scrape = TcpStream::connect(metrics).expect("connects");
    scrape.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("asks");
    let at = link.to_str().expect("text");
    let peer = ix_sys::socket::connect_unix(libc::SOCK_SEQPACKET, at).expect("connects");
    let why = "no client can be accepted (Too many open files";
    for of in [control.to_str().expect("text"), "metrics:", "memif:"] {
        eventually("it is said", || {
            let said = process.said();
            said.iter().any(|line| line.starts_with(&format!("ix: {of}")) && line.contains(why))
        });
    }
    let used = cpu_time(process.pid());
    std::thread::sleep(Duration::from_secs(1));
    let used = cpu_time(process.pid()) - used;
    assert!(used < Duration::from_millis(200), "a busy loop: {used:?} in a second");
    let lines = process.said().iter().filter(|line| line.contains(why)).count();
    assert_eq!(lines, 3, "{:#?}", process.said());
    drop(clients);
    operators.iter().for_each(greeted);
    scrape.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut page = String::new();
    scrape.read_to_string(&mut page).expect("a page");
    assert!(page.starts_with("HTTP/1.1 200"), "{page}");
    assert!(ix_sys::poll::is_readable(&peer, PATIENCE).expect("a greeting"));
    process.terminate();
    std::fs::remove_dir_all(folder).expect("removed");
}

/// A machine that stops while answers are on their way to it, and comes back without a memory.
#[test]
fn peers_that_lost_their_memory_are_forgotten() {
    const SIZE: usize = 200_000;
    for nic in Nic::ALL {
        let name = "peers_that_lost_their_memory_are_forgotten";
        let Some(net) = TestNet::new(name, nic, 1) else { return };
        let service = net.serve(&[&SIZE.to_string()]);
        net.client.run(|| {
            Steady::during(SIZE, |steady| {
                for id in 0..20 {
                    use std::io::Write;
                    let mut stream = connect();
                    traffic::shrink_receive_buffer(&stream, 5000);
                    stream.write_all(&message(id, SIZE)).expect("write");
                    // The service answers once it has the whole message. The window is shut soon,
                    // and most of the answer is still to come.
                    stream.peek(&mut [0]).expect("the answer begins");
                    std::thread::sleep(Duration::from_millis(5));
                    traffic::vanish(stream);
                }
                steady.goes_on();
                service.wait_until("only one is left", PATIENCE, |s| s.total("flows") == 1);
                steady.goes_on();
            });
        });
        let stats = service.finish(PATIENCE);
        assert_eq!(stats.total("tcp.resets_received"), 20, "{nic:?}");
    }
}

/// A host that only exists in this test, so that it can vanish as no kernel would.
struct Phantom<'a> {
    wire: &'a PacketSocket,
    macs: Macs,
    at: SocketAddrV4,
}

impl Phantom<'_> {
    const IP: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 77);

    /// Opens a connection and asks for `size` bytes; never acknowledges the answer.
    fn ask(net: &TestNet, wire: &PacketSocket, size: usize) -> Seen {
        let macs = Macs { to: net.service_mac(), from: [2, 0, 0, 0, 0, 0x77] };
        let host = Phantom { wire, macs, at: SocketAddrV4::new(Phantom::IP, 7777) };
        let known = (macs.to, *SERVICE.ip());
        wire.send(&frames::arp(macs, 2, (macs.from, Phantom::IP), known)).expect("send");
        host.send(SYN, 1000, 0, Vec::new());
        let answer = host.wait_for(|seen| seen.flags == SYN | ACK);
        assert_eq!(answer.ack, 1001);
        host.send(ACK | PSH, 1001, answer.seq.wrapping_add(1), message(1, size));
        host.wait_for(|seen| seen.len > 0)
    }

    fn send(&self, flags: u8, seq: u32, ack: u32, payload: Vec<u8>) {
        let (macs, from, options) = (self.macs, self.at, Vec::new());
        let segment = Segment { macs, from, to: SERVICE, seq, ack, flags, options, payload };
        self.wire.send(&segment.frame()).expect("send");
    }

    /// Waits for a segment to this host; answers ARP meanwhile.
    fn wait_for(&self, wanted: impl Fn(&Seen) -> bool) -> Seen {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            let Some(frame) = self.wire.receive(Duration::from_millis(100)).expect("receive")
            else {
                continue;
            };
            if frame[12..14] == [8, 6] && frames::ip_at(&frame, 38) == Phantom::IP {
                let us = (self.macs.from, Phantom::IP);
                let answer = frames::arp(self.macs, 2, us, (self.macs.to, *SERVICE.ip()));
                self.wire.send(&answer).expect("send");
            }
            let seen = frames::read_tcp(&frame).filter(|seen| seen.to == self.at);
            if let Some(seen) = seen.filter(&wanted) {
                return seen;
            }
        }
        panic!("no such segment came");
    }
}

/// A peer that is never heard of again costs one flow until it is given up, and nobody else.
#[test]
fn a_peer_that_vanishes_hurts_nobody_else() {
    for nic in Nic::ALL {
        let Some(net) = TestNet::new("a_peer_that_vanishes_hurts_nobody_else", nic, 1) else {
            return;
        };
        let service = net.serve(&["100"]);
        let wire = net.wire();
        net.client.run(|| {
            Steady::during(100, |steady| {
                let answer = Phantom::ask(&net, &wire, 100);
                service.wait_until("it tries again", PATIENCE, |stats| {
                    stats.total("tcp.retransmits") >= 5
                });
                steady.goes_on();
                assert_eq!(service.stats().total("flows"), 2, "{nic:?}: given up too early");
                // It starts anew, and does not know the connection.
                let macs = Macs { to: net.service_mac(), from: [2, 0, 0, 0, 0, 0x77] };
                let reborn = Phantom { wire: &wire, macs, at: answer.to };
                let again = reborn.wait_for(|seen| seen.len > 0);
                reborn.send(RST, again.ack, 0, Vec::new());
                service.wait_until("it is gone", PATIENCE, |stats| stats.total("flows") == 1);
            });
        });
        service.finish(PATIENCE);
    }
}

/// R2 of RFC 9293 section 3.8.3: a peer that never answers is given up after at least 100 s.
#[test]
#[ignore = "long; .ci/run nightly"]
fn a_silent_peer_is_given_up() {
    let Some(net) = TestNet::new("a_silent_peer_is_given_up", Nic::Tap, 1) else { return };
    let service = net.serve(&["100"]);
    let wire = net.wire();
    let start = Instant::now();
    Phantom::ask(&net, &wire, 100);
    service.wait_until("given up", Duration::from_secs(300), |stats| stats.total("flows") == 0);
    assert!(start.elapsed() >= Duration::from_secs(100), "after {:?}", start.elapsed());
    let stats = service.finish(PATIENCE);
    assert_eq!(stats.total("tcp.timed_out"), 1);
}

#[test]
fn a_crash_is_one_line_and_leaves_nothing() {
    for nic in Nic::ALL {
        let Some(net) = TestNet::new("a_crash_is_one_line_and_leaves_nothing", nic, 1) else {
            return;
        };
        let Service { process, .. } = net.start(&["/bin/sh", "-c", "sleep 0.2; kill -SEGV $$"]);
        let (status, said) = process.wait(PATIENCE);
        assert_eq!(status.code(), Some(139), "{said:?}");
        assert_crash_line(&said, "/bin/sh", "SIGSEGV");
        assert_nothing_left(&net, nic);

        // While it serves, with a client.
        let service = net.serve(&["64"]);
        let mut stream = net.connect();
        echo(&mut stream, 1, 64);
        // Not SIGSEGV, the first of which a Rust program takes for a question about its stack.
        // SAFETY: signals a process that we have started.
        unsafe { libc::kill(service.program(), libc::SIGILL) };
        let (status, said) = service.process.wait(PATIENCE);
        assert_eq!(status.code(), Some(128 + libc::SIGILL), "{said:?}");
        assert_crash_line(&said, "ix-echo", "SIGILL");
        assert_nothing_left(&net, nic);
        serves_again(&net, stream);
    }
}

#[track_caller]
fn assert_crash_line(said: &[String], program: &str, signal: &str) {
    let lines: Vec<_> = said.iter().filter(|line| line.contains("crash")).collect();
    assert_eq!(lines.len(), 1, "{said:?}");
    assert!(lines[0].contains(program) && lines[0].contains(signal), "{said:?}");
}

#[test]
fn killing_the_command_leaves_nothing() {
    for nic in Nic::ALL {
        let Some(net) = TestNet::new("killing_the_command_leaves_nothing", nic, 1) else { return };
        let service = net.serve(&["64"]);
        let mut stream = net.connect();
        echo(&mut stream, 1, 64);
        if nic == Nic::Afxdp {
            assert_ne!(net.has_xdp(), Some(false), "no XDP program while it serves");
        }
        let program = service.program();
        service.process.signal(libc::SIGKILL);
        eventually("the program is gone", || !is_alive(program));
        drop(service);
        assert_nothing_left(&net, nic);
        serves_again(&net, stream);
    }
}

/// Neither tap nor XDP program.
#[track_caller]
fn assert_nothing_left(net: &TestNet, nic: Nic) {
    let (namespace, link) = net.service_link();
    match nic {
        Nic::Tap => {
            eventually("the tap is gone", || namespace.link(link).expect("ask").is_none());
        }
        Nic::Afxdp => {
            eventually("the XDP program is gone", || net.has_xdp() != Some(true));
        }
    }
}

/// A new run serves new clients, and resets those of the old one.
#[track_caller]
fn serves_again(net: &TestNet, old: TcpStream) {
    let service = net.serve(&["64"]);
    let mut stream = net.connect();
    echo(&mut stream, 2, 64);
    close(stream);
    use std::io::{Read, Write};
    let mut old = old;
    let ended = old.write_all(&message(3, 64)).and_then(|()| old.read_exact(&mut [0; 64]));
    assert!(ended.is_err(), "the dead run's connection goes on");
    drop(old);
    service.finish(PATIENCE);
}

#[test]
fn a_second_dataplane_on_the_same_interface_is_refused() {
    for nic in Nic::ALL {
        let name = "a_second_dataplane_on_the_same_interface_is_refused";
        let Some(net) = TestNet::new(name, nic, 1) else { return };
        let service = net.serve(&["64"]);
        let (namespace, link) = net.service_link();
        net.client.run(|| {
            Steady::during(64, |steady| {
                let kind = if nic == Nic::Tap { "tap" } else { "afxdp" };
                let mut command = namespace.command(env!("CARGO_BIN_EXE_ix"), None);
                command.args(["run", "--domain", "none", "--nic", &format!("{kind}:{link}")]);
                command.args(["--addr", "10.88.0.3/16", "--", "/bin/true"]);
                let output = command.output().expect("the command starts");
                let text = String::from_utf8_lossy(&output.stderr).into_owned();
                assert!(!output.status.success(), "{nic:?}: {text}");
                assert!(text.lines().last().is_some_and(|l| l.contains(link)), "{nic:?}: {text}");
                steady.goes_on();
            });
        });
        service.finish(PATIENCE);
    }
}

#[test]
fn a_client_on_ix_says_why_it_reaches_nobody() {
    for nic in Nic::ALL {
        let name = "a_client_on_ix_says_why_it_reaches_nobody";
        let Some(net) = TestNet::new(name, nic, 1) else { return };
        let echo = support::build_echo();
        // A host without a listener, and no host at all.
        for (peer, seconds) in [("10.88.0.1:9", "1"), ("10.88.0.99:9", "1")] {
            let program = echo.to_str().expect("text");
            let args = [program, "--client", peer, "--seconds", seconds, "--json"];
            let Service { process, .. } = net.start(&args);
            let (status, said) = process.wait(PATIENCE);
            assert_eq!(status.code(), Some(1), "{nic:?} {peer}: {said:?}");
            let last = said.last().expect("a line");
            assert!(last.starts_with("ix-echo: ") && last.contains(peer), "{nic:?}: {said:?}");
            assert_nothing_left(&net, nic);
        }
    }
}

/// Sends what makes the program end, and answers how long it took until every one of these
/// connections had heard of it.
fn until_all_ended(end: impl FnOnce(), mut streams: Vec<TcpStream>) -> Duration {
    use std::io::Read;
    let start = Instant::now();
    end();
    for stream in &mut streams {
        // Whichever: FIN, or RST.
        match stream.read(&mut [0; 16]) {
            Ok(n) => assert_eq!(n, 0, "data"),
            Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset, "{e}"),
        }
    }
    start.elapsed()
}

/// Whatever ends a program, its peers hear of it; and a second dataplane serves on.
#[test]
fn connections_of_a_program_that_ended_are_closed() {
    use std::io::Write;
    type End = fn(&Service, &mut TcpStream);
    let ways: [(&str, i32, End); 9] = [
        ("abort", 134, |_, stream| stream.write_all(b"a").expect("write")),
        ("fault", 139, |_, stream| stream.write_all(b"s").expect("write")),
        ("exit", 3, |_, stream| stream.write_all(b"e").expect("write")),
        ("SIGTERM", 143, |service, _| kill(service, libc::SIGTERM)),
        ("SIGKILL", 137, |service, _| kill(service, libc::SIGKILL)),
        ("SIGKILL, and its survivor stopped", 137, |service, _| {
            signal(survivor(service).expect("a survivor"), libc::SIGSTOP);
            kill(service, libc::SIGKILL);
        }),
        ("SIGKILL, and its survivor killed before", 137, |service, _| {
            let first = survivor(service).expect("a survivor");
            signal(first, libc::SIGKILL);
            eventually("another one takes its place", || {
                survivor(service).is_some_and(|pid| pid != first)
            });
            kill(service, libc::SIGKILL);
        }),
        ("own SIGKILL", 137, |_, stream| stream.write_all(b"K").expect("write")),
        ("exec", 0, |_, stream| stream.write_all(b"x").expect("write")),
    ];
    support::build_program("ix-attacker");
    let mortal = support::build_echo().with_file_name("ix-mortal");
    let mortal = mortal.to_str().expect("text");
    let places =
        [(Nic::Tap, "process"), (Nic::Afxdp, "process"), (Nic::Tap, "none"), (Nic::Afxdp, "none")];
    for (nic, domain) in places {
        let name = "connections_of_a_program_that_ended_are_closed";
        let Some(net) = TestNet::new(name, nic, 1) else { return };
        let second = net.serve_second(&["64"]);
        for (way, status, end) in ways {
            // A dataplane in a process of its own has no survivor that could be replaced.
            if way.ends_with("killed before") && domain == "process" {
                continue;
            }
            let service = net.start_env(&[], &["--domain", domain], &[mortal, "7"]);
            service.process.wait_for("ready", PATIENCE);
            let mut other = net.service_link().0.run(|| support::connect_to(support::SECOND));
            echo(&mut other, 1, 64);
            let mut streams: Vec<_> = (0..4).map(|_| net.connect()).collect();
            // One is idle, one has had an answer, one has sent what nobody reads.
            streams[1].write_all(b"hello").expect("write");
            traffic::expect(&mut streams[1], b"hello");
            streams[2].write_all(b"!").expect("write");
            let mut teller = streams.pop().expect("four");
            let took = until_all_ended(|| end(&service, &mut teller), streams);
            eprintln!("{nic:?}, {domain}, {way}: all connections ended after {took:?}");
            let (ended, said) = service.process.wait(PATIENCE);
            assert_eq!(ended.code(), Some(status), "{nic:?}, {domain}, {way}: {said:?}");
            if way == "fault" {
                let told = |line: &String| line.contains("SIGSEGV at address 0x1234, instruction");
                assert!(said.iter().any(told), "{said:?}");
            }
            assert_nothing_left(&net, nic);
            echo(&mut other, 2, 64);
            close(other);
        }
        second.finish(PATIENCE);
    }
}

/// Who closes the connections is the other child of the program's parent.
fn survivor(service: &Service) -> Option<i32> {
    let program = service.program();
    let living_child_of =
        |pid| state_and_parent(pid).filter(|(state, _)| *state != 'Z').map(|(_, parent)| parent);
    let broker = living_child_of(program)?;
    let all = std::fs::read_dir("/proc").expect("/proc").flatten();
    let mut numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_warden = |pid: i32| {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.starts_with(b"ix-warden")
    };
    let is_it = |pid: i32| living_child_of(pid) == Some(broker) && !is_warden(pid);
    numbers.find(|pid| *pid != program && is_it(*pid))
}

fn kill(service: &Service, with: i32) {
    signal(service.program(), with);
}
