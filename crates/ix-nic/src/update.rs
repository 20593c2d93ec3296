//! What reaches the dataplane's process when a device changes.
use crate::error::AttachError;
use crate::{LineError, NicInfo};
use ix_mem::PacketMemory;
use std::os::fd::OwnedFd;

/// What changes for one queue of a device; moved to the elastic thread that owns the queue, which
/// gives it to [`crate::Nic::update`].
pub struct QueueUpdate(pub(crate) Change);

pub(crate) enum Change {
    /// The interface is there again: a new socket for the queue.
    Reopened { info: NicInfo, fd: OwnedFd },
}

impl std::fmt::Debug for QueueUpdate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Change::Reopened { info, .. } = &self.0;
        write!(f, "QueueUpdate(reopened {})", info.name)
    }
}

/// Reads a [`crate::DeviceUpdate`]: answers one part for each queue of the device, in order. Maps
/// what must be mapped, and checks everything.
pub fn read_update(
    info: &NicInfo,
    line: &str,
    fds: Vec<OwnedFd>,
    memory: &PacketMemory,
) -> Result<Vec<QueueUpdate>, AttachError> {
    let _ = memory;
    let malformed =
        |key| AttachError::Update { name: info.name.clone(), source: LineError { key } };
    let Some(words) = line.strip_prefix("reopened ") else { return Err(malformed("update")) };
    let now = NicInfo::from_line(words)
        .map_err(|source| AttachError::Update { name: info.name.clone(), source })?;
    if fds.len() != info.queues || now.queues != info.queues {
        return Err(malformed("queues"));
    }
    let change = |fd| QueueUpdate(Change::Reopened { info: now.clone(), fd });
    Ok(fds.into_iter().map(change).collect())
}
