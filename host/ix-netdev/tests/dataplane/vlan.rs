//! Devices in a VLAN, with Linux's own interface in that VLAN as the peer.
use super::link::IN_VLAN;
use super::linux_peer::{echo_rounds, serving};
use super::routers::{answers, eventually};
use ix_dataplane::Config;
use ix_skip::{Need, skip};
use ix_testbed::{Namespace, PacketSocket};
use ix_wire::{Checksum, FrameHeader, IpAddr, MacAddr};
use std::net::Ipv6Addr;
use std::process::Command;
use std::time::Duration;

/// Where the devices are, beside the XDP program in the driver and behind it.
const KINDS: [&str; 4] =
    ["tap,vlan=5", "tap,vlan=5,offloads=off", "afxdp,vlan=5", "afxdp,vlan=5,mode=generic"];
const SERVICE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x77, 0, 0, 0, 0, 2);
const LINUX_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x77, 0, 0, 0, 0, 1);

fn has_programs(test: &str) -> bool {
    let missing = ["ip", "ethtool"]
        .into_iter()
        .find(|program| Command::new(program).arg("--version").output().is_err());
    if let Some(program) = missing {
        let need = Need::Program("apt-get install iproute2 ethtool");
        skip(test, need, format_args!("no {program}"));
    }
    missing.is_none()
}

/// Whether the interface in the VLAN is a link of Linux for that.
fn has_links(linux: &Namespace) -> bool {
    linux.link(IN_VLAN).expect("ask").is_some_and(|link| link.kind == "vlan")
}

fn config() -> Config {
    let tcp = ix_tcp::Config { time_wait_us: 200_000, ..ix_tcp::Config::default() };
    let mut config = Config::with_address(IpAddr::v4([10, 77, 0, 2]), 24);
    config.host_addrs.push((IpAddr(SERVICE_V6.octets()), 64));
    Config { cpus: vec![0], tcp, ..config }
}

/// A segment of no connection, from Linux's address.
fn stray(mac: MacAddr, from: MacAddr) -> Vec<u8> {
    let (src, dst) = (IpAddr::v4([10, 77, 0, 1]), IpAddr::v4([10, 77, 0, 2]));
    let link = FrameHeader { eth_src: from, eth_dst: mac, src, dst, ttl: 64, tos: 0, ident: 1 };
    let header = ix_wire::TcpHeader {
        src_port: 5555,
        dst_port: 7,
        seq: ix_wire::Seq(1),
        ack: ix_wire::Seq(2),
        flags: ix_wire::TcpFlags::ACK,
        window: 100,
        urgent: 0,
        options: ix_wire::TcpOptions::NONE,
    };
    let mut frame = vec![0; 100];
    let len = link.emit_tcp(&mut frame, &header, 0, Checksum::new());
    frame.truncate(len);
    frame.resize(60, 0);
    frame
}

fn tagged(frame: &[u8], kind: [u8; 2], number: u16) -> Vec<u8> {
    [&frame[..12], &kind, &number.to_be_bytes(), &frame[12..]].concat()
}

/// Both families, in long frames too, with neighbours found through the tag; and a tag that nobody
/// asked for, or none, is not heard: a tap counts such frames, AF_XDP leaves them to Linux.
#[test]
fn a_vlan_of_linux_is_served_and_no_other() {
    let test = "a_vlan_of_linux_is_served_and_no_other";
    if !has_programs(test) {
        return;
    }
    for kind in KINDS {
        let under = if kind.starts_with("tap") { "ixt0" } else { "ixc0" };
        let snapshot = serving(kind, config(), |linux, mac| {
            linux.run(|| {
                echo_rounds(200, 64);
                // A frame of many segments is for Linux's own link in a VLAN, which cuts it.
                let most = if kind == KINDS[0] && !has_links(linux) { 1000 } else { 60_000 };
                for size in [1, 1000, 5000, 60_000].into_iter().filter(|size| *size <= most) {
                    echo_rounds(20, size);
                }
            });
            linux.enable_ipv6(IN_VLAN).expect("IPv6");
            linux.add_address(IN_VLAN, LINUX_V6, 64).expect("an address");
            eventually("it answers over IPv6", || {
                answers(linux, SERVICE_V6, Duration::from_millis(500))
            });
            let wire = PacketSocket::open(linux, under).expect("a packet socket");
            let from = linux.link(under).expect("ask").expect("there").mac;
            let stray = stray(mac, from);
            for frame in [
                stray.clone(),
                tagged(&stray, [0x81, 0], 6),
                tagged(&stray, [0x81, 0], 0),
                tagged(&stray, [0x81, 0], 4095),
                tagged(&stray, [0x88, 0xa8], 5),
            ] {
                wire.send(&frame).expect("sends");
            }
            wire.send(&tagged(&stray, [0x81, 0], 0xe005)).expect("sends");
            std::thread::sleep(Duration::from_millis(200));
            linux.run(|| echo_rounds(10, 64));
        });
        let Some(snapshot) = snapshot else { return };
        let total = |name| snapshot.total(name).expect(name);
        assert_eq!(total("drops.no_flow"), 1, "{kind}: {snapshot:?}");
        let foreign = total("device_rx_other_vlan");
        // Linux may say something of its own without a tag.
        let is_right = if under == "ixt0" { foreign >= 5 } else { foreign == 0 };
        assert!(is_right, "{kind}: {foreign} frames of other VLANs");
        assert_eq!((total("misrouted"), total("device_tx_failed")), (0, 0), "{kind}");
        assert_eq!(total("flows"), 0, "{kind}");
    }
}

/// With several queues the steering looks behind the tag, so that both threads serve.
#[test]
fn two_threads_serve_a_vlan() {
    let test = "two_threads_serve_a_vlan";
    if !has_programs(test) {
        return;
    }
    for kind in ["tap,vlan=5", "afxdp,vlan=5"] {
        let config = Config { cpus: vec![0; 2], ..config() };
        let snapshot = serving(kind, config, |linux, _| {
            std::thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| linux.run(|| (0..4).for_each(|_| echo_rounds(20, 100))));
                }
            });
        });
        let Some(snapshot) = snapshot else { return };
        assert_eq!(snapshot.total("misrouted"), Some(0), "{kind}");
        for thread in &snapshot.threads {
            assert!(thread.get("accepted").expect("counted") > 0, "{kind}: both threads accept");
        }
    }
}
