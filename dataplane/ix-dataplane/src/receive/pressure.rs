//! How flows share receive frames that run short.
//!
//! An application may keep all frames of a thread: what slow peers have sent, or what waits for a
//! segment for which no frame is left. So the less is free, the fewer buffers each flow may hold
//! ([`Supply::share`]). First windows become smaller, and most peers stop before anything is
//! dropped. Below an eighth payload is dropped of flows that hold their share, and what the
//! application cannot read yet; the peer is told a window that it may use. One frame is kept for
//! each flow that holds none, so such a flow is served while all others wait.
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
    /// Windows may be smaller. All payload is accepted.
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
    /// Buffers that each flow may hold, by its window.
    pub share: u16,
    /// Buffers with which a flow gets no other, where payload is dropped.
    pub most: u16,
}

impl Supply {
    /// There is enough.
    pub const ENOUGH: Supply = Supply { pressure: Pressure::None, share: u16::MAX, most: u16::MAX };

    /// `left` frames of `owned` are free, and `empty` flows hold none: one for each is theirs. A
    /// share becomes smaller with the fourth power of what is left of the others, from `most` where
    /// that is a quarter.
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
        let share = (u64::from(most) * part.pow(4)) >> 16;
        let share = share.clamp(LEAST_SHARE, u64::from(u16::MAX - 1)) as u16;
        Supply { pressure, share, most: if spare == 0 { 1 } else { share } }
    }
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
        Supply::ENOUGH
    } else {
        with_devices(cx, ports, empty.unwrap_or(flows).min(flows), spare)
    }
}

/// Frames that devices hold for receiving count as free.
#[cold]
fn with_devices(cx: &Context, ports: &[Port], empty: usize, spare: usize) -> Supply {
    let most = cx.shared.config.tcp.rcv_buffers_max;
    Supply::of(spare + in_devices(ports), cx.rx_pool.owned(), empty, most)
}

fn in_devices(ports: &[Port]) -> usize {
    ports.iter().map(|port| port.nic.frames_held().0).sum()
}

/// How many bytes one flow that reads fast may be promised beyond what every flow may: half of what
/// is free, above a reserve, and was promised to no other. Of this flow `own` bytes are promised
/// already, 0 or with the first size. So the more is held, by whomever, or may still come, the less
/// any flow may get; and all promises together are never more than is free.
#[cold]
pub(crate) fn further_bytes(cx: &Context, ports: &[Port], own: u32) -> u64 {
    let free = cx.rx_pool.free() + in_devices(ports);
    // As where windows become smaller.
    let owned = cx.rx_pool.owned();
    let reserved = reserved(owned, cx.promises.flows());
    let frames = free.saturating_sub(reserved + (owned - reserved) / 4) as u64;
    let others = cx.promises.bytes() - u64::from(own);
    let taken = others + u64::from(cx.shared.config.tcp.rcv_buf_bytes);
    (frames * u64::from(FURTHER_BUFFER_BYTES)).saturating_sub(taken) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

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
