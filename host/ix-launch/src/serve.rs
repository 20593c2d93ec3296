//! The broker's part while the image boots.
use crate::exit::Exit;
use crate::launch::{Child, Occurrence};
use ix_entry::Channel;
use ix_proto::{Codec, FromImage, Start, ToImage};
use std::io;
use std::os::fd::BorrowedFd;

/// Why the dataplane did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The image's reason.
    #[error("{0}")]
    Refused(String),
    /// The process ended without a message.
    #[error("the dataplane ended while it started ({0}); this is a fault of ix")]
    Died(Exit),
    /// The image sent an unexpected message, or left.
    #[error("the dataplane and the ix command do not understand each other; build ix again")]
    Protocol,
    /// The channel failed.
    #[error("the channel to the dataplane broke: {0}")]
    System(#[from] io::Error),
}

/// Whom the broker talks to while a dataplane begins.
pub trait Conversation {
    /// The channel; `None` once the image has ended.
    fn channel(&self) -> Option<&Channel>;

    /// Waits for the next message.
    fn next_message(&mut self) -> Result<FromImage, ServeError>;

    /// The image has said that it cannot start: waits for its process, if that ends then.
    fn refused(&mut self) -> Result<(), ServeError>;
}

/// Waits for the image's request, and replies as [`equip`] does.
pub fn serve(
    image: &mut dyn Conversation,
    start: Start,
    fds: &[BorrowedFd<'_>],
    attached: &mut dyn FnMut(usize, usize) -> Result<(), String>,
) -> Result<(), ServeError> {
    match image.next_message()? {
        FromImage::Hello { .. } => equip(image, start, fds, attached),
        FromImage::Failed { why, .. } => refused(image, why),
        _ => Err(ServeError::Protocol),
    }
}

/// After the image's hello: sends it its configuration and the descriptors that [`Start`] names,
/// calls `attached(device, queue)` after each queue (the time for actions that need privilege), and
/// returns when the dataplane has started.
pub fn equip(
    image: &mut dyn Conversation,
    start: Start,
    fds: &[BorrowedFd<'_>],
    attached: &mut dyn FnMut(usize, usize) -> Result<(), String>,
) -> Result<(), ServeError> {
    let answer = |image: &dyn Conversation, answer: ToImage, fds: &[BorrowedFd<'_>]| {
        let channel = image.channel().ok_or(ServeError::Protocol)?;
        channel.send(&answer.encode(), fds).map_err(ServeError::from)
    };
    answer(image, ToImage::Start(Box::new(start)), fds)?;
    loop {
        match image.next_message()? {
            FromImage::Attached { device, queue } => {
                let done = attached(device, queue).map_or_else(ToImage::Refused, |()| ToImage::Ok);
                answer(image, done, &[])?;
            }
            FromImage::Ready => return Ok(()),
            FromImage::Failed { why, .. } => return refused(image, why),
            // A message of the dataplane of a process that has ended since.
            FromImage::Taken { .. }
            | FromImage::Updated { .. }
            | FromImage::UpdateFailed { .. }
            | FromImage::Outcome { .. }
            | FromImage::Surveyed { .. }
            | FromImage::Joined { .. }
            | FromImage::NotJoined { .. }
            | FromImage::Parted { .. }
            | FromImage::Claim(_)
            | FromImage::WantPorts { .. }
            | FromImage::ReturnPorts { .. }
            | FromImage::Release(_)
            | FromImage::Resolve { .. }
            | FromImage::Groups { .. }
            | FromImage::Survivor { .. } => {}
            FromImage::Hello { .. } => return Err(ServeError::Protocol),
        }
    }
}

fn refused(image: &mut dyn Conversation, why: String) -> Result<(), ServeError> {
    image.refused()?;
    Err(ServeError::Refused(why))
}

impl Conversation for Child {
    fn channel(&self) -> Option<&Channel> {
        Child::channel(self)
    }

    fn next_message(&mut self) -> Result<FromImage, ServeError> {
        loop {
            match self.next(&[], -1)? {
                Occurrence::Said(message, _) => return Ok(message),
                Occurrence::Exited(exit) => return Err(ServeError::Died(exit)),
                Occurrence::Left => return Err(ServeError::Died(self.wait()?)),
                Occurrence::Nonsense => return Err(ServeError::Protocol),
                Occurrence::Readable(_) | Occurrence::Nothing => {}
            }
        }
    }

    /// The image ends its process, unless the program already runs in it.
    fn refused(&mut self) -> Result<(), ServeError> {
        if !self.begins_later() {
            self.wait()?;
        }
        Ok(())
    }
}
