//! The application ends a connection: RFC 9293 sections 3.6, 3.10.4 and 3.10.5.
use crate::config::Config;
use crate::output::{Output, RxBuf};
use crate::state::State;
use crate::tcb::{Flags, Tcb};

impl<B: RxBuf> Tcb<B> {
    /// Ends the send stream: FIN follows what was appended.
    pub fn shutdown(&mut self, _cfg: &Config, _now_us: u64, _out: &mut impl Output<B>) {
        match self.state {
            // FIN_QUEUED takes effect when the handshake is done.
            State::SynSent | State::SynReceived => {}
            State::Established => self.enter(State::FinWait1),
            State::CloseWait => self.enter(State::LastAck),
            _ => return,
        }
        self.flags.set(Flags::FIN_QUEUED);
    }

    /// Closes the connection for the application: FIN follows what was appended, and data that
    /// still arrives causes a reset (RFC 2525 section 2.17, RFC 9293 section 3.6.1).
    pub fn close(&mut self, cfg: &Config, now_us: u64, out: &mut impl Output<B>) {
        if self.state == State::SynSent {
            // Nothing has been promised to the peer yet.
            return self.bury(out);
        }
        if self.state == State::Closed {
            return;
        }
        self.flags.set(Flags::ORPHAN);
        // Data after a gap is not needed: what fills the gap will cause a reset.
        self.release(out);
        self.shutdown(cfg, now_us, out);
        self.start_fin_wait2(cfg, now_us);
    }

    /// Resets the connection.
    pub fn abort(&mut self, _cfg: &Config, now_us: u64, out: &mut impl Output<B>) {
        match self.state {
            State::Closed => return,
            State::SynSent | State::TimeWait => {}
            _ => self.send_reset(now_us, out),
        }
        self.bury(out);
    }
}
