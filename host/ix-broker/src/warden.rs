//! The warden of a run: a small process that ends what the run's program has left when its broker
//! is killed. The program's first process ends with the broker, but not what that has forked.
//!
//! It is the same command once more, which waits on a pipe from the broker. A broker that ends in
//! order says so; the end of the pipe without that word means that it was killed. The warden has a
//! process group of its own, so that no terminal ends it, and holds no descriptor of the run. The
//! program can neither signal nor trace it: it has the broker's rights, and that of root is a user
//! whom no other process has, so that root of a namespace cannot even change its priority.
use crate::group::{self, Group};
use crate::group_locks::Left;
use crate::marks::{AtOnce, Marks};
use ix_sys::command::{Step, before_exec};
use ix_sys::process;
use std::io::{self, BufRead, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Name of its process.
const NAME: &str = "ix-warden";
/// What a broker says that ends in order.
const DISMISSED: &str = "dismissed";
/// What it says before the number of the channel.
const CHANNEL: &str = "channel ";
/// How long the last of what a killed broker has held, and the dataplane, may last.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest wait for a warden that is dismissed.
const LEAVING: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_millis(5);

/// The broker's end. Dropping this dismisses the warden, and waits for it.
#[derive(Debug)]
pub struct Warden(Child);

impl Warden {
    /// Starts the warden of the run that has this group and these marks: this executable, with
    /// `words` and what [`guard`] takes. `keeps`, two at most, are open in it as long as it lives:
    /// what must stay this run's so that no other run has its marks.
    pub fn start(
        group: &Group,
        marks: &Marks,
        keeps: Vec<OwnedFd>,
        words: &[&str],
    ) -> io::Result<Warden> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0(NAME).args(words).current_dir("/").process_group(0);
        command.args([marks.whose.to_string(), marks.word.clone()]);
        command.args(group.file_of_ends());
        // It would keep what its broker's caller waits for the end of.
        before_exec(&mut command, vec![Step::OnlyStandardDescriptors]);
        // It says nothing.
        let mut keeps = keeps.into_iter();
        let mut kept = || keeps.next().map_or_else(Stdio::null, Stdio::from);
        command.stdin(Stdio::piped()).stdout(kept()).stderr(kept());
        command.spawn().map(Warden)
    }

    /// The program has begun, and this is its channel.
    pub fn has_channel(&mut self, inode: u64) {
        self.say(&format!("{CHANNEL}{inode}"));
    }

    /// It may have been killed.
    fn say(&mut self, word: &str) {
        if let Some(pipe) = &mut self.0.stdin {
            let _ = writeln!(pipe, "{word}");
        }
    }
}

impl Drop for Warden {
    fn drop(&mut self) {
        self.say(DISMISSED);
        drop(self.0.stdin.take());
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
/// of the program. Those are in its control group, and the groups that this file lists are removed;
/// if there is none, they have its marks. `keeps` is the first
/// of what [`Warden::start`] was given to keep.
pub fn guard(
    pipe: impl BufRead,
    mut marks: Marks,
    file: Option<&Path>,
    keeps: Option<BorrowedFd<'_>>,
) {
    // While it still has root's number.
    let at_once = if file.is_none() { AtOnce::prepare(marks.whose, keeps) } else { None };
    // An error leaves it root, whose priority other programs of root could change.
    let _ = process::leave_roots_number();
    for word in pipe.lines() {
        match word.as_deref().map(|word| word.strip_prefix(CHANNEL)) {
            Ok(Some(inode)) => marks.channel = inode.parse().ok(),
            Ok(None) | Err(_) => return,
        }
    }
    match file {
        Some(file) => end_groups(file),
        None => marks.end_all(at_once.as_ref()),
    }
}

/// Ends all processes of the program's group, and removes all groups of the run.
fn end_groups(file: &Path) {
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
