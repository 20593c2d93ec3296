//! Changes of devices, as they reach the dataplane's process.
use crate::device::deal;
use crate::error::{AttachError, UpdateError};
use crate::memif::{self, Plan, QueueLink};
use crate::{DeviceChange, NicInfo, NicKind};
use ix_mem::PacketMemory;
use std::os::fd::OwnedFd;

/// The change for one queue of a device. It is sent to the elastic thread that owns the queue,
/// which gives it to [`crate::Nic::update`].
pub struct QueueUpdate(pub(crate) Change);

pub(crate) enum Change {
    /// The interface exists again: new sockets for the queue pair.
    Reopened { info: NicInfo, fds: Vec<OwnedFd> },
    /// The interface has more queues, or another MTU or Ethernet address: sockets for those of the
    /// queue pair, perhaps none.
    Grown { info: NicInfo, fds: Vec<OwnedFd> },
    /// A memif has a new peer, or none any more.
    Memif(Option<Box<QueueLink>>),
}

impl std::fmt::Debug for QueueUpdate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Change::Reopened { info, .. } => write!(f, "QueueUpdate(reopened {})", info.name),
            Change::Grown { info, .. } => write!(f, "QueueUpdate(grown {})", info.name),
            Change::Memif(Some(_)) => write!(f, "QueueUpdate(memif up)"),
            Change::Memif(None) => write!(f, "QueueUpdate(memif down)"),
        }
    }
}

/// Reads a change of a device from the broker, with its descriptors. Returns one part for each
/// queue pair of the device, in order. Maps what must be mapped, and checks everything.
pub fn read_update(
    info: &NicInfo,
    change: DeviceChange,
    fds: Vec<OwnedFd>,
    memory: &PacketMemory,
) -> Result<Vec<QueueUpdate>, AttachError> {
    let refused = |source| AttachError::Update { name: info.name.clone(), source };
    let is_memif = info.kind == NicKind::Memif;
    let parts: Vec<Change> = match change {
        DeviceChange::PeerUp(plan) if is_memif => link(info, plan, fds, memory)?,
        DeviceChange::PeerDown if is_memif => {
            (0..info.queues).map(|_| Change::Memif(None)).collect()
        }
        DeviceChange::Reopened(now) if !is_memif => {
            let dealt = deal(&now, 0, fds);
            dealt.into_iter().map(|fds| Change::Reopened { info: now.clone(), fds }).collect()
        }
        DeviceChange::Grown(now) if !is_memif => {
            if info.sockets() + fds.len() != now.sockets() {
                return Err(refused(UpdateError::Queues));
            }
            let dealt = deal(&now, info.sockets(), fds);
            dealt.into_iter().map(|fds| Change::Grown { info: now.clone(), fds }).collect()
        }
        _ => return Err(refused(UpdateError::Kind)),
    };
    if parts.len() != info.queues {
        return Err(refused(UpdateError::Queues));
    }
    Ok(parts.into_iter().map(QueueUpdate).collect())
}

fn link(
    info: &NicInfo,
    plan: Plan,
    fds: Vec<OwnedFd>,
    memory: &PacketMemory,
) -> Result<Vec<Change>, AttachError> {
    let name = info.name.clone();
    if info.shared_frames && memory.bytes() > u32::MAX as usize {
        return Err(AttachError::Update { name, source: UpdateError::Memory });
    }
    if let Err(e) = plan.check() {
        return Err(AttachError::Update { name, source: UpdateError::Plan(e) });
    }
    let parts = memif::link(plan, fds).map_err(|source| AttachError::System {
        action: "map the memory of",
        name,
        source,
    })?;
    Ok(parts.into_iter().map(|part| Change::Memif(Some(Box::new(part)))).collect())
}
