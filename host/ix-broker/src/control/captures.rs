//! The capture that a dataplane writes, as its broker keeps it: one at a time, for as long as who
//! wants it says so once a second. So one whose reader dies ends by itself.
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

/// A reader that has said nothing for so long reads no more.
const SILENT: Duration = Duration::from_secs(5);

/// One that runs.
struct Running {
    pid: u32,
    memory: OwnedFd,
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
        reply: impl FnOnce(Result<CaptureStarted, Refusal>) + 'static,
    ) -> Option<Result<CaptureStarted, Refusal>> {
        if let Some(running) = self.0.borrow_mut().as_mut() {
            if running.pid != wish.pid {
                return Some(Err(Refusal::Captured(running.pid)));
            }
            running.heard = now;
            return Some(Ok(CaptureStarted::default()));
        }
        let bytes = CaptureMemory::bytes_for(threads, wish.ring_bytes);
        let made = memory(bytes).and_then(|memory| Ok((memory.try_clone()?, memory)));
        let (fd, memory) = match made {
            Ok(both) => both,
            Err(e) => {
                return Some(Err(Refusal::Dataplane(format!("no memory to capture to: {e}"))));
            }
        };
        *self.0.borrow_mut() = Some(Running { pid: wish.pid, memory, heard: now });
        let captures = self.clone();
        let done = move |outcome: &Outcome| reply(captures.started(outcome));
        let order = CaptureOrder::Start { snaplen: wish.snaplen, filter: wish.filter.clone() };
        commands.submit_capture(order, Some(fd), Box::new(done));
        None
    }

    /// The dataplane writes, or says why it does not.
    fn started(&self, outcome: &Outcome) -> Result<CaptureStarted, Refusal> {
        if let Outcome::Refused(why) | Outcome::TimedOut(why) = outcome {
            *self.0.borrow_mut() = None;
            return Err(Refusal::Dataplane(why.clone()));
        }
        let running = self.0.borrow();
        let Some(running) = running.as_ref() else { return Err(Refusal::NoAnswer) };
        // A kernel without the seal leaves the reader able to write what it reads.
        let _ = seal_writes(running.memory.as_fd());
        let (process, fd) = (std::process::id(), running.memory.as_raw_fd());
        Ok(CaptureStarted { path: Some(format!("/proc/{process}/fd/{fd}")) })
    }

    /// A process wants it no more.
    pub fn stop(&self, pid: u32, commands: &mut Commands) {
        let theirs = self.0.borrow().as_ref().is_some_and(|running| running.pid == pid);
        if theirs {
            self.end(commands);
        }
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
fn memory(bytes: u64) -> io::Result<OwnedFd> {
    let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
    fixed_memfd(c"ix-capture", bytes, false)
}
