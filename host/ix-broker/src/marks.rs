//! By what the processes of a run's program are known where no control group holds them: whom they
//! run as and, if others run as that user too, what they have inherited.
//!
//! A process that has inherited the run's channel by a message, or that says it has its word, but
//! runs as somebody else, is none of the program's: a program can make nobody else's process end.
//! Only a program that is root of the machine, which may end any process, has processes that run as
//! anybody: servers become another user for their clients.
//!
//! Who forks and ends without a pause is in no list that is read of `/proc`. If no others run as
//! the program's user, or in its namespace, all are ended at once ([`AtOnce`]).
use crate::kin::parent_of;
use crate::own_user::OwnUser;
use ix_sys::process::Process;
use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// The variable of the program's environment that has the run's word.
const VARIABLE: &str = "IX_RUN";
const ROOT: u32 = 0;
/// Longest time to end all processes of a program.
const ENDING: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(2);
/// A process that forks while the list is read may have a child that is not in it.
const LOOKS_IN_VAIN: u32 = 2;
/// Between two lists, looks at the processes that have begun meanwhile; and most of these at a
/// look.
const LOOKS_AT_NEWEST: u32 = 200;
const NEWEST: u32 = 16;

/// Whom the processes of a program run as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// This user, as other programs too; if it is root, anybody.
    User(u32),
    /// This user, whom nobody else has.
    OwnUser(u32),
    /// Users of the user namespace that has this inode, or of one below it.
    Namespace(u64),
}

/// Ends the processes of a program all at once, whatever they fork. It can where nobody else has
/// the program's user or namespace.
pub struct AtOnce {
    of: ix_sys::Of,
    /// Whom nobody else has: the user of the process that ends them.
    user: OwnUser,
}

impl AtOnce {
    /// For a program whose processes run as `whose`; `namespace` is the one of this, if it is a
    /// namespace. `None`: others have that user too, or users of IX's own cannot be had here.
    pub fn prepare(whose: Whose, namespace: Option<BorrowedFd<'_>>) -> Option<AtOnce> {
        let of = match whose {
            Whose::User(_) => return None,
            Whose::OwnUser(user) => ix_sys::Of::User(user),
            Whose::Namespace(_) => ix_sys::Of::Namespace(namespace?.try_clone_to_owned().ok()?),
        };
        Some(AtOnce { of, user: OwnUser::claim().ok()?? })
    }
}

/// The marks of one run.
#[derive(Clone, Debug)]
pub struct Marks {
    /// Whom its processes run as.
    pub whose: Whose,
    /// The run's word, which no other run has.
    pub word: String,
    /// The inode of the image's end of the channel, when that exists.
    pub channel: Option<u64>,
}

impl Marks {
    /// The variable that the program gets.
    pub fn variable(&self) -> (String, String) {
        (VARIABLE.to_owned(), self.word.clone())
    }

    /// Ends all processes of the program.
    pub fn end_all(&self, at_once: Option<&AtOnce>) {
        let end = Instant::now() + ENDING;
        let mut in_vain = 0;
        while in_vain < LOOKS_IN_VAIN && Instant::now() < end {
            if let Some(all) = at_once {
                // An error means that the program has hindered it: it is tried again.
                let _ = ix_sys::end_all(&all.of, all.user.id());
            }
            let found = self.processes();
            in_vain = if found.is_empty() { in_vain + 1 } else { 0 };
            // Errors mean that it has ended.
            found.iter().for_each(|process| drop(process.signal(libc::SIGKILL)));
            if at_once.is_some() {
                std::thread::sleep(PAUSE);
            } else {
                self.end_newest();
            }
        }
    }

    /// Ends those of the program's processes that have just begun: one that forks and ends at once
    /// is over before a list is read.
    fn end_newest(&self) {
        let Some(mut before) = newest() else { return std::thread::sleep(PAUSE) };
        for _ in 0..LOOKS_AT_NEWEST {
            let Some(last) = newest() else { return };
            for pid in last.saturating_sub(NEWEST).max(before) + 1..=last {
                let Ok(process) = Process::open(pid) else { continue };
                if self.whose.has(pid) && self.marks(pid) {
                    let _ = process.signal(libc::SIGKILL);
                }
            }
            if last == before {
                std::thread::sleep(PAUSE / LOOKS_AT_NEWEST);
            }
            before = last;
        }
    }

    /// Those that have not ended.
    fn processes(&self) -> Vec<Process> {
        let Ok(all) = fs::read_dir("/proc") else { return Vec::new() };
        let all = all.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let own = std::process::id();
        // Each is opened before it is looked at, so that it is this one that is ended.
        let candidates = all.filter(|pid| *pid != own).filter_map(|pid| {
            let process = Process::open(pid).ok().filter(|process| !process.has_ended())?;
            let parent = parent_of(pid)?;
            self.whose.has(pid).then_some((process, parent))
        });
        let candidates: Vec<_> = candidates.collect();
        let mut marked: BTreeSet<u32> =
            candidates.iter().map(|(p, _)| p.pid()).filter(|pid| self.marks(*pid)).collect();
        // With their children, which may have put away what they had inherited.
        loop {
            let before = marked.len();
            let children = candidates.iter().filter(|(_, parent)| marked.contains(parent));
            let children: Vec<u32> = children.map(|(process, _)| process.pid()).collect();
            marked.extend(children);
            if marked.len() == before {
                break;
            }
        }
        let processes = candidates.into_iter().map(|(process, _)| process);
        processes.filter(|process| marked.contains(&process.pid())).collect()
    }

    /// Whether a process that runs as one of the program's is one.
    fn marks(&self, pid: u32) -> bool {
        !matches!(self.whose, Whose::User(_)) || self.has_word(pid) || self.has_channel(pid)
    }

    fn has_word(&self, pid: u32) -> bool {
        let wanted = format!("{VARIABLE}={}", self.word);
        threads_of(pid).any(|thread| {
            let variables = fs::read(thread.join("environ")).unwrap_or_default();
            variables.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
        })
    }

    fn has_channel(&self, pid: u32) -> bool {
        let Some(inode) = self.channel else { return false };
        let wanted = format!("socket:[{inode}]");
        let files = threads_of(pid).filter_map(|thread| fs::read_dir(thread.join("fd")).ok());
        files
            .flat_map(Iterator::flatten)
            .any(|file| fs::read_link(file.path()).is_ok_and(|to| to.as_os_str() == &*wanted))
    }
}

impl Whose {
    fn has(self, pid: u32) -> bool {
        match self {
            Whose::User(ROOT) => true,
            Whose::User(user) | Whose::OwnUser(user) => real_user(pid) == Some(user),
            Whose::Namespace(inode) => {
                let namespace = fs::File::open(format!("/proc/{pid}/ns/user")).ok();
                let above = std::iter::successors(namespace, ix_sys::user_namespace::above);
                let mut inodes = above.filter_map(|file| Some(file.metadata().ok()?.ino()));
                inodes.any(|one| one == inode)
            }
        }
    }
}

/// The number that Linux gave out last (proc_loadavg(5)).
fn newest() -> Option<u32> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    text.split_ascii_whitespace().next_back()?.parse().ok()
}

/// The folders of a process's threads. The first thread may have ended before the others: the
/// process's own folder shows neither variables nor descriptors then.
fn threads_of(pid: u32) -> impl Iterator<Item = PathBuf> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    threads.flatten().map(|thread| thread.path())
}

/// The real user of a process; the owner of its files in `/proc` is root if it cannot be traced.
fn real_user(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_ascii_whitespace().next()?.parse().ok()
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Whose::User(user) => write!(f, "user:{user}"),
            Whose::OwnUser(user) => write!(f, "own:{user}"),
            Whose::Namespace(inode) => write!(f, "namespace:{inode}"),
        }
    }
}

impl FromStr for Whose {
    type Err = String;

    fn from_str(text: &str) -> Result<Whose, String> {
        let number = |number: &str| number.parse::<u64>().map_err(|e| e.to_string());
        let user = |text| u32::try_from(number(text)?).map_err(|e| e.to_string());
        match text.split_once(':') {
            Some(("user", id)) => user(id).map(Whose::User),
            Some(("own", id)) => user(id).map(Whose::OwnUser),
            Some(("namespace", inode)) => number(inode).map(Whose::Namespace),
            _ => Err("it begins with user:, own: or namespace:".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};

    #[test]
    fn whose_they_are_is_read_as_it_is_written() {
        for whose in [Whose::User(0), Whose::OwnUser(61184), Whose::Namespace(u64::MAX)] {
            assert_eq!(whose.to_string().parse(), Ok(whose));
        }
        for text in ["", "user", "user:", "own:4294967296", "namespace:x", "x:1"] {
            text.parse::<Whose>().expect_err(text);
        }
    }

    /// A shell with a child that has none of its variables; and the child's number.
    fn family(word: &str) -> (Child, u32) {
        let mut command = Command::new("sh");
        command.args(["-c", "env -i sleep 60 & echo $!; wait"]);
        command.env(VARIABLE, word).stdout(Stdio::piped());
        let mut shell = command.spawn().expect("a shell");
        let mut line = String::new();
        let output = shell.stdout.take().expect("its output");
        BufReader::new(output).read_line(&mut line).expect("a line");
        (shell, line.trim().parse().expect("a number"))
    }

    #[test]
    fn processes_with_the_word_and_their_children_end_and_no_others() {
        let word = |nth: u32| format!("marks-{}-{nth}", std::process::id());
        let ((mut ours, child), (mut other, others_child)) = (family(&word(1)), family(&word(2)));
        let [child, others_child] =
            [child, others_child].map(|pid| Process::open(pid).expect("it runs"));
        let user = real_user(std::process::id()).expect("a user");
        let marks = |whose| Marks { whose, word: word(1), channel: None };
        marks(Whose::User(user + 1)).end_all(None);
        assert!(!child.has_ended(), "it runs as somebody else");
        marks(Whose::User(user)).end_all(None);
        ours.wait().expect("ended");
        assert!(child.has_ended() && !others_child.has_ended());
        assert!(matches!(other.try_wait(), Ok(None)));
        others_child.signal(libc::SIGKILL).expect("killed");
        other.wait().expect("ended");
    }

    #[test]
    fn a_process_with_the_channel_is_marked() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("sockets");
        let inode =
            fs::metadata(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&theirs)));
        let marks = Marks {
            whose: Whose::User(0),
            word: "none".into(),
            channel: Some(inode.expect("a descriptor").ino()),
        };
        let us = std::process::id();
        assert!(marks.has_channel(us) && !marks.has_word(us));
        drop((ours, theirs));
        assert!(!marks.has_channel(us));
    }
}
