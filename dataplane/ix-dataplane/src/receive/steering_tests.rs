//! Packets meet the thread that owns their flow group, whatever queue they came in on.
use crate::calls::CallArray;
use crate::config::Config;
use crate::cycle::ElasticThread;
use crate::events::EventWriter;
use crate::forwarding::forwarding;
use crate::io::Io;
use crate::observe::metrics::{ControlPage, ThreadMetrics};
use crate::receive::Work;
use crate::shared::{Shared, Waker};
use ix_abi::{CALLS_MAX, CallSlot, EVENTS_MAX, EventSlot};
use ix_mem::{Mbuf, PacketMemory, Pool, Sizes};
use ix_nic::{Nic, SimDevice, SimOptions};
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
    page: Arc<ControlPage>,
}

/// Two elastic threads whose device puts everything on queue 0.
fn host() -> Host {
    let device = SimDevice::new(SimOptions { queues: 2, ..SimOptions::default() });
    let config = Config::parse("host_addr=10.0.0.2/24\ncpu=0,1").unwrap();
    let sizes = Sizes { rx_frames: 2 * FRAMES, tx_frames: 2 * FRAMES, arena_bytes: 1 };
    let memory = PacketMemory::new(sizes).unwrap();
    let (rx, tx) = (memory.rx_frames(), memory.tx_frames());
    let part = |all: &core::ops::Range<u32>, i: u32| {
        // SAFETY: disjoint parts of the memory's frames, each given out once.
        unsafe { Pool::new(all.start + i * FRAMES as u32..all.start + (i + 1) * FRAMES as u32) }
    };
    let nics: Vec<Box<dyn Nic>> = (0..2).map(|q| Box::new(device.queue(q)) as _).collect();
    let mac = nics[0].info().mac;
    let wakers = vec![Waker::new(-1), Waker::new(-1)];
    let shared = Arc::new(Shared::new(config, memory, wakers, &[mac], 0));
    let page = Arc::new(ControlPage::anonymous(2).unwrap());
    let parts = nics.into_iter().zip(forwarding(2)).enumerate();
    let thread = |(i, (nic, rings)): (usize, (Box<dyn Nic>, _))| {
        let calls: &'static mut [CallSlot] = Box::leak(vec![CallSlot::default(); CALLS_MAX].into());
        let events: &'static mut [EventSlot] =
            Box::leak(vec![EventSlot::default(); EVENTS_MAX].into());
        // SAFETY: leaked arrays of the right length, used for nothing else.
        let (calls, events) =
            unsafe { (CallArray::new(calls.as_mut_ptr()), EventWriter::new(events.as_mut_ptr())) };
        let pools = (part(&rx, i as u32), part(&tx, i as u32));
        let metrics = ThreadMetrics::new(&page, i);
        let io = Io::new(shared.clone(), i, vec![nic], pools, events, metrics);
        ElasticThread::new(io, calls, rings, 0)
    };
    let threads = parts.map(thread).collect();
    Host { device, threads, page }
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
    host.device.inject_on(0, frame);
    host.threads[0].turn(10);
    assert_eq!(host.count(0, "forwarded"), 1);
    assert_eq!((host.count(0, "drops.no_flow"), host.count(1, "drops.no_flow")), (0, 0));
    assert!(!host.threads[1].may_sleep(), "a packet waits in its ring");
    host.threads[1].turn(20);
    // Nobody listens: the owner refuses it.
    assert_eq!((host.count(0, "drops.no_flow"), host.count(1, "drops.no_flow")), (0, 1));
    assert_eq!((host.count(0, "misrouted"), host.count(1, "misrouted")), (0, 0));
}

/// The counter that proves it does count: hands a packet to the wrong thread on purpose.
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
        &Work { parsed, tails: 0, port: 0, group: group as u8, from: 0, hash, guess: u32::MAX },
        mbuf,
    );
    assert_eq!(verdict, Ok(()));
    assert_eq!(host.count(0, "misrouted"), 1);
}
