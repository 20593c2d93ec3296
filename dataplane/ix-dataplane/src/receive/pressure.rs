//! Which payload is dropped when receive frames run short.
//!
//! Out-of-order queues can hold all frames of a thread, each waiting for a segment for which no
//! frame is left. Then nothing would ever move again, and a few hostile peers can cause this. So
//! when few frames are left, payload that the application cannot read yet is dropped as if it were
//! lost. So is payload of flows of which the application already holds many frames: it must not
//! keep the data of some flows to the harm of all others. When almost no frame is left, all payload
//! is dropped. Headers are always processed: acknowledgements, resets and windows need no frame,
//! and free some.
use crate::context::Context;
use crate::ports::Port;

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
    let in_devices: usize = ports.iter().map(|port| port.nic.frames_held().0).sum();
    let (left, reserve) = (spare + in_devices, cx.rx_pool.owned() / 8);
    match left {
        _ if left >= reserve => Pressure::None,
        _ if left >= reserve / 4 => Pressure::Low,
        _ => Pressure::Critical,
    }
}
