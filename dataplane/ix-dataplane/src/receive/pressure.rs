//! What is given up when receive frames run short.
//!
//! Out-of-order queues can hold every frame of a thread, each waiting for a segment that no frame
//! is left to receive: nothing would ever move again, and a few hostile peers can bring it about.
//! So when few frames are left, payload that no application can have yet is dropped as if lost, and
//! so is that of flows of which the application holds many frames already: it must not keep what it
//! gets from some to the harm of all others. When almost none is left, all payload is. Headers are
//! always handled: acknowledgements, resets and windows need no frame, and free some.
use crate::context::Context;
use crate::ports::Port;

/// Buffers that an application may hold of one flow and get more while frames are short.
pub(crate) const HELD_UNDER_PRESSURE: u16 = 16;

/// How short receive frames are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pressure {
    /// Not at all.
    #[default]
    None,
    /// Payload only in order, and only to who holds little ([`HELD_UNDER_PRESSURE`]).
    Low,
    /// No payload.
    Critical,
}

/// How short frames are while `polled` of those that this thread has are in the batch at hand.
#[inline]
pub(crate) fn rx_pressure(cx: &Context, ports: &[Port], polled: usize) -> Pressure {
    let spare = cx.rx_pool.free() + polled;
    let reserve = cx.rx_pool.owned() / 8;
    if spare >= reserve { Pressure::None } else { with_devices(cx, ports, spare) }
}

/// Frames that devices hold to receive into are as good as free.
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
