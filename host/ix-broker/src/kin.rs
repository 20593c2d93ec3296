//! Which processes are the program's: those that descend from the broker. Others may have got hold
//! of the program's channel.
use ix_sys::process::Process;

/// Longest line of ancestors that is followed.
const ANCESTORS_MAX: u32 = 1000;

/// Whether a process descends from this one. One that has ended does not.
pub fn descends_from_us(process: &Process) -> bool {
    let own = std::process::id();
    let mut pid = process.pid();
    for _ in 0..ANCESTORS_MAX {
        match parent_of(pid) {
            // The number was that of the process while its parent was read.
            Some(parent) if parent == own => return !process.has_ended(),
            Some(parent) if parent > 1 => pid = parent,
            _ => return false,
        }
    }
    false
}

/// The parent of the process that has this number now (proc_pid_stat(5)).
pub fn parent_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in brackets, may hold anything; behind it comes the state.
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_of_children_are_ours_and_others_are_not() {
        let sleeps = |shell: &str| {
            let mut command = std::process::Command::new("sh");
            command.args(["-c", shell]).stdout(std::process::Stdio::piped()).spawn().unwrap()
        };
        let mut shell = sleeps("sleep 30 & echo $!; wait");
        let mut line = String::new();
        let output = shell.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).unwrap();
        let grandchild = Process::open(line.trim().parse().unwrap()).unwrap();
        assert!(descends_from_us(&grandchild));
        let parent = Process::open(std::os::unix::process::parent_id()).unwrap();
        assert!(!descends_from_us(&parent));
        grandchild.signal(libc::SIGKILL).unwrap();
        shell.wait().unwrap();
        assert!(!descends_from_us(&grandchild), "it has ended");
    }
}
