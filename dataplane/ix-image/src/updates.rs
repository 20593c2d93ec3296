//! Devices that change and commands of the control plane: the broker's word of it, and our answers.
use crate::wall::{self, arrivals};
use ix_dataplane::{FromBroker, OrderMessage, Update, UpdateOutcome, UpdateSource};
use ix_launch::{Channel, ReservedFds};
use ix_proto::{Codec, FromImage, Outcome, ToImage};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

/// The channel to the broker, after the start.
pub struct ChannelUpdates {
    /// `None` once it broke: the dataplane goes on with the devices it has.
    channel: Option<Channel>,
    reserved: ReservedFds,
    /// The program had begun before the dataplane.
    later: bool,
    /// How often in a row the program's calls were in the way of a message.
    refused: u32,
}

/// More would be a program that does not want to hear: it is ended. Each takes 100 looks at its calls.
const REFUSED_MAX: u32 = 1000;

impl ChannelUpdates {
    /// Of this channel; descriptors go where the dataplane's are.
    pub fn new(channel: Channel, reserved: ReservedFds, later: bool) -> ChannelUpdates {
        ChannelUpdates { channel: Some(channel), reserved, later, refused: 0 }
    }

    /// The next message, its descriptors out of the program's way; `None` when nothing waits, or the
    /// program's calls are in the way: then it still waits.
    fn receive(&mut self) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
        let Some(channel) = &self.channel else { return Ok(None) };
        let waits = libc::POLLIN | libc::POLLHUP;
        let mut poll = libc::pollfd { fd: channel.as_fd().as_raw_fd(), events: waits, revents: 0 };
        // SAFETY: one struct. The program's calls are held up for a message only.
        if unsafe { libc::poll(&mut poll, 1, 0) } == 0 {
            return Ok(None);
        }
        // Text needs no fence.
        let received = if !channel.brings_descriptors() {
            Some(channel.try_receive())
        } else {
            arrivals::alone(|| {
                self.reserved.unfenced(|| {
                    let Some((text, fds)) = channel.try_receive()? else { return Ok(None) };
                    let place = |fd: OwnedFd| match self.reserved.copy(fd.as_fd()) {
                        // There they are the program's.
                        Err(_) if wall::is_raised() => {
                            Err(io::Error::from_raw_os_error(libc::EMSGSIZE))
                        }
                        // Where there is no room any more they stay where they are: better than no
                        // device.
                        moved => Ok(moved.unwrap_or(fd)),
                    };
                    Ok(Some((text, fds.into_iter().map(place).collect::<io::Result<_>>()?)))
                })
            })
        };
        let Some(received) = received else {
            self.refused += 1;
            if self.refused > REFUSED_MAX {
                wall::end_refusing();
            }
            return Ok(None);
        };
        self.refused = 0;
        match received {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) if e.raw_os_error() == Some(libc::EMSGSIZE) => Err(e),
            Ok(Some(message)) => Ok(Some(message)),
            Ok(None) | Err(_) => {
                self.channel = None;
                self.end_with_the_broker();
                Ok(None)
            }
        }
    }

    /// The process that the broker has started dies with it. One of its children that has the dataplane
    /// does here: nobody would be left to end it.
    fn end_with_the_broker(&self) {
        if self.later {
            wall::threads::end_at_once();
        }
    }

    fn say(&self, message: &FromImage) {
        // A broker that is gone or does not listen is no reason to stop serving.
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
            let (bytes, fds) = match self.receive() {
                Ok(message) => message?,
                // It came without all its descriptors. The broker gets no answer and says so.
                Err(_) => continue,
            };
            match ToImage::decode(&bytes) {
                Ok(ToImage::Update { device, serial, line }) => {
                    self.say(&FromImage::Taken { device, serial });
                    crate::survivor::renew();
                    return Some(FromBroker::Update(Update { device, serial, line, fds }));
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
                Ok(ToImage::SurvivorEnded { pid }) => crate::survivor::replace(pid),
                // Nothing else is said to a running dataplane.
                _ => {}
            }
        }
    }

    fn tell(&mut self, device: usize, outcome: UpdateOutcome) {
        self.say(&match outcome {
            UpdateOutcome::Updated { queue, serial } => {
                FromImage::Updated { device, queue, serial }
            }
            UpdateOutcome::Failed(why) => FromImage::UpdateFailed { device, why },
        });
    }

    fn tell_outcome(&mut self, serial: u64, outcome: &Outcome) {
        self.say(&FromImage::Outcome { serial, outcome: outcome.clone() });
    }

    fn tell_surveyed(&mut self, serial: u64) {
        self.say(&FromImage::Surveyed { serial });
    }
}
