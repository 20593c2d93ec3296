//! Whose an XDP program is.
use crate::namespace::Namespace;
use std::fmt;
use std::fs;
use std::io::Read;
use std::path::Path;

/// Most bytes of a file of `/proc` that are of interest.
const READ_MAX: u64 = 4096;
/// Most characters of a command.
const COMMAND_MAX: usize = 60;

/// A process that holds an XDP program. Says itself with its command, such as ``process 7,
/// `ix run memcached` ``.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramOwner {
    /// Its number.
    pub pid: u32,
    /// Its command.
    pub command: String,
}

impl fmt::Display for ProgramOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}, `{}`", self.pid, self.command)
    }
}

/// The process that holds the XDP program of an interface. `None`: the interface has none, or no
/// process that can be looked at holds it.
pub fn owner_on(interface: &str) -> Option<ProgramOwner> {
    let program = Namespace::current().ok()?.xdp_program(interface).ok()??;
    let line = format!("prog_id:\t{program}");
    let mut processes: Vec<u32> = fs::read_dir("/proc")
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    // The first one has started the others, mostly.
    processes.sort_unstable();
    let pid = processes.into_iter().find(|pid| holds(*pid, &line))?;
    Some(ProgramOwner { pid, command: command_of(pid) })
}

/// Whether a process has a descriptor whose description has this line (proc(5), `fdinfo`).
fn holds(pid: u32, line: &str) -> bool {
    let Ok(all) = fs::read_dir(format!("/proc/{pid}/fdinfo")) else { return false };
    all.flatten().any(|fd| read(&fd.path()).lines().any(|has| has == line))
}

fn command_of(pid: u32) -> String {
    let words = read(Path::new(&format!("/proc/{pid}/cmdline")));
    let words = words.trim_end_matches('\0').replace('\0', " ");
    // It goes to a terminal.
    words.chars().filter(|c| !c.is_control()).take(COMMAND_MAX).collect()
}

fn read(path: &Path) -> String {
    let mut bytes = Vec::new();
    // What cannot be read is empty.
    let _ = fs::File::open(path).and_then(|file| file.take(READ_MAX).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}
