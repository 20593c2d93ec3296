//! Attaches a queue by its descriptor, which needs no privilege.
use crate::error::AttachError;
use crate::steering::MappedReta;
use crate::{Nic, NicInfo, NicKind, SetReta, Steering, afxdp, memif, tap};
use ix_mem::{PacketMemory, Pool};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Entries of a queue's rings, for devices whose rings can have any size. Powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSizes {
    /// Received packets that the dataplane has not taken.
    pub rx: u32,
    /// Frames for packets to receive: the most receive frames that the device holds.
    pub fill: u32,
    /// Packets to transmit: the most transmit frames that the device holds.
    pub tx: u32,
}

impl Default for RingSizes {
    fn default() -> RingSizes {
        RingSizes { rx: 2048, fill: 4096, tx: 1024 }
    }
}

/// The redirection table behind a device's table descriptor ([`NicInfo::table_fd`]), for a process
/// without privilege. The table of a steering program is mapped, and written without a system call.
/// That of a network card is written by the broker, on a request over a socket.
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

/// Makes the queue pair behind a descriptor that the broker has opened, in the process that has
/// `memory`, and gives the device its first receive frames. Needs no privilege.
///
/// For AF_XDP it registers all packet memory with each socket. That memory counts against
/// RLIMIT_MEMLOCK of this process unless it has CAP_IPC_LOCK.
///
/// [`Nic::info`] of the result has the mode in use. It says more than `info` where only binding a
/// queue shows the mode (zero-copy or copy).
pub fn attach(
    info: &NicInfo,
    queue: usize,
    fd: OwnedFd,
    memory: &PacketMemory,
    rx_pool: &mut Pool,
    rings: RingSizes,
) -> Result<Box<dyn Nic>, AttachError> {
    match info.kind {
        NicKind::Tap => Ok(Box::new(tap::TapNic::new(info.clone(), fd))),
        NicKind::Memif => Ok(Box::new(memif::MemifNic::new(info.clone(), queue, fd, rings))),
        NicKind::Afxdp(bind) => {
            let nic = afxdp::AfxdpNic::attach(info, bind, queue, fd, memory, rx_pool, rings)?;
            Ok(Box::new(nic))
        }
        NicKind::Sim => Err(AttachError::Kind { kind: info.kind }),
    }
}
