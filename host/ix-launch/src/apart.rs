//! A dataplane in a process of its own: the image, executed alone.
//!
//! It is in the program's session, because Linux shares a processor between sessions before it
//! shares it between processes (sched(7), autogroups), and the two may take turns on one. It has a
//! process group of its own, so that what is sent to the program's group is not meant for it.
use crate::error::{LaunchError, system};
use crate::exit::Exit;
use crate::image::Image;
use crate::launch::{before_exec_of_dataplane, joins, said, wait_for};
use crate::load::Exec;
use crate::serve::{Conversation, ServeError};
use ix_entry::{Channel, IMAGE_ARGV0};
use ix_proto::FromImage;
use ix_sys::poll::{PollFd, poll};
use ix_sys::process::Process;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// A dataplane ends within this time after its program, connections included.
const ENDING: Duration = Duration::from_secs(2);

/// The process of a dataplane. Dropping it ends the process.
#[derive(Debug)]
pub struct DataplaneProcess {
    process: Process,
    channel: Channel,
    has_ended: bool,
}

impl DataplaneProcess {
    /// Starts one, as this user and group if given. It joins the control groups, given by their
    /// `cgroup.procs`, and asks for its configuration over the channel ([`crate::serve`]).
    pub fn start(
        image: &Image,
        user: Option<(u32, u32)>,
        groups: &[Arc<File>],
    ) -> Result<DataplaneProcess, LaunchError> {
        let (ours, theirs) = Channel::pair().map_err(system("socketpair"))?;
        ours.tell_senders().map_err(system("setsockopt(SO_PASSCRED)"))?;
        let executable = image.unreadable(c"ix-dataplane").map_err(system("memfd_create"))?;
        let (channel_fd, image_fd) = (theirs.as_fd().as_raw_fd(), executable.as_raw_fd());
        let exec = Exec::of_dataplane(image_fd, channel_fd).map_err(system("execveat"))?;
        // Never executed by this name: the closure below executes the image.
        let mut command = Command::new(IMAGE_ARGV0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
        // SAFETY: the function only makes system calls, as a child of a threaded process must;
        // what it points to is moved along.
        unsafe { command.pre_exec(joins(groups.to_vec())) };
        // SAFETY: as above.
        unsafe { command.pre_exec(before_exec_of_dataplane(exec, channel_fd, user)) };
        let child = command.spawn().map_err(system("execveat of the image"))?;
        // Dropped here: this value waits for it from now on.
        let process = Process::open(child.id()).map_err(system("pidfd_open"))?;
        Ok(DataplaneProcess { process, channel: ours, has_ended: false })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The channel to it.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// The next message; `None` when it has ended or closes the channel.
    pub fn next(&self) -> io::Result<Option<FromImage>> {
        Ok(said(&self.channel)?.map(|(message, _)| message))
    }

    /// Makes it go on if somebody has stopped it, because it is to end. Readable when it has.
    pub fn ending(&self) -> BorrowedFd<'_> {
        // An error can be ignored: it has ended.
        let _ = self.process.signal(libc::SIGCONT);
        self.process.as_fd()
    }

    /// Waits for its end, which the end of its program brings about; ends it if it takes too long.
    pub fn wait(&mut self) -> io::Result<Exit> {
        let mut ends = [PollFd::new(&self.ending(), libc::POLLIN)];
        if !poll(&mut ends, Some(ENDING)).is_ok_and(|ready| ready > 0) {
            self.kill();
        }
        let exit = wait_for(&self.process)?;
        self.has_ended = true;
        Ok(exit)
    }

    fn kill(&self) {
        // An error can be ignored: it has ended.
        let _ = self.process.signal(libc::SIGKILL);
    }
}

impl Conversation for DataplaneProcess {
    fn channel(&self) -> Option<&Channel> {
        Some(&self.channel)
    }

    fn next_message(&mut self) -> Result<FromImage, ServeError> {
        match self.next()? {
            Some(message) => Ok(message),
            None => Err(ServeError::Died(self.wait()?)),
        }
    }

    fn refused(&mut self) -> Result<(), ServeError> {
        self.wait()?;
        Ok(())
    }
}

impl Drop for DataplaneProcess {
    fn drop(&mut self) {
        if !self.has_ended {
            self.kill();
            // An error can be ignored: the process is no longer ours.
            let _ = wait_for(&self.process);
        }
    }
}
