//! What a process has done and did not live to say in a batch: it is carried out when the process
//! has ended, before its connections are closed ([`ix_abi::Will`]).
use crate::cycle::ElasticThread;
use crate::tcp::TcpContext;
use ix_abi::{Call, CallError, GIVE_AT_END, SG_MAX, SgEntry, WillEntry, WillState};
use ix_proto::crossing::AttachmentId;

impl ElasticThread {
    /// Carries out the calls of a request that was not taken yet, if there are any, then what the
    /// last batch could not send, then the entries.
    #[cold]
    pub fn carry_out_will(
        &mut self,
        number: AttachmentId,
        asked: usize,
        (state, entries): (WillState, Vec<WillEntry>),
        now_us: u64,
    ) {
        let cx = &mut self.io.cx;
        (cx.caller, cx.shift) = (number, cx.attached[number].shift);
        self.begin_cycle(now_us);
        self.changes += 1;
        self.run_calls(asked);
        for index in 0..state.calls {
            self.send_what_was_not_taken(number, index);
        }
        entries.into_iter().for_each(|entry| self.carry_out_entry(entry));
        self.flush_touched();
    }

    /// The window has taken less than a call of the last batch has offered.
    fn send_what_was_not_taken(&mut self, number: AttachmentId, index: usize) {
        let Some(calls) = self.io.cx.attached[number].calls else { return };
        let slot = calls.read(index);
        let Ok(Call::SendV { handle, sg, .. }) = Call::decode(&slot) else { return };
        let mut skip = match CallError::check(slot.ret) {
            Ok(taken) => taken,
            Err(CallError::NoResource) => 0,
            Err(_) => return,
        };
        for index in 0..sg.entries.min(SG_MAX as u64) {
            let cx = &self.io.cx;
            let Some(SgEntry { base, len }) = cx.shared.read_sg(cx.shift, sg, index) else {
                return;
            };
            let n = len.min(skip);
            skip -= n;
            if n < len {
                self.send_rest(handle, SgEntry { base: base.saturating_add(n), len: len - n });
            }
        }
    }

    fn carry_out_entry(&mut self, entry: WillEntry) {
        let WillEntry { handle, at_end, base, len } = entry;
        let ElasticThread { io, flows, tcp, receive, .. } = self;
        // It fails where the dataplane knows already that the connection was accepted.
        let _ = tcp.accept(&mut TcpContext { io, flows, batch: &mut receive.batch }, handle, 0);
        if tcp.give(io, flows, handle, GIVE_AT_END, at_end).is_err() {
            return;
        }
        match base {
            0 if len == 0 => {}
            0 => {
                let cx = &mut TcpContext { io, flows, batch: &mut receive.batch };
                let _ = tcp.recv_done(cx, handle, len);
            }
            _ => self.send_rest(handle, SgEntry { base, len }),
        }
    }

    /// A stream with a gap would be worse than one that is cut off.
    fn send_rest(&mut self, handle: u64, piece: SgEntry) {
        let ElasticThread { io, flows, tcp, receive, .. } = self;
        let cx = &mut TcpContext { io, flows, batch: &mut receive.batch };
        let sent = tcp.send_rest(cx, handle, piece);
        if matches!(sent, Err(CallError::Fault | CallError::NoResource)) {
            let _ = tcp.abort(cx, handle);
        }
    }
}
