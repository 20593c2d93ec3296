//! Why a queue cannot be attached: each message says in one line what, why, and what to do.
use crate::NicKind;
use crate::memif::PlanError;
use std::fmt;
use std::io;

/// Why a queue cannot be attached.
#[derive(Debug)]
#[allow(missing_docs)] // The messages say what each field is.
pub enum AttachError {
    /// Devices of this kind are not attached by descriptor.
    Kind { kind: NicKind },
    /// The process may not lock its packet memory.
    Memlock { name: String, bytes: usize },
    /// The interface is switched off.
    Down { name: String },
    /// Another program has an AF_XDP socket on the queue.
    Busy { name: String, queue: usize },
    /// Every mode of binding was refused, for these reasons; of one mode, if the user asked for it.
    Refused { name: String, queue: usize, mode: Option<&'static str>, answers: String },
    /// The driver does not take frames of several buffers, which packets of this length need.
    LongFrames {
        name: String,
        mtu: usize,
        largest: usize,
        mode: Option<&'static str>,
        answers: String,
    },
    /// A queue pair came with another number of sockets than it has.
    Sockets { name: String, pair: usize, sockets: usize, expected: usize },
    /// A change of the device that is not possible.
    Update { name: String, source: UpdateError },
    /// Any other error of a system call.
    System { action: &'static str, name: String, source: io::Error },
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use AttachError::*;
        match self {
            Kind { kind } => write!(f, "a device of kind {kind} cannot be attached by descriptor"),
            Memlock { name, bytes } => {
                write!(
                    f,
                    "cannot lock {bytes} bytes of packet memory for `{name}`: over the limit; raise the "
                )?;
                write!(f, "limit with `ulimit -l unlimited` or lower the number of buffers")
            }
            Down { name } => write!(f, "`{name}` is down; `ip link set {name} up`"),
            Busy { name, queue } => {
                write!(
                    f,
                    "queue {queue} of `{name}` is used by an AF_XDP socket of another program; "
                )?;
                write!(f, "stop it")
            }
            Refused { name, queue, mode, answers } => {
                write!(f, "queue {queue} of `{name}` refuses AF_XDP ({answers}); ")?;
                match mode {
                    Some(mode) => write!(f, "leave mode={mode} out"),
                    None => f.write_str("use tap"),
                }
            }
            LongFrames { name, mtu, largest, mode, answers } => {
                let why = if answers.is_empty() { String::new() } else { format!(" ({answers})") };
                write!(
                    f,
                    "the driver of `{name}` has no AF_XDP for frames of its MTU, {mtu}{why}; "
                )?;
                // Another mode may take them.
                if let Some(mode) = mode {
                    write!(f, "leave mode={mode} out, ")?;
                }
                write!(f, "`ip link set {name} mtu {largest}`, or use tap")
            }
            Sockets { name, pair, sockets, expected } => {
                write!(f, "queue pair {pair} of `{name}` has {sockets} sockets, not {expected}")
            }
            Update { name, source } => write!(f, "cannot update `{name}`: {source}"),
            System { action, name, source } => write!(f, "cannot {action} `{name}`: {source}"),
        }
    }
}

impl std::error::Error for AttachError {}

/// Why a change from the broker cannot be applied to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateError {
    /// Devices of this kind do not change.
    Kind,
    /// The change has another number of queues than the device.
    Queues,
    /// Packet memory is larger than the offsets of memif can express.
    Memory,
    /// The plan of a memif's link is invalid.
    Plan(PlanError),
}

impl fmt::Display for UpdateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UpdateError::Kind => f.write_str("devices of this kind do not change"),
            UpdateError::Queues => f.write_str("the number of queues differs"),
            UpdateError::Memory => {
                f.write_str("packet memory is larger than memif's maximum of 4 GB")
            }
            UpdateError::Plan(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for UpdateError {}
