//! The dataplane's counters, in memory that it shares with the broker.
use ix_dataplane::metrics::{ControlPage, Snapshot};
use serde_json::{Value, json};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd};

/// A control page: the broker makes the memory, the dataplane fills it.
pub struct Counters {
    file: File,
}

impl Counters {
    /// Memory for so many elastic threads. Its size is sealed, so that no side can make the other
    /// one fault by truncating it.
    pub fn new(threads: usize) -> io::Result<Counters> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a C string; a descriptor that the call answers is nobody else's.
        let file = unsafe {
            let fd = libc::memfd_create(c"ix-control".as_ptr(), flags);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            File::from_raw_fd(fd)
        };
        file.set_len(ControlPage::bytes_for(threads) as u64)?;
        let seals = libc::F_SEAL_GROW | libc::F_SEAL_SHRINK;
        // SAFETY: no pointers.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Counters { file })
    }

    /// The descriptor for the dataplane.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The counters, or why there are none.
    pub fn snapshot(&self) -> Value {
        let error = |e: &dyn std::fmt::Display| json!({ "error": e.to_string() });
        match ControlPage::open(self.fd()) {
            Ok(page) => {
                serde_json::from_str(&Snapshot::of(&page).to_string()).unwrap_or_else(|e| error(&e))
            }
            Err(e) => error(&e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_come_from_the_page_that_the_dataplane_makes() {
        let counters = Counters::new(2).expect("memory");
        assert!(counters.snapshot()["error"].as_str().expect("why").contains("starting"));
        // The dataplane's side.
        let page = ControlPage::create(counters.fd(), 2, 2500).expect("made");
        page.thread(1).counters.flows.set(7);
        let value = counters.snapshot();
        assert_eq!(value["ticks_per_us"], 2500);
        assert_eq!(value["threads"][1]["flows"], 7);
        assert!(counters.file.set_len(0).is_err(), "sealed");
    }
}
