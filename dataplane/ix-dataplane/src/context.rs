//! What every part of an elastic thread gets: time, memory, event array, counters.
use crate::events::EventWriter;
use crate::observe::metrics::ThreadMetrics;
use crate::shared::Shared;
use ix_mem::{LentFrames, MbufList, Pool};
use ix_wire::FLOW_GROUPS;
use std::sync::Arc;

/// The context of one elastic thread.
pub struct Context {
    /// What all threads share.
    pub shared: Arc<Shared>,
    /// Number of this elastic thread.
    pub index: usize,
    /// Time of this cycle, µs.
    pub now_us: u64,
    /// Frames to receive into.
    pub rx_pool: Pool,
    /// Frames to build packets in.
    pub tx_pool: Pool,
    /// The event array.
    pub events: EventWriter,
    /// Counters and histograms.
    pub metrics: ThreadMetrics,
    /// Number of receive frames that the flows of each group hold. They move with their group.
    pub flow_frames: Box<[u32; FLOW_GROUPS]>,
    /// Buffers of flows that have ended, kept until the application has returned.
    pub graveyard: Vec<MbufList>,
    /// Received datagrams and frames of packet queues that the application holds.
    pub lent: LentFrames,
}

impl Context {
    /// The context of thread `index`, with its pools of receive and transmit frames.
    pub fn new(
        shared: Arc<Shared>,
        index: usize,
        (rx_pool, tx_pool): (Pool, Pool),
        events: EventWriter,
        metrics: ThreadMetrics,
    ) -> Context {
        Context {
            lent: LentFrames::new(&shared.memory),
            shared,
            index,
            now_us: 0,
            rx_pool,
            tx_pool,
            events,
            metrics,
            flow_frames: Box::new([0; FLOW_GROUPS]),
            graveyard: Vec::new(),
        }
    }

    /// To be called when the application has returned: buffers that it could still read are freed
    /// now.
    pub fn empty_graveyard(&mut self) {
        for mut held in self.graveyard.drain(..) {
            while let Some(mbuf) = held.pop(&self.shared.memory) {
                self.rx_pool.put(mbuf);
            }
        }
    }

    /// Most frames outside of flows that the application may hold.
    pub fn lent_max(&self) -> usize {
        self.rx_pool.owned() / 2
    }

    /// Wakes another elastic thread if it sleeps.
    pub fn ring_thread(&self, index: usize) {
        self.shared.ring_thread(index);
    }
}
