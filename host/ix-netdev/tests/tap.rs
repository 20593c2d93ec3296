//! The tap device against the Linux stack, in namespaces of its own.

use crate::common::*;
use ix_netdev::{DeviceSpec, OpenError, OpenedDevice, open};
use ix_nic::{Steering, attach_table, frame_flow_group, initial_queue};
use ix_skip::{Need, skip};
use ix_testbed::{Namespace, PacketSocket, VethEnd};
use ix_wire::FlowHash;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::os::fd::AsRawFd;

fn open_in(ns: &Namespace, spec: &str) -> Result<OpenedDevice, OpenError> {
    let spec: DeviceSpec = spec.parse().expect("a spec");
    ns.run(|| open(&spec, &options()))
}

/// A tap in a fresh namespace with Linux's end up and addressed.
fn link(test: &str, spec: &str) -> Option<(Namespace, OpenedDevice)> {
    let ns = namespace(test)?;
    let device = open_in(&ns, spec).expect("opens");
    ns.add_address("tap0", LINUX_IP, 24).expect("address");
    ns.set_up("tap0", true).expect("up");
    Some((ns, device))
}

#[test]
fn echoes_to_linux_and_leaks_nothing() {
    let Some((ns, mut device)) = link("tap echo", "tap:tap0") else { return };
    let mut host = Host::on(&mut device);
    assert_ne!(host.nics[0].info().mac, ns.link("tap0").unwrap().unwrap().mac);
    let back = host.serve(|| ns.run(|| echo(&client(), 20_000, 16)));
    assert_eq!(back, 20_000);
    assert_eq!(host.nics[0].drops(), Default::default());
    host.assert_nothing_leaks();
}

#[test]
fn a_link_that_is_down_loses_packets_and_comes_back() {
    let Some((ns, mut device)) = link("tap link down", "tap:tap0") else { return };
    let mut host = Host::on(&mut device);
    ns.set_up("tap0", false).unwrap();
    let frame = ipv4_frame(17, (1, 2), 5, 0);
    for _ in 0..10 {
        assert!(host.send(0, &frame));
    }
    assert_eq!(host.nics[0].drops().tx_failed, 10);
    assert_eq!(host.tx.in_use(), 0);
    ns.set_up("tap0", true).unwrap();
    assert_eq!(host.serve(|| ns.run(|| echo(&client(), 100, 4))), 100);
    ns.delete_link("tap0").unwrap();
    assert!(host.receive(0).is_empty(), "the interface is gone, and nobody falls over it");
    assert!(host.send(0, &frame));
    host.assert_nothing_leaks();
}

/// Another user would have a queue of its own, and Linux would give it a part of the packets.
#[test]
fn no_other_user_takes_a_queue() {
    const NOBODY: libc::uid_t = 65534;
    let Some((ns, _device)) = link("tap owner", "tap:tap0,queues=2") else { return };
    ns.add_tap("tap1").expect("a tap that stays");
    // Of this thread alone: the C library's function would change the user of all threads.
    let as_nobody = |name: &str| {
        std::thread::scope(|scope| {
            let opened = scope.spawn(|| {
                ns.run(|| {
                    // Everybody may open it where udev has made it.
                    let queue = ix_sys::tun::open().expect("root may");
                    // SAFETY: no pointers.
                    let changed =
                        unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
                    assert_eq!(changed, 0, "root becomes nobody");
                    ix_sys::tun::attach(&queue, name, false)
                })
            });
            opened.join().expect("no panic")
        })
    };
    for name in ["tap0", "tap1"] {
        let error = as_nobody(name).expect_err("not the owner");
        assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{name}: {error}");
    }
}

/// Anybody may make an abstract socket: it must not keep root from an interface.
#[test]
fn a_name_that_another_user_has_taken_keeps_nobody_from_the_interface() {
    let name = "a_name_that_another_user_has_taken_keeps_nobody_from_the_interface";
    let Some((ns, device)) = link(name, "tap:tap0") else { return };
    if !ix_sys::process::is_root() {
        return skip(name, Need::Root, "has no folder for claims");
    }
    let listen = || ix_sys::socket::listen_unix(libc::SOCK_DGRAM, "@ix-tap/tap1");
    let _squatter = ns.run(listen);
    let open = |spec: &str| ns.run(|| ix_netdev::open(&spec.parse().expect("a spec"), &options()));
    drop(open("tap:tap1").expect("free"));
    // Its own name is claimed as long as it lives, and not longer.
    let taken = open("tap:tap0").expect_err("in use").to_string();
    assert!(taken.contains("in use") || taken.contains("another"), "{taken}");
    drop(device);
    open("tap:tap0").expect("free again");
}

/// Root's claim is a file and another user's is a name: the queues that each has keep them apart.
#[test]
fn root_and_the_owner_of_an_interface_do_not_share_it() {
    const OWNER: libc::uid_t = 65534;
    let name = "root_and_the_owner_of_an_interface_do_not_share_it";
    if !ix_sys::process::is_root() {
        return skip(name, Need::Root, "cannot become another user");
    }
    let Some(ns) = namespace(name) else { return };
    ns.add_tap("tap0").expect("a tap that stays");
    let give_away = |queue: &dyn AsRawFd| {
        // SAFETY: takes a number.
        let owned = unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNSETOWNER as _, OWNER) };
        assert_eq!(owned, 0, "it has another owner");
    };
    ns.run(|| {
        let queue = ix_sys::tun::open().expect("root may");
        ix_sys::tun::attach(&queue, "tap0", false).expect("root may");
        give_away(&queue);
    });
    let as_owner = || {
        std::thread::scope(|scope| {
            let opened = scope.spawn(|| {
                // SAFETY: numbers only; of this thread alone.
                let changed = unsafe { libc::syscall(libc::SYS_setresuid, OWNER, OWNER, OWNER) };
                assert_eq!(changed, 0, "root becomes the owner");
                open(&"tap:tap0".parse().expect("a spec"), &options())
            });
            opened.join().expect("no panic")
        })
    };
    let is_taken = |opened: Result<OpenedDevice, OpenError>| {
        let taken = opened.expect_err("in use");
        assert!(matches!(taken, OpenError::InUse { .. }), "{taken}");
    };
    ns.run(|| {
        let owners = as_owner().expect("it is its own");
        is_taken(open_in(&ns, "tap:tap0"));
        drop(owners);
        let roots = open_in(&ns, "tap:tap0").expect("free");
        // This process does not see owners of another network namespace, and has set one.
        give_away(&roots.queue_fds[0]);
        is_taken(as_owner());
        drop(roots);
        as_owner().expect("free again");
    });
}

/// Sends frames from Linux's end and checks that each comes in where `queue_of` says.
fn assert_steered(
    raw: &PacketSocket,
    host: &mut Host,
    frames: &[Vec<u8>],
    queue_of: impl Fn(&[u8]) -> usize,
) {
    for frame in frames {
        raw.send(frame).expect("sends");
        let queue = queue_of(frame);
        let mut got = Vec::new();
        eventually("the frame comes in on its queue", || {
            got.extend(host.receive(queue));
            got.iter().any(|f| f == frame)
        });
    }
}

#[test]
fn the_steering_program_is_a_live_redirection_table() {
    let Some((ns, mut device)) = link("tap steering", "tap:tap0,queues=4") else { return };
    if device.info.mode.contains("needs CAP_BPF") {
        skip("the_steering_program_is_a_live_redirection_table", Need::Root, &device.info.mode);
        return;
    }
    assert_eq!(device.info.steering, Steering::Table, "{}", device.info.mode);
    let mut host = Host::on(&mut device);
    let raw = PacketSocket::open(&ns, "tap0").unwrap();
    let hash = FlowHash::new(KEY);
    let mut table: Vec<usize> = (0..128).map(|g| initial_queue(g, 4)).collect();
    let flows: Vec<_> = (0..256)
        .map(|i| ipv4_frame(if i % 2 == 0 { 6 } else { 17 }, (1000 + i, 80), 5, 0))
        .collect();
    let used = flows.iter().map(|f| frame_flow_group(&hash, f));
    assert!(used.collect::<std::collections::HashSet<_>>().len() > 80, "flows spread");
    assert_steered(&raw, &mut host, &flows, |f| table[frame_flow_group(&hash, f)]);

    // Rewrite the table while it is in use.
    let reta = device.reta.as_ref().unwrap();
    for (group, queue) in table.iter_mut().enumerate() {
        *queue = (group * 7 + 3) % 4;
        reta.set(group, *queue).unwrap();
    }
    assert_steered(&raw, &mut host, &flows, |f| table[frame_flow_group(&hash, f)]);
    assert!(reta.set(128, 0).is_err() && reta.set(0, 4).is_err());

    // The same from where there is only the table's descriptor.
    let mapped = attach_table(&device.info, device.table_fd.take().unwrap()).unwrap();
    for (group, queue) in table.iter_mut().enumerate().filter(|(group, _)| group % 3 > 0) {
        *queue = (group * 5 + 1) % 4;
        mapped.set(group, *queue).unwrap();
    }
    assert_steered(&raw, &mut host, &flows, |f| table[frame_flow_group(&hash, f)]);
    assert!(mapped.set(128, 0).is_err() && mapped.set(0, 4).is_err());

    // Any frame: the program and its model in Rust agree.
    let strategy = (
        prop_oneof![Just(6u8), Just(17), Just(1), any::<u8>()],
        any::<(u16, u16)>(),
        prop_oneof![Just(5u8), 0..16u8],
        prop_oneof![Just(0u16), Just(0x4000), any::<u16>()],
        prop_oneof![Just(1000usize), 14..60usize],
        prop_oneof![Just([8u8, 0]), Just([0x86, 0xdd]), Just([8, 6])],
    );
    let shared = std::cell::RefCell::new(&mut host);
    let mut runner = TestRunner::new(Config { cases: 300, ..Config::default() });
    let result = runner.run(&strategy, |(protocol, ports, ihl, fragment, len, ethertype)| {
        let mut frame = ipv4_frame(protocol, ports, ihl.max(5), fragment);
        frame[14] = 0x40 | ihl;
        frame.truncate(len);
        frame[12..14].copy_from_slice(&ethertype);
        if ethertype == [0x86, 0xdd] && frame.len() > 20 {
            frame[20] = protocol;
        }
        assert_steered(&raw, &mut shared.borrow_mut(), &[frame], |f| {
            table[frame_flow_group(&hash, f)]
        });
        Ok(())
    });
    result.unwrap();
    host.assert_nothing_leaks();
}

#[test]
fn without_bpf_flows_are_steered_in_software_and_it_says_so() {
    let Some(ns) = namespace("tap without CAP_BPF") else { return };
    let spec: DeviceSpec = "tap:tap0,queues=2".parse().unwrap();
    let mut device = ns.run(|| {
        keep_capabilities(NET_ADMIN);
        open(&spec, &options()).unwrap()
    });
    assert_eq!(device.info.steering, Steering::Software);
    assert!(device.reta.is_none());
    assert!(device.info.mode.contains("needs CAP_BPF"), "{}", device.info.mode);
    ns.add_address("tap0", LINUX_IP, 24).unwrap();
    ns.set_up("tap0", true).unwrap();
    let mut host = Host::on(&mut device);
    assert_eq!(host.serve(|| ns.run(|| echo(&client(), 1000, 4))), 1000);
    host.assert_nothing_leaks();
    let refused = ns.run(|| {
        keep_capabilities(0);
        open(&"tap:tap1".parse().unwrap(), &options()).unwrap_err().to_string()
    });
    assert!(refused.contains("CAP_NET_ADMIN"), "{refused}");
}

/// What is longer than a buffer goes both ways, with and without the driver's header; the interface
/// gets the MTU that the text says.
#[test]
fn long_packets_go_both_ways() {
    for spec in ["tap:tap0,mtu=9000", "tap:tap0,mtu=9000,offloads=off"] {
        let Some((ns, mut device)) = link("tap long packets", spec) else { return };
        assert_eq!(ns.link("tap0").unwrap().unwrap().mtu, 9000);
        assert_eq!(device.info.mtu, 9000);
        let mut host = Host::on(&mut device);
        let back = host.serve(|| ns.run(|| echo_up_to(&client(), 8972, 1000, 4)));
        assert_eq!(back, 1000, "{spec}");
        host.assert_nothing_leaks();
    }
}

#[test]
fn refuses_in_one_line() {
    let Some(ns) = namespace("tap refusals") else { return };
    let other = Namespace::new().unwrap();
    ns.add_veth(&VethEnd::new("v0"), &other, &VethEnd::new("v1")).unwrap();
    let refusal = |spec| open_in(&ns, spec).expect_err("refused").to_string();
    assert!(refusal("tap:v0").contains("not a multi-queue tap"), "{}", refusal("tap:v0"));

    let mut device = open_in(&ns, "tap:tap0").unwrap();
    assert!(refusal("tap:tap0").contains("in use"), "{}", refusal("tap:tap0"));
    assert!(open_in(&other, "tap:tap0").is_ok(), "another namespace, another interface");
    let queues = std::mem::take(&mut device.queue_fds);
    drop(device);
    // It is somebody's tap now, but no dataplane's.
    ns.set_mtu("tap0", 10_000).unwrap();
    let text = refusal("tap:tap0");
    assert!(text.contains("ip link set tap0 mtu 9216"), "{text}");
    let text = refusal("tap:tap0,mtu=9000");
    assert!(text.contains("tap0"), "{text}");
    assert_eq!(ns.link("tap0").unwrap().unwrap().mtu, 10_000, "it stays as it was: {text}");
    drop(queues);
    assert!(ns.link("tap0").unwrap().is_none(), "goes with its descriptors");
}
