//! Updates of devices and commands of the control plane: the broker's messages, and the replies.
use crate::wall::{self, arrivals};
use ix_dataplane::{FromBroker, OrderMessage, Update, UpdateOutcome, UpdateSource};
use ix_entry::{Channel, ReservedFds};
use ix_proto::{Codec, FromImage, Outcome, ToImage};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

/// The channel to the broker, after the start.
pub struct ChannelUpdates {
    /// `None` after it broke: the dataplane continues with the devices that it has.
    channel: Option<Channel>,
    reserved: ReservedFds,
    /// The program was running before the dataplane started.
    later: bool,
    /// How often in a row calls of the program have prevented the reception of a message.
    refused: u32,
}

/// After more than this the program is ended, because it prevents reception. Each time its calls
/// are checked 100 times.
const REFUSED_MAX: u32 = 1000;

impl ChannelUpdates {
    /// Updates from this channel. Descriptors are moved to the dataplane's numbers.
    pub fn new(channel: Channel, reserved: ReservedFds, later: bool) -> ChannelUpdates {
        ChannelUpdates { channel: Some(channel), reserved, later, refused: 0 }
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
            arrivals::alone(|| {
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

    fn say(&self, message: &FromImage) {
        // If the broker is gone or does not listen, the dataplane continues to serve.
        if let Some(channel) = &self.channel {
            let _ = channel.try_send(&message.encode(), &[]);
        }
    }
}

impl UpdateSource for ChannelUpdates {
    fn fd(&self) -> RawFd {
        self.channel.as_ref().map_or(ix_nic::NEVER_RINGS, |channel| channel.as_fd().as_raw_fd())
    }

    fn next(&mut self) -> Option<FromBroker> {
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

    fn say(&mut self, message: &FromImage) {
        ChannelUpdates::say(self, message);
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
