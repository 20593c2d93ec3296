//! The broker's part of a capture. One capture runs at a time, as long as its reader repeats the
//! request once a second; so it ends by itself when its reader has died.
use crate::commands::Commands;
use ix_dataplane::capture::CaptureMemory;
use ix_proto::Outcome;
use ix_proto::capture::CaptureOrder;
use ix_proto::control::{CaptureStarted, CaptureWish, Refusal};
use ix_sys::fd::{fixed_memfd, seal_writes};
use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Time after the reader's last request at which its capture ends.
const SILENT: Duration = Duration::from_secs(5);

/// A running capture.
struct Running {
    pid: u32,
    memory: OwnedFd,
    last_request: Instant,
}

/// The capture of a dataplane, if one runs.
#[derive(Clone, Default)]
pub struct Captures(Rc<RefCell<Option<Running>>>);

impl Captures {
    /// Starts a capture for a process, or keeps its capture running. Returns the answer, or gives
    /// it to `reply` later.
    pub fn start(
        &self,
        wish: &CaptureWish,
        threads: usize,
        commands: &mut Commands,
        now: Instant,
        reply: impl FnOnce(Result<CaptureStarted, Refusal>) + 'static,
    ) -> Option<Result<CaptureStarted, Refusal>> {
        if let Some(running) = self.0.borrow_mut().as_mut() {
            if running.pid != wish.pid {
                return Some(Err(Refusal::Captured(running.pid)));
            }
            running.last_request = now;
            return Some(Ok(CaptureStarted::default()));
        }
        let bytes = CaptureMemory::bytes_for(threads, wish.ring_bytes);
        let made = memory(bytes).and_then(|memory| Ok((memory.try_clone()?, memory)));
        let (fd, memory) = match made {
            Ok(both) => both,
            Err(e) => {
                return Some(Err(Refusal::Dataplane(format!(
                    "cannot reserve memory for a capture: {e}; use a smaller --buffer"
                ))));
            }
        };
        *self.0.borrow_mut() = Some(Running { pid: wish.pid, memory, last_request: now });
        let captures = self.clone();
        let done = move |outcome: &Outcome| reply(captures.started(outcome));
        let order = CaptureOrder::Start { snaplen: wish.snaplen, filter: wish.filter.clone() };
        commands.submit_capture(order, Some(fd), Box::new(done));
        None
    }

    /// The answer once the dataplane has started the capture or refused it.
    fn started(&self, outcome: &Outcome) -> Result<CaptureStarted, Refusal> {
        if let Outcome::Refused(why) | Outcome::TimedOut(why) = outcome {
            *self.0.borrow_mut() = None;
            return Err(Refusal::Dataplane(why.clone()));
        }
        let running = self.0.borrow();
        let Some(running) = running.as_ref() else { return Err(Refusal::NoAnswer) };
        // Without the seal (an old kernel) the reader could also write to the memory.
        let _ = seal_writes(running.memory.as_fd());
        let (process, fd) = (std::process::id(), running.memory.as_raw_fd());
        Ok(CaptureStarted { path: Some(format!("/proc/{process}/fd/{fd}")) })
    }

    /// Ends the capture of a process.
    pub fn stop(&self, pid: u32, commands: &mut Commands) {
        let theirs = self.0.borrow().as_ref().is_some_and(|running| running.pid == pid);
        if theirs {
            self.end(commands);
        }
    }

    /// Ends a capture whose reader is silent.
    pub fn look(&self, commands: &mut Commands, now: Instant) {
        let silent =
            |running: &Running| now.saturating_duration_since(running.last_request) >= SILENT;
        if self.0.borrow().as_ref().is_some_and(silent) {
            self.end(commands);
        }
    }

    /// When to call [`Captures::look`].
    pub fn due(&self) -> Option<Instant> {
        self.0.borrow().as_ref().map(|running| running.last_request + SILENT)
    }

    fn end(&self, commands: &mut Commands) {
        *self.0.borrow_mut() = None;
        commands.submit_capture(CaptureOrder::Stop, None, Box::new(|_| {}));
    }
}

/// Memory of a fixed size.
fn memory(bytes: u64) -> io::Result<OwnedFd> {
    let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
    fixed_memfd(c"ix-capture", bytes, false)
}
