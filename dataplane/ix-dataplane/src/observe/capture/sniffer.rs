//! The sniffer: a layer of an elastic thread, between the thread and its devices and around the
//! processing of each received packet. It writes the packets that its capture's filter matches,
//! each with its verdict.
use super::ring::{Mark, RingWriter};
use super::subject::Subject;
use super::{Captures, Wanted, drop_names};
use ix_proto::capture::Protocol;
use ix_wire::vlan::TAG_BYTES;
use ix_wire::{FlowTuple, VlanId};
use std::sync::Arc;

/// One elastic thread's part of a capture.
pub(crate) struct Sniffer {
    wanted: Arc<Wanted>,
    ring: RingWriter,
    thread: u8,
    /// For each port, the number of packets at the head of its queue that were captured and wait to
    /// be sent.
    captured: Vec<usize>,
    /// For each port, the tag that its frames have on the link.
    tags: Vec<Option<[u8; TAG_BYTES]>>,
}

/// A received packet whose bytes are written and whose verdict is not known yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Staged {
    subject: Subject,
    len: u32,
}

impl Staged {
    /// Bytes of the whole packet.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether its protocol has flows.
    pub fn has_flow(&self) -> bool {
        matches!(self.subject.protocol, Some(Protocol::Tcp | Protocol::Udp))
    }
}

impl Sniffer {
    /// The part of an elastic thread, whose ports are in these VLANs, in the running capture, if
    /// there is one.
    pub fn new(
        captures: &Captures,
        thread: usize,
        vlans: impl Iterator<Item = Option<VlanId>>,
    ) -> Option<Box<Sniffer>> {
        let wanted = captures.wanted()?;
        let ring = RingWriter::new(wanted.memory.clone(), thread);
        let tags: Vec<_> = vlans.map(|vlan| vlan.map(VlanId::tag)).collect();
        let captured = vec![0; tags.len()];
        Some(Box::new(Sniffer { wanted, ring, thread: thread as u8, captured, tags }))
    }

    /// To be called before a received packet is processed: writes its first bytes, of all its
    /// pieces, with the tag of the port that it came by.
    pub fn arriving<'a>(
        &mut self,
        port: u8,
        head: &'a [u8],
        tails: impl Iterator<Item = &'a [u8]> + Clone,
    ) -> Staged {
        let len = self.stage(usize::from(port), std::iter::once(head).chain(tails));
        Staged { subject: Subject::of(head, false), len }
    }

    /// Writes the first bytes of a frame of a port as they are on the link. Returns how many it has
    /// there.
    fn stage<'a>(&mut self, port: usize, pieces: impl Iterator<Item = &'a [u8]> + Clone) -> u32 {
        let tag = self.tags.get(port).copied().flatten();
        let tag = tag.as_ref().map_or(&[][..], |tag| &tag[..]);
        let pieces = pieces.enumerate().flat_map(|(number, piece)| {
            let (link, rest) = piece.split_at(if number == 0 { piece.len().min(12) } else { 0 });
            [link, if number == 0 { tag } else { &[] }, rest]
        });
        self.ring.stage(self.wanted.snaplen, pieces.clone());
        pieces.map(<[u8]>::len).sum::<usize>() as u32
    }

    /// To be called after it was processed; `mark` has the verdict.
    pub fn arrived(&mut self, staged: Staged, mark: Mark) {
        self.judge(staged.subject, mark);
    }

    /// To be called before the devices are given these frames of a port's queue, each as its
    /// pieces.
    pub fn leaving<'a>(
        &mut self,
        port: usize,
        frames: impl Iterator<Item = impl Iterator<Item = &'a [u8]> + Clone>,
        now_us: u64,
        group_of: impl Fn(&FlowTuple) -> usize,
    ) {
        for pieces in frames.skip(self.captured[port]) {
            let subject = Subject::of(pieces.clone().next().unwrap_or(&[]), true);
            let len = self.stage(port, pieces);
            let mark = Mark {
                time_us: now_us,
                len,
                port: port as u8,
                sent: true,
                group: subject.tuple().map(|tuple| group_of(&tuple) as u8),
                ..Mark::default()
            };
            self.judge(subject, mark);
        }
    }

    /// To be called when the device of a port has left this many packets in its queue.
    pub fn left(&mut self, port: usize, waiting: usize) {
        self.captured[port] = waiting;
    }

    fn judge(&mut self, subject: Subject, mark: Mark) {
        debug_assert!(mark.dropped.is_none_or(|index| usize::from(index) < drop_names().count()));
        let (group, thread) = (mark.group, self.thread);
        let subject = Subject { group, thread, dropped: mark.dropped.is_some(), ..subject };
        if subject.is_taken_by(&self.wanted.filter) {
            self.ring.publish(&mark);
        }
    }
}
