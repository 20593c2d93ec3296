//! Unmodified programs on IX: an epoll server in C, the corner cases of the socket API beside
//! Linux, Debian's memcached, `curl` and `ab`.

use crate::support;
use crate::support::process::{Process, signal};
use crate::support::{
    CLIENT, CLIENT_V6, Nic, PATIENCE, PREFIX, PREFIX_V6, SERVICE, SERVICE_V6, Service, TestNet,
    connect_to,
};
use ix_skip::{Need, skip, skip_part};
use ix_testbed::Namespace;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

const MEMCACHED_TOOLS: Need<'_> = Need::Program("apt-get install memcached libmemcached-tools");

/// Where the peer of the corner cases listens.
const PEER_PORT: u16 = 9999;
/// memcached's port.
const MEMCACHED: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 88, 0, 2), 11211);

/// Compiles one of the programs in `app/libix-posix/tests/programs`; `None`, said loudly, where
/// there is no C compiler.
pub fn compile(test: &str, name: &str) -> Option<PathBuf> {
    compile_with(test, name, &[])
}

/// The same with more flags for the compiler.
fn compile_with(test: &str, name: &str, flags: &[&str]) -> Option<PathBuf> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../app/libix-posix/tests/programs");
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{name}"));
    let source = format!("{folder}/{name}.c");
    let mut cc = Command::new("cc");
    cc.args(flags).args(["-O1", "-w", "-pthread", "-o"]).arg(&program).arg(&source);
    match cc.status() {
        Ok(status) => {
            assert!(status.success(), "{source} does not compile");
            Some(program)
        }
        Err(_) => {
            skip(test, Need::Program("apt-get install gcc libc6-dev"), "no C compiler");
            None
        }
    }
}

/// Runs a client in a namespace; `None`, said loudly, where it is not installed.
fn client(test: &str, at: &Namespace, package: &str, words: &[&str]) -> Option<Output> {
    match at.command(words[0], None).args(&words[1..]).output() {
        Ok(output) => Some(output),
        Err(_) => {
            let remedy = format!("apt-get install {package}");
            skip(test, Need::Program(&remedy), format_args!("no {}", words[0]));
            None
        }
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn an_epoll_server_serves_ix_and_linux() {
    let test = "an_epoll_server_serves_ix_and_linux";
    let Some(program) = compile(test, "echo") else { return };
    for nic in Nic::ALL {
        let Some(net) = TestNet::new(test, nic, 1) else { return };
        let mut service = net.start(&[program.to_str().expect("text"), "7"]);
        service.process.wait_for("ready", PATIENCE);
        let mut streams: Vec<_> = (0..8).map(|_| net.client.run(|| connect_to(SERVICE))).collect();
        let sent: Vec<u8> = (0..100_000u32).map(|n| ((n * 7) >> 3) as u8).collect();
        for stream in &mut streams {
            let mut writer = stream.try_clone().expect("clone");
            let data = sent.clone();
            let writes = std::thread::spawn(move || writer.write_all(&data).expect("write"));
            let mut back = vec![0; sent.len()];
            stream.read_exact(&mut back).expect("the echo");
            assert!(back == sent, "what came back differs");
            writes.join().expect("the writer");
        }
        // Bound to all addresses, it serves Linux's loopback as well.
        let (namespace, _) = net.service_link();
        namespace.set_up("lo", true).expect("loopback");
        let local = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 7);
        let mut stream = namespace.run(|| connect_to(local));
        stream.write_all(b"local").expect("write");
        let mut back = [0; 5];
        stream.read_exact(&mut back).expect("the echo");
        drop(streams);
        drop(stream);
        service.process.check();
        service.finish(PATIENCE);
    }
}

/// A way in which the program of the corner cases runs on IX.
#[derive(Clone, Copy, Debug)]
struct Way {
    nic: Nic,
    /// Each call comes by its instruction.
    is_static: bool,
    /// For `ix run`.
    ix: &'static [&'static str],
}

/// Linked dynamically, under the default wall.
const fn dynamic(nic: Nic) -> Way {
    Way { nic, is_static: false, ix: &[] }
}

/// Linked statically; the instructions of its calls are rewritten.
const fn of_its_own_calls(nic: Nic) -> Way {
    Way { nic, is_static: true, ix: &["--domain", "process"] }
}

/// The same where each call costs a signal, because no instruction is rewritten.
const fn by_traps_alone(nic: Nic) -> Way {
    Way { nic, is_static: true, ix: &["--domain", "process", "--syscalls", "trap"] }
}

/// Linux is the oracle: the same program against the same peer, once on Linux's sockets and once on
/// IX's, says the same of every call.
#[test]
fn corner_cases_are_linuxs() {
    let ways = [
        dynamic(Nic::Afxdp),
        dynamic(Nic::Tap),
        of_its_own_calls(Nic::Afxdp),
        by_traps_alone(Nic::Afxdp),
    ];
    corner_cases("corner_cases_are_linuxs", &ways, false);
}

/// The same with sockets of `AF_INET6`, and cases of both families on one socket.
#[test]
fn corner_cases_of_ipv6_are_linuxs() {
    corner_cases("corner_cases_of_ipv6_are_linuxs", &[dynamic(Nic::Afxdp)], true);
}

/// Those of above that run on one device in `.ci/run`, on the other.
#[test]
#[ignore = "long; .ci/run nightly"]
fn corner_cases_of_each_kind_over_tap_are_linuxs() {
    let test = "corner_cases_of_each_kind_over_tap_are_linuxs";
    corner_cases(test, &[of_its_own_calls(Nic::Tap), by_traps_alone(Nic::Tap)], false);
    corner_cases(test, &[dynamic(Nic::Tap)], true);
}

/// `::1`, and what a host sends to its own address of IPv6.
fn loopback(namespace: &Namespace) {
    namespace.enable_ipv6("lo").expect("IPv6");
    namespace.set_up("lo", true).expect("up");
}

/// Runs the program on Linux and, in each of these ways, on IX, and compares what it says.
fn corner_cases(test: &str, ways: &[Way], v6: bool) {
    let Some(program) = compile(test, "corners") else { return };
    let Some(linked) = compile_with(&format!("{test}-static"), "corners", &["-static"]) else {
        return;
    };
    let [program, linked] = [&program, &linked].map(|path| path.to_str().expect("text"));
    let (own, peer) = (SERVICE.ip().to_string(), CLIENT.to_string());
    let port = PEER_PORT.to_string();
    let (both_own, both_peer) = (format!("{SERVICE_V6},{own}"), format!("{CLIENT_V6},{peer}"));
    let (own_name, peer_name) = if v6 { (&both_own, &both_peer) } else { (&own, &peer) };
    let run = ["run", own_name.as_str(), peer_name.as_str(), port.as_str()];
    let start_peer = |net: &TestNet| {
        let mut command = net.client.command(program, None);
        command.args(["peer", &port]);
        if v6 {
            command.arg(&own);
        }
        let process = Process::start(command);
        process.wait_for("peer ready", PATIENCE);
        process
    };
    // Few enough that a case can use all of them.
    let narrow = |net: &TestNet| {
        let file = "/proc/sys/net/ipv4/ip_local_port_range";
        net.service_link().0.run(|| std::fs::write(file, "40000 40499")).expect("a range of ports");
    };
    let said = |lines: &[String], is_static: bool| -> Vec<String> {
        let lines = lines.iter().filter(|line| !line.starts_with("ix: "));
        // A static program asks the kernel itself for interfaces, and does not see IX's.
        let mut left_out = false;
        let is_kept = |line: &&String| {
            if line.starts_with("== ") {
                left_out = is_static && **line == "== addresses";
            }
            !left_out
        };
        lines.filter(is_kept).cloned().collect()
    };
    let on_linux = || {
        let net = TestNet::without_ix(test)?;
        let (server, link) = net.service_link();
        server.add_address(link, *SERVICE.ip(), PREFIX).expect("an address");
        if v6 {
            net.enable_v6();
            loopback(server);
            server.enable_ipv6(link).expect("IPv6");
            server.add_address(link, SERVICE_V6, PREFIX_V6).expect("an address");
        }
        narrow(&net);
        let _peer = start_peer(&net);
        let mut command = server.command(program, None);
        command.args(run);
        let (status, lines) = Process::start(command).wait(Duration::from_secs(120));
        assert!(status.success(), "on Linux: {lines:#?}");
        Some(lines)
    };
    let on_ix = |way: Way| {
        let net = TestNet::new(test, way.nic, 1)?;
        if v6 {
            loopback(net.service_link().0);
        }
        narrow(&net);
        let _peer = start_peer(&net);
        let flags = if v6 { net.flags_v6().to_vec() } else { Vec::new() };
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let flags = [&flags[..], way.ix].concat();
        let started = if way.is_static { linked } else { program };
        let words = [&[started], &run[..]].concat();
        let service = net.start_after_with("local_ports = '40000-40499'", &flags, &words);
        if v6 {
            net.enable_v6();
        }
        let (status, lines) = service.process.wait(Duration::from_secs(120));
        assert!(status.success(), "{way:?}: {lines:#?}");
        Some(lines)
    };
    // Side by side, for they mostly wait.
    let (linux, ix) = std::thread::scope(|scope| {
        let linux = scope.spawn(on_linux);
        let on_ix = &on_ix;
        let ix: Vec<_> = ways.iter().map(|way| (way, scope.spawn(move || on_ix(*way)))).collect();
        let lines = ix.into_iter().map(|(way, run)| (way, run.join().expect("it runs on IX")));
        let lines: Vec<_> = lines.collect();
        (linux.join().expect("it runs on Linux"), lines)
    });
    let Some(linux) = linux else { return };
    for (way, ix) in ix {
        let Some(ix) = ix else { return };
        let [linux, ix] = [&linux, &ix].map(|lines| said(lines, way.is_static));
        for (number, (linux, line)) in linux.iter().zip(&ix).enumerate() {
            assert_eq!(line, linux, "line {number}, {way:?}; IX said {ix:#?}");
        }
        assert_eq!(ix.len(), linux.len(), "{way:?}: {ix:#?}");
    }
}

/// 600 clients that ask for much and do not read leave others their share: another one is served
/// meanwhile and afterwards, and the server does not run in circles.
#[test]
fn clients_that_do_not_read_leave_others_their_share() {
    const IDLE: usize = 600;
    const WANTED: usize = 1 << 20;
    let test = "clients_that_do_not_read_leave_others_their_share";
    let Some(program) = compile(test, "fill") else { return };
    let ask = |stream: &mut TcpStream, what: &str| stream.write_all(what.as_bytes()).expect("ask");
    let refused = |stream: &mut TcpStream| -> u64 {
        ask(stream, "?\n");
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).expect("an answer");
        line.trim().parse().expect("a number")
    };
    for way in ["edge", "level"] {
        let Some(net) = TestNet::new(test, Nic::Tap, 1) else { return };
        let mut service = net.start(&[program.to_str().expect("text"), "7", way]);
        service.process.wait_for("ready", PATIENCE);
        let connect = || net.client.run(|| connect_to(SERVICE));
        let fetch = || {
            let mut stream = connect();
            ask(&mut stream, &format!("{WANTED}\n"));
            let mut back = vec![0; WANTED];
            stream.read_exact(&mut back).unwrap_or_else(|e| panic!("{way}: not served: {e}"));
        };
        let mut asks = connect();
        let idle: Vec<_> = (0..IDLE)
            .map(|_| {
                let mut stream = connect();
                ask(&mut stream, "4000000\n");
                stream
            })
            .collect();
        std::thread::sleep(Duration::from_secs(1));
        fetch();
        let before = refused(&mut asks);
        std::thread::sleep(Duration::from_secs(1));
        let in_a_second = refused(&mut asks) - before;
        assert!(in_a_second < 5_000, "{way}: {in_a_second} writes without room in a second");
        fetch();
        drop(idle);
        fetch();
        drop(asks);
        service.process.check();
        service.finish(PATIENCE);
    }
}

/// A server that gives to many at once, before a cycle has brought it more transmit memory, goes on
/// with each of them when there is some.
#[test]
fn clients_that_ask_at_the_same_moment_are_all_served() {
    const CLIENTS: usize = 120;
    const WANTED: usize = 1 << 20;
    let test = "clients_that_ask_at_the_same_moment_are_all_served";
    let Some(program) = compile(test, "fill") else { return };
    for way in ["edge", "level"] {
        let Some(net) = TestNet::new(test, Nic::Tap, 1) else { return };
        let mut service = net.start(&[program.to_str().expect("text"), "7", way]);
        service.process.wait_for("ready", PATIENCE);
        let mut clients: Vec<TcpStream> =
            (0..CLIENTS).map(|_| net.client.run(|| connect_to(SERVICE))).collect();
        signal(service.program(), libc::SIGSTOP);
        for stream in &mut clients {
            stream.write_all(format!("{WANTED}\n").as_bytes()).expect("ask");
        }
        std::thread::sleep(Duration::from_millis(100));
        signal(service.program(), libc::SIGCONT);
        let mut back = vec![0; WANTED];
        for (number, stream) in clients.iter_mut().enumerate() {
            let served = stream.read_exact(&mut back);
            served.unwrap_or_else(|e| panic!("{way}: client {number} was not served: {e}"));
        }
        drop(clients);
        service.process.check();
        service.finish(PATIENCE);
    }
}

/// Not a corner case beside Linux, for Linux need not have DCTCP: that is for ECN, which only a SYN
/// asks for. The peer says whether it was.
#[test]
fn dctcp_asks_for_ecn_before_it_connects() {
    let test = "dctcp_asks_for_ecn_before_it_connects";
    let Some(program) = compile(test, "corners") else { return };
    let program = program.to_str().expect("text");
    let Some(net) = TestNet::new(test, Nic::Tap, 1) else { return };
    let (own, peer) = (SERVICE.ip().to_string(), CLIENT.to_string());
    let port = PEER_PORT.to_string();
    let mut command = net.client.command(program, None);
    command.args(["peer", &port]);
    let process = Process::start(command);
    process.wait_for("peer ready", PATIENCE);
    let (status, lines) =
        net.start(&[program, "run", &own, &peer, &port, "dctcp"]).process.wait(PATIENCE);
    assert!(status.success(), "{lines:#?}");
    let of = |start: &str| -> Vec<&str> {
        lines.iter().filter_map(|line| line.strip_prefix(start)).collect()
    };
    assert_eq!(of("tell(\"ecn\"): "), ["1", "0"], "{lines:#?}");
    assert_eq!(of("  "), ["dctcp, 16 bytes"; 2], "{lines:#?}");
    assert_eq!(of("tell(\"recv 5\"): "), ["5", "5"], "{lines:#?}");
}

/// What a kernel need not have is refused as by one that has it not, and each is named once.
#[test]
fn options_that_ix_lacks_are_refused_and_named() {
    let test = "options_that_ix_lacks_are_refused_and_named";
    let Some(program) = compile(test, "corners") else { return };
    let program = program.to_str().expect("text");
    let Some(net) = TestNet::new(test, Nic::Tap, 1) else { return };
    let (own, peer) = (SERVICE.ip().to_string(), CLIENT.to_string());
    let port = PEER_PORT.to_string();
    let mut command = net.client.command(program, None);
    command.args(["peer", &port]);
    let process = Process::start(command);
    process.wait_for("peer ready", PATIENCE);
    let (status, lines) =
        net.start(&[program, "run", &own, &peer, &port, "lacks"]).process.wait(PATIENCE);
    assert!(status.success(), "{lines:#?}");
    let count = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    assert_eq!(count(": -1 ENOPROTOOPT"), 9, "{lines:#?}");
    assert_eq!(count("sockets of IX have no option "), 8, "{lines:#?}");
    assert_eq!(count("option TCP_MD5SIG:"), 1, "{lines:#?}");
    assert_eq!(count("MSG_FASTOPEN, (struct sockaddr *)&to, sizeof to): -1 EOPNOTSUPP"), 1);
}

/// `threads` with two threads of each shape, on two elastic threads.
fn threads(test: &str, nic: Nic, shape: &str) -> Option<(TestNet, Service)> {
    let program = compile(test, "threads")?;
    let net = TestNet::new(test, nic, 2)?;
    let program = [program.to_str().expect("text"), shape, "2", "7"];
    let service = net.start(&program);
    let ready = if shape == "listeners" { 2 } else { 1 };
    service.process.wait_for_nth("ready", ready, PATIENCE);
    Some((net, service))
}

/// Sixteen connections at once; of each its own port, and which of the program's threads has it.
fn answered_by(net: &TestNet) -> Vec<(TcpStream, u8)> {
    let clients: Vec<_> = (0..16u8)
        .map(|_| {
            let mut stream = net.client.run(|| connect_to(SERVICE));
            std::thread::spawn(move || {
                let mut name = [0];
                for round in 0..20usize {
                    let sent: Vec<u8> =
                        (0..500 * round + 1).map(|n| ((n * 7) >> 3) as u8).collect();
                    stream.write_all(&sent).expect("write");
                    if round == 0 {
                        stream.read_exact(&mut name).expect("who serves");
                    }
                    let mut back = vec![0; sent.len()];
                    stream.read_exact(&mut back).expect("the echo");
                    assert!(back == sent, "what came back differs");
                }
                (stream, name[0])
            })
        })
        .collect();
    clients.into_iter().map(|client| client.join().expect("a client")).collect()
}

/// Each thread of the program has a listener of its own: it gets the connections of its elastic
/// thread, and no other thread has anything to do with them.
#[test]
fn a_listener_a_thread_shares_nothing() {
    let test = "a_listener_a_thread_shares_nothing";
    for nic in Nic::ALL {
        let Some((net, service)) = threads(test, nic, "listeners") else { return };
        support::eventually("each thread has the connections of one elastic thread", || {
            let streams = answered_by(&net);
            let answer = service.client().ask("{\"do\":\"connections\"}").expect("connections");
            let elastic_thread = |stream: &TcpStream| {
                let own = stream.local_addr().expect("an address").to_string();
                let list = answer["connections"].as_array().expect("a list");
                list.iter().find(|c| c["peer"] == own).expect("it is told")["thread"].as_u64()
            };
            let of = |name: u8| {
                let named = streams.iter().filter(|(_, by)| *by == name);
                let mut threads: Vec<_> = named.map(|(stream, _)| elastic_thread(stream)).collect();
                threads.sort_unstable();
                threads.dedup();
                threads
            };
            let (a, b) = (of(b'A'), of(b'B'));
            a.len() == 1 && b.len() == 1 && a != b
        });
        service.finish(PATIENCE);
    }
}

/// Connections that are accepted on one thread, used on another, and go on to a third, whichever
/// elastic thread has them.
#[test]
fn connections_go_from_thread_to_thread() {
    let test = "connections_go_from_thread_to_thread";
    for nic in Nic::ALL {
        let Some((net, service)) = threads(test, nic, "handing") else { return };
        let mut streams = answered_by(&net);
        support::eventually("both elastic threads have connections", || {
            streams.extend(answered_by(&net));
            service.stats().each("accepted").iter().all(|accepted| *accepted > 0)
        });
        for worker in *b"AB" {
            assert!(streams.iter().any(|(_, name)| *name == worker), "a worker without any");
        }
        // Between threads that do not know of each other nothing may be migrated.
        let refused = service.client().migrate("0-3", 1).expect_err("groups stay");
        assert!(refused.contains("does not know of elastic threads"), "{refused}");
        drop(streams);
        service.comes_to_rest(PATIENCE);
        service.finish(PATIENCE);
    }
}

/// A thread for each connection, and signals that come between being called to run the dataplane
/// and doing so: somebody always runs it.
#[test]
fn a_thread_for_each_connection_and_signals() {
    let test = "a_thread_for_each_connection_and_signals";
    let Some((net, service)) = threads(test, Nic::Tap, "each") else { return };
    for _ in 0..10 {
        drop(answered_by(&net));
    }
    service.finish(PATIENCE);
}

/// memcached as Debian ships it, with so many workers.
fn memcached(net: &TestNet, workers: &str) -> Option<Service> {
    let at = MEMCACHED.ip().to_string();
    let program =
        ["memcached", "-u", "nobody", "-l", &at, "-U", "11211", "-m", "64", "-t", workers];
    let mut service = net.start(&program);
    support::eventually("memcached listens", || {
        service.process.check();
        net.client.run(|| TcpStream::connect_timeout(&MEMCACHED.into(), PATIENCE)).is_ok()
    });
    Some(service)
}

#[test]
fn memcached_passes_its_clients_tests() {
    let test = "memcached_passes_its_clients_tests";
    let there = Command::new("memcached").arg("-V").output();
    if there.is_err() {
        skip(test, MEMCACHED_TOOLS, "no memcached");
        return;
    }
    for (workers, nic, threads) in
        [("1", Nic::Tap, 1), ("2", Nic::Afxdp, 1), ("2", Nic::Tap, 2), ("2", Nic::Afxdp, 2)]
    {
        let Some(net) = TestNet::new(test, nic, threads) else { return };
        let Some(service) = memcached(&net, workers) else { return };
        let at = MEMCACHED.ip().to_string();
        let words = ["memccapable", "-h", &at, "-p", "11211"];
        let Some(output) = client(test, &net.client, "libmemcached-tools", &words) else { return };
        assert!(text(&output).contains("All tests passed"), "{}", text(&output));
        service.comes_to_rest(PATIENCE);
        let before = descriptors(&service);
        put_load(&net, "0.5");
        datagrams_are_answered(&net);
        nothing_is_left(service, before);
    }
}

/// libmemcached's client in Python sees of memcached on IX what it sees of the same one on Linux,
/// while others put load on it, on two elastic threads.
#[test]
#[ignore = "long; .ci/run nightly"]
fn pylibmc_sees_under_load_what_it_sees_on_linux() {
    let test = "pylibmc_sees_under_load_what_it_sees_on_linux";
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../programs/kv/tests/client.py");
    let there = Command::new("/usr/bin/python3").args(["-c", "import pylibmc"]).output();
    let has_memcached = Command::new("memcached").arg("-V").output().is_ok();
    if !has_memcached || !there.is_ok_and(|output| output.status.success()) {
        let need = Need::Program("apt-get install memcached python3-pylibmc");
        skip(test, need, "no memcached or no pylibmc");
        return;
    }
    let Some(net) = TestNet::new(test, Nic::Afxdp, 2) else { return };
    let Some(service) = memcached(&net, "2") else { return };
    service.comes_to_rest(PATIENCE);
    let before = descriptors(&service);
    let session = |at: SocketAddrV4| {
        let output =
            net.client.command("/usr/bin/python3", None).args([script, &at.to_string()]).output();
        let output = output.expect("python3");
        assert!(output.status.success(), "{}", text(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let mut load = net.client.command(env!("CARGO_BIN_EXE_ix"), None);
    load.args(["load", &MEMCACHED.to_string(), "--protocol", "memcached", "--connections", "96"]);
    load.args(["--rate", "5000", "--seconds", "60", "--quiet"]);
    // What it misses is what the client deletes.
    load.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    let mut load = load.spawn().expect("ix load");
    support::eventually("the load runs", || service.stats().total("accepted") > 64);
    let on_ix = session(MEMCACHED);
    assert!(load.try_wait().expect("a child").is_none(), "the load has ended");
    load.kill().expect("kill");
    load.wait().expect("wait");
    let own = SocketAddrV4::new(CLIENT, 11311);
    let mut linux = net.client.command("memcached", None);
    linux.args(["-u", "nobody", "-l", &CLIENT.to_string(), "-p", "11311", "-m", "64", "-t", "2"]);
    let mut linux = linux.spawn().expect("memcached");
    support::eventually("memcached listens", || net.client.run(|| TcpStream::connect(own)).is_ok());
    let on_linux = session(own);
    linux.kill().expect("kill");
    linux.wait().expect("wait");
    assert_eq!(on_ix, on_linux);
    assert!(on_ix.lines().count() > 60);
    nothing_is_left(service, before);
}

/// What `memcached_passes_its_clients_tests` does, for minutes.
#[test]
#[ignore = "four minutes"]
fn memcached_serves_for_minutes_and_leaks_nothing() {
    let test = "memcached_serves_for_minutes_and_leaks_nothing";
    if Command::new("memcached").arg("-V").output().is_err() {
        skip(test, MEMCACHED_TOOLS, "no memcached");
        return;
    }
    for (workers, threads) in [("1", 1), ("2", 1), ("2", 2)] {
        let Some(net) = TestNet::new(test, Nic::Afxdp, threads) else { return };
        let Some(service) = memcached(&net, workers) else { return };
        service.comes_to_rest(PATIENCE);
        let before = descriptors(&service);
        put_load(&net, "20");
        nothing_is_left(service, before);
    }
}

/// Loads of so many seconds in text, binary, on many short connections, and in datagrams. Every
/// answer is checked, as is that nothing is missing.
fn put_load(net: &TestNet, seconds: &str) {
    for (protocol, more) in [
        ("memcached", &["--connections", "64"][..]),
        ("memcached-binary", &["--connections", "64", "--depth", "4"]),
        ("memcached", &["--connections", "8", "--messages-per-connection", "3"]),
        ("memcached", &["--connections", "4", "--udp"]),
    ] {
        let mut load = net.client.command(env!("CARGO_BIN_EXE_ix"), None);
        load.args(["load", &MEMCACHED.to_string(), "--protocol", protocol, "--json", "-"]);
        let output = load.args(["--seconds", seconds]).args(more).output().expect("ix load");
        assert!(output.status.success(), "{protocol} {more:?}: {}", text(&output));
    }
}

/// The program's descriptors; those of the dataplane and of the library have high numbers.
fn descriptors(service: &Service) -> Vec<u32> {
    const OWN: u32 = 256;
    let folder = format!("/proc/{}/fd", service.program());
    let entries = std::fs::read_dir(folder).expect("the program's descriptors").flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut numbers: Vec<u32> = numbers.filter(|number| *number < OWN).collect();
    numbers.sort_unstable();
    numbers
}

/// No flow, no frame and no descriptor of what the clients did is left, and memcached, which
/// handles the signal, ends by itself.
fn nothing_is_left(service: Service, before: Vec<u32>) {
    let stats = service.comes_to_rest(PATIENCE);
    assert!(stats.total("accepted") > 64, "it was IX that served: {stats}");
    // Before may have been a moment at which the number of a closed socket was still kept.
    support::eventually("descriptors are closed", || {
        descriptors(&service).iter().all(|number| before.contains(number))
    });
    service.process.signal(libc::SIGTERM);
    let (status, said) = service.process.wait(PATIENCE);
    assert!(status.success(), "{status}: {said:#?}");
}

/// A call on a socket of IX is no system call: a million of them, and how long one takes.
#[test]
fn intercepted_calls_do_not_enter_linux() {
    let test = "intercepted_calls_do_not_enter_linux";
    let Some(program) = compile(test, "calls") else { return };
    let Some(net) = TestNet::alone(test, Nic::Tap, 1) else { return };
    let words = [program.to_str().expect("text"), "7"];
    let service = net.start_env(&[("IX_POSIX_CALLS", "1")], &[], &words);
    service.process.wait_for("ready", PATIENCE);
    let mut stream = net.client.run(|| connect_to(SERVICE));
    stream.write_all(b"x").expect("a byte");
    service.process.wait_for("ioctl ", PATIENCE);
    drop(stream);
    let (status, said) = service.process.wait(PATIENCE);
    assert!(status.success(), "{said:#?}");
    let rest = |start: &str| said.iter().find_map(|line| line.strip_prefix(start));
    eprintln!("an intercepted recv: {:?}, ioctl: {:?}", rest("recv "), rest("ioctl "));
    let forwarded = rest("ix: calls forwarded to Linux: ").expect("the count");
    let count = forwarded.split(' ').next().and_then(|count| count.parse::<u64>().ok());
    assert!(count.is_some_and(|count| count < 50), "{forwarded}");
}

fn datagrams_are_answered(net: &TestNet) {
    let socket = net.client.run(|| UdpSocket::bind((CLIENT, 0))).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("timeout");
    socket.send_to(b"\0\x07\0\0\0\x01\0\0version\r\n", MEMCACHED).expect("ask");
    let mut answer = [0; 200];
    let n = socket.recv(&mut answer).expect("an answer");
    assert!(answer[..n].starts_with(b"\0\x07\0\0\0\x01\0\0VERSION "), "{:?}", &answer[..n]);
}

/// Clients on IX, against a web server on Linux.
#[test]
fn curl_and_ab_run_on_ix() {
    let test = "curl_and_ab_run_on_ix";
    let Some(net) = TestNet::new(test, Nic::Tap, 1) else { return };
    let pages = net.file("pages");
    std::fs::create_dir(&pages).expect("a folder");
    let page: Vec<u8> = (0..300_000u32).map(|n| b'a' + (n % 26) as u8).collect();
    std::fs::write(pages.join("page.txt"), &page).expect("a page");
    let mut command = net.client.command(env!("CARGO_BIN_EXE_ix"), None);
    let at = format!("{CLIENT}:8000");
    command.args(["httpd", "--linux", "--port", "8000"]).arg(&pages);
    let server = Process::start(command);
    server.wait_for("ready", PATIENCE);
    let url = format!("http://{at}/page.txt");
    for words in [
        &["curl", "-sS", "-o", "-", &url][..],
        &["ab", "-q", "-n", "300", "-c", "8", &url],
        &["ab", "-q", "-k", "-n", "300", "-c", "8", &url],
    ] {
        if Command::new(words[0]).arg("-V").output().is_err() {
            let need = Need::Program("apt-get install curl apache2-utils");
            skip_part(test, need, format_args!("no {}", words[0]));
            continue;
        }
        let service = net.start(words);
        let (status, said) = service.process.wait(Duration::from_secs(60));
        assert!(status.success(), "{words:?}: {said:#?}");
        let said = said.join("\n");
        if words[0] == "curl" {
            assert!(
                said.contains(std::str::from_utf8(&page).expect("text")),
                "the page is not whole"
            );
        } else {
            assert!(said.contains("Complete requests:      300"), "{said}");
            assert!(said.contains("Failed requests:        0"), "{said}");
        }
    }
}

#[test]
fn programs_that_cannot_be_are_refused_in_one_line() {
    let test = "programs_that_cannot_be_are_refused_in_one_line";
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../app/libix-posix/tests/programs");
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("echo-static");
    let mut cc = Command::new("cc");
    cc.args(["-w", "-static", "-o"]).arg(&program).arg(format!("{folder}/echo.c"));
    if !cc.status().is_ok_and(|status| status.success()) {
        let need = Need::Program("apt-get install gcc libc6-dev");
        skip(test, need, "no C compiler for static programs");
        return;
    }
    is_refused("none", &program, &["linked statically", "leave --domain out"]);
    // Whose owner is another one.
    let identity = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("echo-setuid");
    let _ = std::fs::remove_file(&identity);
    std::fs::copy("/bin/true", &identity).expect("a program");
    // SAFETY: no arguments.
    let own = unsafe { libc::geteuid() };
    if own == 0 {
        std::os::unix::fs::chown(&identity, Some(65534), None).expect("another owner");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o4755);
        std::fs::set_permissions(&identity, mode).expect("set-uid");
        for domain in ["none", "process"] {
            is_refused(domain, &identity, &["set-uid"]);
        }
    } else {
        skip_part(test, Need::Root, "only root gives files away");
    }
    // Made for other machines: 64 bits for ARM, 32 bits for x86.
    for (class, machine) in [(2, 183), (1, 3)] {
        let mut file = std::fs::read("/bin/true").expect("a program");
        (file[4], file[18], file[19]) = (class, machine, 0);
        let _ = std::fs::remove_file(&identity);
        std::fs::write(&identity, file).expect("a file");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&identity, mode).expect("executable");
        for domain in ["none", "process"] {
            is_refused(domain, &identity, &["not for x86-64"]);
        }
    }
}

/// In one line, before anything is touched.
fn is_refused(domain: &str, program: &Path, words: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ix"));
    command
        .args(["run", "--domain", domain, "--nic", "tap:ixnone", "--addr", "10.88.0.2/16", "--"])
        .arg(program);
    let output = command.output().expect("ix");
    let said = text(&output);
    assert_eq!(output.status.code(), Some(126), "{said}");
    assert!(words.iter().all(|word| said.contains(word)), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

/// What only the program's start shows: its own line, or its loader's, and its status.
#[test]
fn programs_that_fail_at_their_start_say_why() {
    let test = "programs_that_fail_at_their_start_say_why";
    let Some(program) = compile(test, "echo") else { return };
    // Not a tap: that goes with its program, before the test finds it.
    let Some(net) = TestNet::new(test, Nic::Afxdp, 1) else { return };
    let run = |words: &[&str]| {
        let (status, said) = net.start(words).process.wait(PATIENCE);
        let usual = ["ix: domain ", "ix: the program runs as root"];
        let own = |line: &&String| !usual.iter().any(|start| line.starts_with(start));
        (status.code(), said.iter().filter(own).cloned().collect::<Vec<_>>())
    };
    // A library that is missing.
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (library, lacking) = (folder.join("libixgone.so"), folder.join("lacking"));
    let cc = |words: &[&OsStr]| Command::new("cc").args(words).status().expect("cc").success();
    let empty = folder.join("empty.c");
    std::fs::write(&empty, "int ix_gone(void) { return 0; }").expect("a file");
    let main = folder.join("lacking.c");
    std::fs::write(&main, "int ix_gone(void); int main(void) { return ix_gone(); }").expect("file");
    let w = OsStr::new;
    assert!(cc(&[w("-shared"), w("-o"), library.as_os_str(), empty.as_os_str()]));
    assert!(cc(&[w("-o"), lacking.as_os_str(), main.as_os_str(), library.as_os_str()]));
    std::fs::remove_file(&library).expect("gone");
    let (status, said) = run(&[lacking.to_str().expect("text")]);
    assert_eq!(status, Some(127), "{said:#?}");
    assert!(said.len() == 1 && said[0].contains("libixgone.so"), "{said:#?}");
    // A script runs under its interpreter. What that executes is outside of IX where the dataplane
    // is in the program's process, and it is said.
    let script = folder.join("ix-script.sh");
    // There its sockets are Linux's, and so is the port: not one that takes root's rights.
    let content = format!("#!/bin/sh\nexec {} 7007\n", program.display());
    std::fs::write(&script, content).expect("a script");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, mode).expect("executable");
    let by_script =
        |domain| net.start_env(&[], &["--domain", domain], &[script.to_str().expect("text")]);
    let service = by_script("none");
    let told = format!("ix: {} executed another program, outside of IX, or", script.display());
    service.process.wait_for(&told, PATIENCE);
    service.process.signal(libc::SIGTERM);
    service.process.wait(PATIENCE);
    // Behind the process wall it has IX.
    let service = by_script("process");
    service.process.wait_for("ix: listening on 0.0.0.0:7007: IX, and Linux", PATIENCE);
    let at = SocketAddrV4::new(*SERVICE.ip(), 7007);
    let mut stream = net.client.run(|| connect_to(at));
    stream.write_all(b"by a script").expect("write");
    stream.read_exact(&mut [0; 11]).expect("the echo");
    service.process.signal(libc::SIGTERM);
    service.process.wait(PATIENCE);
    // So is what its children execute.
    let content = format!("#!/bin/sh\ntimeout 1 {} 7008\nexit 0\n", program.display());
    std::fs::write(&script, content).expect("a script");
    let service = by_script("none");
    let (status, said) = service.process.wait(PATIENCE);
    assert!(status.success(), "{said:#?}");
    let told = |line: &&String| line.contains("/timeout is executed outside of IX: its sockets");
    assert_eq!(said.iter().filter(told).count(), 1, "{said:#?}");
    let service = by_script("process");
    let (status, said) = service.process.wait(PATIENCE);
    assert!(status.success(), "{said:#?}");
    assert_eq!(said.iter().filter(told).count(), 0, "{said:#?}");
    assert!(said.iter().any(|line| line.contains("ix: listening on 0.0.0.0:7008")), "{said:#?}");
    // An address that is neither IX's nor Linux's.
    if Command::new("memcached").arg("-V").output().is_ok() {
        let words = ["memcached", "-u", "nobody", "-U", "0", "-l", "192.0.2.77"];
        let (status, said) = run(&words);
        assert_ne!(status, Some(0), "{said:#?}");
        assert!(said.iter().any(|line| line.contains("Cannot assign requested")), "{said:#?}");
    }
    // Fewer descriptors than the dataplane alone needs.
    let line = format!(
        "ulimit -n 60; exec {} run --domain none --nic tap:ixnone --addr 10.88.0.2/16 -- {}",
        env!("CARGO_BIN_EXE_ix"),
        program.display()
    );
    let output = Command::new("sh").args(["-c", &line]).output().expect("a shell");
    let said = text(&output);
    assert!(!output.status.success() && said.contains("ulimit -n 1024"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

/// The greeting of the process that accepts; asked for until one does.
fn greeting(net: &TestNet) -> String {
    let mut said = String::new();
    support::eventually("somebody greets", || {
        said.clear();
        let stream = net.client.run(|| TcpStream::connect_timeout(&SERVICE.into(), PATIENCE));
        let Ok(mut stream) = stream else { return false };
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        stream.read_to_string(&mut said).is_ok() && !said.is_empty()
    });
    said
}

/// `listen` was called in another process: the one that waits for connections has the dataplane.
#[test]
fn a_daemon_serves_on_ix_and_ends_with_ix_run() {
    let test = "a_daemon_serves_on_ix_and_ends_with_ix_run";
    let Some(program) = compile(test, "forks") else { return };
    for nic in Nic::ALL {
        let Some(net) = TestNet::new(test, nic, 1) else { return };
        let service = net.start(&[program.to_str().expect("text"), "daemon", "7"]);
        service.process.wait_for("ready", PATIENCE);
        for _ in 0..3 {
            assert_eq!(greeting(&net), "daemon");
        }
        // `ix run` lives as long as the daemon, and passes signals on to it.
        service.process.signal(libc::SIGTERM);
        let (status, said) = service.process.wait(PATIENCE);
        assert_eq!(status.code(), Some(128 + libc::SIGTERM), "{said:#?}");
    }
}

/// Who connects between `listen` and the first `accept` waits, and is served then, as on Linux.
#[test]
fn who_connects_before_the_program_waits_is_served() {
    let test = "who_connects_before_the_program_waits_is_served";
    let Some(program) = compile(test, "forks") else { return };
    for nic in Nic::ALL {
        let Some(net) = TestNet::new(test, nic, 1) else { return };
        let service = net.start(&[program.to_str().expect("text"), "late", "7"]);
        service.process.wait_for("ready", PATIENCE);
        let mut stream = net
            .client
            .run(|| TcpStream::connect_timeout(&SERVICE.into(), PATIENCE).expect("a connection"));
        let mut said = String::new();
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        stream.read_to_string(&mut said).expect("a greeting");
        assert_eq!(said, "late");
        let (status, said) = service.process.wait(PATIENCE);
        assert!(status.success(), "{said:#?}");
    }
}

/// One process after the other has the dataplane.
#[test]
fn children_serve_and_after_them_their_parent() {
    let test = "children_serve_and_after_them_their_parent";
    let Some(program) = compile(test, "forks") else { return };
    // A tap that nobody keeps goes with the process that has it.
    let Some(net) = TestNet::new(test, Nic::Afxdp, 1) else { return };
    let service = net.start(&[program.to_str().expect("text"), "master", "7"]);
    service.process.wait_for("ready", PATIENCE);
    for name in ["child", "other", "parent"] {
        assert_eq!(greeting(&net), name);
    }
    let (status, said) = service.process.wait(PATIENCE);
    assert!(status.success(), "{said:#?}");
}

/// As on Linux: a program that kills its child, and ends well, has ended well.
#[test]
fn a_child_that_its_parent_kills_is_not_how_the_program_ends() {
    let test = "a_child_that_its_parent_kills_is_not_how_the_program_ends";
    let Some(program) = compile(test, "forks") else { return };
    for nic in Nic::ALL {
        let Some(net) = TestNet::new(test, nic, 1) else { return };
        let service = net.start(&[program.to_str().expect("text"), "slain", "7"]);
        service.process.wait_for("ready", PATIENCE);
        assert_eq!(greeting(&net), "child");
        let (status, said) = service.process.wait(PATIENCE);
        assert!(status.success(), "{status}: {said:#?}");
    }
}

/// Each child has a listener of its own, and only one of them serves: what comes is all its.
#[test]
fn a_listener_of_a_process_that_does_not_serve_gets_no_connections() {
    let test = "a_listener_of_a_process_that_does_not_serve_gets_no_connections";
    let Some(program) = compile(test, "forks") else { return };
    let Some(net) = TestNet::new(test, Nic::Tap, 1) else { return };
    // Behind the process wall both serve.
    let words = [program.to_str().expect("text"), "own", "7"];
    let service = net.start_env(&[], &["--domain", "none"], &words);
    service.process.wait_for("ready", PATIENCE);
    let name = greeting(&net);
    for _ in 0..7 {
        let mut said = String::new();
        let mut stream = net.client.run(|| connect_to(SERVICE));
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        stream.read_to_string(&mut said).expect("a greeting");
        assert_eq!(said, name);
    }
    service.process.signal(libc::SIGTERM);
    let (status, said) = service.process.wait(PATIENCE);
    assert_eq!(status.code(), Some(128 + libc::SIGTERM), "{said:#?}");
}

/// Connections do not go to children, who are told so; the parent goes on.
#[test]
fn connections_stay_with_the_process_that_accepted_them() {
    let test = "connections_stay_with_the_process_that_accepted_them";
    let Some(program) = compile(test, "forks") else { return };
    let Some(net) = TestNet::new(test, Nic::Tap, 1) else { return };
    // Behind the process wall the child may use it.
    let words = [program.to_str().expect("text"), "connection", "7"];
    let service = net.start_env(&[], &["--domain", "none"], &words);
    service.process.wait_for("ready", PATIENCE);
    let mut stream = net.client.run(|| connect_to(SERVICE));
    service.process.wait_for("child: EBADF", PATIENCE);
    stream.write_all(b"x").expect("a byte");
    let mut said = String::new();
    stream.read_to_string(&mut said).expect("the parent speaks, and closes");
    assert_eq!(said, "parent");
    let (status, said) = service.process.wait(PATIENCE);
    assert!(status.success(), "{said:#?}");
    let told = said.iter().filter(|line| line.contains("a forked child uses a connection")).count();
    assert_eq!(told, 1, "{said:#?}");
}
