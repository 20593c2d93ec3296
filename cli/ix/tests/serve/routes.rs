//! Routes of the configuration, for addresses that are IX's alone: two routers, each a network
//! namespace of its own, on the link of the dataplane.
use super::shared_address::{ask, on_linux_address};
use crate::support::{Nic, PATIENCE, PREFIX, PREFIX_V6, SERVICE, SERVICE_V6, Service, TestNet};
use ix_skip::{Need, skip};
use ix_testbed::{Namespace, VethEnd};
use std::io::Write;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, TcpListener};
use std::process::Command;

const PYTHON: &str = "/usr/bin/python3";
/// The port of everything that listens behind a router.
const PORT: u16 = 9;

/// Tells each client what came of a connection to the address that it names, and from where.
const PROGRAM: &str = "
import socket
server = socket.create_server(('::', 8080), family=socket.AF_INET6, dualstack_ipv6=True)
print('ready', flush=True)
while True:
    client, peer = server.accept()
    words = client.recv(100).decode().split()
    try:
        there = socket.create_connection((words[0], int(words[1])), 5)
        said = there.recv(100).decode() + ' from ' + there.getsockname()[0]
        there.close()
    except OSError as e:
        said = 'errno %s' % e.errno
    client.sendall(said.encode())
    client.close()
";

/// A router with its name and its addresses on the bridge of this namespace, and hosts behind it
/// that answer with its name.
fn router(link: &Namespace, name: &'static str, own: &[&str], behind: &[&str]) -> Namespace {
    let router = Namespace::new().expect("a namespace");
    let (near, port) = (VethEnd::new("ixr0"), format!("ix{name}"));
    router.add_veth(&near, link, &VethEnd::new(&port)).expect("a veth pair");
    for own in ["ixr0", "lo"] {
        router.enable_ipv6(own).expect("IPv6");
        router.set_up(own, true).expect("up");
    }
    let here = |words: &str| run_ip(&router, words);
    for address in own {
        let prefix = if address.contains(':') { PREFIX_V6 } else { PREFIX };
        let nodad = if address.contains(':') { " nodad" } else { "" };
        here(&format!("addr add {address}/{prefix} dev ixr0{nodad}"));
    }
    run_ip(link, &format!("link set {port} up master ixbr"));
    for address in behind {
        let (prefix, nodad) = if address.contains(':') { (128, " nodad") } else { (32, "") };
        here(&format!("addr add {address}/{prefix} dev lo{nodad}"));
        let at = SocketAddr::new(address.parse().expect("an address"), PORT);
        let listener = router.run(|| TcpListener::bind(at)).expect("free");
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let _ = stream.write_all(name.as_bytes());
            }
        });
    }
    router
}

#[track_caller]
fn run_ip(there: &Namespace, words: &str) {
    let output = there.run(|| Command::new("ip").args(words.split(' ')).output().expect("ip"));
    assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
}

fn has_programs(test: &str) -> bool {
    if !std::path::Path::new(PYTHON).exists() {
        skip(test, Need::Program("apt-get install python3"), "no python3");
        return false;
    }
    if Command::new("ip").arg("link").output().is_err() {
        skip(test, Need::Program("apt-get install iproute2"), "no ip");
        return false;
    }
    true
}

/// The program on this device, with these addresses and routes, joined to the bridge of the link.
fn start(net: &TestNet, nic: Nic, addresses: &str, routes: &str) -> Service {
    let link = net.client_link();
    let device = if nic == Nic::Tap { format!("tap:{link}") } else { "afxdp:ixs0".to_owned() };
    let cpus = net.cpus();
    let config =
        format!("devices = '{device}'\nhost_addr = [{addresses}]\ncpu = {cpus:?}\n{routes}");
    let mut service = net.start_with(&config, &[PYTHON, "-c", PROGRAM]);
    if nic == Nic::Tap {
        service.raise_tap(&net.client, link, std::net::Ipv4Addr::new(10, 77, 0, 1), 24);
        run_ip(&net.client, &format!("link set {link} master ixbr"));
    }
    service.process.wait_for("ready", PATIENCE);
    service
}

const ROUTES: &str = "
[[route]]
to = '192.0.2.0/24'
gateway = '10.88.0.11'
[[route]]
to = '192.0.2.128/25'
gateway = '10.88.0.12'
[[route]]
to = '203.0.113.0/24'
gateway = '10.88.0.12'
metric = 20
[[route]]
to = '203.0.113.0/24'
gateway = '10.88.0.11'
metric = 10
[[route]]
to = '198.51.100.0/24'
gateway = '10.88.0.12'
source = '10.88.0.3'
[[route]]
to = '2001:db8:a::/48'
gateway = '2001:db8:88::11'
[[route]]
to = '2001:db8:b::/48'
gateway = 'fe80::b'
";

#[test]
fn routes_of_the_configuration_choose_the_gateway() {
    for nic in Nic::ALL {
        let test = "routes_of_the_configuration_choose_the_gateway";
        if !has_programs(test) {
            return;
        }
        let Some(net) = TestNet::new(test, nic, 1) else { return };
        run_ip(&net.client, "link add ixbr type bridge");
        run_ip(&net.client, "link set ixbr up");
        if nic == Nic::Afxdp {
            run_ip(&net.client, "link set ixc0 master ixbr");
        }
        let both = ["192.0.2.1", "192.0.2.200", "203.0.113.1", "198.51.100.1"];
        let both = [&both[..], &["2001:db8:a::1", "2001:db8:b::1"]].concat();
        let near =
            router(&net.client, "near", &["10.88.0.11", "2001:db8:88::11", "fe80::a"], &both);
        let far = router(&net.client, "far", &["10.88.0.12", "2001:db8:88::12", "fe80::b"], &both);
        let addresses = format!("'{}/16', '{SERVICE_V6}/64', '10.88.0.3/16'", SERVICE.ip());
        let service = start(&net, nic, &addresses, ROUTES);
        let at = SocketAddrV4::new(*SERVICE.ip(), 8080);
        let hears = |to: &str| near.run(|| ask(at, &format!("{to} {PORT}")));
        for (to, heard) in [
            ("192.0.2.1", "near from 10.88.0.2"),
            ("192.0.2.200", "far from 10.88.0.2"),
            ("203.0.113.1", "near from 10.88.0.2"),
            ("198.51.100.1", "far from 10.88.0.3"),
            ("2001:db8:a::1", "near from 2001:db8:88::2"),
            ("2001:db8:b::1", "far from 2001:db8:88::2"),
        ] {
            assert_eq!(hears(to), heard, "{to} on {nic:?}");
        }
        // Without a route and without a default gateway it is Linux's, which has none either.
        assert_eq!(hears("8.8.8.8"), format!("errno {}", libc::ENETUNREACH));
        // A peer behind a router gets its answers by that router.
        for (from, router) in [("192.0.2.1", &near), ("192.0.2.200", &far)] {
            let from: IpAddr = from.parse().expect("an address");
            let heard = router.run(|| ask_from(from, at));
            assert_eq!(heard, "near from 10.88.0.2", "{from} on {nic:?}");
        }
        service.process.terminate();
    }
}

/// [`ask`] from an address of the host.
fn ask_from(from: IpAddr, at: SocketAddrV4) -> String {
    use ix_sys::socket;
    use std::io::Read;
    use std::os::fd::AsFd;
    let stream = socket::open(libc::AF_INET, libc::SOCK_STREAM).expect("a socket");
    socket::bind_inet(stream.as_fd(), SocketAddr::new(from, 0)).expect("its own");
    socket::connect_inet(stream.as_fd(), at.into()).expect("served");
    let mut stream = std::net::TcpStream::from(stream);
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.write_all(format!("192.0.2.1 {PORT}").as_bytes()).expect("sent");
    let mut heard = String::new();
    stream.read_to_string(&mut heard).expect("heard");
    heard
}

/// Hosts on the link of a second device, named by the device alone.
#[test]
fn a_route_may_name_a_device_alone() {
    let test = "a_route_may_name_a_device_alone";
    if !has_programs(test) {
        return;
    }
    let Some(net) = TestNet::new(test, Nic::Afxdp, 1) else { return };
    let cpus = net.cpus();
    let config = format!(
        "devices = ['afxdp:ixs0', 'tap:ixt0']\nhost_addr = ['{}/16', '10.89.0.2/24']\n\
         cpu = {cpus:?}\nroute = {{ to = '192.0.2.0/24', device = 'ixt0' }}\n",
        SERVICE.ip(),
    );
    let mut service = net.start_with(&config, &[PYTHON, "-c", PROGRAM]);
    service.raise_tap(&net.server, "ixt0", [10, 89, 0, 1].into(), 24);
    run_ip(&net.server, "link add ixbr type bridge");
    for link in ["ixbr up", "ixt0 master ixbr"] {
        run_ip(&net.server, &format!("link set {link}"));
    }
    let _near = router(&net.server, "near", &["10.89.0.3"], &["192.0.2.1"]);
    service.process.wait_for("ready", PATIENCE);
    let at = SocketAddrV4::new(*SERVICE.ip(), 8080);
    let heard = net.client.run(|| ask(at, &format!("192.0.2.1 {PORT}")));
    assert_eq!(heard, "near from 10.89.0.2");
    service.process.terminate();
}

/// One line each, with the line of the file; nothing is left.
#[test]
fn routes_that_cannot_be_used_are_refused() {
    let test = "routes_that_cannot_be_used_are_refused";
    let Some(net) = on_linux_address(test) else { return };
    let head = "devices = 'ixs0'\n";
    let own = "host_addr = '10.88.0.7/16'\n";
    for (config, tells) in [
        (
            format!("{head}route = {{ to = '192.0.2.0/24', gateway = '10.88.0.1' }}\n"),
            ["line 2", "shares the address of Linux on ixs0", "ip route add 192.0.2.0/24 via"],
        ),
        (
            format!("{head}{own}[[route]]\nto = '192.0.2.0/24'\ngateway = '10.99.0.1'\n"),
            ["line 4", "10.99.0.1 is on none of the dataplane's networks", "10.88.0.7/16"],
        ),
        (
            format!("{head}{own}[[route]]\nto = '192.0.2.9/24'\ngateway = '10.88.0.1'\n"),
            ["line 4", "bits behind its prefix", "192.0.2.0/24"],
        ),
    ] {
        let (status, said) = net.start_with(&config, &["true"]).process.wait(PATIENCE);
        assert_eq!((status.code(), said.len()), (Some(125), 1), "{said:#?}");
        assert!(tells.iter().all(|word| said[0].contains(word)), "{said:#?}");
    }
}
