//! The dataplane's counters, in memory that it shares with the broker, and the hardware's.
//!
//! The hardware's are counted for the elastic threads' hardware threads as a whole, dataplane,
//! application and kernel together, and read when somebody asks: the packet path pays nothing.
use ix_dataplane::metrics::{ControlPage, Snapshot};
use ix_sys::meter::{Count, Meter};
use serde_json::{Value, json};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd};

/// A control page: the broker makes the memory, the dataplane fills it.
pub struct Counters {
    file: File,
    threads: usize,
    /// One for each elastic thread, or why there is none.
    meters: io::Result<Vec<Meter>>,
}

impl Counters {
    /// Memory for an elastic thread on each of these hardware threads. Its size is sealed, so that
    /// no side can make the other one fault by truncating it.
    pub fn new(cpus: &[usize]) -> io::Result<Counters> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a C string; a descriptor that the call answers is nobody else's.
        let file = unsafe {
            let fd = libc::memfd_create(c"ix-controller".as_ptr(), flags);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            File::from_raw_fd(fd)
        };
        file.set_len(ControlPage::bytes_for(cpus.len()) as u64)?;
        let seals = libc::F_SEAL_GROW | libc::F_SEAL_SHRINK;
        // SAFETY: no pointers.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let meters = cpus.iter().map(|&cpu| Meter::of_cpu(cpu)).collect();
        Ok(Counters { file, threads: cpus.len(), meters })
    }

    /// Elastic threads, in whatever state.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// The descriptor for the dataplane.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Address and instruction of the program's last fault, if it was one of this signal.
    pub fn fault(&self, signal: i32) -> Option<(u64, u64)> {
        ControlPage::open(self.fd()).ok()?.wall().fault(signal)
    }

    /// Flows on all threads.
    pub fn flows(&self) -> usize {
        let Ok(page) = ControlPage::open(self.fd()) else { return 0 };
        (0..page.threads()).map(|thread| page.thread(thread).counters.flows.get() as usize).sum()
    }

    /// The counters, or why there are none. Hardware counters that cannot be had are left out, and
    /// `hardware_missing` says why.
    pub fn snapshot(&self) -> Value {
        let page = match ControlPage::open(self.fd()) {
            Ok(page) => page,
            Err(e) => return json!({ "error": e.to_string() }),
        };
        let mut value = match serde_json::from_str(&Snapshot::of(&page).to_string()) {
            Ok(value) => value,
            Err(e) => return json!({ "error": e.to_string() }),
        };
        match &self.meters {
            Ok(meters) => add_hardware(&mut value, meters.iter().map(Meter::read)),
            Err(e) => value["hardware_missing"] = format!("{e}; see `ix doctor`").into(),
        }
        value
    }
}

/// Gives each thread what its hardware thread has executed.
fn add_hardware(stats: &mut Value, counts: impl Iterator<Item = Count>) {
    let threads = stats.get_mut("threads").and_then(Value::as_array_mut);
    for (thread, count) in threads.into_iter().flatten().zip(counts) {
        let mut counted = json!({ "cycles": count.cycles, "instructions": count.instructions });
        if let Some(misses) = count.cache_misses {
            counted["cache_misses"] = misses.into();
        }
        thread["hardware"] = counted;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_come_from_the_page_that_the_dataplane_makes() {
        let counters = Counters::new(&[0, 0]).expect("memory");
        assert!(counters.snapshot()["error"].as_str().expect("why").contains("starting"));
        // The dataplane's side.
        let page = ControlPage::create(counters.fd(), 2, 2500).expect("made");
        page.thread(1).counters.flows.set(7);
        let value = counters.snapshot();
        assert_eq!(value["ticks_per_us"], 2500);
        assert_eq!(value["threads"][1]["flows"], 7);
        assert!(counters.file.set_len(0).is_err(), "sealed");
    }
    #[test]
    fn hardware_counters_are_there_or_it_is_said_why() {
        let counters = Counters::new(&[0]).expect("memory");
        let page = ControlPage::create(counters.fd(), 1, 2500).expect("made");
        let value = counters.snapshot();
        let (counted, why) = (&value["threads"][0]["hardware"], &value["hardware_missing"]);
        assert_eq!(counted["cycles"].is_u64(), why.is_null(), "{value}");
        assert_eq!(counters.meters.is_ok(), why.is_null());
        drop(page);
        let mut value = json!({ "threads": [{}, {}] });
        let count = |cache_misses| Count { cycles: 5, instructions: 6, cache_misses };
        add_hardware(&mut value, [count(Some(7)), count(None)].into_iter());
        let all = json!({ "cycles": 5, "instructions": 6, "cache_misses": 7 });
        assert_eq!(value["threads"][0]["hardware"], all);
        assert!(value["threads"][1]["hardware"].get("cache_misses").is_none());
    }
}
