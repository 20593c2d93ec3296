//! The vNIC's rules in one elastic thread, in virtual time: what a simulated device sends, and
//! when.
use crate::config::Config;
use crate::cycle::ElasticThread;
use crate::observe::metrics::{ControlPage, Snapshot};
use crate::test_rig::{TestRig, TestThread, device};
use ix_mem::Sizes;
use ix_rig::{Arrays, SimDevice};
use ix_wire::{Checksum, FrameHeader, IpAddr, Seq, TcpFlags, TcpHeader, TcpOptions, ipv4};
use std::sync::Arc;

const OURS: IpAddr = IpAddr::v4([10, 0, 0, 2]);
const PEER: IpAddr = IpAddr::v4([10, 0, 0, 1]);
const SIZES: Sizes = Sizes { rx_frames: 1024, tx_frames: 1024, arena_bytes: 1 };
const FULL: usize = 1514;

struct Host {
    device: SimDevice,
    thread: ElasticThread,
    _arrays: Arrays,
    page: Arc<ControlPage>,
}

fn host(rules: &str) -> Host {
    host_at(rules, 0, 1)
}

/// One of several elastic threads.
fn host_at(rules: &str, index: usize, threads: usize) -> Host {
    let device = device(threads);
    let mut config = Config::with_address(OURS, 24);
    config.address_check = crate::config::AddressCheck::Off;
    config.vnic_rules = rules.parse().unwrap();
    let mut rig = TestRig::new(config, SIZES, &device);
    let TestThread { elastic: mut thread, arrays } = rig.threads.remove(index);
    // Starts the counting of rates.
    thread.turn(0);
    Host { device, thread, _arrays: arrays, page: rig.page }
}

/// A segment from an own port, of this length, changed by `change`.
fn segment(bytes: usize, src_port: u16, change: impl Fn(&mut [u8])) -> Vec<u8> {
    let link = FrameHeader {
        eth_src: [2, 0, 0, 0, 0, 1],
        eth_dst: [2, 0, 0, 0, 0, 9],
        src: OURS,
        dst: PEER,
        ttl: ipv4::DEFAULT_TTL,
        tos: 0,
        ident: 1,
    };
    let header = TcpHeader {
        src_port,
        dst_port: 999,
        seq: Seq(1),
        ack: Seq(0),
        flags: TcpFlags::ACK,
        window: 1000,
        urgent: 0,
        options: TcpOptions::NONE,
    };
    let mut frame = vec![0; bytes];
    link.emit_tcp(&mut frame, &header, bytes - 54, Checksum::new());
    change(&mut frame);
    frame
}

impl Host {
    /// Queues a built packet.
    fn queue(&mut self, frame: &[u8]) -> bool {
        let memory = &self.thread.shared.memory;
        let Some(mut mbuf) = self.thread.io.cx.tx_pool.take_frame(memory, frame.len()) else {
            return false;
        };
        mbuf.write_at(memory, 0, frame);
        self.thread.io.ports[0].queue.push_back(mbuf);
        true
    }

    fn drops(&self, reason: &str) -> u64 {
        Snapshot::of(&self.page).threads[0].get(&format!("drops.{reason}")).unwrap()
    }

    /// Bytes sent since the last call.
    fn sent(&mut self) -> u64 {
        self.device.take_sent().iter().map(|(_, frame)| frame.len() as u64).sum()
    }

    /// Always has something to send for `us`, with a turn every `step_us`. Returns the bytes sent
    /// and the gaps between packets, µs.
    fn flood(&mut self, from_us: u64, us: u64, step_us: u64) -> (u64, Vec<u64>) {
        self.flood_with(FULL, from_us, us, step_us)
    }

    /// The same with packets of this length.
    fn flood_with(&mut self, len: usize, from_us: u64, us: u64, step_us: u64) -> (u64, Vec<u64>) {
        let frame = segment(len, 80, |_| {});
        let (mut bytes, mut gaps, mut last) = (0, Vec::new(), None);
        let mut now_us = from_us;
        while now_us < from_us + us {
            while self.thread.io.cx.tx_pool.in_use() < 256 && self.queue(&frame) {}
            self.thread.turn(now_us);
            for (_, frame) in self.device.take_sent() {
                bytes += frame.len() as u64;
                gaps.extend(last.map(|last| now_us - last));
                last = Some(now_us);
            }
            now_us += step_us;
        }
        (bytes, gaps)
    }
}

#[test]
fn what_is_foreign_never_leaves_and_is_counted() {
    let mut host = host("tx tcp service 10.0.0.2:80");
    for (reason, at, bytes) in [
        ("tx_foreign_mac", 11, &[4][..]),
        ("tx_foreign_address", 29, &[9]),
        ("tx_foreign_port", 35, &[9]),
        ("tx_foreign_other", 23, &[17]),
    ] {
        host.queue(&segment(100, 80, |f| f[at..at + bytes.len()].copy_from_slice(bytes)));
        host.thread.turn(1);
        assert_eq!((host.drops(reason), host.sent()), (1, 0), "{reason}");
    }
    let mut tagged = segment(100, 80, |_| {});
    tagged.splice(12..12, [0x81, 0, 0, 7]);
    host.queue(&tagged);
    host.thread.turn(1);
    assert_eq!((host.drops("tx_foreign_vlan"), host.sent()), (1, 0));
    host.queue(&segment(100, 80, |_| {}));
    host.thread.turn(2);
    assert_eq!(host.sent(), 100, "its own leaves");
    assert_eq!(host.thread.io.cx.tx_pool.in_use(), 0, "frames of dropped packets come back");
}

#[test]
fn other_rules_hold_from_the_next_cycle_on() {
    let mut host = host("");
    let (mut delivered, mut dropped, mut last) = (0, 0, 0);
    for round in 0..1000u64 {
        let port = 1000 + (round * 7 % 13) as u16;
        host.thread
            .shared
            .vnic_rules
            .set(format!("tx tcp service 10.0.0.2:{port}").parse().unwrap());
        host.queue(&segment(100, port, |_| {}));
        host.queue(&segment(100, if last == 0 { 1 } else { last }, |_| {}));
        host.thread.turn(round);
        let sent = host.device.take_sent();
        let ports: Vec<_> = sent.iter().map(|(_, f)| u16::from_be_bytes([f[34], f[35]])).collect();
        assert_eq!(ports, [port], "round {round}");
        (delivered, dropped, last) = (delivered + 1, dropped + 1, port);
    }
    assert_eq!((delivered, host.drops("tx_foreign_port")), (1000, dropped));
    host.thread.shared.vnic_rules.set("none tx".parse().unwrap());
    host.queue(&segment(100, last, |_| {}));
    host.thread.turn(2000);
    assert_eq!(host.sent(), 0, "revoked");
}

#[test]
fn a_limit_holds_within_two_percent_over_a_second() {
    for (rate, bits) in [("1Mbit", 1e6), ("100Mbit", 1e8), ("1Gbit", 1e9), ("9Gbit", 9e9)] {
        let mut host = host(&format!("rate tx {rate}"));
        let (bytes, _) = host.flood(0, 1_000_000, 5);
        let error = (bytes as f64 - bits / 8.0).abs() - 2.0 * FULL as f64;
        assert!(error <= 0.02 * bits / 8.0, "{rate}: {bytes} bytes");
    }
}

/// Of two threads one has a rate of its own. The other has its part of the vNIC's rate, or no rules
/// at all.
/// All buffers of a packet count, and all of a lost one come back.
#[test]
fn packets_of_several_buffers_count_as_long_as_they_are() {
    for (rules, bits) in [("rate tx 100Mbit", 1e8), ("rate flow 100Mbit", 1e8)] {
        let mut host = host(rules);
        let (bytes, _) = host.flood_with(9014, 0, 1_000_000, 5);
        let rate = bytes as f64 * 8.0;
        assert!((rate / bits - 1.0).abs() < 0.02, "{rules}: {rate}");
    }
    let mut host = host("tx tcp service 10.0.0.2:81");
    assert!(host.queue(&segment(9014, 80, |_| {})));
    host.thread.turn(1);
    assert_eq!((host.drops("tx_foreign_port"), host.sent()), (1, 0));
    assert_eq!(host.thread.io.cx.tx_pool.in_use(), 0);
}

#[test]
fn a_queue_has_its_own_rate_within_its_part() {
    for (rules, wanted) in [
        ("queue 1 rate tx 20Mbit", [None, Some(20e6)]),
        ("rate tx 100Mbit; queue 1 rate tx 20Mbit", [Some(50e6), Some(20e6)]),
        ("rate tx 100Mbit; queue 1 rate tx 80Mbit", [Some(50e6), Some(50e6)]),
    ] {
        for (index, wanted) in wanted.into_iter().enumerate() {
            let mut host = host_at(rules, index, 2);
            let Some(bits) = wanted else {
                assert!(
                    host.thread.receive.admission.checks().is_none()
                        && host.thread.egress.qdisc.is_open(),
                    "{rules}: nothing to ask"
                );
                continue;
            };
            let (bytes, _) = host.flood(0, 1_000_000, 20);
            let error = (bytes as f64 - bits / 8.0).abs() - 2.0 * FULL as f64;
            assert!(error <= 0.02 * bits / 8.0, "{rules}, queue {index}: {bytes} bytes");
        }
    }
}

/// Another rate a hundred times while packets wait for it: none is lost, and none overtakes another
/// one.
#[test]
fn a_queues_rate_changes_under_packets_that_wait() {
    let mut host = host_at("queue 1 rate tx 1Mbit", 1, 2);
    let (mut queued, mut left) = (0u32, Vec::new());
    for round in 0..100u64 {
        let rates =
            ["queue 1 rate tx 2Mbit", "queue 1 rate flow 2Mbit", "queue 0 rate tx 1kbit", ""];
        host.thread.shared.vnic_rules.set(rates[round as usize % 4].parse().unwrap());
        // The new rate is applied at the start of a cycle, before anything is built.
        host.thread.turn(1_000 * (round + 1));
        for _ in 0..3 {
            let number = queued.to_be_bytes();
            assert!(host.queue(&segment(200, 80, |f| f[60..64].copy_from_slice(&number))));
            queued += 1;
        }
        host.thread.turn(1_000 * (round + 1) + 1);
        left.extend(host.device.take_sent());
    }
    host.thread.shared.vnic_rules.set(ix_vnic::VnicRules::default());
    host.thread.turn(200_000);
    left.extend(host.device.take_sent());
    let number = |frame: &[u8]| u32::from_be_bytes([frame[60], frame[61], frame[62], frame[63]]);
    let left: Vec<u32> = left.iter().map(|(_, frame)| number(frame)).collect();
    assert!(left.iter().copied().eq(0..queued), "{left:?}");
    assert_eq!(host.thread.io.cx.tx_pool.in_use(), 0);
}

#[test]
fn pacing_spreads_packets_over_the_time() {
    // 12,112 bits per packet: one every 121 µs, however many wait.
    let mut host = host("rate tx 100Mbit");
    let (_, gaps) = host.flood(0, 200_000, 1);
    let gaps = &gaps[3..];
    let mut histogram = std::collections::BTreeMap::<u64, usize>::new();
    gaps.iter().for_each(|gap| *histogram.entry(gap / 10 * 10).or_default() += 1);
    println!("gaps between packets of 1514 bytes at 100 Mbit/s, µs: {histogram:?}");
    assert!(gaps.iter().all(|gap| (121..=122).contains(gap)), "{histogram:?}");
}

#[test]
fn a_paced_thread_knows_when_its_next_packet_is_due() {
    let mut host = host("rate tx 1Mbit");
    let frame = segment(FULL, 80, |_| {});
    (0..10).for_each(|_| assert!(host.queue(&frame)));
    host.thread.turn(1_000_000);
    assert_eq!(host.device.take_sent().len(), 3, "the burst, and one on credit");
    // The 12.1 ms of the last one have not passed yet.
    assert_eq!(host.thread.egress.qdisc.due_us(), Some(1_012_112));
    assert!(host.thread.may_sleep(), "it may sleep until then");
    assert!(host.thread.next_deadline_us().is_some_and(|due| due <= 1_012_112));
    host.thread.turn(1_012_111);
    assert_eq!(host.sent(), 0);
    host.thread.turn(1_012_112);
    assert_eq!(host.device.take_sent().len(), 1);
    // Without rules the rest is sent at once.
    host.thread.shared.vnic_rules.set(ix_vnic::VnicRules::default());
    host.thread.turn(1_012_113);
    assert_eq!(host.device.take_sent().len(), 6);
}

#[test]
fn too_many_that_wait_are_lost_and_counted() {
    let mut host = host("rate tx 1Mbit");
    let frame = segment(FULL, 80, |_| {});
    (0..600).for_each(|_| assert!(host.queue(&frame)));
    host.thread.turn(1_000_000);
    assert_eq!(host.drops("tx_rate"), 600 - 512);
    let sent = host.device.take_sent().len();
    assert_eq!(host.thread.io.cx.tx_pool.in_use() as usize + sent, 512);
}

/// Each flow has its own rate, whatever the others send. All packets leave within a slot of their
/// departure time.
#[test]
fn flows_are_paced_one_by_one() {
    let mut host = host("rate flow 100Mbit");
    let frames = [80, 81].map(|port| segment(FULL, port, |_| {}));
    (0..20).for_each(|_| frames.iter().for_each(|frame| assert!(host.queue(frame))));
    // Neither TCP nor UDP: no rate.
    host.queue(&segment(FULL, 9, |f| f[23] = 1));
    let mut left: [Vec<u64>; 2] = [Vec::new(), Vec::new()];
    let mut others = 0;
    for now_us in 1_000_000..1_004_000 {
        host.thread.turn(now_us);
        for (_, frame) in host.device.take_sent() {
            match u16::from_be_bytes([frame[34], frame[35]]) {
                _ if frame[23] == 1 => others += 1,
                port => left[usize::from(port - 80)].push(now_us),
            }
        }
        if now_us == 1_000_000 {
            assert_eq!((left[0].len(), left[1].len(), others), (1, 1, 1), "the first at once");
            assert!(host.thread.may_sleep());
            assert!(host.thread.egress.qdisc.due_us().is_some_and(|due| due <= 1_000_138));
        }
    }
    for times in &left {
        assert_eq!(times.len(), 20);
        for (n, at) in times.iter().enumerate().skip(1) {
            // 12,112 bits are 121.12 µs.
            let due = 1_000_000.0 + n as f64 * 121.12;
            assert!((due..due + 18.0).contains(&(*at as f64)), "{n}: {at}, due {due}");
        }
    }
    assert_eq!(host.thread.io.cx.tx_pool.in_use(), 0);
    // Too many packets of one flow are lost, and only of that one.
    (0..600).for_each(|_| assert!(host.queue(&frames[0])));
    host.thread.turn(1_004_001);
    assert_eq!(host.drops("tx_rate"), 600 - 1 - 512);
    host.queue(&frames[1]);
    host.thread.turn(1_004_002);
    assert_eq!(host.device.take_sent().len(), 2);
    // Without rules all waiting packets are sent, in their order.
    host.thread.shared.vnic_rules.set(ix_vnic::VnicRules::default());
    host.thread.turn(1_004_003);
    host.thread.turn(1_004_004);
    assert_eq!(host.thread.io.cx.tx_pool.in_use(), 0);
}

#[test]
fn what_no_filter_takes_is_not_heard_nor_what_is_beyond_the_rate() {
    let incoming = |port: u16| {
        let mut frame = segment(60, 999, |_| {});
        let link = FrameHeader {
            eth_src: [2, 0, 0, 0, 0, 9],
            eth_dst: [2, 0, 0, 0, 0, 1],
            src: PEER,
            dst: OURS,
            ttl: ipv4::DEFAULT_TTL,
            tos: 0,
            ident: 1,
        };
        let (seq, ack, flags) = (Seq(1), Seq(0), TcpFlags::SYN);
        let options = TcpOptions::NONE;
        let header = TcpHeader {
            src_port: 999,
            dst_port: port,
            seq,
            ack,
            flags,
            window: 9,
            urgent: 0,
            options,
        };
        link.emit_tcp(&mut frame, &header, 6, Checksum::new());
        frame
    };
    let mut host = host("rx tcp service 10.0.0.2:80; rate rx 1kpps");
    host.device.deliver(incoming(81));
    host.thread.turn(1_000_000);
    assert_eq!((host.drops("rx_filtered"), host.drops("no_flow")), (1, 0));
    for _ in 0..10 {
        host.device.deliver(incoming(80));
    }
    host.thread.turn(2_000_000);
    // As many packets at once as two full frames, and one on credit.
    assert_eq!((host.drops("no_flow"), host.drops("rx_rate")), (3, 7));
}
