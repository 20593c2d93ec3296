//! Accurate ECN (RFC 9768): the receiver reports how many packets were marked, not only that some
//! were.
//!
//! Both ends agree by AE, CWR and ECE of SYN and SYN-ACK, which also report how the ECN fields of
//! these arrived. After the handshake the three bits count marked packets modulo 8 (ACE), and an
//! option on acknowledgements counts bytes modulo 2^24. If the path turns out to change these
//! fields, the connection stops sending ECN-capable packets; nothing else changes.
use crate::ack::AckReport;
use crate::ecn::{CE, ECT0, EcnState, NOT_ECT};
use crate::output::{Output, RxBuf, SegmentOut};
use crate::stats::TcpCounter;
use crate::tcb::{Flags, Rare, Tcb};
use ix_wire::EcnBytes;
use ix_wire::{TcpFlags, TcpHeader};

const ECT1: u8 = 1;
/// AE, CWR and ECE.
pub(crate) const ACE_BITS: TcpFlags = TcpFlags::AE.union(TcpFlags::CWR).union(TcpFlags::ECE);
const ACE_MODULO: u32 = 8;
/// Initial value of the packet counters, so that a field that was cleared on the way is recognised
/// (RFC 9768 section 3.2.1).
const PACKETS_INIT: u32 = 5;
const BYTES_INIT: [u32; 3] = [1, 0, 1];
/// Number of unreported marked packets at which an acknowledgement is due: while data waits to be
/// acknowledged, otherwise, and even within a batch (RFC 9768 section 3.2.2.5.1).
const UNTOLD_WITH_DATA: u8 = 2;
const UNTOLD_WITHOUT: u8 = 3;
const UNTOLD_MAX: u8 = 6;
/// This many bytes after the last option, the byte counters may have wrapped half way.
const OPTION_LIFE_BYTES: u32 = 1 << 23;
/// Number of acknowledged ECN-capable packets after which, if the receiver saw none of them as
/// ECN-capable, the path is taken to clear the field.
const BLEACHED_PACKETS: u32 = 10;

/// The three bits as a number; AE is the highest.
pub(crate) fn ace_of(flags: TcpFlags) -> u8 {
    (flags.0 >> 6 & 7) as u8
}

fn flags_of(ace: u8) -> TcpFlags {
    TcpFlags(u16::from(ace & 7) << 6)
}

/// True for a SYN that asks for accurate ECN: all three bits, or a combination that is not defined
/// yet (section 3.1.3), but not that of RFC 3168.
pub(crate) fn asks(flags: TcpFlags) -> bool {
    !matches!(ace_of(flags), 0b000 | 0b011)
}

/// True for a SYN-ACK that grants accurate ECN. Its bits also report the ECN field with which the
/// SYN arrived (section 3.1.2).
pub(crate) fn grants(flags: TcpFlags) -> bool {
    field_told(ace_of(flags)).is_some()
}

/// The bits by which a SYN-ACK, or the acknowledgement of one, reports an ECN field (tables 2 and
/// 3).
fn telling_field(ecn: u8) -> u8 {
    match ecn {
        ECT1 => 0b011,
        ECT0 => 0b100,
        CE => 0b110,
        _ => 0b010,
    }
}

fn field_told(ace: u8) -> Option<u8> {
    [NOT_ECT, ECT1, ECT0, CE].into_iter().find(|ecn| telling_field(*ecn) == ace)
}

/// How many marked packets more than `counted` the peer has seen (section 3.2.2.5.2, appendix A.2).
///
/// `packets` were newly acknowledged; `ce_bytes` comes from the option. The field can have wrapped
/// only if an acknowledgement was lost, because the peer acknowledges after seven marks at the
/// latest. That is assumed only while the path is `marking` anyway.
fn newly_marked(
    ace: u8,
    counted: u32,
    packets: u32,
    ce_bytes: Option<u32>,
    mss: u32,
    marking: bool,
) -> u32 {
    let least = u32::from(ace).wrapping_sub(counted) % ACE_MODULO;
    if packets < ACE_MODULO {
        return least;
    }
    let most = packets - (packets - least) % ACE_MODULO;
    match ce_bytes {
        // The smallest count that explains the bytes.
        Some(bytes) => {
            let missing = bytes.div_ceil(mss.max(1)).saturating_sub(least);
            (least + missing.next_multiple_of(ACE_MODULO)).min(most)
        }
        None if marking => most,
        None => least,
    }
}

/// The counters of one connection, which most connections do not have. `r.` and `s.` are RFC 9768's
/// names.
#[derive(Clone, Debug)]
pub(crate) struct Accurate {
    /// Packets that arrived marked (r.cep).
    rcv_packets: u32,
    /// Bytes that arrived with ECT(0), CE and ECT(1) (r.e0b, r.ceb, r.e1b).
    rcv_bytes: [u32; 3],
    /// These counters as our last option reported them; `None`: we send no options.
    told_bytes: Option<[u32; 3]>,
    /// Marked packets that none of our segments has reported.
    untold: u8,
    /// ECN field of the last packet with data.
    last_field: u8,
    /// ECN field of the peer's SYN or SYN-ACK.
    syn_field: u8,
    /// The next segment, the client's first after its SYN, reports the ECN field of the SYN-ACK.
    tells_field: bool,
    /// The peer's first ACE field has been processed.
    heard: bool,
    /// Marked packets that the peer has reported (s.cep).
    snd_packets: u32,
    /// Bytes that its last option reported (s.e0b, s.ceb, s.e1b); `None`: its options cannot be
    /// trusted.
    snd_bytes: Option<[u32; 3]>,
    /// The peer has sent an option.
    has_option: bool,
    /// Bytes acknowledged since the last option.
    since_option: u32,
    /// Packets acknowledged on this connection, up to [`BLEACHED_PACKETS`].
    acked_packets: u32,
    /// Timestamp of the last segment of the peer that was processed.
    last_ts: u32,
    /// Marked bytes that congestion control has not been told of.
    unanswered_bytes: u32,
}

impl Default for Accurate {
    fn default() -> Accurate {
        Accurate {
            rcv_packets: PACKETS_INIT,
            rcv_bytes: BYTES_INIT,
            told_bytes: Some([0; 3]),
            untold: 0,
            last_field: NOT_ECT,
            syn_field: NOT_ECT,
            tells_field: false,
            heard: false,
            snd_packets: PACKETS_INIT,
            snd_bytes: Some(BYTES_INIT),
            has_option: false,
            since_option: 0,
            acked_packets: 0,
            last_ts: 0,
            unanswered_bytes: 0,
        }
    }
}

impl Accurate {
    fn note_syn(&mut self, ecn: u8) {
        self.syn_field = ecn;
        self.rcv_packets = PACKETS_INIT + u32::from(ecn == CE);
    }

    /// Counts a packet of `len` bytes with this ECN field. Returns whether to acknowledge at once.
    fn note(&mut self, ecn: u8, len: u32, data_waits: bool) -> bool {
        let place = match ecn {
            ECT0 => 0,
            CE => 1,
            ECT1 => 2,
            _ => return self.note_field(ecn, len),
        };
        self.rcv_bytes[place] = self.rcv_bytes[place].wrapping_add(len);
        let changed = self.note_field(ecn, len);
        if ecn != CE {
            return false;
        }
        self.rcv_packets = self.rcv_packets.wrapping_add(1);
        self.untold = self.untold.saturating_add(1);
        changed || self.untold >= if data_waits { UNTOLD_WITH_DATA } else { UNTOLD_WITHOUT }
    }

    /// Counts the bytes of a packet. Returns whether marks begin with this packet.
    fn note_field(&mut self, ecn: u8, len: u32) -> bool {
        let began = len > 0 && ecn == CE && self.last_field != CE;
        if len > 0 {
            self.last_field = ecn;
        }
        began
    }

    /// The counters that our next option carries: those that have changed, and all of them in the
    /// first.
    fn option(&mut self, brief: bool) -> EcnBytes {
        let Some(told) = self.told_bytes.filter(|told| *told != self.rcv_bytes) else {
            return EcnBytes::NONE;
        };
        self.told_bytes = Some(self.rcv_bytes);
        let [ect0, ce, ect1] = self.rcv_bytes;
        let moved = |place: usize| told[0] == 0 || self.rcv_bytes[place] != BYTES_INIT[place];
        let option = EcnBytes::new(
            (moved(0) || !moved(2)).then_some(ect0),
            (moved(1) || moved(2)).then_some(ce),
            moved(2).then_some(ect1),
        );
        if brief { option.shorter() } else { option }
    }

    /// Reads the peer's option. Returns the newly marked bytes, if the option has them, and whether
    /// it says that no ECN-capable packet has arrived.
    fn take_option(&mut self, option: EcnBytes, delivered: u32) -> (Option<u32>, bool) {
        self.since_option = self.since_option.saturating_add(delivered);
        let Some(before) = self.snd_bytes.filter(|_| !option.is_none()) else {
            return (None, false);
        };
        if !self.has_option && (option.ect0() == Some(0) || option.ect1() == Some(0)) {
            // Something on the way clears the option (section 3.2.3.2.4).
            self.snd_bytes = None;
            return (None, false);
        }
        let said = [option.ect0(), option.ce(), option.ect1()];
        let now: [u32; 3] = std::array::from_fn(|place| said[place].unwrap_or(before[place]));
        let fresh = self.since_option < OPTION_LIFE_BYTES;
        (self.has_option, self.since_option, self.snd_bytes) = (true, 0, Some(now));
        let new_ce = now[1].wrapping_sub(before[1]) % (1 << 24);
        let known = fresh && said[1].is_some() && new_ce < OPTION_LIFE_BYTES;
        let bleached =
            said[0].is_some() && now == BYTES_INIT && self.acked_packets >= BLEACHED_PACKETS;
        (known.then_some(new_ce), bleached)
    }
}

/// The counters, if the connection has them.
fn of<B>(rare: &mut Option<Box<Rare<B>>>) -> Option<&mut Accurate> {
    rare.as_mut()?.accurate.as_mut()
}

impl<B: RxBuf> Tcb<B> {
    /// Both ends use accurate ECN (RFC 9768).
    pub fn uses_accurate_ecn(&self) -> bool {
        self.uses_ecn() && self.ecn.has(EcnState::ACCURATE)
    }

    /// Records the ECN field of the SYN that [`Self::accept`] was given.
    pub fn syn_mark(&mut self, ecn: u8) {
        if let Some(accurate) = of(&mut self.rare) {
            accurate.note_syn(ecn);
        }
    }

    /// Begins accurate ECN, after a SYN or a SYN-ACK with these bits has agreed on it.
    pub(crate) fn begin_accurate(&mut self, active: bool, ace: u8) {
        let accurate = self.rare_mut().accurate.get_or_insert_default();
        accurate.tells_field = active;
        if active {
            self.judge_field(ace);
        }
    }

    /// Checks the peer's report on our SYN or SYN-ACK, which was not ECN-capable: if it reports
    /// anything else, the path has changed the field (section 3.2.2.3).
    fn judge_field(&mut self, ace: u8) {
        let told = field_told(ace);
        if let Some(accurate) = of(&mut self.rare)
            && told == Some(CE)
        {
            accurate.snd_packets = PACKETS_INIT + 1;
        }
        if told.is_some_and(|ecn| ecn != NOT_ECT) {
            self.ecn.put(EcnState::NOT_CAPABLE, true);
        }
    }

    /// Processes the acknowledgement of our SYN-ACK (table 4): three zeros are not a count (section
    /// 3.2.2.4).
    #[cold]
    pub(crate) fn take_first_ace(&mut self, hdr: &TcpHeader, out: &mut impl Output<B>) {
        let ace = ace_of(hdr.flags);
        if let Some(accurate) = of(&mut self.rare) {
            accurate.heard = true;
        }
        self.judge_field(ace);
        if ace == 0 {
            self.ecn.put(EcnState::NOT_CAPABLE, true);
        }
        if self.ecn.has(EcnState::NOT_CAPABLE) {
            out.count(TcpCounter::EcnMangled);
        }
    }

    /// Counts a segment with `len` bytes of payload and this ECN field. Returns whether so much is
    /// unreported that an acknowledgement cannot wait for the end of the batch.
    pub(crate) fn mark_accurately(
        &mut self,
        hdr: &TcpHeader,
        len: u32,
        ecn: u8,
        out: &mut impl Output<B>,
    ) -> bool {
        let (done, near) = (self.handshake_done(), self.is_near(hdr));
        let waits = self.flags.has(Flags::ACK_DELAYED) || len > 0;
        let Some(accurate) = of(&mut self.rare) else { return false };
        if hdr.flags.contains(TcpFlags::SYN) {
            if !done {
                accurate.note_syn(ecn);
            }
            return false;
        }
        if !near {
            return false;
        }
        if ecn == CE {
            out.count(TcpCounter::CeReceived);
        }
        if accurate.note(ecn, len, waits) {
            self.flags.set(Flags::ACK_NOW);
        }
        done && accurate.untold >= UNTOLD_MAX
    }

    /// Sets bits and option of accurate ECN in a segment to send.
    pub(crate) fn stamp_accurate(&mut self, seg: &mut SegmentOut) {
        let capable = !self.ecn.has(EcnState::NOT_CAPABLE) && self.snd_wnd > 0;
        let Some(accurate) = of(&mut self.rare) else { return };
        let tells_field = std::mem::take(&mut accurate.tells_field);
        let field = telling_field(accurate.syn_field);
        seg.flags |= flags_of(if tells_field { field } else { accurate.rcv_packets as u8 });
        accurate.untold = 0;
        if seg.payload_len == 0 {
            seg.options.ecn_bytes = accurate.option(!seg.options.sack.is_empty());
        } else if capable && !seg.retransmission {
            seg.ecn = ECT0;
        }
    }

    /// Bits and option of our SYN-ACK; `again`: it was sent before. What may have kept it from
    /// arriving is left out: the option at once, the bits at the third try (section 3.1.4.2).
    pub(crate) fn accurate_syn_ack(&mut self, again: bool) -> (TcpFlags, EcnBytes) {
        let third = again && self.ecn.has(EcnState::SYN_AGAIN);
        self.ecn.put(EcnState::SYN_AGAIN, again);
        let Some(accurate) = of(&mut self.rare).filter(|_| !third) else {
            self.forget_ecn();
            return (TcpFlags(0), EcnBytes::NONE);
        };
        if again {
            accurate.told_bytes = None;
        }
        (flags_of(telling_field(accurate.syn_field)), accurate.option(false))
    }

    /// Turns ECN off on this connection.
    pub(crate) fn forget_ecn(&mut self) {
        self.ecn = EcnState::default();
        self.rare.iter_mut().for_each(|rare| rare.accurate = None);
    }

    /// Processes the report on marks in an acknowledgement; `report` is what else it acknowledged.
    /// Returns the newly marked bytes.
    #[cold]
    pub(crate) fn take_ace(
        &mut self,
        hdr: &TcpHeader,
        report: &AckReport,
        out: &mut impl Output<B>,
    ) -> u32 {
        let mss = u32::from(self.mss);
        let answered = self.rare.as_ref().map_or(self.snd_una, |rare| rare.ecn_end);
        let marking = self.ecn.has(EcnState::REACTED) && self.snd_una.lt(answered + mss);
        let Some(accurate) = of(&mut self.rare) else { return 0 };
        // The counts of a segment that another one has overtaken are old.
        let ts = hdr.options.timestamp.map_or(accurate.last_ts, |(val, _)| val);
        let newer = ts.wrapping_sub(accurate.last_ts) as i32 > 0;
        if hdr.ack.lt(self.snd_una) || report.delivered == 0 && !newer {
            return 0;
        }
        accurate.last_ts = ts;
        let ace = ace_of(hdr.flags);
        let zeroed = !std::mem::replace(&mut accurate.heard, true) && ace == 0;
        accurate.acked_packets = (accurate.acked_packets + report.packets).min(BLEACHED_PACKETS);
        let (ce_bytes, bleached) = accurate.take_option(hdr.options.ecn_bytes, report.delivered);
        // Three marks at once would also give zeros.
        let zeroed = zeroed && report.packets < 3;
        if (zeroed || bleached) && !self.ecn.has(EcnState::NOT_CAPABLE) {
            out.count(TcpCounter::EcnMangled);
            self.ecn.put(EcnState::NOT_CAPABLE, true);
        }
        let counted = accurate.snd_packets;
        let marked = newly_marked(ace, counted, report.packets, ce_bytes, mss, marking);
        accurate.snd_packets = counted.wrapping_add(marked);
        if self.ecn.has(EcnState::NOT_CAPABLE) {
            // We have sent nothing that could be marked.
            return 0;
        }
        let guess = marked.saturating_mul(mss).min(report.delivered);
        accurate.unanswered_bytes += ce_bytes.unwrap_or(guess).min(report.delivered);
        match report.acked {
            0 => 0,
            _ => std::mem::take(&mut accurate.unanswered_bytes),
        }
    }
}

#[cfg(test)]
mod tests;
