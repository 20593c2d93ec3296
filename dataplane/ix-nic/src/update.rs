//! What reaches the dataplane's process when a device changes.
use crate::error::AttachError;
use crate::memif::{self, QueueLink, UpdateError};
use crate::{LineError, NicInfo};
use ix_mem::PacketMemory;
use std::os::fd::OwnedFd;

/// What changes for one queue of a device; moved to the elastic thread that owns the queue, which
/// gives it to [`crate::Nic::update`].
pub struct QueueUpdate(pub(crate) Change);

pub(crate) enum Change {
    /// The interface is there again: a new socket for the queue.
    Reopened { info: NicInfo, fd: OwnedFd },
    /// A memif has a peer, or has none any more.
    Memif(Option<Box<QueueLink>>),
}

impl std::fmt::Debug for QueueUpdate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Change::Reopened { info, .. } => write!(f, "QueueUpdate(reopened {})", info.name),
            Change::Memif(Some(_)) => write!(f, "QueueUpdate(memif up)"),
            Change::Memif(None) => write!(f, "QueueUpdate(memif down)"),
        }
    }
}

/// Reads an update of the broker: returns one part for each queue of the device, in order. Maps
/// what must be mapped, and checks everything.
pub fn read_update(
    info: &NicInfo,
    line: &str,
    fds: Vec<OwnedFd>,
    memory: &PacketMemory,
) -> Result<Vec<QueueUpdate>, AttachError> {
    let name = || info.name.clone();
    let malformed = |key| AttachError::Update { name: name(), source: LineError { key } };
    let parts: Vec<Change> = if info.kind == "memif" {
        if info.shared_frames && memory.bytes() > u32::MAX as usize {
            return Err(malformed("memory"));
        }
        memif_parts(info, line, fds)?.into_iter().map(Change::Memif).collect()
    } else {
        let words = line.strip_prefix("reopened ").ok_or_else(|| malformed("update"))?;
        let now = NicInfo::from_line(words)
            .map_err(|source| AttachError::Update { name: name(), source })?;
        fds.into_iter().map(|fd| Change::Reopened { info: now.clone(), fd }).collect()
    };
    if parts.len() != info.queues {
        return Err(malformed("queues"));
    }
    Ok(parts.into_iter().map(QueueUpdate).collect())
}

fn memif_parts(
    info: &NicInfo,
    line: &str,
    fds: Vec<OwnedFd>,
) -> Result<Vec<Option<Box<QueueLink>>>, AttachError> {
    if memif::is_down(line) {
        return Ok((0..info.queues).map(|_| None).collect());
    }
    let name = info.name.clone();
    match memif::read_update(line, fds) {
        Ok(parts) => Ok(parts.into_iter().map(|part| Some(Box::new(part))).collect()),
        Err(UpdateError::Line(key)) => Err(AttachError::Update { name, source: LineError { key } }),
        Err(UpdateError::Map(source)) => {
            Err(AttachError::System { action: "map the memory of", name, source })
        }
    }
}
