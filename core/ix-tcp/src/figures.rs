//! Figures of time for `GET_INFO`, and what congestion control is about.
use crate::config::Config;
use crate::ecn::EcnState;
use crate::output::RxBuf;
use crate::tcb::{Phase, Recovery, Tcb, TcbInfo};

impl<B: RxBuf> Tcb<B> {
    /// Whether the peer's window has just held something back. To be called whenever something was
    /// to be sent.
    #[inline]
    pub(crate) fn note_window_limit(&mut self, limited: bool, now_us: u64) {
        if self.rare.as_ref().is_some_and(|rare| rare.window_limited.is_now()) != limited {
            self.change_window_limit(limited, now_us);
        }
    }

    #[cold]
    fn change_window_limit(&mut self, limited: bool, now_us: u64) {
        self.rare_mut().window_limited.change(limited, now_us);
    }

    /// Figures for `GET_INFO` at this time.
    pub fn info_at(&self, cfg: &Config, now_us: u64) -> TcbInfo {
        let sent_ago = ((now_us >> 10) as u32).wrapping_sub(self.last_snd_ms) as i32;
        let limited = self.rare.as_ref().map_or_else(Default::default, |rare| rare.window_limited);
        TcbInfo {
            last_sent_ms: sent_ago.max(0) as u32,
            last_heard_ms: (now_us.saturating_sub(self.last_rcv_us) >> 10) as u32,
            rwnd_limited_us: limited.total_us(now_us),
            ..self.info(cfg)
        }
    }

    /// What congestion control is about.
    pub(crate) fn recovery(&self) -> Recovery {
        let answered = self.rare.as_ref().map(|rare| rare.ecn_end);
        let reacts = self.ecn.has(EcnState::REACTED);
        match self.phase {
            Phase::Recovery => Recovery::Fast,
            Phase::Timeout => Recovery::Timeout,
            Phase::Open if self.sacked_segs() > 0 || self.dupacks() > 0 => Recovery::Disorder,
            Phase::Open if reacts && answered.is_some_and(|end| self.snd_una.lt(end)) => {
                Recovery::Reduced
            }
            Phase::Open => Recovery::Open,
        }
    }
}
