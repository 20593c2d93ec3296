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

impl RingSizes {
    /// The usual ones.
    pub const DEFAULT: RingSizes = RingSizes { rx: 2048, fill: 2048, tx: 1024 };
}

impl Default for RingSizes {
    fn default() -> RingSizes {
        RingSizes::DEFAULT
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

/// Gives each queue pair of a device its descriptors, of those that the broker has opened, without
/// the table's. The first one is of queue `from`.
pub fn deal(info: &NicInfo, from: usize, fds: Vec<OwnedFd>) -> Vec<Vec<OwnedFd>> {
    let mut dealt: Vec<Vec<OwnedFd>> = (0..info.queues).map(|_| Vec::new()).collect();
    for (number, fd) in fds.into_iter().enumerate() {
        if let Some(pair) = dealt.get_mut(info.pair_of(from + number)) {
            pair.push(fd);
        }
    }
    dealt
}

/// Makes the queue pair as it is on the link: see [`crate::attach`].
pub(crate) fn attach(
    info: &NicInfo,
    queue: usize,
    mut fds: Vec<OwnedFd>,
    memory: &PacketMemory,
    rx_pool: &mut Pool,
    rings: RingSizes,
) -> Result<Box<dyn Nic>, AttachError> {
    let one = |fds: &mut Vec<OwnedFd>| {
        let (name, sockets) = (info.name.clone(), fds.len());
        let only = fds.pop_if(|_| sockets == 1);
        only.ok_or(AttachError::Sockets { name, pair: queue, sockets, expected: 1 })
    };
    match info.kind {
        NicKind::Tap => Ok(Box::new(tap::TapNic::new(info.clone(), one(&mut fds)?))),
        NicKind::Memif => {
            let fd = one(&mut fds)?;
            Ok(Box::new(memif::MemifNic::new(info.clone(), queue, fd, rings)))
        }
        NicKind::Afxdp(bind) => {
            let nic = afxdp::AfxdpNic::attach(info, bind, queue, fds, memory, rx_pool, rings)?;
            Ok(Box::new(nic))
        }
        NicKind::Sim => Err(AttachError::Kind { kind: info.kind }),
    }
}
