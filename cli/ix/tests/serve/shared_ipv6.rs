//! Linux's own addresses of both families, shared by port.
use super::shared_address::on_linux_address;
use crate::support::stats::Stats;
use crate::support::{CLIENT_V6, PATIENCE, SERVICE, SERVICE_V6, TestNet, eventually};
use ix_skip::{Need, skip};
use ix_testbed::{Namespace, VethEnd};
use std::io::{ErrorKind, Read, Write};
use std::net::{
    IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, TcpStream, UdpSocket,
};
use std::process::Command;
use std::time::Duration;

const PYTHON: &str = "/usr/bin/python3";
const PREFIX_V6: u8 = 64;

/// The private link with addresses of both families on both ends, which Linux has checked.
pub fn on_both_families(test: &str) -> Option<TestNet> {
    if !std::path::Path::new(PYTHON).exists() {
        skip(test, Need::Program("apt-get install python3"), "no python3");
        return None;
    }
    let net = on_linux_address(test)?;
    net.server.enable_ipv6("ixs0").expect("IPv6");
    net.server.add_address("ixs0", SERVICE_V6, PREFIX_V6).expect("an address");
    // What the host says to itself goes by the loopback.
    net.server.enable_ipv6("lo").expect("IPv6");
    net.server.set_up("lo", true).expect("loopback");
    net.enable_v6();
    for (end, name) in [(&net.server, "ixs0"), (&net.client, "ixc0")] {
        let index = end.link(name).expect("asked").expect("there").index;
        eventually("Linux has checked its addresses", || {
            let all = end.usable_addresses(index).expect("asked");
            all.iter().filter(|(own, _)| own.is_ipv6()).count() == 2
        });
    }
    Some(net)
}

/// The address of the link that Linux has on the service's end, as its peer names it.
fn of_link(net: &TestNet, port: u16) -> SocketAddr {
    let index = net.server.link("ixs0").expect("asked").expect("there").index;
    let all = net.server.usable_addresses(index).expect("asked");
    let own = all.iter().find_map(|(own, _)| match own {
        IpAddr::V6(own) if own.is_unicast_link_local() => Some(*own),
        _ => None,
    });
    let by = net.client.link("ixc0").expect("asked").expect("there").index;
    SocketAddrV6::new(own.expect("one of the link"), port, 0, by).into()
}

/// One question: what the service of [`PROGRAM`] says.
fn ask(to: SocketAddr, words: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(if words.is_empty() { b" " } else { words.as_bytes() })?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Serves both families by one socket; asked for an address, says what it hears there; else whom it
/// serves, and at which of its addresses.
const PROGRAM: &str = "
import socket
server = socket.socket(socket.AF_INET6)
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(('::', 8080))
server.listen(16)
datagrams = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
datagrams.bind(('::', 5353))
print('ready', flush=True)
def echo():
    while True:
        data, peer = datagrams.recvfrom(4000)
        datagrams.sendto(str(len(data)).encode(), peer)
import threading
threading.Thread(target=echo, daemon=True).start()
while True:
    client, peer = server.accept()
    words = client.recv(100).decode().split()
    if words:
        there = socket.create_connection((words[0], int(words[1])), 5)
        client.sendall(there.recv(100))
        there.close()
    else:
        client.sendall(('%s %s' % (peer[0], client.getsockname()[0])).encode())
    client.close()
";

/// Serves connections and datagrams at the address of the link alone, at once. Tells each of its
/// clients whom it serves.
const OF_LINK: &str = "
import socket, sys
at = (sys.argv[1], 8080, 0, int(sys.argv[2]))
server = socket.socket(socket.AF_INET6)
datagrams = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
if sys.argv[3] == 'tcp':
    server.bind(at)
    server.listen(16)
    print('ready', flush=True)
    while True:
        client, peer = server.accept()
        client.recv(10)
        client.sendall(client.getsockname()[0].encode())
        client.close()
datagrams.bind(at)
print('ready', flush=True)
while True:
    data, peer = datagrams.recvfrom(100)
    datagrams.sendto(data, peer)
";

/// A program that listens at an address of the link alone is served by IX, from its first call on:
/// the dataplane has yet to hear of that address then.
#[test]
fn a_program_at_the_address_of_the_link_alone_is_served() {
    let test = "a_program_at_the_address_of_the_link_alone_is_served";
    let Some(net) = on_both_families(test) else { return };
    let to = of_link(&net, 8080);
    let index = net.server.link("ixs0").expect("asked").expect("there").index.to_string();
    for kind in ["tcp", "udp"] {
        let own = to.ip().to_string();
        let words = [PYTHON, "-c", OF_LINK, &own, &index, kind];
        let process = net.start_shared_with(&["--require-ix"], &words).process;
        process.wait_for("ready", PATIENCE);
        let what = if kind == "tcp" { "listening on" } else { "receiving datagrams on" };
        process.wait_for(&format!("ix: {what} [{own}]:8080: IX"), PATIENCE);
        process.wait_for("ix: device ", PATIENCE);
        let served = || {
            if kind == "tcp" {
                return ask(to, "").is_ok_and(|said| said == own);
            }
            let socket = UdpSocket::bind("[::]:0").expect("a socket");
            socket.set_read_timeout(Some(Duration::from_millis(300))).expect("a timeout");
            socket.send_to(b"hello", to).expect("sent");
            socket.recv(&mut [0; 100]).is_ok_and(|n| n == 5)
        };
        net.client.run(|| eventually("it is served", served));
        let name = if kind == "tcp" { "accepted" } else { "rx_packets" };
        let control = net.file("control.sock");
        // What came before the program first waited is heard by way of Linux.
        let by_ix = || served() && Stats::ask(&control).total(name) > 0;
        net.client.run(|| eventually("IX serves it", by_ix));
        let said = process.said();
        assert!(!said.iter().any(|line| line.contains("cannot listen")), "{said:#?}");
        process.terminate();
    }
}

#[test]
fn a_dual_stack_program_shares_the_addresses_of_both_families() {
    let test = "a_dual_stack_program_shares_the_addresses_of_both_families";
    let Some(net) = on_both_families(test) else { return };
    let by_v6 = |port: u16| SocketAddr::from((SERVICE_V6, port));
    let by_v4 = SocketAddr::from((*SERVICE.ip(), 8080));
    // A service of Linux, which tells each client its port, and one on the other host.
    let tells = |listener: TcpListener| {
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let peer = stream.peer_addr().expect("a peer");
                let _ = stream.write_all(format!("{} {}", peer.ip(), peer.port()).as_bytes());
            }
        });
    };
    tells(net.server.run(|| TcpListener::bind(by_v6(22))).expect("free"));
    tells(net.client.run(|| TcpListener::bind((CLIENT_V6, 9))).expect("free"));
    let process = net.start_shared(&[PYTHON, "-c", PROGRAM]).process;
    process.wait_for("ready", PATIENCE);
    let shares = process.wait_for("ix: shares 10.88.0.2, 2001:db8:88::2, fe80:", PATIENCE);
    let block = shares.split(' ').find_map(|word| word.split_once('-')).expect("a range");

    // From another host: each address is IX's.
    let accepted = || Stats::ask(&net.file("control.sock")).total("accepted");
    let heard = net.client.run(|| ask(by_v6(8080), "")).expect("served");
    assert_eq!(heard, format!("{CLIENT_V6} {SERVICE_V6}"));
    let heard = net.client.run(|| ask(by_v4, "")).expect("served");
    assert_eq!(heard, format!("::ffff:10.88.0.1 ::ffff:{}", SERVICE.ip()));
    let heard = net.client.run(|| ask(of_link(&net, 8080), "")).expect("served");
    assert!(heard.starts_with("fe80:"), "{heard}");
    assert_eq!(accepted(), 3, "IX has served all of them");
    // The host itself, by Linux.
    let heard = net.server.run(|| ask(by_v6(8080), "")).expect("served by Linux");
    assert_eq!(heard, format!("{SERVICE_V6} {SERVICE_V6}"));
    let heard = net.server.run(|| ask(by_v4, "")).expect("served by Linux");
    assert_eq!(heard, format!("::ffff:{0} ::ffff:{0}", SERVICE.ip()));
    assert_eq!(accepted(), 3, "IX has not");
    // To another host from a port of IX, and to a service of Linux's on the program's own address.
    let there = format!("{CLIENT_V6} 9");
    let heard = net.client.run(|| ask(by_v6(8080), &there)).expect("served");
    let (from, port) = heard.split_once(' ').expect("two words");
    assert!(from == SERVICE_V6.to_string() && (block.0..=block.1).contains(&port), "{heard}");
    let own = format!("{SERVICE_V6} 22");
    let heard = net.client.run(|| ask(by_v6(8080), &own)).expect("served");
    assert!(heard.starts_with(&SERVICE_V6.to_string()), "{heard}");
    eventually("one connection was IX's", || {
        Stats::ask(&net.file("control.sock")).total("connects") == 1
    });

    // All else is Linux's: its service, what nobody serves, ping, ports that are taken.
    let linux = net.client.run(|| TcpStream::connect(by_v6(22)));
    drop(linux.expect("Linux's service goes on"));
    let nobody = net.client.run(|| TcpStream::connect(by_v6(23))).expect_err("nobody is there");
    assert_eq!(nobody.kind(), ErrorKind::ConnectionRefused);
    let ping = net.client.run(|| {
        Command::new("ping").args(["-6", "-c1", "-W5"]).arg(SERVICE_V6.to_string()).output()
    });
    assert!(ping.is_err() || ping.is_ok_and(|output| output.status.success()), "Linux answers");
    for at in [by_v6(8080), by_v4, (Ipv6Addr::UNSPECIFIED, 8080).into()] {
        let taken = net.server.run(|| TcpListener::bind(at)).expect_err("IX has it");
        assert_eq!(taken.kind(), ErrorKind::AddrInUse, "{at}");
    }

    // Datagrams and their fragments.
    let client = net.client.run(|| UdpSocket::bind((CLIENT_V6, 0))).expect("free");
    client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    for bytes in [10, 1400, 1900] {
        client.send_to(&vec![7; bytes], by_v6(5353)).expect("sent");
        let mut back = [0; 16];
        let n = client.recv(&mut back).expect("an answer");
        assert_eq!(String::from_utf8_lossy(&back[..n]), bytes.to_string());
    }
    process.terminate();
    let nobody = net.client.run(|| TcpStream::connect(by_v6(8080))).expect_err("nobody is there");
    assert_eq!(nobody.kind(), ErrorKind::ConnectionRefused, "Linux has the port again");
}

/// Addresses of IPv6 come, are checked, and go; the program has them when Linux has.
#[test]
fn addresses_of_ipv6_come_and_go() {
    let test = "addresses_of_ipv6_come_and_go";
    let Some(net) = on_both_families(test) else { return };
    let process = net.start_shared(&[PYTHON, "-c", PROGRAM]).process;
    process.wait_for("ready", PATIENCE);
    let at: SocketAddr = (SERVICE_V6, 8080).into();
    net.client.run(|| ask(at, "")).expect("served");
    let second = Ipv6Addr::new(0x2001, 0xdb8, 0x88, 0, 0, 0, 0, 3);
    net.server.add_address("ixs0", second, PREFIX_V6).expect("an address");
    process.wait_for("ix: shares 2001:db8:88::3 with Linux on ixs0 now", PATIENCE);
    let heard = net.client.run(|| ask((second, 8080).into(), "")).expect("served");
    assert_eq!(heard, format!("{CLIENT_V6} {second}"));
    assert_eq!(Stats::ask(&net.file("control.sock")).total("accepted"), 2, "IX serves both");
    let ip = |words: &str| {
        let run = || Command::new("ip").args(words.split(' ')).output();
        net.server.run(run).is_ok_and(|output| output.status.success())
    };
    if !ip("link show ixs0") {
        return skip(test, Need::Program("apt-get install iproute2"), "no ip");
    }
    assert!(ip("addr del 2001:db8:88::3/64 dev ixs0"));
    process.wait_for("ix: Linux has 2001:db8:88::3 on ixs0 no more", PATIENCE);
    let gone = net
        .client
        .run(|| TcpStream::connect_timeout(&(second, 8080).into(), Duration::from_millis(300)));
    assert!(gone.is_err(), "nobody has the address");
    net.client.run(|| ask(at, "")).expect("the other one is served");
    process.terminate();
}

/// The addresses of a host of the network beside IX's: 2 is the service's host, 1 a container.
pub fn addresses_beside(host: u8) -> [IpAddr; 2] {
    let v6 = Ipv6Addr::new(0x2001, 0xdb8, 0x89, 0, 0, 0, 0, host.into());
    [Ipv4Addr::new(10, 89, 0, host).into(), v6.into()]
}

/// A namespace behind another interface of the service's host, as a container has it.
pub fn container(net: &TestNet) -> Namespace {
    let container = Namespace::new().expect("a namespace");
    let [near, far] = ["ixv0", "ixv1"].map(VethEnd::new);
    net.server.add_veth(&near, &container, &far).expect("a veth pair");
    for (end, name, host) in [(&net.server, "ixv0", 2), (&container, "ixv1", 1)] {
        let [v4, v6] = addresses_beside(host);
        end.enable_ipv6(name).expect("IPv6");
        end.add_address(name, v4, 24).expect("an address");
        end.add_address(name, v6, PREFIX_V6).expect("an address");
        end.set_up(name, true).expect("up");
    }
    container.wait_running("ixv1", PATIENCE).expect("carrier");
    let [v4, v6] = addresses_beside(2);
    container.add_route(Ipv4Addr::UNSPECIFIED, 0, v4).expect("a route");
    container.add_route(Ipv6Addr::UNSPECIFIED, 0, v6).expect("a route");
    container
}

/// What comes from a container, or to the address of another interface, comes by another interface
/// than IX's: Linux hears it, and the program with it. It hears the host itself at each of its
/// addresses.
#[test]
fn containers_and_other_interfaces_reach_the_program_by_linux() {
    let test = "containers_and_other_interfaces_reach_the_program_by_linux";
    let Some(net) = on_both_families(test) else { return };
    let container = container(&net);
    let ([own_v4, own_v6], [v4, v6]) = (addresses_beside(2), addresses_beside(1));
    let process = net.start_shared(&[PYTHON, "-c", PROGRAM]).process;
    process.wait_for("ready", PATIENCE);
    let accepted = || Stats::ask(&net.file("control.sock")).total("accepted");
    let owns = [IpAddr::from(*SERVICE.ip()), SERVICE_V6.into()];
    for own in owns {
        net.client.run(|| ask((own, 8080).into(), "")).expect("served by IX");
    }
    assert_eq!(accepted(), 2, "IX serves other hosts");
    let from = [v4, v6];
    for (own, from) in owns.into_iter().zip(from).chain([(own_v4, v4), (own_v6, v6)]) {
        let heard = container.run(|| ask((own, 8080).into(), "")).expect("served by Linux");
        assert_eq!(heard, format!("{} {}", said(from), said(own)));
        let heard = net.server.run(|| ask((own, 8080).into(), "")).expect("served by Linux");
        assert_eq!(heard, format!("{0} {0}", said(own)));
    }
    assert_eq!(accepted(), 2, "IX has seen none of them");
    process.terminate();
}

/// An address as a socket of IPv6 says it.
fn said(ip: IpAddr) -> String {
    if ip.is_ipv4() { format!("::ffff:{ip}") } else { ip.to_string() }
}
