//! The state of a connection that has lost something.
use crate::cc::Control;
use crate::cc::bbr::Bbr;
use crate::path_search::PathSearch;
use ix_wire::Seq;

/// State of loss recovery. Boxed, because most connections never have it.
#[derive(Clone, Debug)]
pub(crate) struct LossState {
    /// Recovery lasts until this is acknowledged (RecoveryPoint of RFC 6675, recover of RFC 6582).
    pub recover: Seq,
    /// Segments between `snd_una` and `snd_nxt` that were selectively acknowledged.
    pub sacked_segs: u16,
    /// Duplicate acknowledgements in a row, from a peer without SACK.
    pub dupacks: u16,
    /// The longest way, in segments, by which one has arrived later than it was sent (Linux'
    /// `reordering`). Nothing depends on it: RACK waits for a time.
    pub reordering_segs: u16,
    /// Bytes delivered in this recovery (RFC 9937).
    pub prr_delivered: u32,
    /// Bytes sent in this recovery.
    pub prr_out: u32,
    /// Bytes in flight when this recovery began (RecoverFS).
    pub prr_flight: u32,
    /// Congestion window during this recovery.
    pub prr_cwnd: u32,

    /// Retransmissions of this recovery that no DSACK has reported as unneeded; `None`: the
    /// reduction of the window can no longer be undone.
    pub undo: Option<u32>,
    /// What was sent again in this recovery is here or above (Linux' `undo_marker`).
    pub undo_from: Seq,
    /// The windows before this recovery; `None`: it began with a timeout.
    pub before: Option<Control>,
    /// The windows before the last reduction after a loss or a timeout; `None`: there is nothing to
    /// undo.
    pub undo_to: Option<Control>,
    /// The recovery before this one, if it is not known yet whether that was a mistake.
    pub earlier: Option<Earlier>,
    /// Timestamp clock at the first retransmission of this recovery, or of the one before if
    /// retransmissions of that one were still in flight when this one began (RFC 3522).
    pub first_retransmit_ts: u32,
    /// There were some.
    pub resent_before: bool,
    /// The first retransmission was sent.
    pub retransmitted: bool,
    /// A timeout interrupted fast recovery, which continues if the timeout was a mistake.
    pub interrupted: bool,

    /// A tail loss probe is in flight; this was SND.NXT when it was sent (TLP.end_seq).
    pub tlp_end: Option<Seq>,
    /// The probe was a retransmission (TLP.is_retrans).
    pub tlp_retransmit: bool,

    /// End of the reordering window of something unacknowledged; 0: none.
    pub reorder_at_us: u64,
    /// RACK.reo_wnd_mult.
    pub reo_mult: u8,
    /// RACK.reo_wnd_persist.
    pub reo_persist: u8,
    /// RACK.dsack_round.
    pub dsack_round: Option<Seq>,

    /// The search for larger segments, after they became smaller.
    pub path: Option<PathSearch>,

    /// The peer has sent a segment without data that acknowledged nothing new since the last
    /// timeout. What causes such a reply has arrived, however long it was.
    pub answered: bool,

    /// The SYN was retransmitted.
    pub unanswered_syn: bool,
    /// First of the timeouts or probes in a row without a reply; 0: none.
    pub unanswered_since_us: u64,

    /// The model of BBR, of a connection that uses it.
    pub bbr: Option<Box<Bbr>>,
}

/// A recovery that was followed by another one before all that it has sent again was reported.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Earlier {
    /// Retransmissions that no DSACK has reported as unneeded; 0: it was a mistake.
    pub awaited: u32,
    /// The windows before it.
    pub before: Control,
}

/// DupThresh of RFC 5681 and RFC 8985.
pub(crate) const DUP_THRESH: u16 = 3;

/// How many recoveries a widened reordering window lasts (RFC 8985 section 6.2 step 4).
pub(crate) const REO_PERSIST: u8 = 16;

impl LossState {
    /// True if none of it is needed once all is acknowledged.
    pub fn is_past(&self) -> bool {
        self.path.is_none() && self.bbr.is_none()
    }

    pub fn new(snd_una: Seq) -> Self {
        LossState {
            recover: snd_una,
            sacked_segs: 0,
            dupacks: 0,
            reordering_segs: DUP_THRESH,
            prr_delivered: 0,
            prr_out: 0,
            prr_flight: 0,
            prr_cwnd: 0,
            undo: None,
            undo_from: snd_una,
            before: None,
            undo_to: None,
            earlier: None,
            first_retransmit_ts: 0,
            resent_before: false,
            retransmitted: false,
            interrupted: false,
            tlp_end: None,
            tlp_retransmit: false,
            reorder_at_us: 0,
            reo_mult: 1,
            reo_persist: REO_PERSIST,
            dsack_round: None,
            path: None,
            answered: false,
            unanswered_syn: false,
            unanswered_since_us: 0,
            bbr: None,
        }
    }
}
