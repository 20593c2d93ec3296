//! One endpoint in a chosen state, and hand-made segments.
use super::{Endpoint, Segment, bytes_at, tuple};
use ix_tcp::{Config, State};
use ix_wire::{Seq, TcpFlags, TcpHeader, TcpOptions};

/// A flag, by its name in RFC 9293.
pub const ACK: TcpFlags = TcpFlags::ACK;
/// A flag, by its name in RFC 9293.
pub const SYN: TcpFlags = TcpFlags::SYN;
/// A flag, by its name in RFC 9293.
pub const FIN: TcpFlags = TcpFlags::FIN;
/// A flag, by its name in RFC 9293.
pub const RST: TcpFlags = TcpFlags::RST;

/// Every state that a connection can be in.
pub const STATES: [State; 9] = [
    State::SynSent,
    State::SynReceived,
    State::Established,
    State::FinWait1,
    State::FinWait2,
    State::CloseWait,
    State::Closing,
    State::LastAck,
    State::TimeWait,
];

/// How the peer in the laboratory behaves in the handshake.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Initial sequence number of the peer, which the endpoint receives.
    pub irs: Seq,
    /// Initial sequence number of the endpoint.
    pub iss: Seq,
    /// Options of the peer's SYN.
    pub options: TcpOptions,
    /// Window that the peer offers.
    pub window: u16,
    /// When it all begins.
    pub start_us: u64,
}

impl Default for Peer {
    fn default() -> Peer {
        let options = TcpOptions {
            mss: Some(1460),
            window_scale: Some(0),
            sack_permitted: true,
            timestamp: Some((1_000, 0)),
            ..TcpOptions::NONE
        };
        Peer {
            irs: Seq(5_000_000),
            iss: Seq(1_000_000),
            options,
            window: 65_535,
            start_us: 10_000_000,
        }
    }
}

impl Peer {
    /// A peer whose only option is the MSS.
    pub fn plain() -> Peer {
        let options = TcpOptions { mss: Some(1460), ..TcpOptions::NONE };
        Peer { options, ..Peer::default() }
    }
}

/// One endpoint, and the peer that a test plays.
pub struct Lab {
    /// The endpoint.
    pub end: Endpoint,
    /// Virtual time, µs.
    pub now_us: u64,
    /// How the peer began.
    pub peer: Peer,
    /// The peer's SND.NXT, and its TSval.
    pub seq: Seq,
    /// The peer's TSval.
    pub tsval: u32,
    /// What the peer acknowledges unless told otherwise: everything it has seen.
    pub ack: Seq,
}

/// Seed of the endpoint's stream.
pub const OWN_SEED: u32 = 0x1111;
/// Seed of the peer's stream.
pub const PEER_SEED: u32 = 0x2222;

impl Lab {
    /// Before any segment: a listener (`passive`), or a connection in SYN-SENT whose SYN is out.
    pub fn new(cfg: Config, peer: Peer, passive: bool) -> Lab {
        let (own, other) = (OWN_SEED, PEER_SEED);
        let mut end = if passive {
            Endpoint::listen(cfg, tuple(), peer.iss, own, other)
        } else {
            Endpoint::connect(cfg, tuple(), peer.iss, own, other, peer.start_us)
        };
        end.output(peer.start_us);
        let tsval = peer.options.timestamp.map_or(0, |(val, _)| val);
        Lab { end, now_us: peer.start_us, peer, seq: peer.irs, tsval, ack: peer.iss + 1 }
    }

    /// An established connection.
    pub fn established(cfg: Config, peer: Peer) -> Lab {
        let mut lab = Lab::new(cfg, peer, true);
        lab.syn();
        lab.say(ACK, &[]);
        assert_eq!(lab.state(), State::Established);
        lab.take();
        lab
    }

    /// A connection that reached `state` on the shortest way of RFC 9293's diagram.
    pub fn in_state(cfg: Config, peer: Peer, state: State) -> Lab {
        let mut lab = match state {
            State::SynSent => Lab::new(cfg, peer, false),
            State::SynReceived => {
                let mut lab = Lab::new(cfg, peer, true);
                lab.syn();
                lab
            }
            _ => Lab::established(cfg, peer),
        };
        match state {
            State::FinWait1 => lab.shutdown(),
            State::FinWait2 | State::TimeWait => {
                lab.shutdown();
                lab.ack += 1;
                lab.say(ACK, &[]);
                if state == State::TimeWait {
                    lab.say(ACK | FIN, &[]);
                }
            }
            State::CloseWait | State::LastAck => {
                lab.say(ACK | FIN, &[]);
                if state == State::LastAck {
                    lab.shutdown();
                }
            }
            State::Closing => {
                lab.shutdown();
                lab.say(ACK | FIN, &[]);
            }
            _ => {}
        }
        assert_eq!(lab.state(), state);
        lab.take();
        lab
    }

    /// State of the endpoint.
    pub fn state(&self) -> State {
        self.end.state()
    }

    fn shutdown(&mut self) {
        self.end.shutdown(self.now_us);
        self.end.output(self.now_us);
    }

    /// The peer's SYN.
    pub fn syn(&mut self) {
        let hdr = TcpHeader { options: self.peer.options, ..self.header(SYN) };
        self.seq += 1;
        self.raw(hdr, &[]);
    }

    /// The peer's SYN-ACK.
    pub fn syn_ack(&mut self) {
        let mut options = self.peer.options;
        options.timestamp = options.timestamp.map(|(val, _)| (val, self.last_ecr()));
        let hdr = TcpHeader { options, ..self.header(SYN | ACK) };
        self.seq += 1;
        self.raw(hdr, &[]);
    }

    /// The header of the peer's next segment in order.
    pub fn header(&self, flags: TcpFlags) -> TcpHeader {
        let ecr = self.end.out.sent.iter().rev().find_map(|segment| segment.hdr.options.timestamp);
        let ecr = ecr.map_or(self.last_ecr(), |(val, _)| val);
        let syn = flags.contains(SYN);
        let timestamp = self.peer.options.timestamp.filter(|_| !syn).map(|_| (self.tsval, ecr));
        let ack = if flags.contains(ACK) { self.ack } else { Seq(0) };
        TcpHeader {
            src_port: tuple().remote_port,
            dst_port: tuple().local_port,
            seq: self.seq,
            ack,
            flags,
            window: self.peer.window,
            urgent: 0,
            options: TcpOptions { timestamp, ..TcpOptions::NONE },
        }
    }

    fn last_ecr(&self) -> u32 {
        self.end.out.audit.last_tsval().unwrap_or(0)
    }

    /// The peer sends its next segment in order.
    pub fn say(&mut self, flags: TcpFlags, payload: &[u8]) {
        let hdr = self.header(flags);
        self.seq += payload.len() as u32 + u32::from(flags.contains(FIN));
        self.raw(hdr, payload);
    }

    /// The peer sends `len` bytes of its stream, in order.
    pub fn say_data(&mut self, len: usize) {
        let payload = bytes_at(PEER_SEED, self.seq, len);
        self.say(ACK, &payload);
    }

    /// The stream's bytes at `seq`, in a segment of their own; the peer's place does not move.
    pub fn data_at(&mut self, seq: Seq, len: usize) {
        let hdr = TcpHeader { seq, ..self.header(ACK) };
        let payload = bytes_at(PEER_SEED, seq, len);
        self.raw(hdr, &payload);
    }

    /// Any segment; then output, as at the end of a cycle.
    pub fn raw(&mut self, hdr: TcpHeader, payload: &[u8]) {
        let segment = Segment { hdr, payload: payload.to_vec() };
        self.end.segment(&segment, self.now_us);
        self.end.output(self.now_us);
    }

    /// What was sent since the last call.
    pub fn take(&mut self) -> Vec<Segment> {
        std::mem::take(&mut self.end.out.sent)
    }

    /// Appends `bytes` and sends.
    pub fn send(&mut self, bytes: u64) -> u64 {
        let taken = self.end.append(bytes);
        self.end.output(self.now_us);
        taken
    }

    /// Lets time pass, with every timer on its time.
    pub fn wait(&mut self, us: u64) {
        let until_us = self.now_us + us;
        for _ in 0..1_000_000 {
            let deadline_us = self.end.tcb.as_ref().map_or(u64::MAX, |tcb| tcb.deadline());
            if deadline_us > until_us {
                self.now_us = until_us;
                return;
            }
            self.now_us = self.now_us.max(deadline_us);
            let now_us = self.now_us;
            self.end.with(|tcb, cfg, out| {
                tcb.timer(cfg, now_us, out);
                tcb.output(cfg, now_us, out);
            });
        }
        panic!("timers without end");
    }
}
