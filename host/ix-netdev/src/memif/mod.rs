//! `memif`'s control side: taking a role, and the control socket ([`control`]).
//!
//! [`ix_nic::memif`] describes the protocol, its roles, and what is not trusted.
mod control;
mod message;
mod socket;
mod spec;

pub(crate) use control::Control;
#[cfg(feature = "fuzzing")]
pub use control::conversation::{Utterance, memif_conversation};
pub(crate) use spec::MTU_DEFAULT;
pub use spec::{MemifSpec, MemifSpecError};

use crate::device::{OpenOptions, OpenedDevice};
use crate::error::OpenError;
use control::Listener;
use ix_nic::memif::mode;
use ix_nic::{MemifRole, NicInfo, NicKind, Steering};
use ix_sys::event;
use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Largest shared memory that the protocol's offsets can address.
const SHARED_BYTES_MAX: usize = 1 << 32;

/// Takes the free role, or the given one.
pub(crate) fn open(spec: &MemifSpec, options: &OpenOptions) -> Result<OpenedDevice, OpenError> {
    let name = &spec.path;
    let bells = (0..spec.queues).map(|_| event::open()).collect::<io::Result<Vec<_>>>();
    let bells = bells.map_err(|e| OpenError::system("make a doorbell for", name, e))?;
    let key = options.flow_hash_key;
    let control = match take_role(spec)? {
        Taken::Server(listener) => Control::server(spec, listener, key),
        Taken::Client(connected) => {
            let action = "share packet memory over memif";
            let refused =
                |why: &str| OpenError::Refused { action, name: name.clone(), why: why.to_owned() };
            let memory = options.memory.clone().ok_or_else(|| refused("there is none"))?;
            if memory.sizes.bytes() > SHARED_BYTES_MAX {
                return Err(refused("it is larger than 4 GB; give fewer buffers"));
            }
            let copies = bells.iter().map(OwnedFd::try_clone).collect::<io::Result<Vec<_>>>();
            let copies = copies.map_err(|e| OpenError::system("keep a doorbell of", name, e))?;
            Control::client(spec, memory, copies, connected, key)
        }
    };
    let client = control.shares_memory();
    let role = if client { MemifRole::Client } else { MemifRole::Server };
    let reta = (spec.queues > 1).then(|| control.reta());
    let info = NicInfo {
        kind: NicKind::Memif,
        name: name.clone(),
        mode: mode(role, spec.queues, None),
        queues: spec.queues,
        mac: mac(spec, role),
        mtu: spec.mtu,
        vlan: spec.vlan,
        steering: if spec.queues > 1 { Steering::Table } else { Steering::Software },
        partial_checksums: false,
        shared_frames: client,
        table_fd: false,
    };
    Ok(OpenedDevice::new(info, bells, reta).with_memif(control))
}

/// An Ethernet address that stays the same when the program restarts, so that the peer's neighbour
/// entries stay valid; the two ends differ.
fn mac(spec: &MemifSpec, role: MemifRole) -> [u8; 6] {
    // FNV-1a, which is good enough here.
    let bytes = spec.path.bytes().chain(spec.id.to_ne_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let [a, b, c, d, e, ..] = hash.to_be_bytes();
    let end = match role {
        MemifRole::Server => 0,
        MemifRole::Client => 1,
    };
    [0x02, a, b, c, d, e & !1 | end]
}

/// Longest wait for a process that takes its role.
const LOCK: Duration = Duration::from_secs(2);

enum Taken {
    Server(Listener),
    /// With a socket if a server listens.
    Client(Option<OwnedFd>),
}

fn take_role(spec: &MemifSpec) -> Result<Taken, OpenError> {
    if spec.role == Some(MemifRole::Client) {
        return Ok(Taken::Client(None));
    }
    let path = &spec.path;
    let failed = |e| OpenError::system("listen at", path, e);
    // Two processes that start at once must not both find no server, and one remove the other's
    // file.
    let _lock = lock(path).map_err(failed)?;
    match socket::connect(path) {
        Ok(_) if spec.role == Some(MemifRole::Server) => {
            return Err(OpenError::InUse { name: path.clone() });
        }
        Ok(connected) => {
            let (action, name) = ("be the client of a memif", path.clone());
            return match spec.check_peer(connected.as_fd()) {
                Ok(()) => Ok(Taken::Client(Some(connected))),
                Err(why) => Err(OpenError::Refused { action, name, why }),
            };
        }
        // A listener that does not accept is a listener, too.
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
            return Err(OpenError::InUse { name: path.clone() });
        }
        Err(_) => {}
    }
    if std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket()) {
        std::fs::remove_file(path).map_err(failed)?;
    }
    let socket = socket::listen(path).map_err(failed)?;
    Ok(Taken::Server(Listener { socket, path: path.clone() }))
}

/// Locks the socket's directory against others; a socket without a file needs no lock.
fn lock(path: &str) -> io::Result<Option<File>> {
    if path.starts_with('@') {
        return Ok(None);
    }
    let parent = Path::new(path).parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = File::open(parent.unwrap_or(Path::new(".")))?;
    // A process that may read the directory may lock it, for ever too.
    let end = Instant::now() + LOCK;
    while let Err(e) = directory.try_lock() {
        match e {
            TryLockError::WouldBlock if Instant::now() < end => {
                std::thread::sleep(LOCK / 200);
            }
            TryLockError::WouldBlock => {
                let why = "its folder is locked by another process; choose a folder of your own";
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
            }
            TryLockError::Error(e) => return Err(e),
        }
    }
    Ok(Some(directory))
}
