//! The process that closes the program's connections when the program has ended (the image's
//! `survivor`), as its broker sees it. If it is killed earlier, the dataplane starts another.
use ix_entry::Channel;
use ix_proto::{Codec, ToImage};
use ix_sys::process::Process;
use ix_sys::say;
use std::os::fd::{AsFd, BorrowedFd};

/// The newest survivor.
#[derive(Default)]
pub struct Survivor(Option<Process>);

impl Survivor {
    /// Sets the newest survivor.
    pub fn is(&mut self, process: Process) {
        self.reap();
        self.0 = Some(process);
    }

    /// Readable when it has ended.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(Process::as_fd)
    }

    /// It has ended: tells the dataplane, which starts another. Without a dataplane none is needed.
    pub fn ended(&mut self, channel: Option<&Channel>) {
        self.reap();
        let Some(pid) = self.0.take().map(|process| process.pid()) else { return };
        // A channel that stays full belongs to a program that never enters the dataplane: it has no
        // connections to close.
        let told = channel.map(|c| c.try_send(&ToImage::SurvivorEnded { pid }.encode(), &[]));
        if matches!(told, Some(Err(_))) {
            say!(
                "process {pid}, which closes the program's connections when it ends, was \
                 killed, and the dataplane could not be told to start another: the connections' \
                 peers will only see timeouts"
            );
        }
    }

    /// Waits for it if it is our child. Otherwise a fork of the program made it, and it has its own
    /// parent.
    fn reap(&self) {
        if let Some(process) = &self.0 {
            let _ = process.wait(false);
        }
    }
}
