//! Attaching a queue by its descriptor, which needs no privilege.
use crate::error::AttachError;
use crate::steering::MappedReta;
use crate::{Nic, NicInfo, SetReta, Steering, afxdp, memif, tap};
use ix_mem::{PacketMemory, Pool};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Entries of a queue's rings, where the device has rings of our choice; powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSizes {
    /// Received packets that wait for us.
    pub rx: u32,
    /// Frames the device has for packets to come: how many receive frames it holds at most.
    pub fill: u32,
    /// Packets that wait for transmission, and how many transmit frames the device holds at most.
    pub tx: u32,
}

impl Default for RingSizes {
    fn default() -> RingSizes {
        RingSizes { rx: 2048, fill: 4096, tx: 1024 }
    }
}

/// The redirection table behind a device's table descriptor ([`NicInfo::table_fd`]), for a process
/// without privilege. A steering program's table is mapped, and then written without a system call.
/// A network card's is written by the broker, which is asked over a socket.
pub fn attach_table(info: &NicInfo, fd: OwnedFd) -> Result<Arc<dyn SetReta>, AttachError> {
    if matches!(info.steering, Steering::Rss(_)) {
        return Ok(Arc::new(afxdp::AskedTable::new(fd, info.queues)));
    }
    let table = MappedReta::new(fd.as_fd(), info.queues).map_err(|source| AttachError::System {
        action: "map the redirection table of",
        name: info.name.clone(),
        source,
    })?;
    Ok(Arc::new(table))
}

/// Makes the queue pair behind a descriptor that the broker opened, in the process that has
/// `memory`, and gives the device its first receive frames. Needs no privilege.
///
/// It registers all packet memory with each AF_XDP socket, which is charged to RLIMIT_MEMLOCK of
/// this process unless it has CAP_IPC_LOCK.
///
/// The mode in use stands in [`Nic::info`] of the result, which says more than `info` where only
/// binding a queue tells (zero-copy or copy).
pub fn attach(
    info: &NicInfo,
    queue: usize,
    fd: OwnedFd,
    memory: &PacketMemory,
    rx_pool: &mut Pool,
    rings: RingSizes,
) -> Result<Box<dyn Nic>, AttachError> {
    match (info.kind, &info.xdp) {
        ("tap", _) => Ok(Box::new(tap::TapNic::new(info.clone(), fd))),
        ("memif", _) => Ok(Box::new(memif::MemifNic::new(info.clone(), queue, fd, rings))),
        ("afxdp", Some(bind)) => {
            let nic = afxdp::AfxdpNic::attach(info, *bind, queue, fd, memory, rx_pool, rings)?;
            Ok(Box::new(nic))
        }
        _ => Err(AttachError::Kind { kind: info.kind }),
    }
}
