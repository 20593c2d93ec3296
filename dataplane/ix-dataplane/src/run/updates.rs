//! An elastic thread reads the broker's messages, and applies what concerns its own queues.
use crate::broker::{FromBroker, Part, Update, UpdateOutcome};
use crate::io::Io;
use crate::observe::survey::{Survey, SurveyArea};
use crate::ports::refresh_table;
use ix_nic::Steering;
use ix_proto::Outcome;
use ix_proto::capture::CaptureOrder;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, TryLockError};

impl Io {
    /// Reads the waiting messages: distributes the parts of updates, begins commands. Does nothing
    /// if another thread is doing it.
    #[cold]
    pub(crate) fn read_updates(&mut self, now_us: u64) {
        let shared = self.cx.shared.clone();
        let mut source = match shared.updates.source.try_lock() {
            Ok(source) => source,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let Some(source) = source.as_mut() else { return };
        while let Some(message) = source.next() {
            let Update { device, serial, change, fds } = match message {
                FromBroker::Update(update) => update,
                FromBroker::Order(message) => {
                    let serial = message.serial;
                    if let Some(outcome) = self.begin_order(message, now_us) {
                        source.tell_outcome(serial, &outcome);
                    }
                    continue;
                }
                FromBroker::Claimed { port, refused } => {
                    shared.claims.heard(port, refused, now_us);
                    continue;
                }
                FromBroker::Outgoing(first, last) => {
                    if let Some(outgoing) = shared.claims.outgoing() {
                        outgoing.heard((first, last), now_us);
                    }
                    continue;
                }
                FromBroker::Neighbour { hop, mac } => {
                    shared.neighbors.heard_from_linux(hop, mac, now_us);
                    let others = (0..shared.threads()).filter(|i| *i != self.cx.index);
                    others.for_each(|i| self.cx.ring_thread(i));
                    continue;
                }
                FromBroker::Network { addresses, routes, more } => {
                    if shared.neighbors.network_of_linux(addresses, routes, more) {
                        let others = (0..shared.threads()).filter(|i| *i != self.cx.index);
                        others.for_each(|i| self.cx.ring_thread(i));
                    }
                    continue;
                }
                FromBroker::Survey { serial, until_us, memory } => {
                    // Without memory no result can be sent; the broker notices that by itself.
                    if let Ok(area) = SurveyArea::map(memory.as_fd()) {
                        let survey = Survey { serial, until_us, area: Arc::new(area) };
                        shared.updates.begin_survey(survey, shared.threads());
                        let others =
                            (0..shared.threads()).filter(|thread| *thread != self.cx.index);
                        others.for_each(|thread| self.cx.ring_thread(thread));
                    }
                    continue;
                }
            };
            let Some(port) = self.ports.get(device) else { continue };
            match ix_nic::read_update(&port.info, change, fds, &shared.memory) {
                Err(e) => {
                    let why = e.to_string();
                    source.tell(device, UpdateOutcome::Failed { serial, why });
                }
                Ok(parts) => {
                    for (thread, update) in parts.into_iter().enumerate().take(shared.threads()) {
                        shared.updates.put(thread, device, Part { serial, update });
                        if thread != self.cx.index {
                            self.cx.ring_thread(thread);
                        }
                    }
                }
            }
        }
        shared.updates.source_fd.store(source.fd(), Ordering::Relaxed);
    }

    /// Starts or ends a capture.
    pub(crate) fn change_capture(
        &mut self,
        order: CaptureOrder,
        memory: Option<OwnedFd>,
    ) -> Outcome {
        let shared = self.cx.shared.clone();
        let outcome = shared.captures.obey(order, memory, shared.threads());
        for thread in 0..shared.threads() {
            shared.updates.order_capture(thread);
            self.cx.ring_thread(thread);
        }
        outcome
    }

    /// Applies the updates that wait for this thread. To be called between two cycles.
    #[cold]
    pub(crate) fn take_updates(&mut self, now_us: u64) {
        let shared = self.cx.shared.clone();
        for (device, part) in shared.updates.take(self.cx.index).into_iter().enumerate() {
            let (Some(part), Some(port)) = (part, self.ports.get_mut(device)) else { continue };
            let (rx_pool, tx_pool) = (&mut self.cx.rx_pool, &mut self.cx.tx_pool);
            if let Err(e) = port.nic.update(part.update, &shared.memory, rx_pool, tx_pool) {
                let (serial, why) = (part.serial, e.to_string());
                shared.updates.tell(device, UpdateOutcome::Failed { serial, why });
                continue;
            }
            port.info = port.nic.info().clone();
            // The broker restores the table of a network card that is back.
            if !matches!(port.info.steering, Steering::Rss(_)) {
                port.reta = None;
            }
            refresh_table(&mut self.ports, device, &shared, self.cx.index);
            let (queue, serial) = (self.cx.index, part.serial);
            shared.updates.tell(device, UpdateOutcome::Updated { queue, serial });
        }
        let macs: Vec<_> = self.ports.iter().map(|port| port.info.mac).collect();
        shared.neighbors.links_changed(&macs, now_us);
    }
}
