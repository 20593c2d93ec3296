//! Limits of this process and of those that it starts (getrlimit(2)).
use crate::check;
use std::io;

/// A limited resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Descriptors.
    Descriptors,
    /// Bytes that may be locked in memory.
    LockedMemory,
}

impl Resource {
    fn number(self) -> libc::__rlimit_resource_t {
        match self {
            Resource::Descriptors => libc::RLIMIT_NOFILE,
            Resource::LockedMemory => libc::RLIMIT_MEMLOCK,
        }
    }
}

/// No limit.
pub const INFINITE: u64 = libc::RLIM_INFINITY;

/// A limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The limit in force.
    pub soft: u64,
    /// The largest soft limit without privilege (CAP_SYS_RESOURCE).
    pub hard: u64,
}

/// The current limit.
pub fn get(resource: Resource) -> io::Result<Limit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills a local.
    check(unsafe { libc::getrlimit(resource.number(), &raw mut limit) })?;
    Ok(Limit { soft: limit.rlim_cur, hard: limit.rlim_max })
}

/// Sets the limit.
pub fn set(resource: Resource, limit: Limit) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: limit.soft, rlim_max: limit.hard };
    // SAFETY: reads a local.
    check(unsafe { libc::setrlimit(resource.number(), &raw const limit) }).map(drop)
}

/// Raises the soft and the hard limit to `wanted` if that is allowed, else the soft limit to the
/// hard one. Returns the soft limit. Never lowers one.
pub fn raise(resource: Resource, wanted: u64) -> io::Result<u64> {
    let now = get(resource)?;
    let most = now.hard.max(wanted);
    let limit = Limit { soft: most, hard: most };
    if set(resource, limit).is_ok() {
        return Ok(most);
    }
    set(resource, Limit { soft: now.hard, ..now })?;
    Ok(now.hard)
}

/// Raises the limit on locked memory as far as allowed. Returns how many bytes may be locked.
pub fn raise_memlock() -> io::Result<u64> {
    raise(Resource::LockedMemory, INFINITE)
}
