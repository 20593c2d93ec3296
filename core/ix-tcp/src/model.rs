//! What a connection tells the model of BBR, and what it takes from it. Connections that use other
//! algorithms have no model.
use crate::ack::AckReport;
use crate::cc::Kind;
use crate::cc::bbr::{Bbr, Progress};
use crate::output::RxBuf;
use crate::records::TxRecord;
use crate::tcb::{Flags, Tcb, loss_of};

impl<B: RxBuf> Tcb<B> {
    /// Begins with a new model, or drops it, as the algorithm says.
    #[cold]
    pub(crate) fn start_bbr(&mut self) {
        if self.cc.kind() != Kind::Bbr {
            if let Some(loss) = loss_of(&mut self.rare) {
                loss.bbr = None;
            }
        } else if self.handshake_done() && self.bbr_mut().is_none() {
            let (cwnd, srtt_us) = (self.cc.cwnd_bytes(), self.rtt.srtt_us());
            // The offset is random.
            let bbr = Bbr::new(cwnd, self.mss, srtt_us, self.ts_offset, self.last_rcv_us);
            self.loss_mut().bbr = Some(Box::new(bbr));
        }
    }

    #[inline]
    pub(crate) fn bbr_mut(&mut self) -> Option<&mut Bbr> {
        loss_of(&mut self.rare).and_then(|loss| loss.bbr.as_deref_mut())
    }

    /// Tells the model something, if there is one, and takes its window.
    pub(crate) fn with_bbr(&mut self, tell: impl FnOnce(&mut Bbr)) {
        if let Some(bbr) = self.bbr_mut() {
            tell(bbr);
            let cwnd_bytes = bbr.cwnd_bytes();
            self.cc.set_modelled_cwnd(cwnd_bytes);
        }
    }

    /// `bytes` were sent, and are in flight now.
    pub(crate) fn model_sent(&mut self, bytes: u32, now_us: u64) {
        let before = self.pipe_bytes().saturating_sub(bytes);
        if let Some(bbr) = self.bbr_mut() {
            bbr.sent(now_us, before, bytes);
        }
    }

    /// A record was acknowledged for the first time.
    #[inline]
    pub(crate) fn tell_model(&mut self, record: &TxRecord) {
        if let Some(bbr) = self.bbr_mut() {
            bbr.acknowledged(record.sent_us, !record.has(TxRecord::RETRANSMITTED));
        }
    }

    /// Marks what is delivered next as limited by the application, if nothing else limits it.
    pub(crate) fn is_model_limited(&mut self) {
        let in_flight = self.pipe_bytes();
        let limited =
            self.unsent_bytes() == 0 && self.lost_bytes == 0 && in_flight < self.cwnd_bytes();
        if let Some(bbr) = self.bbr_mut()
            && limited
        {
            bbr.limited_by_application(in_flight);
        }
    }

    /// An acknowledgement is processed: the model learns from it, and decides rate and window.
    pub(crate) fn follow_model(&mut self, now_us: u64, report: &AckReport) {
        if self.bbr_mut().is_none() || report.acked == 0 && report.delivered == 0 {
            return;
        }
        // What is outstanding and was sent once was sent in order.
        let oldest = self.records.first().filter(|first| !first.has(TxRecord::RETRANSMITTED));
        let oldest_us = match oldest {
            Some(oldest) => oldest.sent_us,
            None if self.records.is_empty() => now_us,
            None => 0,
        };
        let progress = Progress {
            delivered: report.delivered,
            in_flight: self.pipe_bytes(),
            is_cwnd_limited: self.flags.has(Flags::CWND_LIMITED),
            has_sack: self.flags.has(Flags::SACK),
        };
        self.with_bbr(|bbr| {
            bbr.on_ack(&progress, now_us);
            bbr.forget_before(oldest_us);
        });
    }
}
