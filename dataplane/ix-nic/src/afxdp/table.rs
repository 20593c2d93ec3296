//! The redirection table of a network card, as the dataplane changes it.
//!
//! Writing it needs CAP_NET_ADMIN, which the dataplane does not have. [`AskedTable`] is the
//! dataplane's end of a socket on which it requests changes entry by entry ([`TableRequest`]). The
//! broker writes them and reports how many are done ([`TableAnswer`]).
use crate::SetReta;
use ix_wire::FLOW_GROUPS;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// After this time, packets that were steered by the old table are in the old queue's ring: the
/// interrupt that puts them there may be late.
const IN_RINGS: Duration = Duration::from_millis(1);

/// A request of the dataplane: steer this flow group to this queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableRequest {
    /// The flow group.
    pub flow_group: u32,
    /// The queue that its packets go to from now on.
    pub queue: u32,
}

impl TableRequest {
    /// Bytes of a request.
    pub const BYTES: usize = 8;

    /// The request as a message.
    pub fn to_bytes(self) -> [u8; TableRequest::BYTES] {
        let mut bytes = [0; TableRequest::BYTES];
        bytes[..4].copy_from_slice(&self.flow_group.to_ne_bytes());
        bytes[4..].copy_from_slice(&self.queue.to_ne_bytes());
        bytes
    }

    /// Reads a message; `None` where its length is wrong.
    pub fn from_bytes(bytes: &[u8]) -> Option<TableRequest> {
        let bytes: &[u8; TableRequest::BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|i| bytes[at + i]));
        Some(TableRequest { flow_group: word(0), queue: word(4) })
    }
}

/// The broker's progress with the dataplane's requests since the socket was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableAnswer {
    /// Number of requests that are done, with those that were refused.
    pub done: u64,
    /// Number of requests that were refused.
    pub refused: u64,
}

impl TableAnswer {
    /// Bytes of a report.
    pub const BYTES: usize = 16;

    /// The report as a message.
    pub fn to_bytes(self) -> [u8; TableAnswer::BYTES] {
        let mut bytes = [0; TableAnswer::BYTES];
        bytes[..8].copy_from_slice(&self.done.to_ne_bytes());
        bytes[8..].copy_from_slice(&self.refused.to_ne_bytes());
        bytes
    }

    /// Reads a message; `None` where its length is wrong.
    pub fn from_bytes(bytes: &[u8]) -> Option<TableAnswer> {
        let bytes: &[u8; TableAnswer::BYTES] = bytes.try_into().ok()?;
        let word = |at: usize| u64::from_ne_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i| bytes[at + i]));
        Some(TableAnswer { done: word(0), refused: word(8) })
    }
}

/// The dataplane's end. It takes a lock and makes system calls: only migrations use it.
pub(crate) struct AskedTable {
    queues: usize,
    asked: Mutex<Asked>,
}

struct Asked {
    socket: UnixDatagram,
    asked: u64,
    done: u64,
    /// Time of the last report.
    answered: Option<Instant>,
}

impl AskedTable {
    pub(crate) fn new(fd: OwnedFd, queues: usize) -> AskedTable {
        let asked = Asked { socket: fd.into(), asked: 0, done: 0, answered: None };
        AskedTable { queues, asked: Mutex::new(asked) }
    }

    fn lock(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SetReta for AskedTable {
    fn set(&self, flow_group: usize, queue: usize) -> io::Result<()> {
        if flow_group >= FLOW_GROUPS || queue >= self.queues {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let request = TableRequest { flow_group: flow_group as u32, queue: queue as u32 };
        let mut asked = self.lock();
        asked.socket.send(&request.to_bytes())?;
        asked.asked += 1;
        Ok(())
    }

    /// True until the broker has reported, and as long as packets may still be on their way into
    /// the rings.
    fn is_sending(&self) -> bool {
        let mut asked = self.lock();
        let mut bytes = [0; TableAnswer::BYTES];
        while let Ok(len) = asked.socket.recv(&mut bytes) {
            let Some(answer) = TableAnswer::from_bytes(&bytes[..len]) else { break };
            asked.done = answer.done;
            asked.answered = Some(Instant::now());
        }
        asked.done < asked.asked || asked.answered.is_some_and(|at| at.elapsed() < IN_RINGS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_as_they_were_and_other_lengths_are_none() {
        let request = TableRequest { flow_group: 127, queue: 3 };
        assert_eq!(TableRequest::from_bytes(&request.to_bytes()), Some(request));
        let answer = TableAnswer { done: u64::MAX, refused: 1 };
        assert_eq!(TableAnswer::from_bytes(&answer.to_bytes()), Some(answer));
        assert_eq!(TableRequest::from_bytes(&[0; 9]), None);
        assert_eq!(TableAnswer::from_bytes(b""), None);
    }
}
