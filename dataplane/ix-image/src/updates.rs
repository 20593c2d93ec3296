//! Updates of devices and commands of the control plane: the broker's messages, and the replies.
use crate::wall::{self, arrivals};
use ix_dataplane::{FromBroker, OrderMessage, Update, UpdateOutcome, UpdateSource};
use ix_entry::{Channel, ReservedFds};
use ix_proto::{Codec, FromImage, Outcome, ToImage};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The channel to the broker, after the start.
pub struct ChannelUpdates {
    /// `None` after it broke: the dataplane continues with the devices that it has.
    channel: Option<Channel>,
    reserved: ReservedFds,
    /// The program was running before the dataplane started.
    later: bool,
    /// How often in a row calls of the program have prevented the reception of a message.
    refused: u32,
    /// What must not be lost and has no room in the channel yet, in order.
    waiting: VecDeque<Vec<u8>>,
    /// Set as long as something is there.
    unsent: Arc<AtomicBool>,
}

/// After more than this the program is ended, because it prevents reception. The last times its
/// calls are waited for a quarter of a second each ([`arrivals::alone`]).
pub const REFUSED_MAX: u32 = 56;
/// Most messages that wait for room: more than there are ports to be given back. A program makes
/// its dataplane say more than the broker reads.
const WAITING_MAX: usize = 1 << 17;

impl ChannelUpdates {
    /// Updates from this channel. Descriptors are moved to the dataplane's numbers.
    pub fn new(channel: Channel, reserved: ReservedFds, later: bool) -> ChannelUpdates {
        let (waiting, unsent) = Default::default();
        ChannelUpdates { channel: Some(channel), reserved, later, refused: 0, waiting, unsent }
    }

    /// The next message, with its descriptors moved out of the program's way, or without any of
    /// them
    /// where not all have room. `None` if no message waits, or if the program's calls prevent its
    /// reception: then it still waits.
    fn receive(&mut self) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
        let channel = self.channel.as_ref()?;
        let waits = libc::POLLIN | libc::POLLHUP;
        let mut poll = libc::pollfd { fd: channel.as_fd().as_raw_fd(), events: waits, revents: 0 };
        // SAFETY: one struct. The program's calls are held up for a message only.
        if unsafe { libc::poll(&mut poll, 1, 0) } == 0 {
            return None;
        }
        // A message without descriptors needs no protection.
        let received = if !channel.brings_descriptors() {
            Some(channel.try_receive())
        } else {
            arrivals::alone(self.refused, || {
                self.reserved.unfenced(|| {
                    let Some((text, fds)) = channel.try_receive()? else { return Ok(None) };
                    let place = |fd: OwnedFd| match self.reserved.copy(fd.as_fd()) {
                        // Those numbers belong to the program.
                        Err(_) if wall::is_raised() => {
                            Err(io::Error::from_raw_os_error(libc::EMSGSIZE))
                        }
                        // If there is no room any more they stay where they are, which is better
                        // than no device.
                        moved => Ok(moved.unwrap_or(fd)),
                    };
                    let placed = fds.into_iter().map(place).collect::<io::Result<_>>();
                    Ok(Some((text, placed.unwrap_or_default())))
                })
            })
        };
        let Some(received) = received else {
            self.refused += 1;
            if self.refused > REFUSED_MAX {
                wall::end_refusing();
            }
            return None;
        };
        self.refused = 0;
        match received {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => None,
            Ok(Some(message)) => Some(message),
            Ok(None) | Err(_) => {
                self.channel = None;
                self.end_with_the_broker();
                None
            }
        }
    }

    /// The process that the broker has started dies with the broker. If one of its children has the
    /// dataplane, this makes the child die too: nothing else would end it.
    fn end_with_the_broker(&self) {
        if self.later {
            wall::threads::end_at_once();
        }
    }

    /// Sends what waits for room.
    fn send_waiting(&mut self) {
        let Some(channel) = &self.channel else { return self.waiting.clear() };
        while let Some(message) = self.waiting.front() {
            match channel.try_send(message, &[]) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                // If the broker is gone the dataplane continues to serve.
                Ok(()) | Err(_) => drop(self.waiting.pop_front()),
            }
        }
        self.unsent.store(!self.waiting.is_empty(), Ordering::Relaxed);
    }

    /// Says something. False: there is no room for it, and it is lost.
    fn say(&mut self, message: &FromImage) -> bool {
        self.send_waiting();
        let Some(channel) = &self.channel else { return true };
        // In order: a port is given back before it is claimed again.
        let is_full = match self.waiting.is_empty() {
            true => {
                let sent = channel.try_send(&message.encode(), &[]);
                sent.is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock)
            }
            false => true,
        };
        let waits = is_full && must_arrive(message) && self.waiting.len() < WAITING_MAX;
        if waits {
            self.waiting.push_back(message.encode());
            self.unsent.store(true, Ordering::Relaxed);
        }
        waits || !is_full
    }
}

/// Whether nobody would say it again.
fn must_arrive(message: &FromImage) -> bool {
    let is_said_again = matches!(
        message,
        FromImage::Claim(_)
            | FromImage::WantPorts { .. }
            | FromImage::Resolve { .. }
            | FromImage::Groups { .. }
    );
    !is_said_again
}

impl UpdateSource for ChannelUpdates {
    fn fd(&self) -> RawFd {
        self.channel.as_ref().map_or(ix_nic::NEVER_RINGS, |channel| channel.as_fd().as_raw_fd())
    }

    fn next(&mut self) -> Option<FromBroker> {
        self.send_waiting();
        loop {
            // A change without its descriptors is refused by the device, which tells the broker.
            let (bytes, fds) = self.receive()?;
            match ToImage::decode(&bytes) {
                Ok(ToImage::Update { device, serial, change }) => {
                    self.say(&FromImage::Taken { device, serial });
                    crate::survivor::renew();
                    return Some(FromBroker::Update(Update { device, serial, change, fds }));
                }
                Ok(ToImage::Order { serial, until_us, order }) => {
                    let memory = fds.into_iter().next();
                    let message = OrderMessage { serial, until_us, order, memory };
                    return Some(FromBroker::Order(message));
                }
                Ok(ToImage::Survey { serial, until_us }) => {
                    if let Some(memory) = fds.into_iter().next() {
                        return Some(FromBroker::Survey { serial, until_us, memory });
                    }
                }
                Ok(ToImage::Claimed { port, refused }) => {
                    return Some(FromBroker::Claimed { port, refused });
                }
                Ok(ToImage::Outgoing { first, last }) => {
                    return Some(FromBroker::Outgoing(first, last));
                }
                Ok(ToImage::Neighbour { hop, mac }) => {
                    return Some(FromBroker::Neighbour { hop, mac });
                }
                Ok(ToImage::Network { addresses, routes, more }) => {
                    return Some(FromBroker::Network { addresses, routes, more });
                }
                Ok(ToImage::SurvivorEnded { pid }) => crate::survivor::replace(pid),
                // No other message is sent to a running dataplane.
                _ => {}
            }
        }
    }

    fn say(&mut self, message: &FromImage) -> bool {
        ChannelUpdates::say(self, message)
    }

    fn use_flag(&mut self, unsent: Arc<AtomicBool>) {
        self.unsent = unsent;
    }

    fn tell(&mut self, device: usize, outcome: UpdateOutcome) {
        self.say(&match outcome {
            UpdateOutcome::Updated { queue, serial } => {
                FromImage::Updated { device, queue, serial }
            }
            UpdateOutcome::Failed { serial, why } => {
                FromImage::UpdateFailed { device, serial, why }
            }
        });
    }

    fn tell_outcome(&mut self, serial: u64, outcome: &Outcome) {
        self.say(&FromImage::Outcome { serial, outcome: outcome.clone() });
    }

    fn tell_surveyed(&mut self, serial: u64) {
        self.say(&FromImage::Surveyed { serial });
    }
}
