//! Where messages end in the send stream (`MSG_EOR` of sockets): no segment holds octets of both
//! sides, sent once or again. TCP promises nothing of the kind to a peer (RFC 9293 section 3.9.1.2
//! leaves how the stream is cut to the sender), but some applications and devices count on it.
use crate::output::RxBuf;
use crate::tcb::Tcb;
use ix_wire::Seq;
use std::collections::VecDeque;

/// Ends of messages, in the order of the stream.
#[derive(Debug, Default)]
pub(crate) struct MessageEnds(Option<Box<VecDeque<Seq>>>);

impl MessageEnds {
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    fn push(&mut self, end: Seq) {
        let ends = self.0.get_or_insert_default();
        if ends.back() != Some(&end) {
            ends.push_back(end);
        }
    }

    /// Forgets those that are acknowledged.
    fn forget_until(&mut self, una: Seq) {
        let Some(ends) = &mut self.0 else { return };
        while ends.front().is_some_and(|end| end.le(una)) {
            ends.pop_front();
        }
        self.0.take_if(|ends| ends.is_empty());
    }

    /// The first one behind `seq`.
    fn after(&self, seq: Seq) -> Option<Seq> {
        let ends = self.0.as_ref()?;
        ends.get(ends.partition_point(|end| end.le(seq))).copied()
    }
}

impl<B: RxBuf> Tcb<B> {
    /// Records that a message ends with what was appended last.
    pub fn end_message(&mut self) {
        let (una, end) = (self.data_una(), self.data_end());
        if self.snd_buf_bytes > 0 {
            let ends = &mut self.rare_mut().message_ends;
            ends.forget_until(una);
            ends.push(end);
        }
    }

    #[inline(always)]
    pub(crate) fn has_message_ends(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| !rare.message_ends.is_empty())
    }

    /// How many of the next `unsent` octets are of one message.
    #[inline(always)]
    pub(crate) fn until_message_end(&mut self, unsent: u32) -> u32 {
        if self.has_message_ends() { self.first_message(unsent) } else { unsent }
    }

    #[cold]
    fn first_message(&mut self, unsent: u32) -> u32 {
        let (una, nxt) = (self.data_una(), self.data_end() - unsent);
        let ends = &mut self.rare_mut().message_ends;
        ends.forget_until(una);
        let len = ends.after(nxt).map_or(unsent, |end| unsent.min((end - nxt) as u32));
        self.settle_rare();
        len
    }

    /// Whether a message ends before the octet `seq`.
    #[inline(always)]
    pub(crate) fn is_message_end(&self, seq: Seq) -> bool {
        self.has_message_ends()
            && self.rare.as_ref().is_some_and(|rare| rare.message_ends.after(seq - 1) == Some(seq))
    }
}
