//! The warden of a run: a small process that ends what the run's program has left when its broker
//! is killed. The program's first process ends with the broker, but not what that has forked.
//!
//! It is the same command once more, which waits on a pipe from the broker. A broker that ends in
//! order says so; the end of the pipe without a word means that it was killed. The warden has a
//! process group of its own, so that no terminal ends it, holds no descriptor of the run, and is a
//! process of the broker's user, so that the program can neither signal nor trace it.
use crate::group::{self, Group};
use crate::group_locks::Left;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Name of its process.
const NAME: &str = "ix-warden";
/// What a broker says that ends in order.
const DISMISSED: u8 = b'.';
/// How long the last of what a killed broker has held, and the dataplane, may last.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest wait for a warden that is dismissed.
const LEAVING: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_millis(5);

/// The broker's end. Dropping this dismisses the warden, and waits for it.
#[derive(Debug)]
pub struct Warden(Child);

impl Warden {
    /// Starts the warden of the run that has this group: this executable, with `words` and the file
    /// that lists the groups, as [`guard`] wants it. `None` if there is no group to end.
    pub fn start(group: &Group, words: &[&str]) -> io::Result<Option<Warden>> {
        let Some(file) = group.file_of_ends() else { return Ok(None) };
        let mut command = Command::new("/proc/self/exe");
        command.arg0(NAME).args(words).arg(file).current_dir("/").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().map(|child| Some(Warden(child)))
    }
}

impl Drop for Warden {
    fn drop(&mut self) {
        // It may have been killed.
        if let Some(mut pipe) = self.0.stdin.take() {
            let _ = pipe.write_all(&[DISMISSED]);
        }
        let end = Instant::now() + LEAVING;
        while matches!(self.0.try_wait(), Ok(None)) {
            if Instant::now() >= end {
                // It is stopped, perhaps.
                let _ = self.0.kill();
                let _ = self.0.wait();
                return;
            }
            std::thread::sleep(LEAVING / 100);
        }
    }
}

/// The warden: waits for the broker's end on `pipe`. If the broker was killed, ends all processes
/// of the program, and removes the groups that this file lists.
pub fn guard(mut pipe: impl Read, file: &Path) {
    let mut word = [0; 1];
    loop {
        match pipe.read(&mut word) {
            Ok(0) => break,
            Ok(_) => return,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
    let end = Instant::now() + PATIENCE;
    // The kernel may still be closing what the broker held.
    let left = loop {
        match Left::find(file) {
            Some(left) => break left,
            None if Instant::now() < end && file.exists() => std::thread::sleep(PAUSE),
            None => return,
        }
    };
    let programs: Vec<PathBuf> =
        left.groups.iter().filter_map(|run| group::program_of(run)).collect();
    group::end_all(&programs);
    // The dataplane closes its connections, and ends by itself.
    let remove = |run: &Path| {
        group::remove_run(run);
        group::leave_brokers_group(run);
    };
    while Instant::now() < end && !left.remove(remove) {
        std::thread::sleep(PAUSE);
    }
}
