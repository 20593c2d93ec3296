//! The capture that a dataplane writes, as its broker keeps it: one at a time, for as long as who
//! wants it says so once a second. So one whose reader dies ends by itself.
use super::Refusal;
use crate::commands::Commands;
use ix_dataplane::capture::{CaptureMemory, RING_BYTES};
use ix_proto::Outcome;
use ix_proto::capture::{CaptureOrder, Filter, SNAPLEN_MAX};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// A reader that has said nothing for so long reads no more.
const SILENT: Duration = Duration::from_secs(5);

/// What shall be captured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaptureWish {
    /// The process that reads it.
    pub pid: u32,
    /// For [`Filter`].
    #[serde(default)]
    pub filter: String,
    /// Bytes of a packet, at most.
    pub snaplen: u32,
    /// Memory for each elastic thread, bytes.
    pub ring_bytes: u64,
}

impl CaptureWish {
    /// Checks what can be checked without the dataplane.
    pub fn check(&self) -> Result<(), String> {
        if self.snaplen == 0 || self.snaplen > SNAPLEN_MAX {
            return Err(format!("snaplen {} is not 1 to {SNAPLEN_MAX}", self.snaplen));
        }
        if !RING_BYTES.contains(&self.ring_bytes) || self.ring_bytes < 4 * u64::from(self.snaplen) {
            return Err(format!(
                "a ring of {} bytes is not {} to {}, and at least four packets",
                self.ring_bytes,
                RING_BYTES.start(),
                RING_BYTES.end()
            ));
        }
        self.parsed_filter().map(drop)
    }

    fn parsed_filter(&self) -> Result<Filter, String> {
        self.filter.parse().map_err(|e| format!("filter: {e}"))
    }
}

/// One that runs.
struct Running {
    pid: u32,
    file: File,
    heard: Instant,
}

/// The broker's knowledge of it.
#[derive(Clone, Default)]
pub struct Captures(Rc<RefCell<Option<Running>>>);

impl Captures {
    /// A process wants a capture, or goes on wanting it. `reply` gets the answer if it comes later.
    pub fn wish(
        &self,
        wish: &CaptureWish,
        threads: usize,
        commands: &mut Commands,
        now: Instant,
        reply: impl FnOnce(Result<Value, Refusal>) + 'static,
    ) -> Option<Result<Value, Refusal>> {
        if let Some(running) = self.0.borrow_mut().as_mut() {
            if running.pid != wish.pid {
                return Some(Err(Refusal::Captured(running.pid)));
            }
            running.heard = now;
            return Some(Ok(json!({})));
        }
        let filter = match wish.parsed_filter() {
            Ok(filter) => filter,
            Err(why) => return Some(Err(Refusal::BadRequest(why))),
        };
        let bytes = CaptureMemory::bytes_for(threads, wish.ring_bytes);
        let made = memory(bytes).and_then(|file| Ok((OwnedFd::from(file.try_clone()?), file)));
        let (fd, file) = match made {
            Ok(both) => both,
            Err(e) => {
                return Some(Err(Refusal::Dataplane(format!("no memory to capture to: {e}"))));
            }
        };
        *self.0.borrow_mut() = Some(Running { pid: wish.pid, file, heard: now });
        let captures = self.clone();
        let done = move |outcome: &Outcome| reply(captures.started(outcome));
        let order = CaptureOrder::Start { snaplen: wish.snaplen, filter };
        commands.submit_capture(order, Some(fd), Box::new(done));
        None
    }

    /// The dataplane writes, or says why it does not.
    fn started(&self, outcome: &Outcome) -> Result<Value, Refusal> {
        if let Outcome::Refused(why) | Outcome::TimedOut(why) = outcome {
            *self.0.borrow_mut() = None;
            return Err(Refusal::Dataplane(why.clone()));
        }
        let running = self.0.borrow();
        let Some(running) = running.as_ref() else { return Err(Refusal::NoAnswer) };
        let fd = running.file.as_raw_fd();
        // From here on nobody else can map it to write.
        // SAFETY: no pointers.
        unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_FUTURE_WRITE) };
        Ok(json!({ "path": format!("/proc/{}/fd/{fd}", std::process::id()) }))
    }

    /// A process wants it no more.
    pub fn stop(&self, pid: u32, commands: &mut Commands) -> Result<Value, Refusal> {
        let theirs = self.0.borrow().as_ref().is_some_and(|running| running.pid == pid);
        if theirs {
            self.end(commands);
        }
        Ok(json!({}))
    }

    /// Ends one whose reader is silent.
    pub fn look(&self, commands: &mut Commands, now: Instant) {
        let silent = |running: &Running| now.saturating_duration_since(running.heard) >= SILENT;
        if self.0.borrow().as_ref().is_some_and(silent) {
            self.end(commands);
        }
    }

    /// When to look.
    pub fn due(&self) -> Option<Instant> {
        self.0.borrow().as_ref().map(|running| running.heard + SILENT)
    }

    fn end(&self, commands: &mut Commands) {
        *self.0.borrow_mut() = None;
        commands.submit_capture(CaptureOrder::Stop, None, Box::new(|_| {}));
    }
}

/// Memory whose size cannot change.
fn memory(bytes: u64) -> io::Result<File> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a C string; a descriptor that the call answers is nobody else's.
    let file = unsafe {
        let fd = libc::memfd_create(c"ix-capture".as_ptr(), flags);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        File::from_raw_fd(fd)
    };
    file.set_len(bytes)?;
    // SAFETY: no pointers.
    let sealed = unsafe {
        let seals = libc::F_SEAL_GROW | libc::F_SEAL_SHRINK;
        libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals)
    };
    if sealed < 0 { Err(io::Error::last_os_error()) } else { Ok(file) }
}
