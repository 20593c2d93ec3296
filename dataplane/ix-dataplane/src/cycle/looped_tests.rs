//! Which packets may come from our own address: those that a thread of ours has sent there, by
//! whatever way they come, and no other.
use crate::config::Config;
use crate::observe::metrics::Snapshot;
use crate::receive::batch::Via;
use crate::test_rig::{TestRig, device};
use ix_mem::{HEADROOM_BYTES, Sizes};
use ix_nic::RxPacket;
use ix_wire::{Checksum, FrameHeader, IpAddr, ipv4};

const OURS: IpAddr = IpAddr::v4([10, 0, 0, 2]);
const SIZES: Sizes = Sizes { rx_frames: 128, tx_frames: 128, arena_bytes: 2 << 20 };

struct Host(TestRig);

impl Host {
    fn new() -> Host {
        Host(TestRig::new(Config::with_address(OURS, 24), SIZES, &device(2)))
    }

    /// A datagram from the own address to itself, in a frame of a thread.
    fn packet(&mut self, thread: usize) -> RxPacket {
        let eth = self.0.threads[thread].elastic.io.ports[0].info.mac;
        let link = FrameHeader {
            eth_src: eth,
            eth_dst: eth,
            src: OURS,
            dst: OURS,
            ttl: ipv4::DEFAULT_TTL,
            tos: 0,
            ident: 1,
        };
        let cx = &mut self.0.threads[thread].elastic.io.cx;
        let mut mbuf = cx.rx_pool.take().expect("a frame");
        mbuf.set_range(HEADROOM_BYTES, 60);
        let frame = mbuf.bytes_mut(&self.0.shared.memory);
        frame.fill(0x66);
        link.emit_udp(frame, 9, 4000, 18, Checksum::of(&[0x66; 18]));
        RxPacket { mbuf, more: false }
    }

    fn drops(&self, reason: &str) -> u64 {
        let all = Snapshot::of(&self.0.page).threads;
        all.iter().map(|thread| thread.get(&format!("drops.{reason}")).expect("a reason")).sum()
    }

    /// Turns both threads, and then as many packets were refused: for their source, and because no
    /// socket has their port.
    fn refused(&mut self) -> (u64, u64) {
        let before = (self.drops("ip_martian_source"), self.drops("udp_no_socket"));
        for turn in 0..6 {
            self.0.threads[turn % 2].elastic.turn(turn as u64);
        }
        let after = (self.drops("ip_martian_source"), self.drops("udp_no_socket"));
        (after.0 - before.0, after.1 - before.1)
    }
}

#[test]
fn what_another_thread_hands_over_is_looped_or_from_elsewhere() {
    let mut host = Host::new();
    for (from, to) in [(0, 1), (1, 0)] {
        for (looped, refused) in [(false, (1, 0)), (true, (0, 1))] {
            let packet = host.packet(from);
            host.0.threads[from].elastic.hand_over(to, (0, looped), packet);
            assert_eq!(host.refused(), refused, "{from} to {to}, looped: {looped}");
        }
    }
}

#[test]
fn what_was_kept_or_just_sent_is_looped_or_from_elsewhere() {
    for (looped, refused) in [(false, (1, 0)), (true, (0, 1))] {
        let mut host = Host::new();
        let packet = host.packet(0);
        let kept = crate::attachment::Kept { port: 0, looped, group: None, packet };
        host.0.threads[0].elastic.returned.0.push_back(kept);
        assert_eq!(host.refused(), refused, "looped: {looped}");
    }
    for (from, looped) in [(0, true), (252, false), (Via::REPLAY, true), (Via::LOOPED, true)] {
        let one = Via::of(from, looped);
        assert_eq!((one.number(), one.is_looped()), (from, looped));
    }
    assert_eq!((Via::here(true).number(), Via::here(false)), (Via::LOOPED, Via::NEW));
}

#[test]
fn a_thread_rests_when_its_packets_to_itself_are_processed() {
    let mut host = Host::new();
    let packet = host.packet(0);
    let thread = &mut host.0.threads[0].elastic;
    assert!(thread.at_rest());
    thread.io.cx.looped.push_back((0, packet));
    assert!(!thread.at_rest() && thread.has_work());
    host.refused();
    assert!(host.0.threads[0].elastic.at_rest());
}
