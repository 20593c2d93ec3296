//! Several runs on one interface, each by a plain `ix run`: the first has the queues, others have
//! links, and a keeper outlives each of them.
use super::shared_address::{LINUX, Session, ask, on_linux_address};
use crate::support::command::errors;
use crate::support::process::{Process, signal};
use crate::support::stats::Stats;
use crate::support::{PATIENCE, SERVICE, TestNet, eventually};
use ix_netdev::VethEnd;
use ix_proto::Codec;
use ix_proto::keeper::ToKeeper;
use ix_skip::{Need, skip};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PYTHON: &str = "/usr/bin/python3";

/// Echoes what each client says, at a port.
const PROGRAM: &str = "
import socket, sys, threading
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(('0.0.0.0', int(sys.argv[1])))
server.listen(16)
print('ready', flush=True)
def echo(client):
    while True:
        data = client.recv(100)
        if not data:
            return
        client.sendall(data)
while True:
    client, peer = server.accept()
    threading.Thread(target=echo, args=(client,), daemon=True).start()
";

fn at(port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(*SERVICE.ip(), port)
}

fn start(net: &TestNet, port: u16) -> Process {
    let words = [PYTHON, "-c", PROGRAM, &port.to_string()];
    let process = net.start_shared_as(&format!("control-{port}.sock"), &[], &words).process;
    process.wait_for("ready", PATIENCE);
    process
}

fn connect(net: &TestNet, port: u16) -> TcpStream {
    let mut stream = None;
    eventually("it is served", || {
        let made = net.client.run(|| TcpStream::connect_timeout(&at(port).into(), PATIENCE));
        stream = made.ok();
        stream.is_some()
    });
    let stream = stream.expect("made");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

fn says(stream: &mut TcpStream, number: u64) -> std::io::Result<()> {
    stream.write_all(&number.to_le_bytes())?;
    let mut back = [0; 8];
    stream.read_exact(&mut back)?;
    assert_eq!(u64::from_le_bytes(back), number, "byte for byte");
    Ok(())
}

fn accepted(net: &TestNet, port: u16) -> u64 {
    Stats::ask(&net.file(&format!("control-{port}.sock"))).total("accepted")
}

/// A client's connection that goes on all the time.
struct Client {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Client {
    fn of(mut stream: TcpStream) -> Client {
        let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stops, counts) = (stop.clone(), count.clone());
        let thread = std::thread::spawn(move || {
            while !stops.load(Ordering::Relaxed) {
                let number = counts.fetch_add(1, Ordering::Relaxed);
                says(&mut stream, number).expect("it goes on");
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        Client { stop, count, thread: Some(thread) }
    }

    #[track_caller]
    fn goes_on(&self) {
        let before = self.count.load(Ordering::Relaxed);
        eventually("the connection goes on", || self.count.load(Ordering::Relaxed) > before + 20);
    }

    fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().expect("once").join().expect("it was never disturbed");
    }
}

#[test]
fn three_runs_share_an_interface_and_one_is_killed_again_and_again() {
    let test = "three_runs_share_an_interface_and_one_is_killed_again_and_again";
    if !std::path::Path::new(PYTHON).exists() {
        return skip(test, Need::Program("apt-get install python3"), "no python3");
    }
    let Some(net) = on_linux_address(test) else { return };
    net.server.set_up("lo", true).expect("loopback");
    let session = Session::start(&net);
    let mut runs = [8081, 8082, 8083].map(|port| (port, start(&net, port)));
    let mut clients: Vec<Option<Client>> = Vec::new();
    for (port, _) in &runs {
        let mut stream = connect(&net, *port);
        says(&mut stream, 7).expect("an answer");
        eventually("it is IX's", || accepted(&net, *port) == 1);
        clients.push(Some(Client::of(stream)));
    }
    let has_link = |process: &Process| {
        process.said().iter().any(|line| line.contains("another run has the queues of ixs0"))
    };
    assert_eq!(runs.each_ref().map(|(_, run)| has_link(run)), [false, true, true]);
    // A fourth that wants a port of the second hears so.
    let words = [PYTHON, "-c", PROGRAM, "8082"];
    let refused = net.start_shared_as("control-x.sock", &[], &words).process;
    let (status, said) = refused.wait(PATIENCE);
    assert_eq!(status.code(), Some(1), "{said:#?}");
    assert!(said.iter().any(|line| line.contains("Address already in use")), "{said:#?}");
    // One after the other is killed, first the one with the queues.
    for round in 0..6 {
        let which = round % runs.len();
        let (port, victim) = &runs[which];
        let port = *port;
        // Its client would complain.
        clients[which].take().expect("one").end();
        let mut broken = connect(&net, port);
        says(&mut broken, 1).expect("served");
        signal(victim.pid(), libc::SIGKILL);
        let others = clients.iter().flatten();
        others.for_each(Client::goes_on);
        session.goes_on();
        says(&mut broken, 2).expect_err("its connections end, as Linux's do");
        let gone = net.client.run(|| TcpStream::connect(at(port))).expect_err("Linux has it");
        assert_eq!(gone.kind(), std::io::ErrorKind::ConnectionRefused);
        runs[which].1 = start(&net, port);
        clients[which] = Some(Client::of(connect(&net, port)));
        clients.iter().flatten().for_each(Client::goes_on);
        std::thread::sleep(Duration::from_secs(1));
    }
    clients.into_iter().flatten().for_each(Client::end);
    for (_, run) in runs {
        run.terminate();
    }
    session.end();
    assert_eq!(LINUX.port(), 22);
    is_as_before(&net);
}

/// What `ix ctl status` says of a run.
fn status(net: &TestNet, port: u16) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ix"));
    command.args(["ctl", "status", "--control"]).arg(net.file(&format!("control-{port}.sock")));
    let output = command.output().expect("the command starts");
    assert!(output.status.success(), "{}", errors(&output));
    String::from_utf8(output.stdout).expect("text")
}

/// The interface goes down and comes back, which the run that has a link to it says too.
#[test]
fn each_run_tells_of_an_interface_that_is_down() {
    let test = "each_run_tells_of_an_interface_that_is_down";
    if !std::path::Path::new(PYTHON).exists() {
        return skip(test, Need::Program("apt-get install python3"), "no python3");
    }
    let Some(net) = on_linux_address(test) else { return };
    let runs = [8081, 8082].map(|port| (port, start(&net, port)));
    let mut streams = [8081, 8082].map(|port| connect(&net, port));
    streams.iter_mut().for_each(|stream| says(stream, 1).expect("an answer"));
    for round in 1..=2 {
        net.server.set_up("ixs0", false).expect("down");
        for (port, run) in &runs {
            let line = "ix: link ixs0 is down: packets are lost until it is up again";
            run.wait_for_nth(line, round, PATIENCE);
            let told = status(&net, *port);
            assert!(told.contains("(down)"), "{told}");
        }
        net.server.set_up("ixs0", true).expect("up");
        for (port, run) in &runs {
            run.wait_for_nth("ix: link ixs0 is up", round, PATIENCE);
            let told = status(&net, *port);
            assert!(told.contains("(up)"), "{told}");
        }
        streams.iter_mut().for_each(|stream| says(stream, 2).expect("it goes on"));
    }
    for (_, run) in runs {
        run.terminate();
    }
    is_as_before(&net);
}

/// The interface gets another Ethernet address. Connections of both runs go on, also while nothing
/// but the client has something to say, and what runs send comes from the new address.
#[test]
fn each_run_follows_another_ethernet_address() {
    let test = "each_run_follows_another_ethernet_address";
    if !std::path::Path::new(PYTHON).exists() {
        return skip(test, Need::Program("apt-get install python3"), "no python3");
    }
    let Some(net) = on_linux_address(test) else { return };
    let session = Session::start(&net);
    let runs = [8081, 8082].map(|port| (port, start(&net, port)));
    let mut streams = [8081, 8082].map(|port| connect(&net, port));
    for (port, stream) in [8081, 8082].into_iter().zip(&mut streams) {
        says(stream, 1).expect("an answer");
        eventually("it is IX's", || accepted(&net, port) == 1);
    }
    for round in 1..=2 {
        let mac = [2, 0, 0, 0, 5, round];
        net.server.set_mac("ixs0", mac).expect("another address");
        for (_, run) in &runs {
            let line = format!("ix: ixs0 has Ethernet address 02:00:00:00:05:0{round} now");
            run.wait_for(&line, PATIENCE);
        }
        streams.iter_mut().for_each(|stream| says(stream, 2).expect("it goes on"));
        let wire = net.wire();
        for (port, stream) in [8081_u16, 8082].into_iter().zip(&mut streams) {
            says(stream, 3).expect("an answer");
            let is_its = |frame: &[u8]| frame[26..30] == SERVICE.ip().octets();
            let from = port.to_be_bytes();
            let end = Instant::now() + PATIENCE;
            let source = loop {
                assert!(Instant::now() < end, "a frame of port {port}");
                let frame = wire.receive(PATIENCE).expect("received").expect("a frame");
                if frame.len() > 38 && is_its(&frame) && frame[34..36] == from {
                    break frame[6..12].to_vec();
                }
            };
            assert_eq!(source, mac, "port {port}");
            says(&mut connect(&net, port), 4).expect("new connections are served");
        }
    }
    for (port, run) in runs {
        assert_eq!(accepted(&net, port), 3, "all of them were IX's");
        run.terminate();
    }
    session.end();
    is_as_before(&net);
}

/// Binds a port of both protocols, and says what it was told.
const TAKES: &str = "
import socket, sys, time
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    one = socket.socket(socket.AF_INET, kind)
    try:
        one.bind(('0.0.0.0', 8088))
        kind == socket.SOCK_STREAM and one.listen(4)
        print(kind.name, 'taken', flush=True)
    except OSError as e:
        print(kind.name, e, flush=True)
    globals()[kind.name] = one
print('ready', flush=True)
while sys.argv[1] == 'first':
    client, peer = SOCK_STREAM.accept()
    client.close()
";

/// Linux lets sockets of one user share a port. Two runs with the same `--user` share none.
#[test]
fn a_port_of_a_run_of_the_same_user_is_in_use() {
    let test = "a_port_of_a_run_of_the_same_user_is_in_use";
    if !std::path::Path::new(PYTHON).exists() {
        return skip(test, Need::Program("apt-get install python3"), "no python3");
    }
    let Some(net) = on_linux_address(test) else { return };
    for user in ["65534", "root"] {
        let start = |which: &str| {
            let words = [PYTHON, "-c", TAKES, which];
            let control = format!("{which}-{user}.sock");
            net.start_shared_as(&control, &["--user", user], &words).process
        };
        let first = start("first");
        first.wait_for("SOCK_DGRAM taken", PATIENCE);
        first.wait_for("ix: device ", PATIENCE);
        drop(connect(&net, 8088));
        let (status, said) = start("second").wait(PATIENCE);
        assert_eq!(status.code(), Some(0), "{said:#?}");
        for kind in ["SOCK_STREAM", "SOCK_DGRAM"] {
            let refused = format!("{kind} [Errno 98] Address already in use");
            assert!(said.contains(&refused), "{user}: {said:#?}");
        }
        first.terminate();
        eventually("the interface is as before", || {
            net.server.xdp_program("ixs0").expect("asked").is_none()
        });
    }
}

/// A service has no more rights than the unit of the package gives it, not CAP_SYS_ADMIN: the
/// second run of an interface, which has a link, is served without.
#[test]
fn runs_with_the_rights_of_a_service_share_an_interface() {
    const RIGHTS: &str = "-all,+net_admin,+net_raw,+bpf,+perfmon,+chown,+fowner,+ipc_lock,+setuid,\
                          +setgid,+sys_ptrace,+dac_override,+kill";
    let test = "runs_with_the_rights_of_a_service_share_an_interface";
    if !std::path::Path::new(PYTHON).exists() {
        return skip(test, Need::Program("apt-get install python3"), "no python3");
    }
    let Some(net) = on_linux_address(test) else { return };
    let runs = [8081, 8082].map(|port| {
        let mut command = net.server.command("setpriv", None);
        command.arg(format!("--bounding-set={RIGHTS}")).arg("--inh-caps=-all");
        command.args([env!("CARGO_BIN_EXE_ix"), "run", "--user", "65534", "--nic", "ixs0"]);
        command.arg("--control").arg(net.file(&format!("control-{port}.sock")));
        command.args([PYTHON, "-c", PROGRAM, &port.to_string()]);
        let run = Process::start(command);
        run.wait_for("ready", PATIENCE);
        run
    });
    for port in [8081, 8082] {
        // A client that comes before the dataplane begins may be served by Linux: a program that is
        // not root has no broker to ask.
        eventually("it is IX's", || {
            says(&mut connect(&net, port), 7).expect("an answer");
            accepted(&net, port) > 0
        });
    }
    runs.into_iter().for_each(Process::terminate);
    is_as_before(&net);
}

/// A run whose program does not use its dataplane.
fn start_idle(net: &TestNet, name: &str) -> Process {
    let words = ["/usr/bin/sleep", "60"];
    let process = net.start_shared_as(&format!("control-{name}.sock"), &[], &words).process;
    process.wait_for("ix: shares ", PATIENCE);
    process
}

/// Runs that know less of Linux's addresses keep none from others: one whose program does not use
/// its dataplane yet, or never does, and one that is stopped.
#[test]
fn a_run_that_hears_nothing_keeps_no_address_from_others() {
    let test = "a_run_that_hears_nothing_keeps_no_address_from_others";
    if !std::path::Path::new(PYTHON).exists() {
        return skip(test, Need::Program("apt-get install python3"), "no python3");
    }
    let Some(net) = on_linux_address(test) else { return };
    let (idle, stopped) = (start_idle(&net, "idle"), start_idle(&net, "stopped"));
    stopped.signal(libc::SIGSTOP);
    let run = start(&net, 8081);
    let reached = |last: u8| {
        let [a, b, c, _] = SERVICE.ip().octets();
        let own = Ipv4Addr::new(a, b, c, last);
        net.server.add_address("ixs0", own, 16).expect("another address");
        run.wait_for(&format!("ix: shares {own} with Linux on ixs0 now"), PATIENCE);
        let at = SocketAddrV4::new(own, 8081).into();
        let stream = net.client.run(|| TcpStream::connect_timeout(&at, PATIENCE));
        let mut stream = stream.unwrap_or_else(|e| panic!("{own}: {e}"));
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        says(&mut stream, 1).expect("an answer");
        own
    };
    let new = reached(201);
    eventually("it is IX's", || accepted(&net, 8081) == 1);
    idle.wait_for(&format!("ix: shares {new} with Linux on ixs0 now"), PATIENCE);
    reached(202);
    eventually("it is IX's", || accepted(&net, 8081) == 2);
    stopped.signal(libc::SIGCONT);
    stopped.wait_for(&format!("ix: shares {new} with Linux on ixs0 now"), PATIENCE);
    for run in [idle, stopped] {
        run.signal(libc::SIGTERM);
        run.wait(PATIENCE);
    }
    run.terminate();
    is_as_before(&net);
}

/// Addresses that appear while a run starts are shared.
#[test]
fn addresses_that_appear_during_the_start_are_shared() {
    let test = "addresses_that_appear_during_the_start_are_shared";
    if !std::path::Path::new(PYTHON).exists() {
        return skip(test, Need::Program("apt-get install python3"), "no python3");
    }
    let Some(net) = on_linux_address(test) else { return };
    let [a, b, c, _] = SERVICE.ip().octets();
    let all: Vec<_> = (101..140).map(|last| Ipv4Addr::new(a, b, c, last)).collect();
    let run = std::thread::scope(|scope| {
        scope.spawn(|| {
            for own in &all {
                net.server.add_address("ixs0", *own, 16).expect("another address");
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        start(&net, 8081)
    });
    for own in all {
        let at = SocketAddrV4::new(own, 8081);
        let mut answer = Err(std::io::ErrorKind::TimedOut.into());
        eventually("it is served", || {
            answer = net.client.run(|| TcpStream::connect_timeout(&at.into(), PATIENCE));
            answer.is_ok()
        });
        let mut stream = answer.expect("just made");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        says(&mut stream, 1).expect("an answer");
    }
    run.terminate();
    is_as_before(&net);
}

/// The interface gets another name, and another interface its name: runs by the new name share the
/// one, and runs by the old name the other.
#[test]
fn a_keeper_follows_the_name_of_its_interface() {
    let test = "a_keeper_follows_the_name_of_its_interface";
    if !std::path::Path::new(PYTHON).exists() {
        return skip(test, Need::Program("apt-get install python3"), "no python3");
    }
    let Some(net) = on_linux_address(test) else { return };
    let run = start(&net, 8081);
    says(&mut connect(&net, 8081), 1).expect("an answer");
    net.server.rename_link("ixs0", "ixs9").expect("renamed");
    run.wait_for("ix: link ixs0 is called ixs9 now", PATIENCE);
    let start_on = |name: &str, port: u16| {
        let mut command = net.server.command(env!("CARGO_BIN_EXE_ix"), None);
        command.args(["run", "--nic", name, "--domain", &crate::support::domain()]);
        command.args([PYTHON, "-c", PROGRAM, &port.to_string()]);
        let process = Process::start(command);
        process.wait_for("ready", PATIENCE);
        process
    };
    let second = start_on("ixs9", 8082);
    second.wait_for("ix: another run has the queues of ixs9", PATIENCE);
    for port in [8081, 8082] {
        says(&mut connect(&net, port), 2).expect("an answer");
    }
    // Another interface, with a peer of its own.
    let (old, far) = (VethEnd::new("ixs0"), VethEnd::new("ixc9"));
    net.server.add_veth(&old, &net.client, &far).expect("another interface");
    let own = Ipv4Addr::new(10, 91, 0, 1);
    net.server.add_address("ixs0", own, 24).expect("an address");
    net.client.add_address("ixc9", Ipv4Addr::new(10, 91, 0, 2), 24).expect("an address");
    net.server.set_up("ixs0", true).expect("up");
    net.client.set_up("ixc9", true).expect("up");
    let third = start_on("ixs0", 8083);
    let mut stream = None;
    eventually("it is served", || {
        let at = SocketAddrV4::new(own, 8083).into();
        stream = net.client.run(|| TcpStream::connect_timeout(&at, PATIENCE)).ok();
        stream.is_some()
    });
    says(&mut stream.expect("made"), 3).expect("an answer");
    for port in [8081, 8082] {
        says(&mut connect(&net, port), 4).expect("an answer");
    }
    assert_eq!(keepers(&net).len(), 2);
    for run in [run, second, third] {
        run.terminate();
    }
    net.server.delete_link("ixs0").expect("removed");
    net.server.rename_link("ixs9", "ixs0").expect("renamed");
    is_as_before(&net);
}

/// Nothing of the keeper is left.
#[track_caller]
fn is_as_before(net: &TestNet) {
    eventually("the interface is as before", || {
        net.server.xdp_program("ixs0").expect("asked").is_none()
    });
    eventually("no link is left", || {
        let links = net.server.links().expect("asked");
        !links.iter().any(|link| link.name.starts_with("ixk") || link.name.starts_with("ixn"))
    });
    eventually("no keeper is left", || keepers(net).is_empty());
}

/// The keepers of this link: processes of the namespace with that name.
fn keepers(net: &TestNet) -> Vec<i32> {
    let here = net.server.run(|| std::fs::read_link("/proc/thread-self/ns/net")).expect("its own");
    let all = std::fs::read_dir("/proc").expect("processes").flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let file = |name: &str| format!("/proc/{pid}/{name}");
        std::fs::read(file("cmdline")).is_ok_and(|words| words.starts_with(b"ix-keeper\0"))
            && std::fs::read_link(file("ns/net")).is_ok_and(|its| its == here)
    })
    .collect()
}

/// If the keeper is killed, the runs end, each with one line, and Linux is as before.
#[test]
fn runs_without_their_keeper_end_with_one_line() {
    let test = "runs_without_their_keeper_end_with_one_line";
    if !std::path::Path::new(PYTHON).exists() {
        return skip(test, Need::Program("apt-get install python3"), "no python3");
    }
    let Some(net) = on_linux_address(test) else { return };
    let session = Session::start(&net);
    let runs = [8081, 8082].map(|port| start(&net, port));
    for port in [8081, 8082] {
        says(&mut connect(&net, port), 7).expect("an answer");
        eventually("it is IX's", || accepted(&net, port) == 1);
    }
    let runs = runs.into_iter().chain([start_idle(&net, "idle")]);
    let [keeper] = keepers(&net)[..] else { panic!("one keeper: {:?}", keepers(&net)) };
    signal(keeper, libc::SIGKILL);
    for run in runs {
        let (status, said) = run.wait(PATIENCE);
        let last = said.last().expect("a line");
        let tells =
            ["cannot share the address of Linux on ixs0 any more", "keeper", "start `ix run`"];
        let tells = tells.iter().all(|word| last.contains(word));
        assert!(status.code() == Some(125) && tells, "{status}: {said:#?}");
        let lines = said.iter().filter(|line| line.contains("keeper")).count();
        assert_eq!(lines, 1, "{said:#?}");
    }
    session.goes_on();
    is_as_before(&net);
    let gone = net.client.run(|| TcpStream::connect(at(8081))).expect_err("Linux has it");
    assert_eq!(gone.kind(), std::io::ErrorKind::ConnectionRefused);
    // Another one begins, and all goes on.
    let run = start(&net, 8081);
    says(&mut connect(&net, 8081), 7).expect("an answer");
    run.terminate();
    session.end();
    is_as_before(&net);
}

/// Says what a run would say to the keeper of a link, and prints how much comes back.
const SPEAKS: &str = "
import os, socket, sys
if sys.argv[2] != 'root':
    os.setuid(65534)
keeper = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
if sys.argv[2] == 'squats':
    keeper.bind('\\0ix-keeper-ixs0')
    keeper.listen(1)
    print('has the name', flush=True)
    while True:
        keeper.accept()
keeper.settimeout(10)
keeper.connect('\\0ix-keeper-ixs0')
for nth in range(40):
    try:
        keeper.send(bytes.fromhex(sys.argv[1]))
    except OSError:
        break
try:
    print('heard', len(keeper.recv(1000)), flush=True)
except OSError:
    print('heard 0', flush=True)
";

/// Only runs of the same user speak with a keeper: another user, and root of a namespace of users
/// such as a program is, are not heard; neither can keep a run from the interface.
#[test]
fn nobody_else_speaks_with_a_keeper() {
    let test = "nobody_else_speaks_with_a_keeper";
    if !std::path::Path::new(PYTHON).exists() {
        return skip(test, Need::Program("apt-get install python3"), "no python3");
    }
    let Some(net) = on_linux_address(test) else { return };
    let leave = ToKeeper::Leave.encode().iter().map(|b| format!("{b:02x}")).collect::<String>();
    let run = start(&net, 8081);
    let mut stream = connect(&net, 8081);
    says(&mut stream, 1).expect("an answer");
    for (before, who) in [(&[][..], "nobody"), (&["unshare", "-U", "-r"], "root")] {
        let words = [before, &[PYTHON, "-c", SPEAKS, &leave, who]].concat();
        let mut command = net.server.command(words[0], None);
        command.args(&words[1..]);
        let (status, said) = Process::start(command).wait(PATIENCE);
        assert!(status.success() && said == ["heard 0"], "{who}: {said:#?}");
        says(&mut stream, 2).expect("it goes on");
    }
    run.terminate();
    is_as_before(&net);
    // Whoever has its name first keeps other runs away, and is told of.
    let mut command = net.server.command(PYTHON, None);
    command.args(["-c", SPEAKS, &leave, "squats"]);
    let squatter = Process::start(command);
    squatter.wait_for("has the name", PATIENCE);
    let run = start(&net, 8081);
    run.wait_for("ix: no other run can share ixs0 beside this one: no keeper", PATIENCE);
    says(&mut connect(&net, 8081), 7).expect("an answer");
    eventually("it is IX's", || accepted(&net, 8081) == 1);
    run.terminate();
    drop(squatter);
}

/// What the host itself says to one of two runs, and one run to the other's port.
#[test]
fn runs_hear_the_host_itself_and_each_other() {
    let test = "runs_hear_the_host_itself_and_each_other";
    if !std::path::Path::new(PYTHON).exists() {
        return skip(test, Need::Program("apt-get install python3"), "no python3");
    }
    let Some(net) = on_linux_address(test) else { return };
    net.server.set_up("lo", true).expect("loopback");
    let runs = [8081, 8082].map(|port| start(&net, port));
    for port in [8081, 8082] {
        let mut stream = net.server.run(|| TcpStream::connect(at(port))).expect("by Linux");
        says(&mut stream, 3).expect("an answer");
    }
    // By Linux as well: packets of the host to itself never cross the interface.
    const ASKS: &str = "
import socket, sys
server = socket.socket()
server.bind(('0.0.0.0', 8090))
server.listen(4)
print('ready', flush=True)
while True:
    client, peer = server.accept()
    client.recv(100)
    there = socket.create_connection((sys.argv[1], 8081), 5)
    there.sendall(b'hello')
    client.sendall(there.recv(100))
    client.close()
";
    let words = [PYTHON, "-c", ASKS, &SERVICE.ip().to_string()];
    let third = net.start_shared_as("control-8090.sock", &[], &words).process;
    third.wait_for("ready", PATIENCE);
    assert_eq!(net.client.run(|| ask(at(8090), "")), "hello");
    third.terminate();
    runs.into_iter().for_each(Process::terminate);
}
