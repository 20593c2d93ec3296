//! Captures: the packets that the dataplane receives and sends, for `ix pcap`.
//!
//! While no capture runs, this costs one test per batch. During a capture, each elastic thread
//! writes the packets that the filter matches into a ring of its own in shared memory. It does so
//! after it has processed them, so that it can say which were dropped, and why.
mod memory;
mod ring;
mod sniffer;
mod subject;
#[cfg(test)]
mod tests;

pub use memory::{CaptureError, CaptureMemory};
pub use ring::{Captured, Mark, RingReader, RingWriter};
pub(crate) use sniffer::{Sniffer, Staged};
pub use subject::Subject;

use crate::observe::metrics::LocalDrop;
use ix_proto::Outcome;
use ix_proto::capture::{CaptureOrder, Filter};
use ix_wire::DropReason;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

/// Names of the reasons why packets are dropped, by [`Mark::dropped`].
pub fn drop_names() -> impl Iterator<Item = &'static str> {
    let local = LocalDrop::ALL.iter().map(|reason| reason.name());
    DropReason::ALL.iter().map(|reason| reason.name()).chain(local)
}

/// The capture that all elastic threads must write, if any.
#[derive(Default)]
pub struct Captures(Mutex<Option<Arc<Wanted>>>);

/// What the threads must capture.
struct Wanted {
    memory: Arc<CaptureMemory>,
    filter: Filter,
    snaplen: u32,
}

impl Captures {
    /// Starts or ends a capture; the caller must make the threads look. `memory`: where a new
    /// capture is written.
    pub(crate) fn obey(
        &self,
        order: CaptureOrder,
        memory: Option<OwnedFd>,
        threads: usize,
    ) -> Outcome {
        let refused = |why: String| Outcome::Refused(why);
        let wanted = match order {
            CaptureOrder::Stop => None,
            CaptureOrder::Start { snaplen, filter } => {
                let Some(fd) = memory else {
                    return refused("the memory of the capture is missing".to_owned());
                };
                let memory = match CaptureMemory::create(fd.as_fd(), threads) {
                    Ok(memory) => Arc::new(memory),
                    Err(e) => return refused(e.to_string()),
                };
                if u64::from(snaplen) * 4 > memory.ring_bytes() {
                    return refused(format!("a ring has no room for packets of {snaplen} bytes"));
                }
                Some(Arc::new(Wanted { memory, filter, snaplen }))
            }
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = wanted;
        Outcome::Done
    }

    fn wanted(&self) -> Option<Arc<Wanted>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
