//! The simulated device from both of its ends.

use crate::common::*;
use ix_nic::{SetReta, SimDevice, SimOptions, frame_flow_group};
use ix_wire::FlowHash;

fn device(options: SimOptions) -> (SimDevice, Host) {
    let device = SimDevice::new(SimOptions { flow_hash_key: KEY, ..options });
    let mut host = Host::empty();
    for queue in 0..host_queues(&device) {
        host.add(Box::new(device.queue(queue)));
    }
    (device, host)
}

fn host_queues(device: &SimDevice) -> usize {
    use ix_nic::Nic;
    device.queue(0).info().queues
}

#[test]
fn the_table_says_where_frames_come_in() {
    let (device, mut host) = device(SimOptions { queues: 3, ..SimOptions::default() });
    let hash = FlowHash::new(KEY);
    let mut used = [false; 3];
    for port in 0..200 {
        let frame = ipv4_frame(6, (port, 80), 5, 0);
        let group = frame_flow_group(&hash, &frame);
        assert_eq!(device.inject(frame.clone()), group % 3);
        assert_eq!(host.receive(group % 3), std::slice::from_ref(&frame));
        used[group % 3] = true;
        device.set(group, 2).unwrap();
        assert_eq!(device.inject(frame.clone()), 2);
        assert_eq!(host.receive(2), [frame]);
        device.set(group, group % 3).unwrap();
    }
    assert_eq!(used, [true; 3]);
    assert!(device.set(128, 0).is_err() && device.set(0, 3).is_err());
    let arp = vec![0; 60];
    assert_eq!(device.inject(arp), 0, "what is not IPv4 is flow group 0");
}

#[test]
fn echoes_and_splits_long_frames() {
    let (device, mut host) = device(SimOptions::default());
    let mut long = ipv4_frame(17, (5, 7), 5, 0);
    long.resize(5000, 0x5a);
    device.inject(long.clone());
    assert_eq!(host.receive(0), [long]);
    assert_eq!(host.packets[0], 3);
    for port in 0..100 {
        device.inject(ipv4_frame(17, (port, 7), 5, 0));
    }
    assert!(!host.nics[0].arm());
    while !host.nics[0].arm() {
        host.cycle();
    }
    let sent = device.take_sent();
    let ports: Vec<u16> = sent.iter().map(|(_, f)| u16::from_be_bytes([f[36], f[37]])).collect();
    assert_eq!(ports, (0..100).collect::<Vec<u16>>());
    host.assert_nothing_leaks();
}

#[test]
fn full_queues_and_dead_links_lose_and_count() {
    let options = SimOptions { queue_frames: 10, sent_frames: 4, ..SimOptions::default() };
    let (device, mut host) = device(options);
    for port in 0..15 {
        device.inject(ipv4_frame(17, (port, 7), 5, 0));
    }
    assert_eq!(host.nics[0].drops().rx_overrun, 5);
    assert_eq!(host.receive(0).len(), 10);
    // What finds no room stays with the sender, in order.
    for port in 0..6 {
        assert!(host.send(0, &ipv4_frame(17, (port, 7), 5, 0)));
    }
    assert_eq!((device.take_sent().len(), host.queued.len()), (4, 2));
    host.kick(0);
    assert_eq!((device.take_sent().len(), host.queued.len()), (2, 0));
    device.set_link(false);
    device.inject(ipv4_frame(17, (1, 7), 5, 0));
    host.send(0, &ipv4_frame(17, (1, 7), 5, 0));
    assert_eq!((host.receive(0).len(), device.take_sent().len()), (0, 0));
    assert_eq!(host.nics[0].drops().tx_failed, 1);
    host.assert_nothing_leaks();
}
