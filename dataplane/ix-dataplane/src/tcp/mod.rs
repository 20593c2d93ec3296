//! TCP: segments in, connections, listeners, segments out. The state machine of a connection is
//! `ix-tcp`; here stands what it means to one elastic thread.
pub mod calls;
pub mod connections;
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

/// TCP of one elastic thread: what belongs to no single flow.
pub(crate) struct Tcp {
    pub listeners: Listeners,
    pub secrets: Secrets,
    /// As configured: fixed when the thread is made.
    pub config: ix_tcp::Config,
}

impl Tcp {
    /// No listeners yet.
    pub fn new(config: &Config, thread: usize) -> Tcp {
        let (listeners, secrets) = (Listeners::default(), Secrets::new(config, thread));
        Tcp { listeners, secrets, config: config.tcp.clone() }
    }
}

/// What TCP is given with a segment.
pub(crate) struct TcpContext<'a> {
    /// The outside.
    pub io: &'a mut Io,
    /// All flows of the thread.
    pub flows: &'a mut Flows,
    /// The batch that the segment is of.
    pub batch: &'a mut Batch,
}
