//! The network of an address that IX shares with Linux changes while the program runs: addresses,
//! routes, the link.
use super::shared_address::{ask, on_linux_address, run_echo};
use crate::support::stats::Stats;
use crate::support::traffic::echo;
use crate::support::{CLIENT, Nic, PATIENCE, SERVICE, TestNet, build_echo, connect_to, eventually};
use ix_skip::{Need, skip};
use ix_sys::socket;
use ix_testbed::VethEnd;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const PYTHON: &str = "/usr/bin/python3";
/// A host behind the other end, and another gateway there.
const FAR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const OTHER_GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 9);
/// A second address of Linux's on IX's interface.
const SECOND: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 3);

/// `ip`, on the host of the program.
#[track_caller]
pub fn ip(net: &TestNet, words: &str) {
    let run = || Command::new("ip").args(words.split(' ')).output().expect("ip");
    let output = net.server.run(run);
    assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
}

pub fn has_ip(net: &TestNet) -> bool {
    net.server.run(|| Command::new("ip").arg("link").output()).is_ok()
}

#[test]
fn addresses_of_linux_come_and_go() {
    let test = "addresses_of_linux_come_and_go";
    let Some(net) = on_linux_address(test) else { return };
    if !has_ip(&net) {
        return skip(test, Need::Program("apt-get install iproute2"), "no ip");
    }
    let process = run_echo(&net);
    let mut first = net.client.run(|| connect_to(SERVICE));
    echo(&mut first, 1, 64);
    // A lease is renewed: nothing is new.
    ip(&net, "addr change 10.88.0.2/16 dev ixs0 valid_lft 600 preferred_lft 600");
    ip(&net, "addr add 10.88.0.3/16 dev ixs0");
    process.wait_for("ix: shares 10.88.0.3 with Linux on ixs0 now", PATIENCE);
    let at = SocketAddrV4::new(SECOND, SERVICE.port());
    let mut second = net.client.run(|| connect_to(at));
    echo(&mut second, 2, 64);
    let taken = net.server.run(|| TcpListener::bind(at)).expect_err("it is IX's there as well");
    assert_eq!(taken.kind(), ErrorKind::AddrInUse);
    let accepted = || Stats::ask(&net.file("control.sock")).total("accepted");
    assert_eq!(accepted(), 2, "IX serves both");
    // It goes, and its port is Linux's there. What was connected waits, as on Linux.
    ip(&net, "addr del 10.88.0.3/16 dev ixs0");
    process.wait_for("ix: Linux has 10.88.0.3 on ixs0 no more", PATIENCE);
    echo(&mut first, 3, 64);
    second.set_read_timeout(Some(Duration::from_millis(300))).expect("a timeout");
    second.write_all(&[9; 64]).expect("sent");
    let mut back = [0; 64];
    let still = second.read(&mut back).expect_err("nobody has the address");
    assert_eq!(still.kind(), ErrorKind::WouldBlock);
    ip(&net, "addr add 10.88.0.3/16 dev ixs0");
    process.wait_for_nth("ix: shares 10.88.0.3 with Linux on ixs0 now", 2, PATIENCE);
    second.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    second.read_exact(&mut back).expect("it goes on");
    assert_eq!(back, [9; 64]);
    // The only address is another one: the program serves there.
    ip(&net, "addr flush dev ixs0");
    process.wait_for("ix: Linux has 10.88.0.2 on ixs0 no more", PATIENCE);
    ip(&net, "addr add 10.88.0.4/16 dev ixs0");
    process.wait_for("ix: shares 10.88.0.4 with Linux on ixs0 now", PATIENCE);
    let moved = SocketAddrV4::new(Ipv4Addr::new(10, 88, 0, 4), SERVICE.port());
    let mut third = net.client.run(|| connect_to(moved));
    echo(&mut third, 4, 64);
    assert_eq!(accepted(), 3, "IX serves there");
    let said = process.said();
    let news = said.iter().filter(|line| line.contains("shares") || line.contains("no more"));
    assert!(!said.iter().any(|line| line.contains("cannot")), "{said:#?}");
    assert_eq!(news.count(), 7, "one line for each change, none for the lease: {said:#?}");
    process.terminate();
}

/// Tells each client what came of a connection to the address that it names: what the peer says,
/// or an errno.
const PROGRAM: &str = "
import socket
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(('0.0.0.0', 8080))
server.listen(16)
print('ready', flush=True)
while True:
    client, peer = server.accept()
    words = client.recv(100).decode().split()
    if len(words) == 2:
        there = socket.socket()
        there.settimeout(5)
        try:
            there.connect((words[0], int(words[1])))
            client.sendall(there.recv(100))
        except OSError as e:
            client.sendall(('errno %s' % e.errno).encode())
        there.close()
        client.close()
    else:
        while client.sendall(b'x') is None and client.recv(1):
            pass
        client.close()
";

/// What the program's Linux says, and where it goes: each as Linux alone has it.
#[test]
fn routes_of_linux_are_followed() {
    let test = "routes_of_linux_are_followed";
    if !std::path::Path::new(PYTHON).exists() {
        return skip(test, Need::Program("apt-get install python3"), "no python3");
    }
    let Some(net) = on_linux_address(test) else { return };
    if !has_ip(&net) {
        return skip(test, Need::Program("apt-get install iproute2"), "no ip");
    }
    for (address, prefix) in [(FAR, 32), (OTHER_GATEWAY, 16)] {
        net.client.add_address("ixc0", address, prefix).expect("an address");
    }
    // Another link between the two.
    let [near, far] = ["ixv0", "ixv1"].map(VethEnd::new);
    net.server.add_veth(&near, &net.client, &far).expect("a veth pair");
    let [here, there] = [2, 1].map(|host| Ipv4Addr::new(10, 89, 0, host));
    net.server.add_address("ixv0", here, 24).expect("an address");
    net.client.add_address("ixv1", there, 24).expect("an address");
    for (namespace, name) in [(&net.server, "ixv0"), (&net.client, "ixv1")] {
        namespace.set_up(name, true).expect("up");
    }
    let listener = net.client.run(|| TcpListener::bind((FAR, 9))).expect("free");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let peer = stream.peer_addr().expect("a peer");
            let _ = stream.write_all(format!("from {} {}", peer.ip(), peer.port()).as_bytes());
        }
    });
    let process = net.start_shared(&[PYTHON, "-c", PROGRAM]).process;
    process.wait_for("ready", PATIENCE);
    let shares = process.wait_for("ix: shares 10.88.0.2 with Linux on ixs0", PATIENCE);
    let block = shares.split(' ').find_map(|word| word.split_once('-')).expect("a range");
    let at = SocketAddrV4::new(*SERVICE.ip(), 8080);
    let hears = || net.client.run(|| ask(at, &format!("{FAR} 9")));
    let by_ix = |from: Ipv4Addr| {
        // What has just changed reaches the dataplane by way of the broker.
        let mut heard = String::new();
        eventually("IX has the route", || {
            heard = hears();
            heard.starts_with(&format!("from {from} "))
        });
        let port = heard.rsplit(' ').next().expect("a port").to_owned();
        assert!((block.0..=block.1).contains(&port.as_str()), "{heard}: {shares}");
    };
    let errno = |expected: i32| assert_eq!(hears(), format!("errno {expected}"));
    errno(libc::ENETUNREACH);
    ip(&net, "route add default via 10.88.0.1");
    by_ix(*SERVICE.ip());
    for (kind, number) in [
        ("unreachable", libc::EHOSTUNREACH),
        ("blackhole", libc::EINVAL),
        ("prohibit", libc::EACCES),
    ] {
        ip(&net, &format!("route replace {kind} 192.0.2.0/24"));
        errno(number);
    }
    // Longer prefixes come first, and name a source.
    net.server.add_address("ixs0", Ipv4Addr::new(10, 88, 0, 5), 16).expect("an address");
    process.wait_for("ix: shares 10.88.0.5 with Linux", PATIENCE);
    ip(&net, "route add 192.0.2.0/25 via 10.88.0.9 src 10.88.0.5 mtu 1400");
    by_ix(Ipv4Addr::new(10, 88, 0, 5));
    // By another interface it is Linux's.
    ip(&net, "route add 192.0.2.1/32 via 10.89.0.1");
    let heard = hears();
    assert!(heard.starts_with("from 10.89.0.2 "), "{heard}");
    ip(&net, "route del 192.0.2.1/32");
    by_ix(Ipv4Addr::new(10, 88, 0, 5));
    ip(&net, "route del 192.0.2.0/25");
    ip(&net, "route del prohibit 192.0.2.0/24");
    by_ix(*SERVICE.ip());
    // Another gateway.
    ip(&net, "route replace default via 10.88.0.9");
    by_ix(*SERVICE.ip());

    // The default route changes under load. The client's address is behind it.
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut stream = net.client.run(|| {
        let stream = socket::open(libc::AF_INET, libc::SOCK_STREAM).expect("a socket");
        socket::bind_inet(stream.as_fd(), SocketAddr::from((FAR, 0))).expect("its own");
        socket::connect_inet(stream.as_fd(), at.into()).expect("served");
        TcpStream::from(stream)
    });
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.write_all(b"1").expect("sent");
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let mut back = [0];
                stream.read_exact(&mut back).expect("it goes on");
                stream.write_all(b"1").expect("sent");
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        });
        for change in 0..20 {
            let hop = if change % 2 == 0 { CLIENT } else { OTHER_GATEWAY };
            ip(&net, &format!("route replace default via {hop}"));
            let before = rounds.load(Ordering::Relaxed);
            eventually("the load goes on", || rounds.load(Ordering::Relaxed) > before + 3);
        }
        stop.store(true, Ordering::Relaxed);
        load.join().expect("nothing was lost for long");
    });
    process.terminate();
}

/// What `ix ctl status` says.
fn status(net: &TestNet) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ix"));
    command.args(["ctl", "status", "--control"]).arg(net.file("control.sock"));
    let output = command.output().expect("the command starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// An interface with an address of IX's own gets another Ethernet address: the new one is announced
/// at once, and the connection goes on.
#[test]
fn an_own_address_moves_to_another_ethernet_address() {
    let test = "an_own_address_moves_to_another_ethernet_address";
    let Some(net) = TestNet::new(test, Nic::Afxdp, 1) else { return };
    let service = net.serve(&["64"]);
    let mut stream = net.connect();
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    echo(&mut stream, 1, 64);
    net.server.set_mac("ixs0", [2, 0, 0, 0, 5, 1]).expect("another address");
    service.process.wait_for("ix: ixs0 has Ethernet address 02:00:00:00:05:01 now", PATIENCE);
    echo(&mut stream, 2, 64);
    assert_eq!(net.service_mac(), [2, 0, 0, 0, 5, 1]);
    echo(&mut net.connect(), 3, 64);
    drop(stream);
    service.finish(PATIENCE);
}

/// The interface takes shorter packets while the program runs: connections go on in both
/// directions, and new ones say so.
#[test]
fn an_mtu_that_changes_is_followed() {
    let test = "an_mtu_that_changes_is_followed";
    let Some(net) = on_linux_address(test) else { return };
    let echo_path = build_echo();
    let process = net.start_shared(&[echo_path.to_str().expect("text"), "40000"]).process;
    process.wait_for("ready", PATIENCE);
    let mut first = net.client.run(|| connect_to(SERVICE));
    echo(&mut first, 1, 40_000);
    for (round, mtu) in [1300, 1500, 1280].into_iter().enumerate() {
        for (end, name) in [(&net.client, "ixc0"), (&net.server, "ixs0")] {
            end.set_mtu(name, mtu).expect("set");
        }
        // While it is told nothing, what it sends is lost.
        echo(&mut first, 2, 40_000);
        process.wait_for_nth("ix: afxdp:ixs0: up, with MTU ", round + 1, PATIENCE);
        let state = match mtu {
            1500 => "(up)".to_owned(),
            mtu => format!("(up, with MTU {mtu} instead of 1500)"),
        };
        let told = status(&net);
        assert!(told.contains(&state), "{state}: {told}");
        let mut second = net.client.run(|| connect_to(SERVICE));
        eventually("new connections say so", || {
            second = net.client.run(|| connect_to(SERVICE));
            let (level, option) = (libc::IPPROTO_TCP, libc::TCP_MAXSEG);
            let mss = socket::get_option::<i32>(second.as_fd(), level, option).expect("asked");
            // Behind the headers of IPv4 and TCP, the latter with timestamps.
            mss == mtu as i32 - 40 - 12
        });
        echo(&mut second, 3, 40_000);
        echo(&mut first, 4, 40_000);
    }
    process.terminate();
}

/// Tells each client at which address it was reached.
const OWN_NAME: &str = "
import socket
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(('0.0.0.0', 8080))
server.listen(16)
print('ready', flush=True)
while True:
    client, peer = server.accept()
    client.recv(10)
    client.sendall(client.getsockname()[0].encode())
    client.close()
";

/// Answers datagrams.
const DATAGRAMS: &str = "
import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(('0.0.0.0', 8080))
print('ready', flush=True)
while True:
    try:
        words, peer = server.recvfrom(2048)
        server.sendto(words, peer)
    except OSError as e:
        print('errno', e.errno, flush=True)
";

/// Linux lets a route have an MTU in which no header has room. The dataplane goes on.
#[test]
fn a_route_with_an_mtu_of_one_byte_ends_nobody() {
    let test = "a_route_with_an_mtu_of_one_byte_ends_nobody";
    if !std::path::Path::new(PYTHON).exists() {
        return skip(test, Need::Program("apt-get install python3"), "no python3");
    }
    let Some(net) = on_linux_address(test) else { return };
    if !has_ip(&net) {
        return skip(test, Need::Program("apt-get install iproute2"), "no ip");
    }
    let service = net.start_shared(&[PYTHON, "-c", DATAGRAMS]);
    service.process.wait_for("ready", PATIENCE);
    net.client.set_up("lo", true).expect("loopback");
    net.client.add_address("lo", FAR, 32).expect("an address");
    let at = SocketAddrV4::new(*SERVICE.ip(), 8080);
    let asks = |from: Ipv4Addr, words: &[u8]| {
        let socket = net.client.run(|| UdpSocket::bind((from, 0))).expect("a socket");
        socket.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
        let mut back = [0; 2048];
        // The first one may be lost while neighbours are found.
        (0..10).any(|_| {
            socket.send_to(words, at).expect("sent");
            socket.recv(&mut back).is_ok_and(|n| &back[..n] == words)
        })
    };
    assert!(asks(CLIENT, b"near"));
    ip(&net, "route add 192.0.2.0/24 via 10.88.0.1 mtu 1");
    let dataplane = service.dataplane();
    // What has room in the least packet that every link takes, and what has not.
    assert!(asks(FAR, b"far"));
    assert!(!asks(FAR, &[7; 1000]));
    assert!(asks(CLIENT, b"near"));
    assert_eq!(service.dataplane(), dataplane, "it has not died");
    service.process.terminate();
}

/// Connects to a host of the link that there is not, blocking and not, and says what came of it.
const TRIES: &str = "
import errno, select, socket, sys, time
for blocks in (True, False):
    one = socket.socket()
    one.setblocking(blocks)
    began = time.monotonic()
    code = one.connect_ex((sys.argv[1], 9))
    if code == errno.EINPROGRESS:
        select.select([], [one], [], 60)
        code = one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    took = 'soon' if time.monotonic() - began < 20 else 'late'
    print(blocks, errno.errorcode.get(code, code), took, flush=True)
";

/// An attempt to connect to a host of the link that there is not ends as on Linux.
#[test]
fn a_host_that_is_not_there_cannot_be_reached() {
    let test = "a_host_that_is_not_there_cannot_be_reached";
    if !std::path::Path::new(PYTHON).exists() {
        return skip(test, Need::Program("apt-get install python3"), "no python3");
    }
    let Some(net) = on_linux_address(test) else { return };
    let words = [PYTHON, "-c", TRIES, "10.88.0.77"];
    let on_linux = net.server.run(|| Command::new(PYTHON).args(&words[1..]).output());
    let on_linux = String::from_utf8(on_linux.expect("python3").stdout).expect("text");
    let told: Vec<&str> = on_linux.lines().collect();
    assert!(told.len() == 2 && told.iter().all(|line| line.contains("EHOSTUNREACH")), "{told:?}");
    let process = net.start_shared(&words).process;
    let (status, said) = process.wait(Duration::from_secs(60));
    assert!(status.success(), "{said:#?}");
    assert!(said.iter().any(|line| line.contains("first connection to 10.88.0.77:9: IX")));
    let answers: Vec<&String> = said.iter().filter(|line| !line.starts_with("ix: ")).collect();
    assert_eq!(answers, told);
}

/// `getsockname` right after `accept`, which Python calls by itself, is answered at once, by the
/// address that the client has named: there may be several, and others than at the start.
#[test]
fn a_connection_knows_its_own_address_at_once() {
    let test = "a_connection_knows_its_own_address_at_once";
    if !std::path::Path::new(PYTHON).exists() {
        return skip(test, Need::Program("apt-get install python3"), "no python3");
    }
    let Some(net) = on_linux_address(test) else { return };
    let process = net.start_shared(&[PYTHON, "-c", OWN_NAME]).process;
    process.wait_for("ready", PATIENCE);
    let asked = |own: Ipv4Addr| {
        let began = std::time::Instant::now();
        let heard = net.client.run(|| ask(SocketAddrV4::new(own, 8080), ""));
        assert_eq!(heard, own.to_string());
        began.elapsed()
    };
    // The dataplane begins with the first one.
    asked(*SERVICE.ip());
    net.server.add_address("ixs0", SECOND, 16).expect("an address");
    process.wait_for("ix: shares 10.88.0.3 with Linux", PATIENCE);
    for own in [*SERVICE.ip(), SECOND, *SERVICE.ip()] {
        let took = asked(own);
        assert!(took < Duration::from_secs(4), "{own}: {took:?}");
    }
    process.terminate();
}

/// Linux forgets routes with the link, and has those of its networks again with it.
#[test]
fn connections_survive_a_link_that_falls() {
    let test = "connections_survive_a_link_that_falls";
    let Some(net) = on_linux_address(test) else { return };
    let process = run_echo(&net);
    let mut stream = net.client.run(|| connect_to(SERVICE));
    for id in 0..3 {
        echo(&mut stream, id, 64);
        net.server.set_up("ixs0", false).expect("down");
        process.wait_for_nth("ix: link ixs0 is down", id as usize + 1, PATIENCE);
        net.server.set_up("ixs0", true).expect("up");
        process.wait_for_nth("ix: link ixs0 is up", id as usize + 1, PATIENCE);
    }
    echo(&mut stream, 9, 64);
    eventually("new ones come", || {
        let at = SERVICE.into();
        let made = || TcpStream::connect_timeout(&at, PATIENCE);
        let Ok(mut fresh) = net.client.run(made) else { return false };
        echo(&mut fresh, 10, 64);
        true
    });
    assert!(!process.said().iter().any(|line| line.contains("no more")), "{process}");
    process.terminate();
}
