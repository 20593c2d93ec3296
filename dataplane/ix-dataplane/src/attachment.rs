//! The processes of the program that share a dataplane, as one elastic thread sees them.
//!
//! Each has arrays and transmit memory of its own. What it owns (flows, sockets, timers) has its
//! number, and events go into its array. It is *present* while its `RUN_IO` waits here; otherwise
//! it computes, and may be reading its array. What needs it then waits until it returns, and all
//! others go on (`cycle/absent.rs`). With one process this is the cycle of the papers.
use crate::calls::CallArray;
use crate::events::EventWriter;
use core::ops::{Index, IndexMut};
use ix_abi::Event;
use ix_mem::{Mbuf, MbufList, PacketMemory, Pool};
use ix_nic::RxPacket;
use ix_proto::crossing::{ATTACHMENTS_MAX, AttachmentId};
use std::collections::VecDeque;

// The first one's transmit memory is part of packet memory.
const _: () = assert!(ATTACHMENTS_MAX == ix_mem::OTHER_ARENAS + 1);
// Sets of them are bits.
const _: () = assert!(ATTACHMENTS_MAX <= u64::BITS as usize);

/// A packet, or a part of one, that waits for a process.
pub struct Kept {
    /// The device that has received it, or would have.
    pub port: u8,
    /// This thread has sent it to an own address.
    pub looped: bool,
    /// The flow group of its connection or datagram.
    pub group: Option<u8>,
    /// The packet.
    pub packet: RxPacket,
}

impl Kept {
    /// Removes those of a flow group, in order.
    pub fn take(from: &mut VecDeque<Kept>, group: u8) -> VecDeque<Kept> {
        if from.iter().all(|kept| kept.group != Some(group)) {
            return VecDeque::new();
        }
        let (taken, left) = from.drain(..).partition(|kept| kept.group == Some(group));
        *from = left;
        taken
    }
}

/// One process of the program, as one elastic thread sees it.
pub struct Attachment {
    /// Which one it is of those that have had its number.
    pub life: u32,
    /// Where it writes calls; `None` if it has ended.
    pub calls: Option<CallArray>,
    /// What is added to its addresses in transmit memory.
    pub shift: u64,
    /// Where it reads events.
    pub events: EventWriter,
    /// Handles of flows whose data, end or acknowledgements it was not told of yet.
    pub to_announce: VecDeque<u64>,
    /// Number of received datagrams and frames of packet queues that it holds.
    pub lent: usize,
    /// Packets that wait for it, each with its device.
    pub kept: VecDeque<Kept>,
    /// Timers of its own that were due while it was absent, by their ids.
    pub timers: Vec<u64>,
    /// It was absent since its calls were carried out last: something may wait for it.
    pub was_absent: bool,
    /// It has run this elastic thread.
    pub has_entered: bool,
    /// Flow groups leave or have arrived, and it has not returned since it was told.
    pub owes_return: bool,
    /// It was not even told, because it computed then.
    pub has_late_news: bool,
    /// Buffers of flows that have ended, kept until it has returned.
    graveyard: Vec<MbufList>,
}

impl Attachment {
    fn ended() -> Attachment {
        let events = EventWriter::closed();
        Attachment { calls: None, ..Attachment::new(CallArray::none(), events) }
    }

    fn new(calls: CallArray, events: EventWriter) -> Attachment {
        Attachment {
            life: 0,
            calls: Some(calls),
            shift: 0,
            events,
            to_announce: VecDeque::new(),
            lent: 0,
            kept: VecDeque::new(),
            timers: Vec::new(),
            was_absent: false,
            has_entered: false,
            owes_return: false,
            has_late_news: false,
            graveyard: Vec::new(),
        }
    }

    /// Keeps buffers that it may be reading now.
    pub fn bury(&mut self, held: MbufList) {
        self.graveyard.push(held);
    }

    /// Whether the process has ended.
    pub fn has_ended(&self) -> bool {
        self.calls.is_none()
    }

    /// It has returned. Unless it was not told of moving flow groups yet, no migration waits for it
    /// any more.
    pub fn returned(&mut self) {
        (self.has_entered, self.owes_return) = (true, self.has_late_news);
    }

    /// To be called when it has returned: buffers that it could still read are freed now.
    #[inline]
    pub fn empty_graveyard(&mut self, memory: &PacketMemory, pool: &mut Pool) {
        if !self.graveyard.is_empty() {
            self.empty_full_graveyard(memory, pool);
        }
    }

    #[cold]
    fn empty_full_graveyard(&mut self, memory: &PacketMemory, pool: &mut Pool) {
        for mut held in self.graveyard.drain(..) {
            while let Some(mbuf) = held.pop(memory) {
                pool.put(mbuf);
            }
        }
    }
}

/// This one as number 0, and no others.
fn only(first: Attachment) -> Box<[Attachment; ATTACHMENTS_MAX]> {
    let mut all = Box::new(std::array::from_fn(|_| Attachment::ended()));
    all[0] = first;
    all
}

/// All attachments of one elastic thread.
pub struct Attachments {
    /// By number; those that have not begun or have ended hear nothing.
    all: Box<[Attachment; ATTACHMENTS_MAX]>,
    /// The numbers of all that have not ended are below this one; it is at least 1.
    used: usize,
    /// Several have shared this thread.
    were_several: bool,
    /// Number of those that are not present.
    absent: usize,
    /// Frames that processes have left that have ended, each with its process. It may have sent
    /// them on without a copy, so that flows still send them.
    estates: VecDeque<(AttachmentId, Mbuf)>,
}

impl Attachments {
    /// One attachment, which is present.
    pub fn new(calls: CallArray, events: EventWriter) -> Attachments {
        Attachments {
            all: only(Attachment::new(calls, events)),
            used: 1,
            absent: 0,
            were_several: false,
            estates: VecDeque::new(),
        }
    }

    /// Appends an event for this attachment.
    #[inline(always)]
    pub fn push(&mut self, to: AttachmentId, event: Event) {
        self[to].events.push(event);
    }

    /// The attachment of this number; `None`: it has ended, or there was none. One that has ended
    /// may also be found.
    pub fn get(&self, number: AttachmentId) -> Option<&Attachment> {
        self.used().get(usize::from(number))
    }

    /// Appends an event for all attachments that run this elastic thread.
    pub fn push_all(&mut self, event: Event) {
        let several = self.were_several;
        for attachment in self.used_mut() {
            if attachment.calls.is_some() && (attachment.has_entered || !several) {
                attachment.events.push(event);
            }
        }
    }

    /// Whether another packet or timer may be processed in this cycle.
    #[inline]
    pub fn has_room(&self) -> bool {
        if self.used == 1 { self.all[0].events.has_room() } else { self.have_all_room() }
    }

    #[cold]
    fn have_all_room(&self) -> bool {
        self.used().iter().all(|one| one.events.is_muted() || one.events.has_room())
    }

    fn used(&self) -> &[Attachment] {
        &self.all[..self.used]
    }

    fn used_mut(&mut self) -> &mut [Attachment] {
        &mut self.all[..self.used]
    }

    /// Number of events for the present attachments.
    #[inline]
    pub fn events(&self) -> usize {
        if self.used == 1 { self.all[0].events.count() } else { self.events_of_all() }
    }

    #[cold]
    fn events_of_all(&self) -> usize {
        let events = |one: &Attachment| if one.events.is_muted() { 0 } else { one.events.count() };
        self.used().iter().map(events).sum()
    }

    /// Whether an attachment is not present.
    #[inline]
    pub fn is_any_absent(&self) -> bool {
        self.absent > 0
    }

    /// Whether an attachment is present.
    #[inline]
    pub fn is_present(&self, number: AttachmentId) -> bool {
        !self[number].events.is_muted()
    }

    /// Numbers of all attachments that have not ended.
    pub fn numbers(&self) -> impl Iterator<Item = AttachmentId> + use<> {
        let living: Vec<AttachmentId> =
            (0..).zip(self.used()).filter(|(_, one)| one.calls.is_some()).map(|(n, _)| n).collect();
        living.into_iter()
    }

    /// Whether this is the only attachment that has run this elastic thread.
    pub fn is_alone(&self, number: AttachmentId) -> bool {
        let mut others = (0..).zip(self.used()).filter(|(other, _)| *other != number);
        !others.any(|(_, one)| one.calls.is_some() && one.has_entered)
    }

    /// Sets whether an attachment is present.
    #[inline]
    pub fn set_present(&mut self, number: AttachmentId, present: bool) {
        let events = &mut self[number].events;
        if events.is_muted() == present {
            events.set_muted(!present);
            self[number].was_absent = true;
            self.absent = if present { self.absent - 1 } else { self.absent + 1 };
        }
    }

    /// Makes all attachments absent; returns the bits of those that were present.
    pub fn send_away(&mut self) -> u64 {
        let mut were_present = 0;
        for number in self.numbers() {
            were_present |= u64::from(self.is_present(number)) << number;
            self.set_present(number, false);
        }
        were_present
    }

    /// Makes the attachments of these bits present.
    pub fn bring_back(&mut self, numbers: u64) {
        let all = self.numbers().filter(|number| numbers >> number & 1 != 0);
        all.for_each(|number| self.set_present(number, true));
    }

    /// Whether a present attachment was not told of something yet.
    #[inline]
    pub fn is_any_to_tell(&self) -> bool {
        if self.used == 1 { !self.all[0].to_announce.is_empty() } else { self.are_any_to_tell() }
    }

    #[cold]
    fn are_any_to_tell(&self) -> bool {
        self.used().iter().any(|one| !one.to_announce.is_empty() && !one.events.is_muted())
    }

    /// Number of packets that wait for attachments.
    pub fn kept(&self) -> usize {
        self.used().iter().map(|one| one.kept.len()).sum()
    }

    /// Removes the packets of a flow group that wait for processes.
    pub fn take_kept(&mut self, group: u8) -> impl Iterator<Item = Kept> {
        self.used_mut().iter_mut().flat_map(move |one| Kept::take(&mut one.kept, group))
    }

    /// Whether an attachment was told of moving flow groups and has not returned since.
    pub fn owes_any_return(&self) -> bool {
        self.used().iter().any(|one| one.calls.is_some() && one.owes_return)
    }

    /// Another process of the program attaches; it is absent at first. `life` is another one for
    /// each process that gets this number.
    ///
    /// # Panics
    /// If the number is not below [`ATTACHMENTS_MAX`].
    pub fn begin(
        &mut self,
        number: AttachmentId,
        calls: CallArray,
        events: EventWriter,
        (shift, life): (u64, u32),
    ) {
        assert!(usize::from(number) < ATTACHMENTS_MAX);
        self.used = self.used.max(usize::from(number) + 1);
        self.were_several |= self.used > 1;
        self[number] = Attachment { shift, life, ..Attachment::new(calls, events) };
        self.set_present(number, false);
    }

    /// A process has ended, and nothing of its own is left but flows that end by themselves. Its
    /// arrays are not touched any more. The frames that it held are in its estate.
    pub fn end(&mut self, number: AttachmentId, memory: &PacketMemory, pool: &mut Pool) {
        self.set_present(number, true);
        self.bequeath(number, memory);
        let mut ended = std::mem::replace(&mut self[number], Attachment::ended());
        ended.kept.drain(..).for_each(|kept| pool.put(kept.packet.mbuf));
        let last = self.used().iter().rposition(|one| !one.has_ended());
        self.used = last.map_or(1, |last| last + 1);
    }

    /// Keeps a frame that a process has left.
    pub fn leave_frame(&mut self, number: AttachmentId, mbuf: Mbuf) {
        self.estates.push_back((number, mbuf));
    }

    /// Keeps all buffers that a process has left, which it may have sent on.
    pub fn bequeath(&mut self, number: AttachmentId, memory: &PacketMemory) {
        for mut held in std::mem::take(&mut self[number].graveyard) {
            while let Some(mbuf) = held.pop(memory) {
                self.leave_frame(number, mbuf);
            }
        }
    }

    /// Number of frames that processes have left.
    pub fn estates(&self) -> usize {
        self.estates.len()
    }

    /// Looks at so many of the frames that processes have left, and frees those that are no longer
    /// sent: `is_sent` gets the process and the frame. `None`: that is not known yet.
    #[cold]
    pub fn settle_estates(
        &mut self,
        most: usize,
        is_sent: impl Fn(AttachmentId, u32) -> Option<bool>,
        pool: &mut Pool,
    ) {
        for _ in 0..most {
            let Some((number, mbuf)) = self.estates.pop_front() else { return };
            match is_sent(number, mbuf.frame()) {
                Some(false) => pool.put(mbuf),
                Some(true) | None => self.estates.push_back((number, mbuf)),
            }
        }
    }

    /// All attachments are told of a moving flow group. Who computes is told when it returns.
    pub fn tell_of_groups(&mut self, event: Event) {
        self.push_all(event);
        let several = self.were_several;
        let told = self.used_mut().iter_mut().filter(|one| one.has_entered || !several);
        told.filter(|one| one.calls.is_some()).for_each(|one| {
            one.owes_return = true;
            one.has_late_news |= one.events.is_muted();
        });
    }

    /// Whether several processes may share this thread.
    pub fn are_several(&self) -> bool {
        self.used > 1
    }

    /// Removes from all lists of flows with news those that `of_them` selects, and returns them.
    pub fn take_announcements(&mut self, of_them: impl Fn(&u64) -> bool) -> Vec<u64> {
        let mut taken = Vec::new();
        for one in self.used_mut() {
            taken.extend(one.to_announce.iter().copied().filter(&of_them));
            one.to_announce.retain(|id| !of_them(id));
        }
        taken
    }
}

impl Index<AttachmentId> for Attachments {
    type Output = Attachment;

    #[inline(always)]
    fn index(&self, number: AttachmentId) -> &Attachment {
        &self.all[usize::from(number)]
    }
}

impl IndexMut<AttachmentId> for Attachments {
    #[inline(always)]
    fn index_mut(&mut self, number: AttachmentId) -> &mut Attachment {
        &mut self.all[usize::from(number)]
    }
}
