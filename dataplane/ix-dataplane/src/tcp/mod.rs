//! TCP: received segments, connections, listeners, sent segments. `ix-tcp` is the state machine of
//! one connection; this module connects it to one elastic thread.
pub mod calls;
pub mod connections;
mod give;
pub mod inbound;
pub mod listeners;
pub mod output;
pub mod secrets;

use crate::config::Config;
use crate::flows::Flows;
use crate::io::Io;
use crate::receive::batch::Batch;
use ix_tcp::ports::Looks;
use listeners::Listeners;
use secrets::Secrets;

/// The state of TCP in one elastic thread that belongs to no single flow.
pub(crate) struct Tcp {
    pub listeners: Listeners,
    pub secrets: Secrets,
    /// What searches for free ports may still cost in this batch of calls, those for UDP included.
    pub looks: Looks,
    /// What they may cost in each.
    looks_of_batch: Looks,
    /// The flow that the last `CONNECT` of this batch has opened.
    opened_last: Option<u64>,
    /// As configured when the thread was made, but for the MSS, which follows the devices, and
    /// the share of each flow, which follows the number of flows and the frames that are left.
    pub config: ix_tcp::Config,
}

/// Ports that the calls of a batch may look at for each elastic thread, because most are another
/// one's. All ports, once; or 32 for each call of a full batch.
const LOOKS_MAX: u32 = 1 << 16;
/// Those that each call may look at.
const LOOKS_LEAST: u32 = 32;

impl Tcp {
    /// No listeners yet.
    pub fn new(config: &Config, thread: usize) -> Tcp {
        let (listeners, secrets) = (Listeners::default(), Secrets::new(config, thread));
        let threads = u32::try_from(config.cpus.len()).unwrap_or(1).max(1);
        let looks = Looks::new(LOOKS_MAX.saturating_mul(threads), LOOKS_LEAST * threads);
        let config = config.tcp.clone();
        Tcp { listeners, secrets, looks, looks_of_batch: looks, opened_last: None, config }
    }

    /// A batch of calls begins.
    pub fn begin_batch(&mut self) {
        self.looks = self.looks_of_batch;
        self.opened_last = None;
    }
}

/// What TCP gets with a segment.
pub(crate) struct TcpContext<'a> {
    /// The outside.
    pub io: &'a mut Io,
    /// All flows of the thread.
    pub flows: &'a mut Flows,
    /// The batch that contains the segment.
    pub batch: &'a mut Batch,
}
