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
use listeners::Listeners;
use secrets::Secrets;

/// The state of TCP in one elastic thread that belongs to no single flow.
pub(crate) struct Tcp {
    pub listeners: Listeners,
    pub secrets: Secrets,
    /// As configured when the thread was made.
    pub config: ix_tcp::Config,
}

impl Tcp {
    /// No listeners yet.
    pub fn new(config: &Config, thread: usize) -> Tcp {
        let (listeners, secrets) = (Listeners::default(), Secrets::new(config, thread));
        Tcp { listeners, secrets, config: config.tcp.clone() }
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
