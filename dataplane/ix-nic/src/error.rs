//! Why a queue cannot be attached: each message says in one line what, why, and what to do.
use std::fmt;
use std::io;

/// Why a queue cannot be attached.
#[derive(Debug)]
#[allow(missing_docs)] // The messages say what each field is.
pub enum AttachError {
    /// The description is of a kind that is not attached by descriptor.
    Kind { kind: &'static str },
    /// Packet memory may not be locked.
    Memlock { name: String, bytes: usize },
    /// The interface is switched off.
    Down { name: String },
    /// Somebody else has the queue's AF_XDP socket.
    Busy { name: String, queue: usize },
    /// No way to bind is accepted; the text says what each answered.
    Refused { name: String, queue: usize, answers: String },
    /// An update that says nothing.
    Update { name: String, source: crate::LineError },
    /// Another error of the system.
    System { action: &'static str, name: String, source: io::Error },
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use AttachError::*;
        match self {
            Kind { kind } => write!(f, "a device of kind {kind} has no descriptor"),
            Memlock { name, bytes } => {
                write!(f, "may not lock {bytes} bytes of packet memory for `{name}`; raise the ")?;
                write!(f, "limit with `ulimit -l unlimited` or give fewer buffers")
            }
            Down { name } => write!(f, "`{name}` is down; `ip link set {name} up`"),
            Busy { name, queue } => {
                write!(f, "queue {queue} of `{name}` has an AF_XDP socket of another program; ")?;
                write!(f, "stop it")
            }
            Refused { name, queue, answers } => {
                write!(f, "queue {queue} of `{name}` refuses AF_XDP ({answers}); use tap")
            }
            Update { name, source } => write!(f, "update of `{name}` is unreadable: {source}"),
            System { action, name, source } => write!(f, "cannot {action} `{name}`: {source}"),
        }
    }
}

impl std::error::Error for AttachError {}
