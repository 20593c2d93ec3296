//! Packets reach the thread that owns their flow group, whatever queue they arrived on.
use crate::config::Config;
use crate::cycle::ElasticThread;
use crate::observe::metrics::ControlPage;
use crate::receive::Work;
use crate::receive::batch::Via;
use crate::test_rig::{TestRig, device};
use ix_mem::{Mbuf, Sizes};
use ix_rig::{Arrays, SimDevice};
use ix_wire::{
    Checksum, FlowTuple, FrameHeader, IpAddr, Parsed, RxChecks, Seq, TcpFlags, TcpHeader,
    TcpOptions, flow_group, ipv4,
};
use std::sync::Arc;

const OURS: IpAddr = IpAddr::v4([10, 0, 0, 2]);
const PEER: IpAddr = IpAddr::v4([10, 0, 0, 1]);
const FRAMES: usize = 1024;

struct Host {
    device: SimDevice,
    threads: Vec<ElasticThread>,
    _arrays: Vec<Arrays>,
    page: Arc<ControlPage>,
}

/// Two elastic threads, and a device of which a test uses only queue 0.
fn host() -> Host {
    let device = device(2);
    let config = Config::with_address(OURS, 24);
    let config = Config { cpus: vec![0, 1], ..config };
    let sizes = Sizes { rx_frames: 2 * FRAMES, tx_frames: 2 * FRAMES, arena_bytes: 1 };
    let TestRig { threads, page, .. } = TestRig::new(config, sizes, &device);
    let (threads, arrays) =
        threads.into_iter().map(|thread| (thread.elastic, thread.arrays)).unzip();
    Host { device, threads, _arrays: arrays, page }
}

impl Host {
    /// A SYN to port 80 whose flow group `thread` owns, and its flow group.
    fn syn_of(&self, thread: usize) -> (Vec<u8>, usize) {
        let shared = &self.threads[0].shared;
        for port in 1000.. {
            let tuple = FlowTuple { local: OURS, remote: PEER, local_port: 80, remote_port: port };
            let group = flow_group(shared.flow_hash.hash(&tuple));
            if shared.owner(group) == thread {
                return (self.syn(port), group);
            }
        }
        unreachable!()
    }

    fn syn(&self, src_port: u16) -> Vec<u8> {
        let link = FrameHeader {
            eth_src: [2, 0, 0, 0, 0, 1],
            eth_dst: self.threads[0].io.ports[0].info.mac,
            src: PEER,
            dst: OURS,
            ttl: ipv4::DEFAULT_TTL,
            tos: 0,
            ident: 1,
        };
        let header = TcpHeader {
            src_port,
            dst_port: 80,
            seq: Seq(1),
            ack: Seq(0),
            flags: TcpFlags::SYN,
            window: 1000,
            urgent: 0,
            options: TcpOptions::NONE,
        };
        let mut frame = vec![0; 64];
        let len = link.emit_tcp(&mut frame, &header, 0, Checksum::new());
        frame.truncate(len.max(60));
        frame
    }

    fn count(&self, thread: usize, name: &str) -> u64 {
        crate::observe::metrics::Snapshot::of(&self.page).threads[thread].get(name).unwrap()
    }
}

#[test]
fn a_packet_on_the_wrong_queue_reaches_the_owner() {
    let mut host = host();
    let (frame, _) = host.syn_of(1);
    host.device.deliver_on(0, frame);
    host.threads[0].turn(10);
    assert_eq!(host.count(0, "forwarded"), 1);
    assert_eq!((host.count(0, "drops.no_flow"), host.count(1, "drops.no_flow")), (0, 0));
    assert!(!host.threads[1].may_sleep(), "a packet waits in its ring");
    host.threads[1].turn(20);
    // There is no listener: the owner refuses it.
    assert_eq!((host.count(0, "drops.no_flow"), host.count(1, "drops.no_flow")), (0, 1));
    assert_eq!((host.count(0, "misrouted"), host.count(1, "misrouted")), (0, 0));
}

/// The counter for misrouting does count: hands a packet to the wrong thread on purpose.
#[test]
fn misrouting_on_purpose_is_counted() {
    let mut host = host();
    let (frame, group) = host.syn_of(1);
    let thread = &mut host.threads[0];
    let mut mbuf: Mbuf = thread.io.cx.rx_pool.take().unwrap();
    mbuf.set_range(256, frame.len());
    mbuf.bytes_mut(&thread.shared.memory).copy_from_slice(&frame);
    let parsed = ix_wire::parse(&frame, RxChecks::default()).unwrap();
    let Parsed::Tcp(packet) = &parsed else { panic!("a SYN") };
    let hash = thread.shared.flow_hash.hash(&packet.tuple());
    let verdict = thread.handle(
        &Work {
            parsed,
            tails: 0,
            port: 0,
            group: group as u8,
            from: Via::of(0, false),
            hash,
            guess: u32::MAX,
        },
        mbuf,
    );
    assert_eq!(verdict, Ok(()));
    assert_eq!(host.count(0, "misrouted"), 1);
}
