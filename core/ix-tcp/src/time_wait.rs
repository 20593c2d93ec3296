//! A connection in TIME-WAIT in little memory: what RFC 9293 section 3.10.7.4, RFC 1337 and RFC
//! 6191 need of it, and nothing else. Most hear nothing more until they end.
use crate::config::Config;
use crate::connect::ms_of;
use crate::output::RxBuf;
use crate::state::State;
use crate::tcb::{Flags, NEVER, Tcb};
use ix_wire::{FlowTuple, Seq, TcpFlags, TcpHeader};

/// How long a connection of ours is in TIME-WAIT before its port is used again, as on Linux
/// (`tcp_tw_reuse`).
const REOPEN_AFTER_US: u64 = 1_000_000;

/// What connections use of the flags of a [`TimeWait`].
const KEPT: u16 = Flags::TIMESTAMPS | Flags::SACK | Flags::WINDOW_SCALING;

/// Largest window that a peer in TIME-WAIT is believed to have offered: how old an acknowledgement
/// may be (RFC 5961 section 5.2).
const WINDOW: u32 = 65_535;

/// A connection in TIME-WAIT that the application has given up and that has nothing to send.
#[derive(Clone, Copy, Debug)]
pub struct TimeWait {
    tuple: FlowTuple,
    rcv_nxt: Seq,
    snd_nxt: Seq,
    ts_recent: u32,
    ts_offset: u32,
    /// When it ends, in units of 2^10 µs.
    ends: u32,
    /// The window that was offered, in units of the window shift.
    window: u16,
    /// Some of [`Flags`].
    flags: u8,
    /// The shift of the peer's windows, four bits, and of ours.
    shifts: u8,
}

impl TimeWait {
    /// The addresses and ports of the connection.
    #[inline]
    pub fn tuple(&self) -> &FlowTuple {
        &self.tuple
    }

    /// When it ends: at most a millisecond later than TIME-WAIT does. `now_us` is within 24 days of
    /// it.
    #[inline]
    pub fn ends_us(&self, now_us: u64) -> u64 {
        let ahead = self.ends.wrapping_sub(ms_of(now_us)) as i32;
        (now_us >> 10).saturating_add_signed(i64::from(ahead)) << 10
    }

    /// As [`Tcb::successor_floor`].
    pub fn successor_floor(&self) -> Seq {
        self.snd_nxt + 1
    }

    /// As [`Tcb::may_be_reopened`].
    pub fn may_be_reopened(&self, cfg: &Config, now_us: u64) -> bool {
        self.has(Flags::TIMESTAMPS) && is_old_enough(self.ends_us(now_us), cfg, now_us)
    }

    /// As [`Tcb::gives_way_to`].
    pub fn gives_way_to(&self, syn: &TcpHeader) -> bool {
        is_newer(syn, self.rcv_nxt, self.has(Flags::TIMESTAMPS).then_some(self.ts_recent))
    }

    fn has(&self, flag: u16) -> bool {
        u16::from(self.flags) & flag != 0
    }

    /// The connection with all its state, for a segment that has arrived.
    pub fn revive<B: RxBuf>(&self, cfg: &Config, now_us: u64) -> Tcb<B> {
        let (iss, offset) = (self.snd_nxt, self.ts_offset);
        let mut tcb = Tcb::new(cfg, self.tuple, State::TimeWait, iss, offset, now_us);
        tcb.flags.set(u16::from(self.flags) & KEPT);
        tcb.flags.set(Flags::ORPHAN | Flags::DEAD_SAID | Flags::FIN_QUEUED);
        (tcb.snd_shift, tcb.rcv_shift) = (self.shifts >> 4, self.shifts & 0xf);
        tcb.rcv_nxt = self.rcv_nxt;
        tcb.rcv_adv = self.rcv_nxt + (u32::from(self.window) << tcb.rcv_shift);
        tcb.last_ack_sent = self.rcv_nxt;
        (tcb.snd_wl1, tcb.snd_wnd, tcb.snd_wnd_max) = (self.rcv_nxt, WINDOW, WINDOW);
        tcb.remember_ts(self.ts_recent, now_us);
        tcb.state_at_us = self.ends_us(now_us);
        tcb
    }
}

impl<B: RxBuf> Tcb<B> {
    /// What must be kept of this connection, if it is in TIME-WAIT and has nothing else to do: the
    /// caller may then release and drop it.
    pub fn time_wait(&self) -> Option<TimeWait> {
        const BUSY: u16 =
            Flags::ACK_NOW | Flags::ACK_DELAYED | Flags::TX_BLOCKED | Flags::SYN_REFUSED;
        let waits = self.state == State::TimeWait && self.flags.has(Flags::ORPHAN);
        // What was answered a moment ago is not answered again.
        let fresh = |rare: &crate::tcb::Rare<B>| rare.challenge_spacing == Default::default();
        let is_bare = self.records.is_empty()
            && self.snd_buf_bytes == 0
            && self.rcv_held_bytes == 0
            && self.rare.as_deref().is_none_or(fresh);
        if !waits || !is_bare || self.flags.has(BUSY) || self.state_at_us == NEVER {
            return None;
        }
        let window = (self.rcv_adv - self.rcv_nxt).max(0) as u32 >> self.rcv_shift;
        Some(TimeWait {
            tuple: self.tuple,
            rcv_nxt: self.rcv_nxt,
            snd_nxt: self.snd_nxt,
            ts_recent: self.ts_recent,
            ts_offset: self.ts_offset,
            ends: ms_of(self.state_at_us.saturating_add((1 << 10) - 1)),
            window: window.min(u32::from(u16::MAX)) as u16,
            flags: (self.flags.bits() & KEPT) as u8,
            shifts: self.snd_shift << 4 | self.rcv_shift,
        })
    }

    /// The lowest initial sequence number for the successor of this connection in TIME-WAIT: above
    /// all that this one has sent, even if that was faster than the clock of initial sequence
    /// numbers (RFC 9293 section 3.6.1).
    pub fn successor_floor(&self) -> Seq {
        self.snd_nxt + 1
    }

    /// Whether this connection, in TIME-WAIT, may be deleted in favour of a new one that we open
    /// from the same port. With timestamps, which go on, the peer takes nothing old for new after
    /// a second (RFC 6191; RFC 7323 section 5.4: a clock of at most a second).
    pub fn may_be_reopened(&self, cfg: &Config, now_us: u64) -> bool {
        self.state == State::TimeWait
            && self.flags.has(Flags::TIMESTAMPS)
            && is_old_enough(self.state_at_us, cfg, now_us)
    }

    /// Whether this connection, in TIME-WAIT, may be deleted in favour of a new SYN of the peer
    /// (RFC 6191 section 2; RFC 9293 section 3.6.1). The caller then frees it and gives the SYN to
    /// the listener.
    pub fn gives_way_to(&self, syn: &TcpHeader) -> bool {
        let timestamp = self.flags.has(Flags::TIMESTAMPS).then_some(self.ts_recent);
        self.state == State::TimeWait && is_newer(syn, self.rcv_nxt, timestamp)
    }
}

/// Whether TIME-WAIT that ends then began long enough ago for its port to be used again.
fn is_old_enough(ends_us: u64, cfg: &Config, now_us: u64) -> bool {
    let since_us = ends_us.saturating_sub(u64::from(cfg.time_wait_us));
    now_us >= since_us.saturating_add(REOPEN_AFTER_US)
}

/// Whether a segment is a SYN that is newer than a connection that expected `rcv_nxt`, with the
/// peer's last timestamp, if there were any.
fn is_newer(syn: &TcpHeader, rcv_nxt: Seq, timestamp: Option<u32>) -> bool {
    const MASK: u16 = TcpFlags::SYN.0 | TcpFlags::ACK.0 | TcpFlags::RST.0 | TcpFlags::FIN.0;
    if syn.flags.0 & MASK != TcpFlags::SYN.0 {
        return false;
    }
    match (syn.options.timestamp, timestamp) {
        (Some((val, _)), Some(recent)) => {
            let newer = val.wrapping_sub(recent) as i32;
            newer > 0 || (newer == 0 && syn.seq.gt(rcv_nxt))
        }
        _ => syn.seq.gt(rcv_nxt),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_needs_sixty_bytes() {
        assert_eq!(size_of::<TimeWait>(), 60);
    }
}
