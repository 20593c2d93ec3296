//! Captures: what the dataplane really sees and sends, for `ix pcap`.
//!
//! Off, a capture costs one look a batch. On, each elastic thread writes the packets that a filter
//! takes into a ring of its own in shared memory, after it has handled them: so it can say which
//! were dropped, and why.
mod filter;
mod memory;
mod ring;
mod sniffer;
mod subject;
#[cfg(test)]
mod tests;

pub use filter::{Filter, FilterError};
pub use memory::{CaptureError, CaptureMemory, RING_BYTES};
pub use ring::{Captured, Mark, RingReader, RingWriter, SNAPLEN_MAX};
pub(crate) use sniffer::{Sniffer, Staged};
pub use subject::{Protocol, Subject};

use crate::commands::Outcome;
use crate::observe::metrics::LocalDrop;
use ix_wire::DropReason;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

/// Names of the reasons why packets are dropped, by [`Mark::dropped`].
pub fn drop_names() -> impl Iterator<Item = &'static str> {
    let local = LocalDrop::ALL.iter().map(|reason| reason.name());
    DropReason::ALL.iter().map(|reason| reason.name()).chain(local)
}

/// A wish to begin or end a capture, as it came from the broker.
#[derive(Debug)]
pub struct CaptureMessage {
    /// Its number.
    pub serial: u64,
    /// For [`CaptureCommand::parse`].
    pub line: String,
    /// The memory to write to.
    pub fds: Vec<OwnedFd>,
}

/// A wish to begin or end a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CaptureCommand {
    /// Packets that the filter takes, the first bytes of each. The memory comes with it.
    Start {
        /// Bytes of a packet, at most.
        snaplen: u32,
        /// Which.
        filter: String,
    },
    /// No more.
    Stop,
}

impl core::fmt::Display for CaptureCommand {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            CaptureCommand::Start { snaplen, filter } => {
                write!(f, "capture start {snaplen} {filter}")
            }
            CaptureCommand::Stop => f.write_str("capture stop"),
        }
    }
}

impl CaptureCommand {
    /// From text; `None` when it is not one of these.
    pub fn parse(text: &str) -> Option<CaptureCommand> {
        let rest = text.strip_prefix("capture ")?;
        if rest == "stop" {
            return Some(CaptureCommand::Stop);
        }
        let (snaplen, filter) = rest.strip_prefix("start ")?.split_once(' ')?;
        let snaplen = snaplen.parse().ok().filter(|n| (1..=SNAPLEN_MAX).contains(n))?;
        Some(CaptureCommand::Start { snaplen, filter: filter.to_owned() })
    }
}

/// The capture that all elastic threads shall write, if any.
#[derive(Default)]
pub struct Captures(Mutex<Option<Arc<Wanted>>>);

/// What the threads shall capture.
struct Wanted {
    memory: Arc<CaptureMemory>,
    filter: Filter,
    snaplen: u32,
}

impl Captures {
    /// Does as it is told; the threads must be told to look.
    pub(crate) fn obey(&self, message: CaptureMessage, threads: usize) -> Outcome {
        let refused = |why: String| Outcome::Refused(why);
        let wanted = match CaptureCommand::parse(&message.line) {
            None => return refused(format!("`{}` is no capture", message.line)),
            Some(CaptureCommand::Stop) => None,
            Some(CaptureCommand::Start { snaplen, filter }) => {
                let Some(fd) = message.fds.first() else {
                    return refused("the memory of the capture did not come".to_owned());
                };
                let memory = match CaptureMemory::create(fd.as_fd(), threads) {
                    Ok(memory) => Arc::new(memory),
                    Err(e) => return refused(e.to_string()),
                };
                if u64::from(snaplen) * 4 > memory.ring_bytes() {
                    return refused(format!("a ring has no room for packets of {snaplen} bytes"));
                }
                match filter.parse() {
                    Ok(filter) => Some(Arc::new(Wanted { memory, filter, snaplen })),
                    Err(e) => return refused(format!("filter: {e}")),
                }
            }
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = wanted;
        Outcome::Done
    }

    fn wanted(&self) -> Option<Arc<Wanted>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
