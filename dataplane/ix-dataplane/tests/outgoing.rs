//! Ports of outgoing connections: a port whose last connection to a destination is in TIME-WAIT is
//! used again after a second, where timestamps tell old from new (RFC 6191).
use crate::peer::{OURS, PEER, PEER_MAC, frame_of};
use ix_abi::{Call, CallError, CallSlot, Endpoint};
use ix_dataplane::Config;
use ix_mem::Sizes;
use ix_rig::{BareRig, RigOptions, SimDevice, SimOptions, VirtualClock};
use ix_wire::{Parsed, RxChecks, Seq, TcpFlags, TcpHeader, TcpOptions};

/// Ports of the host.
const PORTS: u16 = 20;
const PEER_PORT: u16 = 80;

struct Host {
    rig: BareRig,
    device: SimDevice,
    clock: VirtualClock,
}

impl Host {
    fn new() -> Host {
        let clock = VirtualClock::default();
        let device = SimDevice::new(SimOptions::default(), &clock);
        let config = Config {
            arp: vec![(PEER, PEER_MAC)],
            local_ports: (40_000, 40_000 + PORTS - 1),
            ..Config::with_address(OURS, 24)
        };
        let sizes = Some(Sizes { rx_frames: 1024, tx_frames: 1024, arena_bytes: 2 << 20 });
        let options = RigOptions { config, sizes, clock: clock.clone() };
        let rig = BareRig::new(options, device.nics());
        Host { rig, device, clock }
    }

    fn run(&mut self, calls: &[CallSlot]) -> Vec<i64> {
        self.rig.run(0, calls, self.clock.now_us()).0
    }

    /// The next segment that the host sends, between announcements of its address.
    fn sent(&mut self) -> TcpHeader {
        self.run(&[]);
        loop {
            let frame = self.device.next_sent().expect("a segment");
            match ix_wire::parse(&frame, RxChecks::default()) {
                Ok(Parsed::Tcp(segment)) => return segment.header,
                Ok(Parsed::Arp(_)) => {}
                other => panic!("no segment: {other:?}"),
            }
        }
    }

    /// The peer answers a segment.
    fn answer(&mut self, to: &TcpHeader, flags: TcpFlags, seq: u32, ack: u32) {
        let timestamp = to.options.timestamp.map(|(val, _)| (7, val));
        let mss = flags.contains(TcpFlags::SYN).then_some(1460);
        let header = TcpHeader {
            src_port: PEER_PORT,
            dst_port: to.src_port,
            seq: Seq(seq),
            ack: to.seq + ack,
            flags,
            window: 1000,
            urgent: 0,
            options: TcpOptions { mss, timestamp, ..TcpOptions::NONE },
        };
        self.device.deliver(frame_of(self.device.options().mac, &header));
        self.run(&[]);
    }

    /// Opens a connection and closes it, so that our side is in TIME-WAIT. The result of `CONNECT`,
    /// and its SYN.
    fn come_and_go(&mut self) -> Result<TcpHeader, i64> {
        let to = Endpoint { addr: PEER.0, port: PEER_PORT };
        let connect = Call::Connect { cookie: 1, to, congestion: None, local_port: 0 };
        let result = self.run(&[connect.encode()])[0];
        let handle = u64::try_from(result).map_err(|_| result)?;
        let syn = self.sent();
        assert_eq!(syn.flags.0 & 0x3f, TcpFlags::SYN.0);
        self.answer(&syn, TcpFlags::SYN | TcpFlags::ACK, 500, 1);
        self.run(&[Call::Close { handle }.encode()]);
        let mut fin = self.sent();
        while !fin.flags.contains(TcpFlags::FIN) {
            fin = self.sent();
        }
        self.answer(&fin, TcpFlags::FIN | TcpFlags::ACK, 501, 1);
        let last = self.sent();
        assert_eq!(last.ack, Seq(502));
        Ok(syn)
    }
}

#[test]
fn a_port_in_time_wait_is_used_again_after_a_second() {
    let mut host = Host::new();
    let first: Vec<_> = (0..PORTS).map(|_| host.come_and_go().expect("a free port")).collect();
    let mut ports: Vec<_> = first.iter().map(|syn| syn.src_port).collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), usize::from(PORTS), "each port once");
    let none = CallError::encode(Err(CallError::NoResource));
    assert_eq!(host.come_and_go().err(), Some(none), "too early");
    // The connections are a minute in TIME-WAIT: in that time each port serves again and again.
    for _ in 0..10 {
        host.clock.advance(1_100_000);
        for _ in 0..PORTS {
            let syn = host.come_and_go().expect("a port whose connection has ended");
            let old = first.iter().find(|old| old.src_port == syn.src_port).expect("its port");
            let (then, now) = (old.options.timestamp.unwrap().0, syn.options.timestamp.unwrap().0);
            assert!(now.wrapping_sub(then) as i32 > 0, "timestamps go on");
            assert!(syn.seq.gt(old.seq + 2), "above all that was sent");
        }
        assert_eq!(host.come_and_go().err(), Some(none));
    }
}
