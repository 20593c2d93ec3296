//! What ICMP errors do to a connection: RFC 1122 section 4.2.3.9, RFC 1191, RFC 8201,
//! RFC 5927.
use crate::config::{Config, header_bytes_to};
use crate::connect::TIMESTAMP_BYTES;
use crate::output::{DeadReason, Output, RxBuf};
use crate::path_search::RISE_US;
use crate::state::State;
use crate::stats::TcpCounter;
use crate::tcb::{Flags, NEVER, Tcb};
use ix_wire::{Seq, ipv6};

/// What an ICMP error says about the path of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathError {
    /// A packet with DF was too long for a link with this MTU (0: the router did not say).
    FragNeeded {
        /// MTU of the next hop, bytes with the IP header.
        mtu: u16,
    },
    /// The network or the host cannot be reached, or the packet's hop limit expired. This may pass.
    Soft,
    /// The host does not support TCP, no socket has the port, or it is forbidden to connect.
    Hard,
}

/// Smallest path MTU of IPv4 that is believed (as on Linux). A smaller one is more likely an attack
/// on throughput than a link.
const PMTU_MIN: u16 = 552;

/// RFC 1191 section 7.1: common MTUs, to guess from if the router gives none.
const PLATEAUS: [u16; 8] = [32_000, 17_914, 8_166, 4_352, 2_002, 1_492, 1_006, 552];

impl<B: RxBuf> Tcb<B> {
    /// Whether an ICMP error that quotes a segment is believed. If the segment is not in flight,
    /// the error is old or forged (RFC 5927 section 4.1).
    pub fn believes_error(&self, quoted_seq: Option<Seq>) -> bool {
        let in_flight = quoted_seq.is_some_and(|seq| seq.between(self.snd_una, self.snd_nxt));
        in_flight && self.state != State::Closed
    }

    /// Processes an ICMP error that quoted a segment of this connection.
    pub fn icmp_error(
        &mut self,
        cfg: &Config,
        now_us: u64,
        error: PathError,
        quoted_seq: Option<Seq>,
        out: &mut impl Output<B>,
    ) {
        if !self.believes_error(quoted_seq) {
            out.count(TcpCounter::IcmpIgnored);
            return;
        }
        match error {
            PathError::FragNeeded { mtu } => self.path_mtu(cfg, now_us, mtu, out),
            PathError::Hard if !self.state.synchronized() => self.die(DeadReason::Refused, out),
            // RFC 5927 section 5.2: an established connection survives hard errors too.
            PathError::Soft | PathError::Hard => self.flags.set(Flags::SOFT_ERROR),
        }
        self.check();
    }

    /// No host of the link answers for the next hop. An attempt to connect ends, as on Linux; a
    /// connection that stands goes on trying (RFC 1122 section 4.2.3.9).
    pub fn next_hop_failed(&mut self, out: &mut impl Output<B>) {
        match self.state {
            State::Closed => {}
            State::SynSent => self.die(DeadReason::Unreachable, out),
            _ => self.flags.set(Flags::SOFT_ERROR),
        }
        self.check();
    }

    /// Whether segments leave in packets that are longer than this, bytes.
    pub fn exceeds(&self, mtu: u16) -> bool {
        self.handshake_done() && self.state != State::Closed && self.mss + self.header_bytes() > mtu
    }

    /// The device takes packets of at most `mtu` bytes now, and has lost longer ones.
    pub fn device_takes(&mut self, cfg: &Config, now_us: u64, mtu: u16, out: &mut impl Output<B>) {
        self.path_mtu(cfg, now_us, mtu, out);
        self.check();
    }

    /// The path accepts at most `mtu` bytes: longer segments are sent again, in smaller pieces.
    fn path_mtu(&mut self, cfg: &Config, now_us: u64, mtu: u16, out: &mut impl Output<B>) {
        let (headers, least) = (self.header_bytes(), self.path_mtu_min());
        let packet = self.mss + headers;
        let mtu = if mtu == 0 {
            PLATEAUS.into_iter().find(|plateau| *plateau < packet).unwrap_or(least)
        } else {
            mtu.max(least)
        };
        let falls = mtu < packet && self.handshake_done();
        if falls {
            out.count(TcpCounter::PmtuReduced);
            let rise_us = if cfg.path_search { now_us.saturating_add(RISE_US) } else { NEVER };
            self.path_fell(mtu - headers, rise_us);
        } else if !self.probe_too_long(mtu.saturating_sub(headers)) {
            // RFC 1191 section 6.3: never increase it.
            out.count(TcpCounter::IcmpIgnored);
            return;
        }
        for index in 0..self.records.len() {
            if self.records.get(index).is_some_and(|record| record.len > self.mss + 1) {
                self.mark_lost(index);
            }
        }
        // This is no sign of congestion (RFC 1191 section 6.4: send at once).
        self.retransmit_lost(cfg, now_us, out);
        self.arm_loss_timer(cfg, now_us);
    }

    /// Bytes of a packet that are not payload.
    pub(crate) fn header_bytes(&self) -> u16 {
        header_bytes_to(self.tuple.remote) + self.option_bytes()
    }

    /// Bytes of the options of every segment.
    pub(crate) fn option_bytes(&self) -> u16 {
        if self.flags.has(Flags::TIMESTAMPS) { TIMESTAMP_BYTES } else { 0 }
    }

    /// The smallest path MTU that is believed: of IPv6 what every link has (RFC 8201 section 4).
    pub(crate) fn path_mtu_min(&self) -> u16 {
        if self.tuple.remote.is_v6() { ipv6::MTU_MIN } else { PMTU_MIN }
    }
}
