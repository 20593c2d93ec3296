//! Where messages end in the send stream (`MSG_EOR` of sockets): no segment holds octets of both
//! sides, sent once or again. TCP promises nothing of the kind to a peer (RFC 9293 section 3.9.1.2
//! leaves how the stream is cut to the sender), but some applications and devices count on it.
use crate::output::RxBuf;
use crate::tcb::Tcb;
use ix_wire::Seq;

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
