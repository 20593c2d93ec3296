//! Which processes are the program's: those that descend from the broker. Others may have got hold
//! of the program's channel.
use ix_sys::process::Process;
use std::fs::File;
use std::io::Read;

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

/// The parent of the process that has this number now.
pub fn parent_of(pid: u32) -> Option<u32> {
    field(pid, [4]).map(|[parent]| parent).and_then(|parent| parent.try_into().ok())
}

/// Most bytes of a line of `/proc/PID/stat`: 52 numbers and a name.
const STAT_BYTES: usize = 2048;

/// Fields of a process, by their numbers in proc_pid_stat(5), from 4 on. Whoever asks for many
/// processes a second makes one read of each.
pub fn field<const COUNT: usize>(pid: u32, numbers: [usize; COUNT]) -> Option<[u64; COUNT]> {
    let mut stat = [0; STAT_BYTES];
    let read = File::open(format!("/proc/{pid}/stat")).ok()?.read(&mut stat).ok()?;
    // The name, in brackets, may hold anything; behind it comes field 3.
    let behind = stat[..read].iter().rposition(|byte| *byte == b')')? + 1;
    let text = std::str::from_utf8(&stat[behind..read]).ok()?;
    let mut fields = [0; COUNT];
    for (to, number) in fields.iter_mut().zip(numbers) {
        *to = text.split_ascii_whitespace().nth(number.checked_sub(3)?)?.parse().ok()?;
    }
    Some(fields)
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
