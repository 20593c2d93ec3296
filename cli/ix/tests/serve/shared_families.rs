//! Ports of one family beside those of the other one, at addresses that IX shares with Linux: each
//! answer is that of Linux alone.
use super::shared_ipv6::on_both_families;
use crate::support::process::Process;
use crate::support::stats::Stats;
use crate::support::{
    CLIENT_V6, Nic, PATIENCE, PREFIX_V6, SERVICE, SERVICE_V6, TestNet, eventually,
};
use ix_skip::{Need, skip};
use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpStream};

const PYTHON: &str = "/usr/bin/python3";
const MEMCACHED: &str = "/usr/bin/memcached";
const PORT: u16 = 8200;

/// Listens where it is told, in this order, says what came of it, and tells each client its name.
const PROGRAM: &str = "
import errno, selectors, socket, sys
name, places = sys.argv[1], sys.argv[2:]
waits = selectors.DefaultSelector()
for place in places:
    host, only = place.split(',')
    server = socket.socket(socket.AF_INET6 if ':' in host else socket.AF_INET)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if only == 'only':
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    try:
        server.bind((host, 8200))
        server.listen(16)
        waits.register(server, selectors.EVENT_READ)
        print('place', place, 'has', flush=True)
    except OSError as e:
        print('place', place, errno.errorcode[e.errno], flush=True)
print('ready', flush=True)
while True:
    for key, _ in waits.select():
        client, _ = key.fileobj.accept()
        client.recv(100)
        client.sendall(name.encode())
        client.close()
";

const V4: &str = "0.0.0.0,";
const V6: &str = "::,only";
const ANY: &str = "::,";

/// Runs [`PROGRAM`] on Linux alone, where the service is.
fn on_linux(net: &TestNet, name: &str, places: &[&str]) -> Process {
    let mut command = net.server.command(PYTHON, None);
    command.args(["-c", PROGRAM, name]).args(places);
    let process = Process::start(command);
    process.wait_for("ready", PATIENCE);
    process
}

/// Runs it under a plain `ix run`.
fn on_ix(net: &TestNet, flags: &[&str], name: &str, places: &[&str]) -> Process {
    let words = [&[PYTHON, "-c", PROGRAM, name], places].concat();
    let process = net.start_shared_as(&format!("{name}.sock"), flags, &words).process;
    process.wait_for("ready", PATIENCE);
    process
}

/// What came of each place.
fn places(process: &Process) -> Vec<String> {
    process.said().into_iter().filter(|line| line.starts_with("place ")).collect()
}

/// What the service says to another host.
fn ask(net: &TestNet, to: SocketAddr) -> std::io::Result<String> {
    net.client.run(|| {
        let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b" ")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    })
}

fn accepted(net: &TestNet, name: &str) -> u64 {
    Stats::ask(&net.file(&format!("{name}.sock"))).total("accepted")
}

fn ends(process: Process) {
    process.signal(libc::SIGTERM);
    process.wait(PATIENCE);
}

fn at() -> [SocketAddr; 2] {
    [(*SERVICE.ip(), PORT).into(), (SERVICE_V6, PORT).into()]
}

#[test]
fn a_port_of_one_family_beside_that_of_the_other_is_answered_as_on_linux() {
    let test = "a_port_of_one_family_beside_that_of_the_other_is_answered_as_on_linux";
    let Some(net) = on_both_families(test) else { return };
    // Where somebody else listens, and where the program does.
    let cases: [(&[&str], &[&str]); 7] = [
        (&[], &[V4, V6]),
        (&[], &[V4, ANY]),
        (&[], &[ANY, V4]),
        (&[V4], &[V6]),
        (&[V4], &[ANY]),
        (&[V6], &[V4]),
        (&[V6], &[V6]),
    ];
    for (others, own) in cases {
        let what = format!("{others:?}, then {own:?}");
        let other = on_linux(&net, "other", others);
        let alone = on_linux(&net, "own", own);
        let expected = places(&alone);
        ends(alone);
        let process = on_ix(&net, &[], "own", own);
        assert_eq!(places(&process), expected, "beside Linux: {what}: {process}");
        ends(process);
        ends(other);
        if others.is_empty() {
            continue;
        }
        let other = on_ix(&net, &[], "other", others);
        let process = on_ix(&net, &[], "own", own);
        assert_eq!(places(&process), expected, "beside another run: {what}: {process}");
        ends(process);
        ends(other);
    }
}

#[test]
fn each_family_reaches_whose_port_it_is() {
    let Some(net) = on_both_families("each_family_reaches_whose_port_it_is") else { return };
    let [by_v4, by_v6] = at();
    let heard = |to| ask(&net, to).expect("served");
    let is_told_late =
        |process: &Process| process.said().iter().any(|line| line.contains("cannot listen"));
    for flags in [&[][..], &["--user", "65533"]] {
        // IPv6 is IX's, and IPv4 Linux's.
        let linux = on_linux(&net, "linux", &[V4]);
        let process = on_ix(&net, flags, "six", &[V6]);
        eventually("IX has the port", || accepted_of(&net, by_v6, "six") > 0);
        assert_eq!((heard(by_v4), heard(by_v6)), ("linux".to_owned(), "six".to_owned()));
        assert!(!is_told_late(&process), "{process}");
        ends(process);
        ends(linux);
        // The other way round.
        let linux = on_linux(&net, "linux", &[V6]);
        let process = on_ix(&net, flags, "four", &[V4]);
        eventually("IX has the port", || accepted_of(&net, by_v4, "four") > 0);
        assert_eq!((heard(by_v4), heard(by_v6)), ("four".to_owned(), "linux".to_owned()));
        assert!(!is_told_late(&process), "{process}");
        // And when the program has given it back.
        ends(process);
        let gone = ask(&net, by_v4).expect_err("nobody is there").kind();
        assert_eq!(gone, std::io::ErrorKind::ConnectionRefused);
        assert_eq!(heard(by_v6), "linux");
        ends(linux);
        // Two runs, one of which has a link.
        let first = on_ix(&net, flags, "four", &[V4]);
        let second = on_ix(&net, flags, "six", &[V6]);
        eventually("both are IX's", || {
            accepted_of(&net, by_v4, "four") > 0 && accepted_of(&net, by_v6, "six") > 0
        });
        assert_eq!((heard(by_v4), heard(by_v6)), ("four".to_owned(), "six".to_owned()));
        ends(first);
        assert_eq!(heard(by_v6), "six", "the other one goes on");
        ends(second);
    }
}

/// Asks a service, and returns what its dataplane has accepted so far.
fn accepted_of(net: &TestNet, to: SocketAddr, name: &str) -> u64 {
    ask(net, to).map_or(0, |_| accepted(net, name))
}

/// A host whose interface has addresses of IPv6 alone.
fn on_ipv6_alone(test: &str) -> Option<TestNet> {
    let net = TestNet::new(test, Nic::Afxdp, 1)?;
    net.server.enable_ipv6("ixs0").expect("IPv6");
    net.server.add_address("ixs0", SERVICE_V6, PREFIX_V6).expect("an address");
    net.enable_v6();
    for (end, name) in [(&net.server, "ixs0"), (&net.client, "ixc0")] {
        let index = end.link(name).expect("asked").expect("there").index;
        eventually("Linux has checked its addresses", || {
            let all = end.usable_addresses(index).expect("asked");
            all.iter().filter(|(own, _)| own.is_ipv6()).count() == 2
        });
    }
    net.server.add_route(Ipv6Addr::UNSPECIFIED, 0, CLIENT_V6).expect("a route");
    Some(net)
}

/// Servers open 0.0.0.0 first, of which the host has no address, then `::` with `IPV6_V6ONLY`.
#[test]
fn a_host_of_ipv6_alone_serves_a_program_of_both_families() {
    let test = "a_host_of_ipv6_alone_serves_a_program_of_both_families";
    if !std::path::Path::new(PYTHON).exists() {
        return skip(test, Need::Program("apt-get install python3"), "no python3");
    }
    let Some(net) = on_ipv6_alone(test) else { return };
    let by_v6 = SocketAddr::from((SERVICE_V6, PORT));
    for own in [&[V4, V6][..], &[ANY]] {
        let alone = on_linux(&net, "own", own);
        let expected = places(&alone);
        ends(alone);
        let process = on_ix(&net, &[], "own", own);
        assert_eq!(places(&process), expected, "{process}");
        process.wait_for("ix: listening on [::]:8200: IX, and Linux", PATIENCE);
        assert_eq!(ask(&net, by_v6).expect("served"), "own");
        assert_eq!(accepted(&net, "own"), 1, "{process}");
        ends(process);
    }
}

#[test]
fn a_host_of_ipv6_alone_serves_memcached() {
    let test = "a_host_of_ipv6_alone_serves_memcached";
    if !std::path::Path::new(MEMCACHED).exists() {
        return skip(test, Need::Program("apt-get install memcached"), "no memcached");
    }
    let Some(net) = on_ipv6_alone(test) else { return };
    let words = [MEMCACHED, "-u", "nobody", "-p", "11401"];
    let process = net.start_shared_as("own.sock", &[], &words).process;
    process.wait_for("ix: listening on 0.0.0.0:11401: Linux (no address of IX)", PATIENCE);
    process.wait_for("ix: listening on [::]:11401: IX, and Linux", PATIENCE);
    let version = net.client.run(|| {
        let to = SocketAddr::from((SERVICE_V6, 11401));
        let mut stream = TcpStream::connect_timeout(&to, PATIENCE).expect("served");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.write_all(b"version\r\nquit\r\n").expect("asked");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    });
    assert!(version.starts_with("VERSION "), "{version}");
    assert_eq!(accepted(&net, "own"), 1, "{process}");
    ends(process);
}
