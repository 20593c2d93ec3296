//! What every segment of a correct TCP obeys, whatever its peer does.
use super::{Segment, byte_at};
use ix_tcp::{Config, MSS_MIN, SegmentOut};
use ix_wire::{Seq, TcpFlags, TcpHeader};
use std::collections::HashSet;

/// Follows one endpoint: what it was given, what it says.
#[derive(Debug)]
pub struct Audit {
    iss: Seq,
    own_seed: u32,
    /// Options of the two SYNs, once seen.
    own_syn: Option<TcpHeader>,
    peer_syn: Option<TcpHeader>,
    /// The peer may be a liar: what is measured by what it said is not checked.
    pub hostile_peer: bool,
    /// Right edge of our window as the peer knows it.
    window_edge: Option<Seq>,
    highest_ack: Option<Seq>,
    /// Highest octet that the peer has sent us, and right edge of its window.
    peer_end: Option<Seq>,
    peer_edge: Option<Seq>,
    last_tsval: Option<u32>,
    seen_tsvals: HashSet<u32>,
    /// Sequence number of the FIN that was sent.
    pub fin_seq: Option<Seq>,
    snd_max: Seq,
    /// Segments that were checked.
    pub segments: u64,
}

impl Audit {
    /// An audit of the endpoint whose stream begins behind `iss`.
    pub fn new(iss: Seq, own_seed: u32) -> Audit {
        Audit {
            iss,
            own_seed,
            own_syn: None,
            peer_syn: None,
            hostile_peer: false,
            window_edge: None,
            highest_ack: None,
            peer_end: None,
            peer_edge: None,
            last_tsval: None,
            seen_tsvals: HashSet::new(),
            fin_seq: None,
            snd_max: iss,
            segments: 0,
        }
    }

    /// Both SYNs carried the option.
    fn both(&self, has: impl Fn(&TcpHeader) -> bool) -> bool {
        matches!((&self.own_syn, &self.peer_syn), (Some(own), Some(peer)) if has(own) && has(peer))
    }

    /// Whether both sides agreed on timestamps.
    pub fn timestamps(&self) -> bool {
        self.both(|syn| syn.options.timestamp.is_some())
    }

    /// Whether both sides agreed on SACK.
    pub fn sack(&self) -> bool {
        self.both(|syn| syn.options.sack_permitted)
    }

    fn shifts(&self) -> (u8, u8) {
        match (&self.own_syn, &self.peer_syn) {
            (Some(own), Some(peer)) => {
                match (own.options.window_scale, peer.options.window_scale) {
                    (Some(own), Some(peer)) => (own, peer.min(14)),
                    _ => (0, 0),
                }
            }
            _ => (0, 0),
        }
    }

    /// The endpoint was handed `segment`. `asks`: it waits for a SYN.
    pub fn given(&mut self, segment: &Segment, asks: bool) {
        let hdr = &segment.hdr;
        let syn = hdr.flags.contains(TcpFlags::SYN);
        if syn && asks {
            self.peer_syn = Some(*hdr);
        }
        if let Some((val, _)) = hdr.options.timestamp {
            self.seen_tsvals.insert(val);
        }
        self.peer_end = Some(self.peer_end.map_or(segment.end(), |end| end.max(segment.end())));
        if hdr.flags.contains(TcpFlags::ACK) {
            // A window is never scaled in a SYN (RFC 7323 section 2.2).
            let shift = if syn { 0 } else { self.shifts().1 };
            let edge = hdr.ack + (u32::from(hdr.window) << shift);
            self.peer_edge = Some(self.peer_edge.map_or(edge, |known| known.max(edge)));
        } else if syn {
            let edge = self.iss + 1 + u32::from(hdr.window);
            self.peer_edge.get_or_insert(edge);
        }
    }

    /// The peer's window was learned in another way (SYN cookie).
    pub fn assume_syns(&mut self, own: TcpHeader, peer: TcpHeader) {
        self.own_syn = Some(own);
        self.peer_syn = Some(peer);
        self.snd_max = self.iss + 1;
    }

    /// The endpoint transmits: `appended` and `acked` count bytes of its send stream, `shut` says
    /// that the stream has ended.
    pub fn transmits(
        &mut self,
        cfg: &Config,
        seg: &SegmentOut,
        segment: &Segment,
        (appended, acked, shut): (u64, u64, bool),
    ) {
        self.segments += 1;
        let hdr = &segment.hdr;
        assert!(hdr.options.len() <= 40, "{hdr:?}");
        assert_eq!(hdr.len() % 4, 0);
        if hdr.flags.contains(TcpFlags::RST) {
            assert!(segment.payload.is_empty(), "RST with data {hdr:?}");
            assert!(!hdr.flags.intersects(TcpFlags::SYN | TcpFlags::FIN), "{hdr:?}");
            return;
        }
        if hdr.flags.contains(TcpFlags::SYN) {
            self.syn(cfg, hdr, segment);
        } else {
            assert!(hdr.flags.contains(TcpFlags::ACK), "segment without ACK {hdr:?}");
            assert!(hdr.options.mss.is_none() && hdr.options.window_scale.is_none());
            assert!(!hdr.options.sack_permitted);
        }
        self.payload(cfg, seg, segment, appended, acked);
        self.fin(segment, appended, shut);
        self.options(hdr);
        self.acknowledges(hdr);
        self.fits_peer_window(segment);
        self.snd_max = self.snd_max.max(segment.end());
    }

    fn syn(&mut self, cfg: &Config, hdr: &TcpHeader, segment: &Segment) {
        assert_eq!(hdr.seq, self.iss, "SYN moved");
        assert!(!hdr.flags.contains(TcpFlags::FIN));
        assert!(segment.payload.is_empty(), "data in SYN not asked for");
        assert_eq!(hdr.options.mss, Some(cfg.mss), "MSS option is what we can receive");
        if hdr.flags.contains(TcpFlags::ACK) {
            // RFC 7323 sections 2.2, 3.2, RFC 2018 section 2: only in answer to the peer's.
            let peer = self.peer_syn.as_ref().expect("SYN-ACK without a SYN");
            assert!(peer.options.window_scale.is_some() || hdr.options.window_scale.is_none());
            assert!(peer.options.timestamp.is_some() || hdr.options.timestamp.is_none());
            assert!(peer.options.sack_permitted || !hdr.options.sack_permitted);
        }
        self.own_syn = Some(*hdr);
    }

    /// The bytes are those of the stream, and fit in what both sides and the path take.
    fn payload(
        &self,
        cfg: &Config,
        seg: &SegmentOut,
        segment: &Segment,
        appended: u64,
        acked: u64,
    ) {
        let len = segment.payload.len();
        if len == 0 {
            return;
        }
        let hdr = &segment.hdr;
        let position = acked + u64::from(seg.payload_offset);
        assert!(position + len as u64 <= appended, "sent what was not appended");
        let data_seq = self.iss + 1 + position as u32;
        assert_eq!(hdr.seq, data_seq, "sequence number and stream offset disagree");
        for (offset, &byte) in segment.payload.iter().enumerate() {
            assert_eq!(byte, byte_at(self.own_seed, hdr.seq + offset as u32));
        }
        // RFC 9293 section 3.7.1: Eff.snd.MSS counts options.
        let peer_mss = self.peer_syn.and_then(|syn| syn.options.mss).unwrap_or(536);
        let limit = peer_mss.max(MSS_MIN).min(cfg.mss.max(MSS_MIN));
        assert!(
            len + hdr.options.len() <= usize::from(limit),
            "{len} bytes and options {} above the MSS {limit}",
            hdr.options.len()
        );
    }

    fn fin(&mut self, segment: &Segment, appended: u64, shut: bool) {
        let end = self.iss + 1 + appended as u32;
        if segment.hdr.flags.contains(TcpFlags::FIN) {
            assert!(shut, "FIN nobody asked for");
            let fin_seq = segment.end() - 1u32;
            assert_eq!(fin_seq, end, "FIN before the end of the stream");
            assert_eq!(*self.fin_seq.get_or_insert(fin_seq), fin_seq, "FIN moved");
        }
    }

    fn options(&mut self, hdr: &TcpHeader) {
        let syn = hdr.flags.contains(TcpFlags::SYN);
        if !syn {
            // RFC 7323 section 3.2: on every segment once negotiated, on none if not.
            assert_eq!(hdr.options.timestamp.is_some(), self.timestamps(), "timestamp {hdr:?}");
        }
        if let Some((val, ecr)) = hdr.options.timestamp {
            if let Some(last) = self.last_tsval {
                assert!(val.wrapping_sub(last) as i32 >= 0, "TSval went back {last} -> {val}");
            }
            self.last_tsval = Some(val);
            if hdr.flags.contains(TcpFlags::ACK) {
                assert!(
                    self.seen_tsvals.is_empty() || self.seen_tsvals.contains(&ecr),
                    "TSecr {ecr} was never received"
                );
            }
        }
        assert!(hdr.options.sack.is_empty() || self.sack(), "SACK was not negotiated");
        for (index, &(left, right)) in hdr.options.sack.as_slice().iter().enumerate() {
            assert!(left.lt(right), "empty SACK block");
            if let Some(end) = self.peer_end.filter(|_| !self.hostile_peer) {
                assert!(right.le(end), "SACK of what was never sent");
            }
            // Only the first block may be a DSACK at or below the acknowledgement, or inside
            // the second (RFC 2883 section 4).
            if index > 0 {
                assert!(left.gt(hdr.ack), "SACK block {index} not above the ACK {hdr:?}");
            }
        }
    }

    fn acknowledges(&mut self, hdr: &TcpHeader) {
        if !hdr.flags.contains(TcpFlags::ACK) {
            return;
        }
        if let Some(end) = self.peer_end.filter(|_| !self.hostile_peer) {
            assert!(hdr.ack.le(end), "acknowledges what was never received: {hdr:?}, end {end:?}");
        }
        if let Some(highest) = self.highest_ack {
            assert!(hdr.ack.ge(highest), "ACK went back {highest:?} -> {:?}", hdr.ack);
        }
        self.highest_ack = Some(hdr.ack);
        let shift = if hdr.flags.contains(TcpFlags::SYN) { 0 } else { self.shifts().0 };
        let edge = hdr.ack + (u32::from(hdr.window) << shift);
        if let Some(known) = self.window_edge {
            // RFC 9293 section 3.8.6: no shrinking; RFC 7323 section 2.4: but for rounding.
            let shrunk = known - edge;
            assert!(shrunk < 1 << shift, "window shrunk by {shrunk}: {hdr:?}");
        }
        self.window_edge = Some(self.window_edge.map_or(edge, |known| known.max(edge)));
    }

    fn fits_peer_window(&self, segment: &Segment) {
        if self.hostile_peer || segment.payload.is_empty() {
            return;
        }
        let edge = self.peer_edge.expect("data before the peer's window is known");
        let over = segment.hdr.seq + segment.payload.len() as u32 - edge;
        // A zero-window probe may carry one octet beyond (RFC 9293 section 3.8.6.1).
        assert!(over <= 0 || segment.payload.len() == 1 && over == 1, "{over} beyond the window");
    }

    /// Highest sequence number sent.
    pub fn snd_max(&self) -> Seq {
        self.snd_max
    }

    /// The last TSval sent.
    pub fn last_tsval(&self) -> Option<u32> {
        self.last_tsval
    }

    /// Right edge of the offered window.
    pub fn window_edge(&self) -> Option<Seq> {
        self.window_edge
    }
}
