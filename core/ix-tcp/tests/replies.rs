//! Short replies over wide-area paths in virtual time, with the defaults that ship: how many round
//! trips each takes.

use crate::support::*;
use ix_tcp::{Config, State};
use ix_wire::Seq;
use net::{Link, Net};

const SECOND_US: u64 = 1_000_000;
const ROUND_TRIP_US: u64 = 80_000;
const REQUEST_BYTES: usize = 24;
/// Eight segments.
const REPLY_BYTES: usize = 10 << 10;

/// How long each of `count` replies takes over a path that loses `loss` of a thousand of their
/// packets, from the shortest to the longest. The client asks as soon as it has the last reply.
fn replies_us(count: usize, loss: u32, seed: u64) -> Vec<u64> {
    let cfg = Config::default();
    let whole = Link { delay_us: ROUND_TRIP_US, ..Link::GOOD };
    let mut net = Net::connect([cfg.clone(), cfg], whole, seed, [Seq(7), Seq(9)], START_US);
    net.run(SECOND_US, |net| net.ends[0].state() == State::Established);
    let half = Link { delay_us: ROUND_TRIP_US / 2, ..Link::GOOD };
    net.links = [Link { loss, ..half }, half];
    let mut took_us = Vec::new();
    for number in 1..=count {
        let began_us = net.now_us;
        net.to_send[1].extend([1; REQUEST_BYTES]);
        net.cycle(1);
        net.run(60 * SECOND_US, |net| net.received[0].len() == number * REQUEST_BYTES);
        net.to_send[0].extend([2; REPLY_BYTES]);
        net.cycle(0);
        net.run(60 * SECOND_US, |net| net.received[1].len() == number * REPLY_BYTES);
        took_us.push(net.now_us - began_us);
    }
    took_us.sort_unstable();
    took_us
}

/// CUBIC reduces its window, not what is left of a reply in flight when the loss is found, and the
/// window grows again though the last segments of a reply do not fill it. Without the one or the
/// other most replies take two round trips. A window of eight segments is used by a reply whose
/// eighth is short: without that 600 to 632 of a thousand take one round trip.
#[test]
fn a_loss_does_not_make_later_replies_slow() {
    for seed in 1..=3 {
        let took_us = replies_us(1_000, 10, seed);
        let within = |round_trips: u64| {
            let most_us = round_trips * ROUND_TRIP_US + ROUND_TRIP_US / 2;
            took_us.iter().filter(|took_us| **took_us <= most_us).count()
        };
        // Eight of a hundred replies lose a segment.
        assert!(within(1) >= 660, "seed {seed}: {} in one round trip", within(1));
        assert!(within(2) >= 950, "seed {seed}: {} in two", within(2));
        // A lost last segment: two round trips until the probe, the peer's delay, one for it.
        assert!(took_us[990] <= 5 * ROUND_TRIP_US, "seed {seed}: {} us", took_us[990]);
    }
}
