//! Which payload is dropped when receive frames run short.
//!
//! Out-of-order queues can hold all frames of a thread, each waiting for a segment for which no
//! frame is left. Then nothing would ever move again, and a few hostile peers can cause this. So
//! when few frames are left, payload that the application cannot read yet is dropped as if it were
//! lost. So is payload of flows of which the application already holds many frames: it must not
//! keep the data of some flows to the harm of all others. When almost no frame is left, all payload
//! is dropped, and connections are reset whose peers take nothing of what they are sent while the
//! application keeps what they have sent ([`crate::tcp::Tcp::relieve`]): thousands that send a
//! little and never open their windows would keep out all others. Headers are always processed:
//! acknowledgements, resets and windows need no frame, and free some.
use crate::context::Context;
use crate::ports::Port;
use ix_tcp::FURTHER_BUFFER_BYTES;

/// Most buffers of one flow that an application may hold and still get more while frames are short.
pub(crate) const HELD_UNDER_PRESSURE: u16 = 16;

/// How short receive frames are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    /// Not at all.
    #[default]
    None,
    /// Only in-order payload is accepted, and only for flows of which the application holds few
    /// buffers ([`HELD_UNDER_PRESSURE`]).
    Low,
    /// No payload is accepted.
    Critical,
}

/// How short frames are, while `polled` of this thread's frames are in the current batch.
#[inline]
pub(crate) fn rx_pressure(cx: &Context, ports: &[Port], polled: usize) -> Pressure {
    let spare = cx.rx_pool.free() + polled;
    let reserve = cx.rx_pool.owned() / 8;
    if spare >= reserve { Pressure::None } else { with_devices(cx, ports, spare) }
}

/// Frames that devices hold for receiving count as free.
#[cold]
fn with_devices(cx: &Context, ports: &[Port], spare: usize) -> Pressure {
    let (left, reserve) = (spare + in_devices(ports), cx.rx_pool.owned() / 8);
    match left {
        _ if left >= reserve => Pressure::None,
        _ if left >= reserve / 4 => Pressure::Low,
        _ => Pressure::Critical,
    }
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
    let frames = free.saturating_sub(cx.rx_pool.owned() / 4) as u64;
    let others = cx.promises.bytes() - u64::from(own);
    let taken = others + u64::from(cx.shared.config.tcp.rcv_buf_bytes);
    (frames * u64::from(FURTHER_BUFFER_BYTES)).saturating_sub(taken) / 2
}
