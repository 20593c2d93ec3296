//! A dataplane that dies: its program goes on with another one.
use crate::programs::posix::compile;
use crate::support::command::errors;
use crate::support::memif::MemifNet;
use crate::support::process::{is_alive, signal};
use crate::support::traffic::echo;
use crate::support::{self, CLIENT, Nic, PATIENCE, SERVICE, Service, TestNet, eventually};
use ix_skip::{Need, skip, skip_part};
use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const DOMAIN: [&str; 2] = ["--domain", "process"];
/// What is said of each dataplane that has started.
const STARTED: &str = "ix: packet memory:";
const DIED: &str = "ix: the dataplane ended (killed by SIGKILL): its connections are lost";

/// Kills the dataplane, and waits until the program has another one. The `nth` to die.
fn kill_dataplane(service: &Service, nth: usize) {
    signal(service.dataplane(), libc::SIGKILL);
    service.process.wait_for_nth(DIED, nth, PATIENCE);
    service.process.wait_for_nth(STARTED, nth + 1, PATIENCE);
}

/// Each signal that a fault raises ends the dataplane; what a native program stored is there after
/// it.
#[test]
fn a_dataplane_that_a_fault_ends_is_replaced_and_a_store_lives_on() {
    let name = "a_dataplane_that_a_fault_ends_is_replaced_and_a_store_lives_on";
    let Some(net) = TestNet::new(name, Nic::Afxdp, 1) else { return };
    let wreck = support::build_program("ix-wreck");
    let words = [env!("CARGO_BIN_EXE_ix"), "kv", "-p", "7", "-U", "7", "-m", "16"];
    let service = net.start_env(&[], &DOMAIN, &words);
    service.process.wait_for("ready", PATIENCE);
    let ask = |question: &str, answer: &str| {
        let mut stream = net.connect();
        stream.write_all(question.as_bytes()).expect("asks");
        let mut said = vec![0; answer.len()];
        stream.read_exact(&mut said).expect("an answer");
        assert_eq!(String::from_utf8_lossy(&said), answer);
    };
    ask("set key 0 0 5\r\nvalue\r\n", "STORED\r\n");
    // A fault of memory, and a system call that is not on its list.
    let how = [("fault", "SIGSEGV"), ("call", "SIGSYS")];
    for (nth, (how, name)) in how.into_iter().enumerate() {
        let pid = service.dataplane().to_string();
        let wrecked = std::process::Command::new(&wreck).args([&pid, how]).output();
        let wrecked = wrecked.expect("it starts");
        assert!(wrecked.status.success(), "{}", errors(&wrecked));
        let died = format!("ix: the dataplane ended (killed by {name}");
        service.process.wait_for(&died, PATIENCE);
        service.process.wait_for_nth(STARTED, nth + 2, PATIENCE);
        ask("get key\r\n", "VALUE key 0 5\r\nvalue\r\nEND\r\n");
    }
    service.process.terminate();
}

/// A peer learns that its connection is gone when it sends.
fn is_reset(stream: &mut TcpStream) {
    let _ = stream.write_all(&[1; 64]);
    let ended = matches!(stream.read(&mut [0; 64]), Ok(0) | Err(_));
    assert!(ended, "a connection has survived its dataplane");
}

/// A native program listens again by itself, as often as its dataplane dies.
#[test]
fn a_native_program_serves_after_its_dataplane_has_died() {
    let name = "a_native_program_serves_after_its_dataplane_has_died";
    for threads in [1, 2] {
        let Some(net) = TestNet::new(name, Nic::Afxdp, threads) else { return };
        let service = net.serve_with(&DOMAIN, &["64"]);
        for round in 1..=3 {
            let mut streams: Vec<_> = (0..8).map(|_| net.connect()).collect();
            net.client.run(|| streams.iter_mut().for_each(|stream| echo(stream, round, 64)));
            kill_dataplane(&service, round as usize);
            streams.iter_mut().for_each(is_reset);
        }
        let mut stream = net.connect();
        net.client.run(|| echo(&mut stream, 4, 64));
        drop(stream);
        service.finish(PATIENCE);
    }
}

/// Threads of an unmodified program that wait in `accept`, `recv`, `epoll_wait` and `recvfrom`:
/// connections are reset, and the listeners and sockets serve again.
#[test]
fn an_unmodified_program_serves_after_its_dataplane_has_died() {
    let name = "an_unmodified_program_serves_after_its_dataplane_has_died";
    let Some(program) = compile(name, "restart") else { return };
    for threads in [1, 2] {
        let Some(net) = TestNet::new(name, Nic::Afxdp, threads) else { return };
        let service = net.start_env(&[], &DOMAIN, &[program.to_str().expect("text")]);
        service.process.wait_for("ready", PATIENCE);
        let at = |port| SocketAddrV4::new(*SERVICE.ip(), port);
        let udp = net.client.run(|| UdpSocket::bind((CLIENT, 0)).expect("a socket"));
        udp.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
        udp.connect(at(9)).expect("connect");
        let answers = || {
            udp.send(b"datagram").is_ok() && udp.recv(&mut [0; 64]).is_ok_and(|bytes| bytes == 8)
        };
        for round in 1..=3 {
            eventually("it listens", || {
                [7, 8].iter().all(|port| net.client.run(|| TcpStream::connect(at(*port)).is_ok()))
            });
            let connect = |port| net.client.run(|| support::connect_to(at(port)));
            let mut streams = [connect(7), connect(8)];
            for stream in &mut streams {
                net.client.run(|| echo(stream, round, 64));
            }
            eventually("datagrams come back", answers);
            kill_dataplane(&service, round as usize);
            streams.iter_mut().for_each(is_reset);
            let said = [
                "recv: Connection reset by peer",
                "epoll: ERR HUP RDHUP, Connection reset by peer",
            ];
            for line in said {
                service.process.wait_for_nth(line, round as usize, PATIENCE);
            }
        }
        eventually("datagrams come back", answers);
        let mut stream = net.client.run(|| support::connect_to(at(8)));
        net.client.run(|| echo(&mut stream, 4, 64));
        drop(stream);
        service.process.terminate();
    }
}

/// A dataplane that dies again and again is not started for ever.
#[test]
fn a_dataplane_that_always_dies_ends_the_run() {
    const STARTED_AGAIN: usize = 5;
    let name = "a_dataplane_that_always_dies_ends_the_run";
    let Some(net) = TestNet::new(name, Nic::Afxdp, 1) else { return };
    let service = net.serve_with(&DOMAIN, &["64"]);
    let since = Instant::now();
    for nth in 1..=STARTED_AGAIN {
        kill_dataplane(&service, nth);
    }
    assert!(since.elapsed() < Duration::from_secs(50), "too slow to see anything");
    signal(service.dataplane(), libc::SIGKILL);
    let (status, said) = service.process.wait(PATIENCE);
    assert!(!status.success(), "{said:#?}");
    let why = "its dataplane has died 6 times within 60 s and is not started again";
    assert!(said.iter().any(|line| line.contains(why)), "{said:#?}");
}

/// Kills the dataplane, and does this to the next one as soon as it is there, which takes longer to
/// start.
fn as_it_starts(service: &Service, what: i32) -> i32 {
    let before = service.dataplane();
    signal(before, libc::SIGKILL);
    let end = Instant::now() + PATIENCE;
    let next = loop {
        let next = service.children("ix-dataplane").into_iter().find(|pid| *pid != before);
        if let Some(next) = next {
            break next;
        }
        assert!(Instant::now() < end, "no other dataplane: {:#?}", service.process.said());
    };
    signal(next, what);
    next
}

/// How many dataplanes have started.
fn started(service: &Service) -> usize {
    let is_it = |line: &&String| line.starts_with(STARTED);
    service.process.said().iter().filter(is_it).count()
}

/// Kills the dataplane, and stops the next one while it starts; `None`: it had started. Returns how
/// many have started, and the one that is stopped.
fn stopped_while_it_starts(service: &Service) -> Option<(usize, i32)> {
    (0..4).find_map(|_| {
        let before = started(service);
        let next = as_it_starts(service, libc::SIGSTOP);
        std::thread::sleep(Duration::from_millis(300));
        let is_held = started(service) == before;
        if !is_held {
            signal(next, libc::SIGCONT);
        }
        is_held.then_some((before, next))
    })
}

/// Well below the time that a dataplane may take to start, and enough for a busy machine.
const AT_ONCE: Duration = Duration::from_secs(7);

/// A run whose program has ended does not wait until its dataplane has started.
#[test]
fn a_run_whose_program_ends_while_its_dataplane_starts_ends_at_once() {
    let name = "a_run_whose_program_ends_while_its_dataplane_starts_ends_at_once";
    let Some(net) = TestNet::new(name, Nic::Afxdp, 1) else { return };
    let service = net.serve_with(&DOMAIN, &["64"]);
    let program = service.program();
    let (_, next) = stopped_while_it_starts(&service).expect("one that is stopped as it starts");
    signal(program, libc::SIGKILL);
    let since = Instant::now();
    let (status, said) = service.process.wait(PATIENCE);
    assert!(since.elapsed() < AT_ONCE, "{:?}: {said:#?}", since.elapsed());
    assert_eq!(status.code(), Some(128 + libc::SIGKILL), "{said:#?}");
    assert!(!is_alive(next));
}

/// Serves in Python until it is ended. Connections of a dataplane that has died are forgotten.
const SERVE: &str = "
import socket
listener = socket.socket()
listener.bind(('0.0.0.0', 7))
listener.listen()
while True:
    try: stream = listener.accept()[0]
    except OSError: continue
    while got := stream.recv(64): stream.sendall(got)
";

/// Before that: a child serves first, and the parent once the child has ended.
const SUCCESSION: &str = "
import os
child = os.fork()
if child:
    print('child', child, flush=True)
    os.waitpid(child, 0)
";

/// The first process to serve is killed while it waits for its dataplane, and another one serves.
#[test]
fn a_process_that_ends_while_its_dataplane_starts_keeps_no_other_one_waiting() {
    let name = "a_process_that_ends_while_its_dataplane_starts_keeps_no_other_one_waiting";
    if !Path::new("/usr/bin/python3").exists() {
        return skip(name, Need::Program("apt install python3"), "no python3");
    }
    let program = format!("{SUCCESSION}{SERVE}");
    for _ in 0..4 {
        let Some(net) = TestNet::new(name, Nic::Afxdp, 1) else { return };
        let service = net.start_env(&[], &DOMAIN, &["/usr/bin/python3", "-c", &program]);
        let line = service.process.wait_for("child", PATIENCE);
        let child: i32 = line.rsplit(' ').next().expect("a word").parse().expect("a number");
        let end = Instant::now() + PATIENCE;
        let dataplane = loop {
            let first = service.children("ix-dataplane").pop();
            assert!(Instant::now() < end, "no dataplane: {:#?}", service.process.said());
            if let Some(first) = first {
                break first;
            }
        };
        signal(dataplane, libc::SIGSTOP);
        std::thread::sleep(Duration::from_millis(300));
        let is_held = started(&service) == 0;
        if is_held {
            signal(child, libc::SIGKILL);
            let since = Instant::now();
            service.process.wait_for(STARTED, PATIENCE);
            assert!(since.elapsed() < AT_ONCE, "{:?}", since.elapsed());
            assert!(!is_alive(dataplane), "the one that nobody needs is ended");
            eventually("the other one serves", || {
                net.client.run(|| TcpStream::connect(SERVICE).is_ok())
            });
            net.client.run(|| echo(&mut support::connect(), 1, 64));
        } else {
            signal(dataplane, libc::SIGCONT);
        }
        service.process.terminate();
        if is_held {
            return;
        }
    }
    panic!("no dataplane was stopped while it started");
}

/// The program is stopped while it waits for its first dataplane, which ends before the program has
/// entered it.
#[test]
fn a_dataplane_that_dies_before_it_is_entered_is_replaced() {
    let name = "a_dataplane_that_dies_before_it_is_entered_is_replaced";
    let native = [env!("CARGO_BIN_EXE_ix"), "echo", "64", "--port", "7"];
    let python = ["/usr/bin/python3", "-c", SERVE];
    for (program, called) in [(&native[..], "ix"), (&python[..], "python3")] {
        if !Path::new(program[0]).exists() {
            skip_part(name, Need::Program("apt install python3"), "no python3");
            continue;
        }
        let Some(net) = TestNet::new(name, Nic::Afxdp, 2) else { return };
        let (mut service, process) = Service::stopped_before_it_maps(&net, program, called);
        signal(service.dataplane(), libc::SIGKILL);
        service.process.wait_for(DIED, PATIENCE);
        signal(process, libc::SIGCONT);
        service.process.wait_for_nth(STARTED, 2, PATIENCE);
        eventually("the port is served", || {
            service.process.check();
            net.client.run(|| TcpStream::connect(SERVICE).is_ok())
        });
        net.client.run(|| echo(&mut support::connect(), 1, 64));
    }
}

#[test]
fn operators_are_answered_while_a_dataplane_starts() {
    let name = "operators_are_answered_while_a_dataplane_starts";
    let Some(net) = TestNet::new(name, Nic::Afxdp, 1) else { return };
    let service = net.serve_with(&DOMAIN, &["64"]);
    let held = stopped_while_it_starts(&service);
    let (before, next) = held.expect("one that is stopped while it starts");
    for _ in 0..3 {
        let mut ctl = std::process::Command::new(env!("CARGO_BIN_EXE_ix"));
        let ctl = ctl.args(["ctl", "rate", "--control"]).arg(service.control());
        let since = Instant::now();
        let output = ctl.output().expect("the command starts");
        assert!(output.status.success(), "{}", errors(&output));
        assert!(since.elapsed() < Duration::from_secs(2), "{:?}", since.elapsed());
    }
    // What is changed now holds for the dataplane that begins.
    let mut client = service.client();
    client.ask(r#"{"do":"rate","tx":"10pps"}"#).expect("a rate");
    // What is for a dataplane that runs is refused.
    let refused = client.thread("park", 0).expect_err("no dataplane runs");
    assert!(refused.contains("is still starting; try again in a moment"), "{refused}");
    assert_eq!(started(&service), before);
    signal(next, libc::SIGCONT);
    eventually("it has started", || started(&service) > before);
    // What was changed meanwhile holds.
    net.client.run(|| {
        let (mut stream, since) = (support::connect(), Instant::now());
        (0..20).for_each(|round| echo(&mut stream, round, 64));
        assert!(since.elapsed() > Duration::from_millis(500), "{:?}", since.elapsed());
    });
    client.ask(r#"{"do":"rate","tx":"none"}"#).expect("no rate");
    // One that never starts is ended, and another one takes its place.
    let before = started(&service);
    as_it_starts(&service, libc::SIGSTOP);
    std::thread::sleep(Duration::from_millis(300));
    if started(&service) == before {
        let late = "ix: the dataplane did not start within 10 s: another one is started";
        service.process.wait_for(late, PATIENCE);
    }
    eventually("it has started", || started(&service) > before);
    net.client.run(|| echo(&mut support::connect(), 2, 64));
    service.process.terminate();
}

#[test]
fn a_dataplane_that_dies_while_it_starts_is_started_again() {
    const STARTING: &str = "ix: the dataplane ended while it started (killed by SIGKILL): another";
    let name = "a_dataplane_that_dies_while_it_starts_is_started_again";
    let Some(net) = TestNet::new(name, Nic::Afxdp, 1) else { return };
    let service = net.serve_with(&DOMAIN, &["64"]);
    // Each time two die.
    for _ in 0..2 {
        as_it_starts(&service, libc::SIGKILL);
        let died = service.process.said().len();
        eventually("another one", || service.process.said().len() > died);
        eventually("another dataplane", || {
            net.client.run(|| TcpStream::connect(SERVICE).is_ok())
                && service.children("ix-dataplane").len() == 1
        });
    }
    let said = service.process.said();
    assert!(said.iter().any(|line| line.starts_with(STARTING)), "{said:#?}");
    net.client.run(|| echo(&mut support::connect(), 1, 64));
    // Those that die while they start count as well.
    as_it_starts(&service, libc::SIGKILL);
    let (status, said) = service.process.wait(PATIENCE);
    assert!(!status.success(), "{said:#?}");
    let why = "its dataplane has died 6 times within 60 s and is not started again";
    assert!(said.iter().any(|line| line.contains(why)), "{said:#?}");
}

/// A worker that has no part of the dataplane, and that no signal for the program's group reaches.
const WORKER: &str = "
import os, signal, socket
worker = os.fork()
if worker == 0:
    os.setsid()
    signal.pause()
listener = socket.socket()
listener.bind(('0.0.0.0', 7))
listener.listen()
print('worker', worker, flush=True)
while True:
    try: listener.accept()
    except OSError: pass
";

/// A run that gives up leaves no process of its program behind, if it could make a control group.
#[test]
fn a_run_that_gives_up_ends_all_processes_of_its_program() {
    const DEATHS: usize = 6;
    let name = "a_run_that_gives_up_ends_all_processes_of_its_program";
    if !Path::new("/usr/bin/python3").exists() {
        return skip(name, Need::Program("apt install python3"), "no python3");
    }
    let Some(net) = TestNet::new(name, Nic::Afxdp, 1) else { return };
    let service = net.start_env(&[], &DOMAIN, &["/usr/bin/python3", "-c", WORKER]);
    let line = service.process.wait_for("worker", PATIENCE);
    let worker: i32 = line.rsplit(' ').next().expect("a word").parse().expect("a number");
    let groups = std::fs::read_to_string(format!("/proc/{worker}/cgroup")).expect("groups");
    if !groups.contains(&format!("/ix-{}-", service.process.pid())) {
        signal(worker, libc::SIGKILL);
        return skip(name, Need::Kernel("control groups that can be written"), "no group was made");
    }
    // It has entered its elastic thread.
    eventually("it listens", || net.client.run(|| TcpStream::connect(SERVICE).is_ok()));
    for nth in 1..DEATHS {
        kill_dataplane(&service, nth);
    }
    assert!(is_alive(worker), "a run that goes on ends nobody");
    signal(service.dataplane(), libc::SIGKILL);
    let (status, said) = service.process.wait(PATIENCE);
    let left = is_alive(worker);
    signal_if_there(worker);
    assert!(!status.success() && !left, "worker {worker} is left: {left}; {said:#?}");
}

/// Forks a process that ignores what it can, and one that leaves its session and its parent.
pub(super) const FAMILY: &str = "
import os, signal, socket, time
for n in (1, 2, 3, 15): signal.signal(n, signal.SIG_IGN)
child = os.fork()
if child == 0:
    while True: time.sleep(10)
reads, writes = os.pipe()
if os.fork() == 0:
    os.setsid()
    daemon = os.fork()
    if daemon == 0:
        while True: time.sleep(10)
    os.write(writes, str(daemon).encode())
    os._exit(0)
os.wait()
daemon = os.read(reads, 20).decode()
listener = socket.socket()
listener.bind(('0.0.0.0', 7))
listener.listen()
print('family', child, daemon, flush=True)
while True: listener.accept()
";

/// The parent serves once and ends, and its child serves then, with a dataplane and a tap anew,
/// because the parent waits for it with the listener for two seconds only: nobody is told that
/// somebody else has removed the tap.
#[test]
fn a_tap_that_goes_with_its_dataplane_is_not_called_removed() {
    const HEIR: &str = "
import os, socket, time
listener = socket.socket()
listener.bind(('0.0.0.0', 7))
listener.listen()
print('listens', flush=True)
listener.settimeout(1)
try: listener.accept()
except TimeoutError: pass
if os.fork(): os._exit(0)
time.sleep(4)
try: listener.accept()
except TimeoutError: pass
";
    let name = "a_tap_that_goes_with_its_dataplane_is_not_called_removed";
    if !Path::new("/usr/bin/python3").exists() {
        return skip(name, Need::Program("apt install python3"), "no python3");
    }
    let Some(net) = TestNet::new(name, Nic::Tap, 1) else { return };
    let service = net.start_env(&[], &DOMAIN, &["/usr/bin/python3", "-c", HEIR]);
    service.process.wait_for_nth(STARTED, 2, PATIENCE);
    let (status, said) = service.process.wait(PATIENCE);
    assert!(status.success(), "{said:#?}");
    assert!(!said.iter().any(|line| line.contains("removed it")), "{said:#?}");
}

/// A daemon that has no part in IX lives on when the program has ended. With sockets on IX it is
/// one of the program's processes, and `ix run` goes on as long as it does.
#[test]
fn a_daemon_outlives_a_program_that_ends_in_order() {
    let name = "a_daemon_outlives_a_program_that_ends_in_order";
    let Some(net) = TestNet::new(name, Nic::Afxdp, 1) else { return };
    let script = "sleep 60 > /dev/null 2>&1 & echo daemon $!; exit 3";
    let flags = [&DOMAIN[..], &["--posix", "off"]].concat();
    let service = net.start_env(&[], &flags, &["/bin/sh", "-c", script]);
    let line = service.process.wait_for("daemon", PATIENCE);
    let daemon = line.rsplit(' ').next().expect("a word").parse().expect("a number");
    let (status, said) = service.process.wait(PATIENCE);
    assert_eq!(status.code(), Some(3), "{said:#?}");
    assert!(is_alive(daemon), "it was ended");
    signal(daemon, libc::SIGKILL);
}

/// A server that starts a daemon for each task leaves no ended ones behind it.
#[test]
fn orphans_of_a_program_are_waited_for() {
    const ORPHANS: usize = 300;
    let name = "orphans_of_a_program_are_waited_for";
    if !Path::new("/usr/bin/python3").exists() {
        return skip(name, Need::Program("apt install python3"), "no python3");
    }
    let Some(net) = TestNet::new(name, Nic::Afxdp, 1) else { return };
    let fork = format!(
        "
import os
for _ in range({ORPHANS}):
    if os.fork() == 0:
        os.fork()
        os._exit(0)
    os.wait()
print('forked', flush=True)
"
    );
    let program = format!("{fork}{SERVE}");
    let service = net.start_env(&[], &DOMAIN, &["/usr/bin/python3", "-c", &program]);
    service.process.wait_for("forked", PATIENCE);
    let broker = service.process.pid();
    let path = format!("/proc/{broker}/task/{broker}/children");
    eventually("the broker has waited for them", || {
        let children = std::fs::read_to_string(&path).expect("children");
        children.split_ascii_whitespace().count() < 10
    });
    let mut stream = net.connect();
    net.client.run(|| echo(&mut stream, 1, 64));
    service.process.terminate();
}

/// A broker that is killed takes all of its run along, wherever a process has gone.
#[test]
fn what_a_program_has_forked_ends_with_a_broker_that_is_killed() {
    let name = "what_a_program_has_forked_ends_with_a_broker_that_is_killed";
    if !Path::new("/usr/bin/python3").exists() {
        return skip(name, Need::Program("apt install python3"), "no python3");
    }
    for user in [&[][..], &["--user", "65534"]] {
        let Some(net) = TestNet::new(name, Nic::Afxdp, 1) else { return };
        let flags = [&DOMAIN[..], user].concat();
        let service = net.start_env(&[], &flags, &["/usr/bin/python3", "-c", FAMILY]);
        let line = service.process.wait_for("family", PATIENCE);
        let family: Vec<i32> =
            line.split(' ').skip(1).map(|word| word.parse().expect("a number")).collect();
        let broker = service.process.pid();
        let groups =
            std::fs::read_to_string(format!("/proc/{}/cgroup", family[1])).expect("groups");
        if !groups.contains(&format!("/ix-{broker}-")) {
            family.iter().for_each(|pid| signal_if_there(*pid));
            return skip(name, Need::Kernel("control groups that can be written"), "no group");
        }
        eventually("it listens", || net.client.run(|| TcpStream::connect(SERVICE).is_ok()));
        let warden = service.children("exe").pop().expect("a warden");
        // Root of a namespace could change what root has.
        let owner = std::fs::read_to_string(format!("/proc/{warden}/status")).expect("status");
        let users = owner.lines().find(|line| line.starts_with("Uid:")).expect("users");
        assert!(users.split_whitespace().skip(1).all(|user| user == "65520"), "{users}");
        signal(broker, libc::SIGKILL);
        let since = Instant::now();
        let is_over = || family.iter().chain([&warden]).all(|pid| !is_alive(*pid));
        while !is_over() && since.elapsed() < Duration::from_secs(2) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let left: Vec<i32> = family.iter().copied().filter(|pid| is_alive(*pid)).collect();
        left.iter().for_each(|pid| signal_if_there(*pid));
        assert!(left.is_empty() && !is_alive(warden), "{left:?} are left, or the warden");
        let file = format!("ix-{broker}-");
        let files = std::fs::read_dir("/run/ix/groups").expect("the folder");
        let is_its = |name: &std::ffi::OsString| name.to_string_lossy().starts_with(&file);
        assert!(!files.flatten().any(|entry| is_its(&entry.file_name())), "its groups are left");
    }
}

/// Where version 2 of control groups is mounted.
fn unified_groups() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/mounts").expect("the mounts");
    let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2"))?;
    mount.split(' ').nth(1).map(PathBuf::from)
}

/// A broker that is alone in its group moves below it, so that the group can share its controllers.
/// Its warden is there too, and still leaves nothing.
#[test]
fn a_killed_broker_that_was_alone_in_its_group_leaves_no_group() {
    let name = "a_killed_broker_that_was_alone_in_its_group_leaves_no_group";
    let home = unified_groups().map(|mount| mount.join(format!("ix-test-{}", std::process::id())));
    let Some(home) = home.filter(|home| std::fs::create_dir(home).is_ok()) else {
        return skip(name, Need::Kernel("control groups that can be written"), "no group was made");
    };
    let Some(net) = MemifNet::new(name, 1) else { return };
    let service = net.serve_in(&home);
    let broker = service.process.pid();
    let is_run = |entry: &std::fs::DirEntry| {
        entry.file_name().to_string_lossy().starts_with(&format!("ix-{broker}-"))
    };
    let runs = || std::fs::read_dir(&home).expect("the group").flatten().filter(is_run).count();
    assert!(runs() > 0, "the run has no group");
    signal(broker, libc::SIGKILL);
    let since = Instant::now();
    // The warden itself is in it, until it has looked for all that the program has left.
    let mut removed = std::fs::remove_dir(&home);
    while removed.is_err() && since.elapsed() < Duration::from_secs(3) {
        std::thread::sleep(Duration::from_millis(10));
        removed = std::fs::remove_dir(&home);
    }
    let left =
        std::fs::read_dir(&home).map_or(0, |entries| entries.flatten().filter(is_run).count());
    assert!(removed.is_ok(), "{left} groups are left in {home:?}: {removed:?}");
}

/// Waits in `connect`, then for what it is sent.
const CONNECTS: &str = "
import socket
s = socket.socket()
print('connects', flush=True)
s.connect(('10.88.0.1', 99))
print('heard', s.recv(5).decode(), flush=True)
";

/// A thread that waits in `connect` while the dataplane dies: the attempt begins anew with the next
/// dataplane, and the program is told of no error.
#[test]
fn a_connection_attempt_outlives_its_dataplane() {
    let name = "a_connection_attempt_outlives_its_dataplane";
    if !Path::new("/usr/bin/python3").exists() {
        return skip(name, Need::Program("apt install python3"), "no python3");
    }
    let Some(net) = TestNet::new(name, Nic::Afxdp, 1) else { return };
    let at = SocketAddrV4::new(CLIENT, 99);
    let listener = net.client.run(|| TcpListener::bind(at)).expect("a port");
    // SAFETY: a number. Linux drops further SYNs when its queue is full.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
    let wait = Duration::from_millis(200);
    let fill = || net.client.run(|| TcpStream::connect_timeout(&at.into(), wait)).ok();
    let in_the_queue = std::iter::from_fn(fill).take(8).count();
    assert!(in_the_queue < 8, "the queue is never full");
    let service = net.start_env(&[], &DOMAIN, &["/usr/bin/python3", "-c", CONNECTS]);
    service.process.wait_for("connects", PATIENCE);
    service.process.wait_for(STARTED, PATIENCE);
    std::thread::sleep(wait);
    kill_dataplane(&service, 1);
    for _ in 0..in_the_queue {
        listener.accept().expect("one that fills the queue");
    }
    listener.set_nonblocking(true).expect("set");
    let mut accepted = None;
    eventually("the program's attempt is accepted", || {
        accepted = listener.accept().ok();
        accepted.is_some()
    });
    let (mut stream, from) = accepted.expect("a connection");
    assert_eq!(from.ip(), *SERVICE.ip());
    stream.write_all(b"hello").expect("sends");
    service.process.wait_for("heard hello", PATIENCE);
    let (status, said) = service.process.wait(PATIENCE);
    assert!(status.success(), "{said:#?}");
}

/// Leaves nothing behind if the test fails.
fn signal_if_there(process: i32) {
    if is_alive(process) {
        signal(process, libc::SIGKILL);
    }
}
