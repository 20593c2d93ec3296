//! Finding the dataplane of this process.
use super::Gate;
use crate::error::Error;
use core::fmt;
use core::ptr::with_exposed_provenance;
use ix_abi::{
    ABI_MAGIC, ABI_VERSION, ENV_HEADER, ProcessHeader, STARTER_MAGIC, Starter as Words, ThreadArea,
    gate_op,
};
use std::net::IpAddr;
use std::os::fd::RawFd;

/// Marks the program's file as written for IX (ELF note of owner `IX`, type 1, version of the
/// contract), so that `ix run` leaves its sockets to Linux.
#[used]
#[unsafe(link_section = ".note.ix")]
static NOTE: [u32; 5] = [3, 4, 1, u32::from_le_bytes(*b"IX\0\0"), ABI_VERSION];

/// The dataplane in this process.
#[derive(Clone, Copy)]
pub struct Process {
    header: &'static ProcessHeader,
}

/// A dataplane that begins when this process asks for it, for programs that fork before they serve;
/// or one that has already begun, as it has behind a wall, where it comes before the program.
#[derive(Clone, Copy)]
pub enum Starter {
    /// Its functions.
    Later(&'static Words),
    /// The dataplane.
    Now(Process),
}

/// Why there is no dataplane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindError {
    /// The environment does not name one.
    NotUnderIx,
    /// The environment names an address without a dataplane (a child of a program on IX inherits
    /// the variable, but not the dataplane).
    Stale,
    /// The dataplane has another version of the contract.
    Version {
        /// The dataplane's.
        dataplane: u32,
    },
}

impl fmt::Display for FindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FindError::NotUnderIx => {
                write!(f, "not running under `ix run` ({ENV_HEADER} is not set)")
            }
            FindError::Stale => {
                write!(f, "{ENV_HEADER} names no dataplane of this process: start it with `ix run`")
            }
            FindError::Version { dataplane } => write!(
                f,
                "the dataplane has ABI version {dataplane}, this program {ABI_VERSION}: \
                 build both from the same release"
            ),
        }
    }
}

impl std::error::Error for FindError {}

impl Process {
    /// Finds the dataplane through the environment variable `IX_ABI`.
    pub fn find() -> Result<Process, FindError> {
        // Every program that calls this contains the note.
        core::hint::black_box(&NOTE);
        let address = address()?;
        let header = with_exposed_provenance::<ProcessHeader>(address);
        // SAFETY: the memory is mapped and aligned (`is_mapped`). `ix run` puts the address of a
        // header into the variable; if it is anything else, the magic number shows it before any
        // other field is used.
        unsafe { Process::at(header) }
    }

    /// The dataplane with this header.
    ///
    /// # Safety
    /// `header` points to readable memory of that size, and if it begins with `ABI_MAGIC` it is a
    /// header that keeps the promises of `ix-abi`, for the rest of the process's life.
    pub unsafe fn at(header: *const ProcessHeader) -> Result<Process, FindError> {
        // SAFETY: readable by the caller's promise.
        let header = unsafe { &*header };
        if header.magic != ABI_MAGIC {
            return Err(FindError::Stale);
        }
        if header.version != ABI_VERSION {
            return Err(FindError::Version { dataplane: header.version });
        }
        Ok(Process { header })
    }

    /// In a forked child of a program whose dataplane is a process of its own: shares that
    /// dataplane with the program's other processes, with arrays and transmit memory of its own.
    ///
    /// # Errors
    /// `State` where this process shares it already, `Invalid` where the dataplane is in the
    /// parent, `NoResource` if it cannot be shared (`ix run` has said why).
    ///
    /// # Safety
    /// This process uses nothing of its parent's elastic threads any more, one thread calls this,
    /// and none of the program's signal handlers may run meanwhile.
    pub unsafe fn attach(&self) -> Result<Process, Error> {
        let address = Error::check(self.gate().call(gate_op::ATTACH, 0, 0, 0))?;
        let header = with_exposed_provenance::<ProcessHeader>(address as usize);
        // SAFETY: the gate returns the address of the header, for the rest of the process's life.
        unsafe { Process::at(header) }.map_err(|_| Error::NoSys)
    }

    /// The number of this process among those of the program that share the dataplane, from 0 on.
    pub fn attachment(&self) -> u32 {
        self.area(0).map_or(0, |area| area.attachment)
    }

    /// Number of elastic threads.
    pub fn threads(&self) -> u32 {
        self.header.threads
    }

    /// Address of the dataplane.
    pub fn local_addr(&self) -> IpAddr {
        crate::addr::from_abi(self.header.local_addr)
    }

    /// Largest TCP payload of one packet.
    pub fn mss_bytes(&self) -> u32 {
        self.header.mss_bytes
    }

    /// Transmit memory of all elastic threads together, bytes.
    pub fn tx_bytes(&self) -> u64 {
        self.header.tx_len
    }

    /// Most packets in one cycle.
    pub fn batch_bound(&self) -> u32 {
        self.header.batch_bound
    }

    /// The gate of this process.
    pub fn gate(&self) -> ProcessGate {
        ProcessGate { address: self.header.gate as usize }
    }

    /// Gets another dataplane in place of the one that has ended ([`Error::Lost`]); at once if
    /// another thread has got it. Received memory has other content afterwards, so every thread
    /// must have left its elastic thread before ([`Error::InUse`]).
    pub fn renew(&self) -> Result<(), Error> {
        Error::check(self.gate().call(gate_op::RENEW, 0, 0, 0)).map(drop)
    }

    /// Addresses of the arrays of elastic thread `index`.
    pub fn area(&self, index: u32) -> Option<ThreadArea> {
        if index >= self.header.threads {
            return None;
        }
        let areas = with_exposed_provenance::<ThreadArea>(self.header.thread_areas as usize);
        // SAFETY: the header promises an array of `threads` areas, and `index` is below that.
        Some(unsafe { areas.add(index as usize).read() })
    }
}

impl Starter {
    /// Finds it through the environment variable `IX_ABI`.
    pub fn find() -> Result<Starter, FindError> {
        let words = with_exposed_provenance::<Words>(address()?);
        // SAFETY: the memory is mapped and aligned (`is_mapped`), and is that of a header or of a
        // starter; the magic number, the first field of both, shows which before other fields are
        // used.
        let words = unsafe { &*words };
        match (words.magic, words.version) {
            (STARTER_MAGIC, ABI_VERSION) => Ok(Starter::Later(words)),
            (STARTER_MAGIC, dataplane) => Err(FindError::Version { dataplane }),
            _ => Process::find().map(Starter::Now),
        }
    }

    /// Begins in this process. `None`: it could not, and `ix run` has been told why.
    ///
    /// # Safety
    /// One thread at a time, in one process of the program at a time; none of the program's signal
    /// handlers may run meanwhile.
    pub unsafe fn start(&self) -> Option<Process> {
        let words = match self {
            Starter::Later(words) => words,
            Starter::Now(process) => return Some(*process),
        };
        let address = (words.start)();
        let header = with_exposed_provenance::<ProcessHeader>(address as usize);
        if header.is_null() {
            return None;
        }
        // SAFETY: the starter returns the address of the header, for the rest of the process's
        // life.
        unsafe { Process::at(header) }.ok()
    }

    /// The descriptors that a dataplane in another process has in this one. Of one that is in this
    /// process none is named: it has a range of numbers for itself.
    pub fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        let words = match self {
            Starter::Later(words) => Some(*words),
            Starter::Now(_) => None,
        };
        let all = words.into_iter().flat_map(|words| (0..).map(|index| (words.descriptor)(index)));
        all.take_while(|fd| *fd >= 0)
    }

    /// In a forked child: leaves the parent's dataplane. False: this process cannot begin one.
    ///
    /// # Safety
    /// This process no longer uses anything of the parent's dataplane.
    pub unsafe fn forked(&self) -> bool {
        match self {
            Starter::Later(words) => {
                (words.forked)();
                true
            }
            Starter::Now(_) => false,
        }
    }
}

/// The address in the environment variable, if it can be that of a header.
fn address() -> Result<usize, FindError> {
    let value = std::env::var(ENV_HEADER).map_err(|_| FindError::NotUnderIx)?;
    let address = usize::from_str_radix(&value, 16).map_err(|_| FindError::Stale)?;
    if is_mapped(address) { Ok(address) } else { Err(FindError::Stale) }
}

/// The gate of the dataplane in this process: a function that crosses the wall.
#[derive(Clone, Copy, Debug)]
pub struct ProcessGate {
    address: usize,
}

impl Gate for ProcessGate {
    #[inline]
    fn call(&mut self, op: u64, a: u64, b: u64, c: u64) -> i64 {
        type Entry = extern "C" fn(u64, u64, u64, u64) -> i64;
        let entry = with_exposed_provenance::<()>(self.address);
        // SAFETY: only `Process::gate` makes this, from a header that promises a function of
        // this type at the address; the gate keeps the C calling convention.
        let entry = unsafe { core::mem::transmute::<*const (), Entry>(entry) };
        entry(op, a, b, c)
    }
}

/// Whether a [`ProcessHeader`] can be read at `address`, so that a stale variable is an error and
/// not a crash.
fn is_mapped(address: usize) -> bool {
    if address == 0 || !address.is_multiple_of(align_of::<ProcessHeader>()) {
        return false;
    }
    // SAFETY: a plain query.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let first = address & !(page_bytes - 1);
    let Some(end) = address.checked_add(size_of::<ProcessHeader>()) else { return false };
    let mut residency = [0u8; 2];
    // SAFETY: mincore only checks the range; it spans two pages at most, as `residency` does.
    unsafe { libc::mincore(first as *mut _, end - first, residency.as_mut_ptr()) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_cannot_be_a_header() {
        assert!(!is_mapped(0));
        assert!(!is_mapped(1 << 20));
        assert!(!is_mapped(usize::MAX - 7));
        let here = 0u64;
        assert!(is_mapped(&raw const here as usize));
        assert!(!is_mapped(&raw const here as usize + 1));
    }

    #[test]
    fn wrong_magic_and_version() {
        // SAFETY: all-zero is a valid value of this plain structure.
        let mut header: ProcessHeader = unsafe { core::mem::zeroed() };
        // SAFETY: points to a header; no field is used without the magic number.
        let result = unsafe { Process::at(&header) };
        assert_eq!(result.err(), Some(FindError::Stale));
        header.magic = ABI_MAGIC;
        header.version = ABI_VERSION + 1;
        // SAFETY: as above, and the version stops any use.
        let result = unsafe { Process::at(&header) };
        assert_eq!(result.err(), Some(FindError::Version { dataplane: ABI_VERSION + 1 }));
    }
}
