//! How flows share the receive frames of a thread.
//!
//! An application may keep all of them: what slow peers have sent, or what waits for a segment for
//! which no frame is left. No window may be taken back (RFC 9293 section 3.8.6), so what a flow may
//! hold is decided before it is offered. A flow begins with its part of a quarter of the frames,
//! and a quarter stays free for others ([`further_bytes`] has the rest, for those whose
//! applications take much). When less than that quarter is left, shares become smaller with what is
//! left, and the edges of windows advance more slowly.
//!
//! More may have been offered before than is there. So below an eighth payload is dropped of flows
//! that hold their share, and what the application cannot read yet. One frame is kept for each flow
//! that holds none, so such a flow is served while all others wait.
//!
//! Only when more flows hold one buffer each than the thread has, almost nothing is left. Then
//! connections are reset whose peers take nothing of what they are sent while the application keeps
//! what they have sent ([`crate::tcp::Tcp::relieve`]), or no other was ever served again. Headers
//! are always processed: acknowledgements, resets and windows need no frame, and free some.
use crate::context::Context;
use crate::ports::Port;
use ix_tcp::FURTHER_BUFFER_BYTES;

/// How short receive frames are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    /// Not at all.
    #[default]
    None,
    /// Windows grow less. All payload is accepted.
    Mild,
    /// Only in-order payload is accepted, and only for flows that hold less than their share.
    Low,
    /// The same, and connections give way whose peers take nothing.
    Critical,
    /// No payload is accepted.
    Exhausted,
}

/// What is there for all flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Supply {
    /// How short it is.
    pub pressure: Pressure,
    /// Buffers that each flow may have offered.
    pub share: u16,
    /// Buffers with which a flow gets no other, where payload is dropped.
    pub most: u16,
}

impl Supply {
    /// There is enough, for all flows that there will be.
    pub const ENOUGH: Supply = Supply { pressure: Pressure::None, share: u16::MAX, most: u16::MAX };

    /// There is enough for `flows` flows.
    #[inline]
    fn enough(owned: usize, flows: usize) -> Supply {
        Supply { share: first_share(owned, flows), ..Supply::ENOUGH }
    }

    /// `left` frames of `owned` are free, and `empty` flows hold none: one for each is theirs. A
    /// share becomes smaller with the fourth power of what is left of the others, from `most` where
    /// that is a quarter. What was offered before is taken for longer: with the second power.
    fn of(left: usize, owned: usize, empty: usize, most: u32) -> Supply {
        let reserved = reserved(owned, empty);
        let (spare, all) = (left.saturating_sub(reserved), owned - reserved);
        let pressure = match left {
            _ if left > owned / 64 && spare >= all / 4 => Pressure::Mild,
            _ if left <= owned / 128 => Pressure::Exhausted,
            _ if left <= owned / 64 => Pressure::Critical,
            _ if spare >= all / 8 => Pressure::Mild,
            _ => Pressure::Low,
        };
        let part = (spare as u64 * 64).checked_div(all as u64).unwrap_or(0);
        let buffers = |power| {
            let buffers = (u64::from(most) * part.pow(power)) >> (4 * power);
            buffers.clamp(LEAST_SHARE, u64::from(u16::MAX)) as u16
        };
        let most = if spare == 0 { 1 } else { buffers(2) };
        Supply { pressure, share: buffers(4), most }
    }
}

/// The part of each flow of a quarter of the frames, and at least what a peer sends at first (RFC
/// 6928).
#[inline]
fn first_share(owned: usize, flows: usize) -> u16 {
    const INITIAL_WINDOW: u32 = 10;
    let part = owned as u32 / 4 / (flows as u32).max(1);
    part.clamp(INITIAL_WINDOW, u32::from(u16::MAX)) as u16
}

/// A program that answers still holds what it answers while the next request comes.
const LEAST_SHARE: u64 = 2;

/// Frames for flows that hold none, and a few for those that are not there yet; never all.
fn reserved(owned: usize, empty: usize) -> usize {
    empty.min(owned / 4 * 3) + owned / 32
}

/// What there is for `flows` flows, `empty` of which were seen to hold no frame, while `polled` of
/// this thread's frames are in the current batch.
#[inline]
pub(crate) fn rx_supply(
    cx: &Context,
    ports: &[Port],
    flows: usize,
    empty: Option<usize>,
    polled: usize,
) -> Supply {
    let spare = cx.rx_pool.free() + polled;
    cx.promises.expect_flows(flows);
    let owned = cx.rx_pool.owned();
    if spare >= owned / 4 + owned / 32 + flows {
        Supply::enough(owned, flows)
    } else {
        with_devices(cx, ports, flows, empty.unwrap_or(flows).min(flows), spare)
    }
}

/// Frames that devices hold for receiving count as free. While nearly all are, there is enough for
/// any number of flows, and no look at each of them says more.
#[cold]
fn with_devices(cx: &Context, ports: &[Port], flows: usize, empty: usize, spare: usize) -> Supply {
    let (most, owned) = (cx.shared.config.tcp.rcv_buffers_max, cx.rx_pool.owned());
    let left = spare + in_devices(ports);
    if left >= owned - owned / 16 {
        return Supply::enough(owned, flows);
    }
    let supply = Supply::of(left, owned, empty, most);
    Supply { share: supply.share.min(first_share(owned, flows)), ..supply }
}

/// Frames that devices hold for receiving.
pub(crate) fn in_devices(ports: &[Port]) -> usize {
    ports.iter().map(|port| port.nic.frames_held().0).sum()
}

/// How many bytes one flow that reads fast may be promised beyond what every flow may: half of what
/// is free, above a reserve, and was promised to no other. Of this flow `own` bytes are promised
/// already, 0 or with the first size. So the more is held, by whomever, or may still come, the less
/// any flow may get; and all promises together are never more than is free.
#[cold]
pub(crate) fn further_bytes(cx: &Context, ports: &[Port], own: u32) -> u64 {
    let free = cx.rx_pool.free() + in_devices(ports);
    // As where shares become smaller.
    let (owned, flows) = (cx.rx_pool.owned(), cx.promises.flows());
    let reserved = reserved(owned, flows);
    let frames = free.saturating_sub(reserved + (owned - reserved) / 4) as u64;
    let others = cx.promises.bytes() - u64::from(own);
    let tcp = &cx.shared.config.tcp;
    let first = u32::from(first_share(owned, flows)) * tcp.rcv_buffer_bytes();
    let taken = others + u64::from(tcp.rcv_buf_bytes.min(first));
    (frames * u64::from(FURTHER_BUFFER_BYTES)).saturating_sub(taken) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a thousand flows are offered as they come, one after the other, is no more than there
    /// are frames. A SYN-ACK offers 64 KB at most.
    #[test]
    fn no_more_is_offered_to_a_thousand_flows_than_there_is() {
        const OWNED: usize = 16_384;
        let offered = |flows| u32::from(first_share(OWNED, flows).min(45));
        let all: u32 = (1..=1_000).map(offered).sum();
        assert!(all < OWNED as u32, "{all}");
        assert_eq!((offered(90), offered(100_000)), (45, 10));
    }

    /// Peers send one after the other what they were offered at first. Each finds a frame.
    #[test]
    fn shares_leave_a_frame_for_each_flow() {
        const OWNED: usize = 16_384;
        const FIRST: u16 = 45;
        for (flows, spare) in [(100, 8_000), (1_000, 400), (10_000, 256)] {
            let mut held = vec![0u16; flows];
            let (mut left, mut empty) = (OWNED, flows);
            for held in &mut held {
                for _ in 0..FIRST {
                    let supply = Supply::of(left, OWNED, empty, 384);
                    assert!(supply.pressure < Pressure::Critical, "{left} left of {flows}");
                    if supply.pressure == Pressure::Low && *held >= supply.most {
                        break;
                    }
                    empty -= usize::from(*held == 0);
                    (*held, left) = (*held + 1, left - 1);
                }
            }
            assert!(left >= spare, "{left} of {flows}");
            assert!(held.iter().all(|held| *held > 0));
        }
        for (left, empty) in [(OWNED / 3, 0), (OWNED, 1_000_000)] {
            let Supply { pressure, share, .. } = Supply::of(left, OWNED, empty, 384);
            assert!(pressure == Pressure::Mild && share >= 384);
        }
    }
}
