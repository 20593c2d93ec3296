//! Delivery rate samples (draft-ietf-ccwg-bbr section 4.1): how fast the network delivered what was
//! sent about a round trip ago.
//!
//! The draft keeps a snapshot with each packet. Packets that were sent at the same time have the
//! same one, so here it is kept for each time of sending, and only by connections that use BBR.
use std::collections::VecDeque;

/// Most snapshots. Beyond that the oldest are forgotten, and their packets give no sample.
const SNAPSHOTS_MAX: usize = 8192;

/// Room for snapshots that an idle connection keeps.
const SNAPSHOTS_IDLE: usize = 64;

/// The state of the connection when something was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Snapshot {
    sent_us: u64,
    /// `Sampler::first_sent_us`, `delivered_us`, `delivered` and `lost` at that time.
    first_sent_us: u64,
    delivered_us: u64,
    pub delivered: u64,
    pub lost: u64,
    /// Bytes in flight, with those that were sent then.
    pub in_flight: u32,
    pub is_app_limited: bool,
}

/// What an acknowledgement tells of the path (RS in the draft).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sample {
    /// Bytes delivered when the newest packet was sent that it acknowledges; `None`: it
    /// acknowledges nothing whose snapshot is known.
    pub prior_delivered: Option<u64>,
    /// Bytes delivered since then.
    pub delivered: u64,
    /// Delivery rate, bytes per second; 0: unknown.
    pub rate: u64,
    /// Round-trip time of that packet.
    pub rtt_us: Option<u32>,
    /// Bytes in flight when it was sent, with it.
    pub in_flight: u32,
    /// Bytes found to be lost since then.
    pub lost: u64,
    pub is_app_limited: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Sampler {
    /// Bytes delivered so far, and when the last of them were acknowledged.
    pub delivered: u64,
    delivered_us: u64,
    /// When the newest packet was sent that is acknowledged.
    first_sent_us: u64,
    /// Bytes found to be lost so far.
    pub lost: u64,
    /// Until so many bytes are delivered, samples may show the application's rate; 0: they do not.
    app_limited_until: u64,
    sent: VecDeque<Snapshot>,
    newest: Option<(Snapshot, bool)>,
}

impl Sampler {
    /// Nothing was sent yet whose acknowledgement gives a sample.
    pub fn new(now_us: u64) -> Sampler {
        Sampler { delivered_us: now_us, first_sent_us: now_us, ..Sampler::default() }
    }

    /// Something is sent; `in_flight` is without it.
    pub fn sent(&mut self, now_us: u64, in_flight: u32, bytes: u32) {
        if in_flight == 0 {
            (self.first_sent_us, self.delivered_us) = (now_us, now_us);
        }
        let in_flight = in_flight.saturating_add(bytes);
        if let Some(last) = self.sent.back_mut()
            && last.sent_us == now_us
        {
            last.in_flight = in_flight;
            return;
        }
        if self.sent.len() >= SNAPSHOTS_MAX {
            self.sent.pop_front();
        }
        self.sent.push_back(Snapshot {
            sent_us: now_us,
            first_sent_us: self.first_sent_us,
            delivered_us: self.delivered_us,
            delivered: self.delivered,
            lost: self.lost,
            in_flight,
            is_app_limited: self.is_app_limited(),
        });
    }

    pub fn snapshot(&self, sent_us: u64) -> Option<Snapshot> {
        let index = self.sent.binary_search_by_key(&sent_us, |snapshot| snapshot.sent_us).ok()?;
        self.sent.get(index).copied()
    }

    /// What was last sent at `sent_us` is acknowledged. `once`: it was sent only once, so its
    /// round-trip time is known.
    pub fn acknowledged(&mut self, sent_us: u64, once: bool) {
        if sent_us < self.first_sent_us {
            return;
        }
        if let Some((newest, known)) = &mut self.newest
            && newest.sent_us == sent_us
        {
            *known |= once;
            return;
        }
        if let Some(snapshot) = self.snapshot(sent_us) {
            self.first_sent_us = sent_us;
            self.newest = Some((snapshot, once));
        }
    }

    /// Whether samples may show the application's rate.
    pub fn is_app_limited(&self) -> bool {
        self.app_limited_until != 0
    }

    /// There is nothing more to send now.
    pub fn limited_by_application(&mut self, in_flight: u32) {
        self.app_limited_until = (self.delivered + u64::from(in_flight)).max(1);
    }

    /// The acknowledgement is complete: it has delivered `bytes`. `min_rtt_us`: a sample over less
    /// tells nothing.
    pub fn sample(&mut self, now_us: u64, bytes: u32, min_rtt_us: u32) -> Sample {
        self.delivered += u64::from(bytes);
        if bytes > 0 {
            self.delivered_us = now_us;
        }
        if self.app_limited_until != 0 && self.delivered > self.app_limited_until {
            self.app_limited_until = 0;
        }
        let Some((newest, once)) = self.newest.take() else { return Sample::default() };
        let send_elapsed_us = newest.sent_us.saturating_sub(newest.first_sent_us);
        let ack_elapsed_us = self.delivered_us.saturating_sub(newest.delivered_us);
        let interval_us = send_elapsed_us.max(ack_elapsed_us);
        let delivered = self.delivered - newest.delivered;
        let is_reliable = interval_us > 0 && interval_us >= u64::from(min_rtt_us);
        let rtt_us = now_us.saturating_sub(newest.sent_us).min(u64::from(u32::MAX)) as u32;
        Sample {
            prior_delivered: Some(newest.delivered),
            delivered,
            rate: if is_reliable { delivered * 1_000_000 / interval_us } else { 0 },
            rtt_us: once.then_some(rtt_us),
            in_flight: newest.in_flight,
            lost: self.lost - newest.lost,
            is_app_limited: newest.is_app_limited,
        }
    }

    /// Nothing that was sent before is outstanding.
    pub fn forget_before(&mut self, sent_us: u64) {
        while self.sent.front().is_some_and(|oldest| oldest.sent_us < sent_us) {
            self.sent.pop_front();
        }
        if self.sent.is_empty() && self.sent.capacity() > SNAPSHOTS_IDLE {
            self.sent.shrink_to(SNAPSHOTS_IDLE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path of 1,000 bytes a millisecond and 10 ms: one packet is sent and acknowledged in each.
    #[test]
    fn the_rate_is_what_was_delivered_by_the_longer_of_both_times() {
        let mut sampler = Sampler::new(0);
        for ms in 0..10 {
            sampler.sent(1_000_000 + ms * 1_000, ms as u32 * 1_000, 1_000);
        }
        let mut last = Sample::default();
        for ms in 10..30 {
            let now_us = 1_000_000 + ms * 1_000;
            sampler.acknowledged(now_us - 10_000, true);
            last = sampler.sample(now_us, 1_000, 0);
            sampler.sent(now_us, 9_000, 1_000);
        }
        assert_eq!((last.rate, last.rtt_us, last.in_flight), (1_000_000, Some(10_000), 10_000));
        assert_eq!((last.prior_delivered, last.delivered), (Some(10_000), 10_000));
    }

    /// Section 4.1.1.2.4: acknowledgements that arrive together tell no rate above that of sending.
    #[test]
    fn compressed_acknowledgements_do_not_raise_it() {
        let mut sampler = Sampler::new(0);
        for ms in 0..10 {
            sampler.sent(1_000_000 + ms * 1_000, ms as u32 * 1_000, 1_000);
        }
        sampler.acknowledged(1_000_000, true);
        sampler.sample(1_020_000, 1_000, 0);
        for ms in 1..10 {
            sampler.acknowledged(1_000_000 + ms * 1_000, true);
        }
        let sample = sampler.sample(1_020_001, 9_000, 0);
        assert!(sample.rate <= 1_000_000, "{sample:?}");
        // A sample over less than the path's round trip tells nothing.
        sampler.sent(1_020_002, 0, 1_000);
        sampler.acknowledged(1_020_002, true);
        assert_eq!(sampler.sample(1_025_000, 1_000, 10_000).rate, 0);
    }

    #[test]
    fn samples_show_the_application_until_its_pause_is_acknowledged() {
        let mut sampler = Sampler::new(0);
        sampler.sent(1_000, 0, 1_000);
        sampler.limited_by_application(1_000);
        sampler.sent(2_000, 1_000, 500);
        sampler.acknowledged(1_000, true);
        assert!(!sampler.sample(11_000, 1_000, 0).is_app_limited);
        sampler.acknowledged(2_000, true);
        assert!(sampler.sample(12_000, 500, 0).is_app_limited);
        sampler.sent(13_000, 0, 1_000);
        sampler.acknowledged(13_000, true);
        assert!(!sampler.sample(23_000, 1_000, 0).is_app_limited);
    }

    #[test]
    fn a_packet_that_was_sent_again_gives_a_rate_but_no_round_trip() {
        let mut sampler = Sampler::new(0);
        sampler.sent(1_000, 0, 1_000);
        sampler.sent(50_000, 0, 1_000);
        sampler.acknowledged(50_000, false);
        let sample = sampler.sample(60_000, 1_000, 0);
        assert_eq!((sample.rate, sample.rtt_us), (100_000, None));
        sampler.forget_before(50_000);
        assert_eq!((sampler.snapshot(1_000), sampler.sent.len()), (None, 1));
    }
}
