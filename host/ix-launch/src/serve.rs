//! The broker's part while the image boots.
use crate::exit::Exit;
use crate::launch::{Child, Occurrence};
use ix_proto::{Codec, FromImage, ToImage};
use std::io;
use std::os::fd::BorrowedFd;

/// Why the dataplane did not come up.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The image says why.
    #[error("{0}")]
    Refused(String),
    /// The process ended without a word.
    #[error("the dataplane ended while it started ({0}); this is a fault of ix")]
    Died(Exit),
    /// The image spoke out of turn, or left.
    #[error("the dataplane and the ix command do not understand each other; build ix again")]
    Protocol,
    /// The channel broke.
    #[error("the channel to the dataplane broke: {0}")]
    System(#[from] io::Error),
}

/// Waits until the image asks, and answers as [`equip`] does.
pub fn serve(
    child: &mut Child,
    config: &str,
    fds: &[BorrowedFd<'_>],
    attached: &mut dyn FnMut(usize, usize) -> Result<(), String>,
) -> Result<(), ServeError> {
    match next_message(child)? {
        FromImage::Hello { .. } => equip(child, config, fds, attached),
        FromImage::Failed(why) => refused(child, why),
        _ => Err(ServeError::Protocol),
    }
}

/// The image has said hello: gives it its configuration (`key=value` lines) and descriptors (an empty
/// memfd for the control page; packet memory if a device shares its frames with a peer; then the
/// queues of each `nic=` line, one for each elastic thread), calls `attached(device, queue)` after each
/// queue — that is the time for what needs privilege — and returns when the dataplane stands.
pub fn equip(
    child: &mut Child,
    config: &str,
    fds: &[BorrowedFd<'_>],
    attached: &mut dyn FnMut(usize, usize) -> Result<(), String>,
) -> Result<(), ServeError> {
    let answer = |child: &Child, answer: ToImage, fds: &[BorrowedFd<'_>]| {
        let channel = child.channel().ok_or(ServeError::Protocol)?;
        channel.send(&answer.encode(), fds).map_err(ServeError::from)
    };
    answer(child, ToImage::Config(config.to_owned()), fds)?;
    loop {
        match next_message(child)? {
            FromImage::Attached { device, queue } => {
                let done = attached(device, queue).map_or_else(ToImage::Refused, |()| ToImage::Ok);
                answer(child, done, &[])?;
            }
            FromImage::Ready => return Ok(()),
            FromImage::Failed(why) => return refused(child, why),
            // Said by the dataplane of a process that has ended since, if there was one.
            FromImage::Taken { .. }
            | FromImage::Updated { .. }
            | FromImage::UpdateFailed { .. }
            | FromImage::Outcome { .. }
            | FromImage::Surveyed { .. }
            | FromImage::Survivor { .. } => {}
            FromImage::Hello { .. } => return Err(ServeError::Protocol),
        }
    }
}

fn next_message(child: &mut Child) -> Result<FromImage, ServeError> {
    loop {
        match child.next(&[], -1)? {
            Occurrence::Said(message) => return Ok(message),
            Occurrence::Exited(exit) => return Err(ServeError::Died(exit)),
            Occurrence::Left => return Err(ServeError::Died(child.wait()?)),
            Occurrence::Readable(_) | Occurrence::Nothing => {}
        }
    }
}

/// The image ends its process after these words, unless the program runs in it already.
fn refused(child: &mut Child, why: String) -> Result<(), ServeError> {
    if !child.begins_later() {
        child.wait()?;
    }
    Err(ServeError::Refused(why))
}
