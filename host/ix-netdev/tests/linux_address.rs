//! What IX has of an address that it shares with Linux: ports that Linux is kept from, and the
//! neighbours that Linux knows.
use crate::common::{LINUX_IP, OUR_IP, eventually, namespace};
use ix_netdev::{Conflict, Family, HeldPorts, HostNet, Transport};
use ix_proto::routes::{HostNetwork, RouteTable};
use ix_sys::limits::{self, Limit, Resource};
use ix_testbed::{Namespace, VethEnd};
use ix_wire::IpAddr;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

/// A veth pair with Linux's addresses on both ends.
pub fn pair(test: &str) -> Option<(Namespace, Namespace)> {
    let (here, there) = (namespace(test)?, Namespace::new().expect("another"));
    here.add_veth(&VethEnd::new("ix0"), &there, &VethEnd::new("peer0")).expect("a veth pair");
    for (end, name, address) in [(&here, "ix0", OUR_IP), (&there, "peer0", LINUX_IP)] {
        end.add_address(name, Ipv4Addr::from(address), 24).expect("an address");
        end.set_up(name, true).expect("up");
    }
    here.wait_running("ix0", Duration::from_secs(5)).expect("carrier");
    Some((here, there))
}

fn kind<T>(result: std::io::Result<T>) -> Result<(), ErrorKind> {
    result.map(drop).map_err(|e| e.kind())
}

#[test]
fn a_port_is_held_from_linux_until_it_is_released() {
    let Some((here, _there)) = pair("a_port_is_held_from_linux_until_it_is_released") else {
        return;
    };
    let own = Ipv4Addr::from(OUR_IP);
    here.run(|| {
        let ports = HeldPorts::new(vec![own.into()], 0, 0).expect("root");
        let taken = TcpListener::bind((own, 80)).expect("free");
        assert_eq!(kind(ports.hold(Transport::Tcp, Family::V4, 80)), Err(ErrorKind::AddrInUse));
        drop(taken);
        ports.hold(Transport::Tcp, Family::V4, 80).expect("free now");
        ports.hold(Transport::Tcp, Family::V4, 80).expect("held already");
        // The standard library sets SO_REUSEADDR.
        for at in [own, Ipv4Addr::UNSPECIFIED] {
            assert_eq!(kind(TcpListener::bind((at, 80))), Err(ErrorKind::AddrInUse), "{at}");
        }
        kind(UdpSocket::bind((own, 80))).expect("another protocol");
        ports.hold(Transport::Udp, Family::V4, 80).expect("free");
        assert_eq!(kind(UdpSocket::bind((own, 80))), Err(ErrorKind::AddrInUse));
        ports.release(Transport::Tcp, Family::V4, 80);
        kind(TcpListener::bind((own, 80))).expect("Linux has it again");
        drop(ports);
        kind(UdpSocket::bind((own, 80))).expect("Linux has it again");
    });
}

/// A server of Linux has just stopped: its connections are in TIME-WAIT, which keeps nobody from
/// the port who sets `SO_REUSEADDR`, as every server does. Then nobody else gets it.
#[test]
fn a_port_in_time_wait_can_be_had() {
    let Some((here, there)) = pair("a_port_in_time_wait_can_be_had") else { return };
    let own = Ipv4Addr::from(OUR_IP);
    let listener = here.run(|| TcpListener::bind((own, 80))).expect("free");
    let client = there.run(|| TcpStream::connect((own, 80))).expect("it listens");
    // Who closes first has the TIME-WAIT.
    drop(listener.accept().expect("a client"));
    drop((client, listener));
    here.run(|| {
        let ports = HeldPorts::new(vec![own.into()], 0, 0).expect("root");
        ports.hold(Transport::Tcp, Family::V4, 80).expect("as on Linux");
        for at in [own, Ipv4Addr::UNSPECIFIED] {
            assert_eq!(kind(TcpListener::bind((at, 80))), Err(ErrorKind::AddrInUse), "{at}");
        }
        // Nobody is let in while it is held.
        assert_eq!(kind(TcpStream::connect((own, 80))), Err(ErrorKind::ConnectionRefused));
        ports.release(Transport::Tcp, Family::V4, 80);
        kind(TcpListener::bind((own, 80))).expect("Linux has it again");
    });
}

/// A socket of Linux at port 80 that shares it (`SO_REUSEPORT`); one of TCP listens.
fn sharing(transport: Transport, at: std::net::IpAddr, v6_only: bool) -> std::io::Result<OwnedFd> {
    let family = if at.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let is_tcp = transport == Transport::Tcp;
    let kind = if is_tcp { libc::SOCK_STREAM } else { libc::SOCK_DGRAM };
    let socket = ix_sys::socket::open(family, kind)?;
    let set =
        |level, option, value| ix_sys::socket::set_option(socket.as_fd(), level, option, value);
    set(libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
    if at.is_ipv6() {
        set(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, v6_only.into())?;
    }
    ix_sys::socket::bind_inet(socket.as_fd(), (at, 80).into())?;
    if is_tcp {
        ix_sys::socket::listen(socket.as_fd(), 9)?;
    }
    Ok(socket)
}

/// A service of Linux of the same user with `SO_REUSEPORT` would hear nothing any more.
#[test]
fn a_service_of_linux_does_not_share_its_port_unasked() {
    let Some((here, _there)) = pair("a_service_of_linux_does_not_share_its_port_unasked") else {
        return;
    };
    let own = Ipv4Addr::from(OUR_IP);
    here.run(|| {
        for (transport, other) in
            [(Transport::Tcp, Transport::Udp), (Transport::Udp, Transport::Tcp)]
        {
            let every = Ipv6Addr::UNSPECIFIED.into();
            // It hears no IPv4, as the second socket of many servers.
            let service = sharing(transport, every, true).expect("free");
            let ports = HeldPorts::new(vec![own.into()], 0, 0).expect("root");
            ports.expect_sockets();
            ports.hold(transport, Family::V4, 80).expect("nobody has it");
            drop((service, ports));
            for at in [own.into(), Ipv4Addr::UNSPECIFIED.into(), every] {
                let socket = sharing(transport, at, false).expect("free");
                let ports = HeldPorts::new(vec![own.into()], 0, 0).expect("root");
                ports.expect_sockets();
                let held = kind(ports.hold(transport, Family::V4, 80));
                assert_eq!(held, Err(ErrorKind::AddrInUse), "{transport} {at}");
                ports.hold(other, Family::V4, 80).expect("another protocol");
                // The program's own socket is welcome, and another one beside it.
                let file = std::fs::File::from(socket);
                ports.is_programs(file.metadata().expect("a file").ino());
                ports.hold(transport, Family::V4, 80).expect("the program's");
                let second = sharing(transport, at, false).expect("it shares");
                drop((file, second));
            }
        }
    });
}

/// A program that has no sockets on Linux shares its ports with nothing there.
#[test]
fn a_port_of_a_program_without_sockets_of_linux_is_its_alone() {
    let test = "a_port_of_a_program_without_sockets_of_linux_is_its_alone";
    let Some((here, _there)) = pair(test) else { return };
    let own = std::net::IpAddr::from(OUR_IP);
    here.run(|| {
        for transport in Transport::ALL {
            for at in [own, Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()] {
                let ports = HeldPorts::new(vec![own], 0, 0).expect("root");
                let service = sharing(transport, at, false).expect("free");
                let held = kind(ports.hold(transport, Family::V4, 80));
                assert_eq!(held, Err(ErrorKind::AddrInUse), "{transport} {at}");
                drop(service);
                ports.hold(transport, Family::V4, 80).expect("free now");
                let later = kind(sharing(transport, at, false));
                assert_eq!(later, Err(ErrorKind::AddrInUse), "{transport} {at}");
            }
        }
    });
}

#[test]
fn a_user_who_is_not_root_gets_no_low_port() {
    let Some((here, _there)) = pair("a_user_who_is_not_root_gets_no_low_port") else { return };
    here.run(|| {
        let ports = HeldPorts::new(vec![OUR_IP.into()], 0, 65534).expect("root");
        let low = kind(ports.hold(Transport::Tcp, Family::V4, 80));
        assert_eq!(low, Err(ErrorKind::PermissionDenied));
        ports.hold(Transport::Tcp, Family::V4, 8080).expect("one of everybody");
    });
}

#[test]
fn linux_opens_no_connection_from_a_port_of_the_block() {
    let Some((here, there)) = pair("linux_opens_no_connection_from_a_port_of_the_block") else {
        return;
    };
    const RANGE: &str = "40000 40031";
    const BLOCK: u16 = 16;
    here.set_sysctl("net/ipv4/ip_local_port_range", RANGE).expect("set");
    let listener = there.run(|| TcpListener::bind((Ipv4Addr::from(LINUX_IP), 9))).expect("free");
    here.run(|| {
        let ports = HeldPorts::new(vec![OUR_IP.into()], 0, 0).expect("root");
        let taken = TcpListener::bind((Ipv4Addr::from(OUR_IP), 40_003)).expect("free");
        for seed in [0, 20, 31] {
            let (first, last) = ports.hold_block(BLOCK, seed).expect("there is room");
            assert!(first > 40_003 && last == first + BLOCK - 1, "{first}-{last}");
            let mut streams = Vec::new();
            while let Ok(stream) = TcpStream::connect((Ipv4Addr::from(LINUX_IP), 9)) {
                let port = stream.local_addr().expect("an address").port();
                assert!(!(first..=last).contains(&port), "{port} of {first}-{last}");
                streams.push(stream);
                // Linux may leave some out before it gives up.
                assert!(streams.len() <= 15);
            }
            assert!(!streams.is_empty());
            streams.iter().for_each(|s| ix_sys::socket::reset_on_close(s).expect("set"));
            for port in first..=last {
                for transport in Transport::ALL {
                    Family::ALL.iter().for_each(|family| ports.release(transport, *family, port));
                }
            }
        }
        drop(taken);
        assert_eq!(kind(ports.hold_block(33, 0)), Err(ErrorKind::AddrInUse));
    });
    drop(listener);
}

/// Ports that the user keeps from sockets which name none are left alone, wherever the range is.
#[test]
fn reserved_ports_are_not_taken() {
    let Some((here, _there)) = pair("reserved_ports_are_not_taken") else { return };
    here.set_sysctl("net/ipv4/ip_local_port_range", "2000 2999").expect("set");
    here.set_sysctl("net/ipv4/ip_local_reserved_ports", "2000-2299,2500,2700-2999").expect("set");
    here.run(|| {
        for seed in [0, 250, 490, 999, u64::MAX] {
            let ports = HeldPorts::new(vec![OUR_IP.into()], 0, 0).expect("root");
            let all = [ports.hold_block(64, seed).expect("there is room")];
            // Half of 399 is 199.
            let added = ports.add_outgoing(u16::MAX, seed);
            assert_eq!(added.len(), 2);
            for (first, last) in all.into_iter().chain(added) {
                assert!(
                    (2300..=2499).contains(&first) && last <= 2499
                        || (2501..=2699).contains(&first) && last <= 2699,
                    "{first}-{last}"
                );
            }
        }
    });
}

#[test]
fn next_hops_are_those_of_linux() {
    let Some((here, there)) = pair("next_hops_are_those_of_linux") else { return };
    let (gateway, other) = (Ipv4Addr::from(LINUX_IP), Ipv4Addr::new(10, 9, 0, 77));
    there.add_address("peer0", other, 24).expect("an address");
    here.add_route(Ipv4Addr::UNSPECIFIED, 0, gateway).expect("a route");
    let index = here.link("ix0").expect("asked").expect("there").index;
    let mac = || there.link("peer0").expect("asked").expect("there").mac;
    let mut net = here.run(|| HostNet::new(index)).expect("netlink");
    assert_eq!(net.network().gateways(), [IpAddr::from(gateway.octets())]);
    let gateway = std::net::IpAddr::from(gateway);
    let mut known = net.want(gateway);
    eventually("Linux resolves", || {
        known = known.or(net.changes().neighbours.pop());
        known == Some((gateway, Some(mac())))
    });
    assert_eq!(net.want(gateway), Some((gateway, Some(mac()))), "known at once");
    // Nobody has this one.
    let nobody = std::net::IpAddr::from([10, 9, 0, 200]);
    assert_eq!(net.want(nobody), None);
    eventually("Linux gives up", || net.changes().neighbours.contains(&(nobody, None)));
    // The gateway has another Ethernet address, and says so.
    const OTHER: [u8; 6] = [2, 0, 0, 0, 9, 9];
    there.set_sysctl("net/ipv4/conf/peer0/arp_notify", "1").expect("set");
    there.set_mac("peer0", OTHER).expect("set");
    eventually("Linux has noticed", || net.changes().neighbours.contains(&(gateway, Some(OTHER))));
    // Linux knows more neighbours than IX uses: any host may make itself known.
    for last in [1, 2] {
        let neighbour = format!("neigh replace 10.9.0.99 lladdr 02:00:00:00:00:0{last} dev ix0");
        let status = here.command("ip", None).args(neighbour.split(' ')).status();
        assert!(status.is_err() || status.is_ok_and(|status| status.success()));
        assert!(net.changes().neighbours.is_empty(), "nobody has asked for it");
    }
    // Another host is the gateway.
    here.add_route(Ipv4Addr::UNSPECIFIED, 0, other).expect("a route");
    eventually("IX follows", || {
        let other = [IpAddr::from(other.octets())];
        net.changes().network.is_some_and(|network| network.gateways() == other)
    });
}

/// Routes of every kind, as `ip route` makes them, and as Linux itself finds its way.
#[test]
fn routes_are_those_of_linux() {
    let test = "routes_are_those_of_linux";
    let Some((here, _there)) = pair(test) else { return };
    let ip = |words: &str| {
        let mut command = here.command("ip", None);
        let output = command.args(words.split(' ')).output();
        output.is_ok_and(|output| output.status.success())
    };
    if !ip("link show ix0") {
        return ix_skip::skip(test, ix_skip::Need::Program("apt-get install iproute2"), "no ip");
    }
    for words in [
        "link add ixother type veth peer name ixbeyond",
        "link set ixother up",
        "link set ixbeyond up",
        "addr add 192.168.7.1/24 dev ixother",
        "addr add 10.9.0.3/24 dev ix0",
        "route add default via 10.9.0.9 metric 200",
        "route add default via 10.9.0.8 metric 100",
        "route add 172.16.0.0/12 via 192.168.7.9",
        "route add 172.16.5.0/24 via 10.9.0.7 src 10.9.0.3 mtu 1400",
        "route add blackhole 198.51.100.0/24",
        "route add unreachable 198.51.100.64/26",
        "route add prohibit 198.51.100.128/26",
        "route add 203.0.113.0/24 nexthop via 192.168.7.9 nexthop via 10.9.0.6",
        "route add 203.0.114.7 dev ix0 scope link",
        "route add 10.9.0.128/25 via 10.9.0.5",
        "route add default via 10.9.0.66 table 77",
    ] {
        assert!(ip(words), "{words}");
    }
    let index = here.link("ix0").expect("asked").expect("there").index;
    let mut net = here.run(|| HostNet::new(index)).expect("netlink");
    let own = Ipv4Addr::from(OUR_IP);
    let route = |network: &ix_netdev::Network, to: [u8; 4]| {
        let addresses = network.addresses.iter();
        let addresses = addresses.map(|(own, bits)| (IpAddr::from(*own), *bits)).collect();
        let routes = RouteTable::new(network.routes.iter().copied());
        let network = HostNetwork { addresses, routes };
        let to = IpAddr::v4(to);
        network.route(to).map(|(own, hop)| (own.to_string(), hop.to_string(), network.mtu(to)))
    };
    let network = net.network();
    let has = |to, own: Ipv4Addr, hop: &str, mtu| {
        let expected = Some((own.to_string(), hop.to_owned(), mtu));
        assert_eq!(route(network, to), expected, "{to:?}");
    };
    has([8, 8, 8, 8], own, "10.9.0.8", None);
    has([10, 9, 0, 77], own, "10.9.0.77", None);
    has([10, 9, 0, 200], own, "10.9.0.5", None);
    has([172, 16, 5, 1], Ipv4Addr::new(10, 9, 0, 3), "10.9.0.7", Some(1400));
    has([203, 0, 113, 9], own, "10.9.0.6", None);
    has([203, 0, 114, 7], own, "203.0.114.7", None);
    for to in [[172, 16, 4, 1], [192, 168, 7, 9], [198, 51, 100, 1], [198, 51, 100, 65]] {
        assert_eq!(route(network, to), None, "{to:?}");
    }
    // They change: routes, then addresses.
    let mut changed = |what: &str, words: &str, is: &dyn Fn(&ix_netdev::Network) -> bool| {
        assert!(ip(words), "{words}");
        eventually(what, || net.changes().network.is_some_and(|network| is(&network)));
    };
    let by = |to, hop: &str| {
        let hop = hop.to_owned();
        move |network: &ix_netdev::Network| route(network, to).is_some_and(|(_, by, _)| by == hop)
    };
    changed("the default", "route del default via 10.9.0.8", &by([8, 8, 8, 8], "10.9.0.9"));
    changed("more of ours", "route del 172.16.0.0/12", &by([172, 16, 4, 1], "10.9.0.9"));
    changed("one address less", "addr del 10.9.0.3/24 dev ix0", &|network| {
        let source = route(network, [172, 16, 5, 1]).map(|(source, ..)| source);
        network.addresses == [(own.into(), 24)]
            && source.is_none_or(|source| source == own.to_string())
    });
    // Linux tells nobody of routes that go with the link.
    changed("the link falls", "link set ix0 down", &|network| {
        route(network, [10, 9, 0, 77]).is_none()
    });
    // What is said again is no news.
    assert!(ip("addr change 10.9.0.2/24 dev ix0") && net.changes().network.is_none());
}

/// A program that takes all ports leaves its broker descriptors.
#[test]
fn ports_leave_descriptors_to_others() {
    let Some((here, _there)) = pair("ports_leave_descriptors_to_others") else { return };
    let own = Ipv4Addr::from(OUR_IP);
    // The limit is the whole process's, and other tests run in it: more than there are here.
    let limit = limits::get(Resource::Descriptors).expect("a limit");
    const SOFT: u64 = 1024;
    if limit.soft < SOFT {
        let why = "few descriptors";
        return ix_skip::skip(
            "ports_leave_descriptors_to_others",
            ix_skip::Need::Program("ulimit -n 1024"),
            why,
        );
    }
    limits::set(Resource::Descriptors, Limit { soft: SOFT, ..limit }).expect("lowered");
    let (held, later) = here.run(|| {
        let ports = HeldPorts::new(vec![own.into()], 0, 0).expect("root");
        let hold = |port: u16| ports.hold(Transport::Udp, Family::V4, port);
        let first = (10_000..20_000u16).find_map(|port| Some((port, hold(port).err()?)));
        let (first, error) = first.expect("not all of them");
        assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
        assert_eq!(ports.add_outgoing(u16::MAX, 0), [], "connections that it opens have no more");
        ports.release(Transport::Udp, Family::V4, 10_000);
        hold(first).expect("room again");
        // And a new address has none.
        let second = Ipv4Addr::new(10, 9, 0, 3);
        here.add_address("ix0", second, 24).expect("an address");
        let conflicts = ports.follow(&[own.into(), second.into()]);
        (usize::from(first - 10_000), conflicts.first().map(|conflict| conflict.errno))
    });
    limits::set(Resource::Descriptors, limit).expect("raised");
    assert!((512..SOFT as usize - 200).contains(&held), "{held} ports");
    assert_eq!(later, Some(libc::EMFILE));
}

/// A port is IX's on addresses that Linux gets later, unless Linux has it there.
#[test]
fn held_ports_follow_the_addresses() {
    let Some((here, _there)) = pair("held_ports_follow_the_addresses") else { return };
    let [own, second, third] = [OUR_IP, [10, 9, 0, 3], [10, 9, 0, 4]].map(std::net::IpAddr::from);
    here.run(|| {
        let ports = HeldPorts::new(vec![own], 0, 0).expect("root");
        ports.hold(Transport::Tcp, Family::V4, 80).expect("free");
        here.add_address("ix0", second, 24).expect("an address");
        here.add_address("ix0", third, 24).expect("an address");
        let taken = TcpListener::bind((third, 80)).expect("nobody has it there");
        let (transport, errno) = (Transport::Tcp, libc::EADDRINUSE);
        let conflict = Conflict { address: third, transport, port: 80, errno };
        assert_eq!(ports.follow(&[own, second, third]), [conflict]);
        assert_eq!(ports.addresses(), [own, second]);
        assert_eq!(kind(TcpListener::bind((second, 80))), Err(ErrorKind::AddrInUse));
        ports.hold(Transport::Udp, Family::V4, 53).expect("free");
        assert_eq!(kind(UdpSocket::bind((second, 53))), Err(ErrorKind::AddrInUse));
        kind(UdpSocket::bind((third, 53))).expect("Linux's alone");
        // The first one goes, and what Linux had of the third.
        drop(taken);
        assert_eq!(ports.follow(&[second, third]), []);
        assert_eq!(ports.addresses(), [second, third]);
        kind(TcpListener::bind((own, 80))).expect("Linux's again");
        assert_eq!(kind(TcpListener::bind((third, 80))), Err(ErrorKind::AddrInUse));
        ports.release(Transport::Tcp, Family::V4, 80);
        kind(TcpListener::bind((second, 80))).expect("released");
    });
}

/// A namespace pair as above whose ends have IPv6 as well, which Linux has checked.
fn pair_v6(test: &str) -> Option<(Namespace, Namespace)> {
    let (here, there) = pair(test)?;
    for (end, name, address) in [(&here, "ix0", OWN_V6), (&there, "peer0", PEER_V6)] {
        end.enable_ipv6(name).expect("IPv6");
        end.add_address(name, address, 64).expect("an address");
    }
    let index = here.link("ix0").expect("asked").expect("there").index;
    eventually("Linux has checked its addresses", || {
        let all = here.usable_addresses(index).expect("asked");
        all.iter().filter(|(own, _)| own.is_ipv6()).count() == 2
    });
    Some((here, there))
}

const OWN_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);
const PEER_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);

/// A port is kept from Linux on addresses of both families, that of the link too.
#[test]
fn a_port_is_held_on_both_families() {
    let Some((here, _there)) = pair_v6("a_port_is_held_on_both_families") else { return };
    let index = here.link("ix0").expect("asked").expect("there").index;
    let all = here.usable_addresses(index).expect("asked");
    let all: Vec<std::net::IpAddr> = all.into_iter().map(|(own, _)| own).collect();
    let [std::net::IpAddr::V4(_), global, std::net::IpAddr::V6(of_link)] = all[..] else {
        panic!("one of IPv4, a global one and that of the link: {all:?}");
    };
    assert!(global == std::net::IpAddr::from(OWN_V6) && of_link.is_unicast_link_local());
    here.run(|| {
        let ports = HeldPorts::new(all.clone(), index, 0).expect("root");
        let taken = TcpListener::bind((global, 80)).expect("free");
        assert_eq!(kind(ports.hold(Transport::Tcp, Family::V6, 80)), Err(ErrorKind::AddrInUse));
        ports.hold(Transport::Tcp, Family::V4, 80).expect("nobody has that of the other family");
        drop(taken);
        ports.hold(Transport::Tcp, Family::V6, 80).expect("free now");
        let of_link = std::net::SocketAddrV6::new(of_link, 80, 0, index);
        for at in [(global, 80).into(), of_link.into(), (Ipv6Addr::UNSPECIFIED, 80).into()] {
            let at: std::net::SocketAddr = at;
            assert_eq!(kind(TcpListener::bind(at)), Err(ErrorKind::AddrInUse), "{at}");
        }
        ports.release(Transport::Tcp, Family::V6, 80);
        kind(TcpListener::bind(of_link)).expect("Linux has it again");
    });
}

/// A listener of Linux as programs open it, at this address.
fn listens(at: std::net::SocketAddr, v6_only: bool) -> std::io::Result<std::os::fd::OwnedFd> {
    let family = if at.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let socket = ix_sys::socket::open(family, libc::SOCK_STREAM)?;
    let set = |level, option, value| {
        ix_sys::socket::set_option(socket.as_fd(), level, option, value).expect("set");
    };
    set(libc::SOL_SOCKET, libc::SO_REUSEADDR, 1);
    if at.is_ipv6() {
        set(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, v6_only.into());
    }
    ix_sys::socket::bind_inet(socket.as_fd(), at)?;
    ix_sys::socket::listen(socket.as_fd(), 9)?;
    Ok(socket)
}

/// Where a socket listens beside another one, IX answers as Linux does: a port of one family is no
/// port of the other one, and at `::` without `IPV6_V6ONLY` a socket has both.
#[test]
fn families_exclude_each_other_as_on_linux() {
    let Some((here, _there)) = pair_v6("families_exclude_each_other_as_on_linux") else { return };
    let index = here.link("ix0").expect("asked").expect("there").index;
    let all = here.usable_addresses(index).expect("asked");
    let all: Vec<std::net::IpAddr> = all.into_iter().map(|(own, _)| own).collect();
    let (v4, v6) = (Ipv4Addr::UNSPECIFIED, Ipv6Addr::UNSPECIFIED);
    // What a program of IX listens at, and what is claimed for it.
    let places: [(std::net::SocketAddr, bool, &[Family]); 5] = [
        ((v4, 80).into(), false, &[Family::V4]),
        ((Ipv4Addr::from(OUR_IP), 80).into(), false, &[Family::V4]),
        ((v6, 80).into(), true, &[Family::V6]),
        ((OWN_V6, 80).into(), true, &[Family::V6]),
        ((v6, 80).into(), false, &Family::ALL),
    ];
    here.run(|| {
        for (first, first_only, _) in places {
            for (second, second_only, families) in places {
                let what = format!("{first} ({first_only}), then {second} ({second_only})");
                let linux = listens(first, first_only).expect("free");
                let expected = kind(listens(second, second_only));
                // The same where the second one would be IX's.
                let ports = HeldPorts::new(all.clone(), index, 0).expect("root");
                ports.expect_sockets();
                let mut families = families.iter();
                let held = families.try_for_each(|family| {
                    ports.is_free(Transport::Tcp, *family, 80)?;
                    ports.hold(Transport::Tcp, *family, 80)
                });
                assert_eq!(kind(held), expected, "{what}");
                drop((linux, ports));
            }
        }
        // And where the first one is IX's, at all addresses.
        for (families, refused) in [
            (&[Family::V4][..], [true, true, false, false, true]),
            (&[Family::V6][..], [false, false, true, true, true]),
            (&Family::ALL[..], [true; 5]),
        ] {
            let ports = HeldPorts::new(all.clone(), index, 0).expect("root");
            families.iter().for_each(|family| {
                ports.hold(Transport::Tcp, *family, 80).expect("free");
            });
            let answers = places.map(|(at, only, _)| listens(at, only).is_err());
            assert_eq!(answers, refused, "{families:?}");
        }
    });
}

/// Where Linux has no address of IPv4, a listener of Linux at 0.0.0.0 has nothing to do with IX.
#[test]
fn a_listener_of_a_family_without_addresses_is_in_nobodys_way() {
    let test = "a_listener_of_a_family_without_addresses_is_in_nobodys_way";
    let Some((here, _there)) = pair_v6(test) else { return };
    let index = here.link("ix0").expect("asked").expect("there").index;
    here.run(|| {
        let ports = HeldPorts::new(vec![OWN_V6.into()], index, 0).expect("root");
        ports.expect_sockets();
        let other = listens((Ipv4Addr::UNSPECIFIED, 80).into(), false).expect("free");
        for family in Family::ALL {
            ports.is_free(Transport::Tcp, family, 80).expect("there is none of IPv4");
            ports.hold(Transport::Tcp, family, 80).expect("free");
        }
        drop(other);
        let own = std::net::SocketAddr::from((OWN_V6, 80));
        assert_eq!(kind(listens(own, true)), Err(ErrorKind::AddrInUse));
    });
}

/// Neighbours, routes and sources of IPv6 are Linux's.
#[test]
fn the_network_of_ipv6_is_that_of_linux() {
    let test = "the_network_of_ipv6_is_that_of_linux";
    let Some((here, there)) = pair_v6(test) else { return };
    let ip = |words: &str| {
        let output = here.command("ip", None).arg("-6").args(words.split(' ')).output();
        output.is_ok_and(|output| output.status.success())
    };
    if !ip("link show ix0") {
        return ix_skip::skip(test, ix_skip::Need::Program("apt-get install iproute2"), "no ip");
    }
    for words in [
        "route add default via 2001:db8::9",
        "route add 2001:db8:5::/48 via 2001:db8::7 mtu 1400",
        "route add unreachable 2001:db8:6::/48",
    ] {
        assert!(ip(words), "{words}");
    }
    let index = here.link("ix0").expect("asked").expect("there").index;
    let mut net = here.run(|| HostNet::new(index)).expect("netlink");
    let route = |network: &ix_netdev::Network, to: &str| {
        let addresses = network.addresses.iter();
        let addresses = addresses.map(|(own, bits)| (IpAddr::from(*own), *bits)).collect();
        let routes = RouteTable::new(network.routes.iter().copied());
        let network = HostNetwork { addresses, routes };
        let to = to.parse().expect("an address");
        network.route(to).map(|(own, hop)| (own.to_string(), hop.to_string(), network.mtu(to)))
    };
    let by = |hop: &str, mtu| Some((OWN_V6.to_string(), hop.to_owned(), mtu));
    assert_eq!(route(net.network(), "2001:db8::77"), by("2001:db8::77", None));
    assert_eq!(route(net.network(), "2001:db8:9::1"), by("2001:db8::9", None));
    assert_eq!(route(net.network(), "2001:db8:5::1"), by("2001:db8::7", Some(1400)));
    assert_eq!(route(net.network(), "2001:db8:6::1"), None);
    assert_eq!(net.network().gateways(), ["2001:db8::9".parse().expect("an address")]);
    // Linux asks its neighbour.
    let peer = std::net::IpAddr::from(PEER_V6);
    let mac = there.link("peer0").expect("asked").expect("there").mac;
    let mut known = net.want(peer);
    eventually("Linux resolves", || {
        known = known.or(net.changes().neighbours.pop());
        known == Some((peer, Some(mac)))
    });
    // An address that is not preferred any more is the last choice, and one that is gone none.
    assert!(ip("addr add 2001:db8::3/64 dev ix0 nodad"));
    assert!(ip("addr change 2001:db8::2/64 dev ix0 valid_lft forever preferred_lft 0"));
    let from = |network: &ix_netdev::Network| route(network, "2001:db8:9::1").map(|(own, ..)| own);
    let mut last = net.network().clone();
    eventually("the other one is the source", || {
        last = net.changes().network.unwrap_or(last.clone());
        from(&last).as_deref() == Some("2001:db8::3")
    });
    assert!(ip("addr del 2001:db8::3/64 dev ix0"));
    eventually("a deprecated one is better than none", || {
        last = net.changes().network.unwrap_or(last.clone());
        from(&last).as_deref() == Some("2001:db8::2")
    });
}
