//! What IX has of an address that it shares with Linux: ports that Linux is kept from, and the
//! neighbours that Linux knows.
use crate::common::{LINUX_IP, OUR_IP, eventually, namespace};
use ix_netdev::{HeldPorts, HostNet, Transport};
use ix_testbed::{Namespace, VethEnd};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

/// A veth pair with Linux's addresses on both ends.
fn pair(test: &str) -> Option<(Namespace, Namespace)> {
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
        let ports = HeldPorts::new(vec![own], 0).expect("root");
        let taken = TcpListener::bind((own, 80)).expect("free");
        assert_eq!(kind(ports.hold(Transport::Tcp, 80)), Err(ErrorKind::AddrInUse));
        drop(taken);
        ports.hold(Transport::Tcp, 80).expect("free now");
        ports.hold(Transport::Tcp, 80).expect("held already");
        // The standard library sets SO_REUSEADDR.
        for at in [own, Ipv4Addr::UNSPECIFIED] {
            assert_eq!(kind(TcpListener::bind((at, 80))), Err(ErrorKind::AddrInUse), "{at}");
        }
        kind(UdpSocket::bind((own, 80))).expect("another protocol");
        ports.hold(Transport::Udp, 80).expect("free");
        assert_eq!(kind(UdpSocket::bind((own, 80))), Err(ErrorKind::AddrInUse));
        ports.release(Transport::Tcp, 80);
        kind(TcpListener::bind((own, 80))).expect("Linux has it again");
        drop(ports);
        kind(UdpSocket::bind((own, 80))).expect("Linux has it again");
    });
}

#[test]
fn a_user_who_is_not_root_gets_no_low_port() {
    let Some((here, _there)) = pair("a_user_who_is_not_root_gets_no_low_port") else { return };
    here.run(|| {
        let ports = HeldPorts::new(vec![OUR_IP.into()], 65534).expect("root");
        let low = kind(ports.hold(Transport::Tcp, 80));
        assert_eq!(low, Err(ErrorKind::PermissionDenied));
        ports.hold(Transport::Tcp, 8080).expect("one of everybody");
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
        let ports = HeldPorts::new(vec![OUR_IP.into()], 0).expect("root");
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
                Transport::ALL.iter().for_each(|transport| ports.release(*transport, port));
            }
        }
        drop(taken);
        assert_eq!(kind(ports.hold_block(33, 0)), Err(ErrorKind::AddrInUse));
    });
    drop(listener);
}

#[test]
fn next_hops_are_those_of_linux() {
    let Some((here, there)) = pair("next_hops_are_those_of_linux") else { return };
    let (gateway, other) = (Ipv4Addr::from(LINUX_IP), Ipv4Addr::new(10, 9, 0, 77));
    there.add_address("peer0", other, 24).expect("an address");
    here.add_route(Ipv4Addr::UNSPECIFIED, 0, gateway).expect("a route");
    let index = here.link("ix0").expect("asked").expect("there").index;
    let mac = || there.link("peer0").expect("asked").expect("there").mac;
    let mut net = here.run(|| HostNet::new(index, None)).expect("netlink");
    assert_eq!(net.gateway(), Some(gateway));
    let mut known = net.want(gateway);
    eventually("Linux resolves", || {
        known = known.or(net.changes().pop());
        known == Some((gateway, Some(mac())))
    });
    assert_eq!(net.want(gateway), Some((gateway, Some(mac()))), "known at once");
    // Nobody has this one.
    let nobody = Ipv4Addr::new(10, 9, 0, 200);
    assert_eq!(net.want(nobody), None);
    eventually("Linux gives up", || net.changes().contains(&(nobody, None)));
    // The gateway has another Ethernet address, and says so.
    const OTHER: [u8; 6] = [2, 0, 0, 0, 9, 9];
    there.set_sysctl("net/ipv4/conf/peer0/arp_notify", "1").expect("set");
    there.set_mac("peer0", OTHER).expect("set");
    eventually("Linux has noticed", || net.changes().contains(&(gateway, Some(OTHER))));
    // Another host is the gateway, which IX goes on to call by its old name.
    there.set_mac("peer0", [2, 0, 0, 0, 9, 8]).expect("set");
    here.add_route(Ipv4Addr::UNSPECIFIED, 0, other).expect("a route");
    eventually("IX follows", || net.changes().contains(&(gateway, Some([2, 0, 0, 0, 9, 8]))));
    let known = here.run(|| HostNet::new(index, Some(gateway))).expect("netlink");
    assert_eq!(known.gateway(), Some(gateway));
}
