//! An interface on which Linux has ten addresses and one more, all of them shared: what a program
//! hears and says at each is what it would be on Linux.
use super::shared_address::{ask, on_linux_address};
use super::shared_network::{has_ip, ip};
use crate::support::stats::Stats;
use crate::support::{CLIENT, PATIENCE, SERVICE, TestNet, eventually};
use ix_skip::{Need, skip};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::process::Stdio;
use std::time::Duration;

const PYTHON: &str = "/usr/bin/python3";
/// Listens to all addresses, and to each.
const ALL: u16 = 8080;
const EACH: u16 = 8081;
/// A host behind the other end, to which a route names a source.
const FAR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// Where Linux tells each client where it comes from.
const TELLS: u16 = 9;

/// Tells each client at which listener and address it was heard; or with `tcp FROM TO` and
/// `udp FROM TO` what a peer there sees, `-` for no address of the socket's own.
const PROGRAM: &str = "
import select, socket, sys
own = sys.argv[1:]
all = socket.create_server(('0.0.0.0', 8080))
each = []
for one in own:
    each.append(socket.create_server((one, 8081)))
print('ready', flush=True)
def tells(words):
    kind = socket.SOCK_STREAM if words[0] == 'tcp' else socket.SOCK_DGRAM
    there = socket.socket(socket.AF_INET, kind)
    there.settimeout(5)
    try:
        if words[1] != '-':
            there.bind((words[1], 0))
        there.connect((words[2], 9))
        if words[0] == 'udp':
            there.send(b'hello')
        said = there.recv(100).decode()
        return said + ' named ' + there.getsockname()[0]
    except OSError as e:
        return 'errno %s' % e.errno
    finally:
        there.close()
while True:
    for one in select.select([all] + each, [], [])[0]:
        client, peer = one.accept()
        words = client.recv(100).decode().split()
        said = 'all' if one is all else 'bound to ' + one.getsockname()[0]
        said += ' heard at ' + client.getsockname()[0]
        if words:
            said = tells(words)
        client.sendall(said.encode())
        client.close()
";

/// Tells each client of TCP and UDP where it comes from.
fn tells_where_from(net: &TestNet) {
    let (tcp, udp) = net.client.run(|| {
        let tcp = TcpListener::bind((Ipv4Addr::UNSPECIFIED, TELLS)).expect("free");
        (tcp, UdpSocket::bind((Ipv4Addr::UNSPECIFIED, TELLS)).expect("free"))
    });
    std::thread::spawn(move || {
        for mut stream in tcp.incoming().flatten() {
            let peer = stream.peer_addr().expect("a peer").ip();
            let _ = stream.write_all(format!("from {peer}").as_bytes());
        }
    });
    std::thread::spawn(move || {
        let mut words = [0; 100];
        while let Ok((_, peer)) = udp.recv_from(&mut words) {
            let _ = udp.send_to(format!("from {}", peer.ip()).as_bytes(), peer);
        }
    });
}

/// Everything that can be asked of these addresses, in the same order each time.
fn asked(net: &TestNet, own: &[Ipv4Addr]) -> Vec<String> {
    let mut said = Vec::new();
    let mut hear = |at: Ipv4Addr, port: u16, words: &str| {
        let heard = net.client.run(|| ask(SocketAddrV4::new(at, port), words));
        said.push(format!("{at}:{port} {words}: {heard}"));
    };
    for at in own {
        hear(*at, ALL, "");
        hear(*at, EACH, "");
    }
    for kind in ["tcp", "udp"] {
        for to in [CLIENT, FAR] {
            hear(own[0], ALL, &format!("{kind} - {to}"));
            own.iter().for_each(|from| hear(own[0], ALL, &format!("{kind} {from} {to}")));
        }
    }
    said
}

#[test]
#[ignore = "long; .ci/run nightly"]
fn ten_addresses_are_shared_as_linux_has_them() {
    let test = "ten_addresses_are_shared_as_linux_has_them";
    if !std::path::Path::new(PYTHON).exists() {
        return skip(test, Need::Program("apt-get install python3"), "no python3");
    }
    let Some(net) = on_linux_address(test) else { return };
    if !has_ip(&net) {
        return skip(test, Need::Program("apt-get install iproute2"), "no ip");
    }
    let ten = (20..30).map(|host| Ipv4Addr::new(10, 88, 0, host));
    let own: Vec<Ipv4Addr> = [*SERVICE.ip()].into_iter().chain(ten).collect();
    own[1..].iter().for_each(|own| ip(&net, &format!("addr add {own}/16 dev ixs0")));
    ip(&net, "route add 192.0.2.0/24 via 10.88.0.1 src 10.88.0.25");
    net.client.add_address("ixc0", FAR, 32).expect("an address");
    tells_where_from(&net);
    let texts: Vec<String> = own.iter().map(Ipv4Addr::to_string).collect();
    let program: Vec<&str> =
        [PYTHON, "-c", PROGRAM].into_iter().chain(texts.iter().map(String::as_str)).collect();

    // What Linux alone says.
    let mut linux = net.server.command(program[0], None);
    let mut linux = linux.args(&program[1..]).stdout(Stdio::piped()).spawn().expect("python");
    let mut line = String::new();
    BufReader::new(linux.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    let before = asked(&net, &own);
    linux.kill().and_then(|()| linux.wait()).expect("it ends");

    let service = net.start_shared(&program);
    service.process.wait_for("ready", PATIENCE);
    assert_eq!(asked(&net, &own), before);
    let accepted = || Stats::ask(&net.file("control.sock")).total("accepted");
    assert!(accepted() >= before.len() as u64, "IX serves all of them: {}", accepted());

    // Three go, one that a listener is bound to and one that a route names among them.
    let gone = [own[1], own[4], own[6]];
    for (nth, gone) in gone.iter().enumerate() {
        ip(&net, &format!("addr del {gone}/16 dev ixs0"));
        service.process.wait_for_nth("ix: Linux has 10.88.0.2", nth + 1, PATIENCE);
        let line = format!("ix: Linux has {gone} on ixs0 no more");
        assert_eq!(service.process.said().iter().filter(|said| said.starts_with(&line)).count(), 1);
    }
    let left: Vec<Ipv4Addr> = own.iter().copied().filter(|own| !gone.contains(own)).collect();
    for at in &left {
        for (port, by) in [(ALL, "all".to_owned()), (EACH, format!("bound to {at}"))] {
            let heard = net.client.run(|| ask(SocketAddrV4::new(*at, port), ""));
            assert_eq!(heard, format!("{by} heard at {at}"));
        }
    }
    // The program cannot be reached there, nor say that it is there.
    for gone in gone {
        let at = SocketAddrV4::new(gone, ALL).into();
        let reached = net.client.run(|| TcpStream::connect_timeout(&at, Duration::from_secs(1)));
        assert!(reached.is_err(), "{gone}");
        let words = format!("tcp {gone} {CLIENT}");
        let heard = net.client.run(|| ask(SocketAddrV4::new(left[0], ALL), &words));
        assert_eq!(heard, format!("errno {}", libc::EADDRNOTAVAIL), "{gone}");
    }
    // Linux has taken the route with its source along.
    let words = format!("tcp - {CLIENT}");
    let heard = net.client.run(|| ask(SocketAddrV4::new(left[0], ALL), &words));
    assert_eq!(heard, "from 10.88.0.2 named 10.88.0.2");
    // One comes back: its listener is heard again.
    ip(&net, &format!("addr add {}/16 dev ixs0", gone[0]));
    let line = format!("ix: shares {} with Linux on ixs0 now", gone[0]);
    service.process.wait_for(&line, PATIENCE);
    eventually("it is heard again", || {
        let heard = net.client.run(|| ask(SocketAddrV4::new(gone[0], EACH), ""));
        heard == format!("bound to {0} heard at {0}", gone[0])
    });
    service.process.terminate();
}
