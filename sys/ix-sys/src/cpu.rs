//! Hardware threads: which exist, and how to pin threads to them.
use std::io;

/// Pins the calling thread, and the threads that it starts, to one CPU. Makes only system calls, so
/// it may be used between fork and exec.
pub fn pin(cpu: usize) -> io::Result<()> {
    pin_to(&[cpu])
}

/// Pins the calling thread to these CPUs.
pub fn pin_to(cpus: &[usize]) -> io::Result<()> {
    pin_thread(0, cpus)
}

/// Pins a thread, by its number, to these CPUs; 0 is the calling thread (sched_setaffinity(2)).
pub fn pin_thread(thread: i32, cpus: &[usize]) -> io::Result<()> {
    // SAFETY: all zeroes is the empty cpu_set_t; CPU_SET checks nothing, so we do.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        for &cpu in cpus {
            if cpu >= libc::CPU_SETSIZE as usize {
                return Err(io::Error::from_raw_os_error(libc::EINVAL));
            }
            libc::CPU_SET(cpu, &mut set);
        }
        if libc::sched_setaffinity(thread, size_of_val(&set), &set) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// The CPUs that this thread may run on, in order.
pub fn allowed() -> Vec<usize> {
    // SAFETY: all zeroes is a valid cpu_set_t, and the kernel is told its size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of_val(&set), &mut set) < 0 {
            return vec![0];
        }
        (0..libc::CPU_SETSIZE as usize).filter(|&cpu| libc::CPU_ISSET(cpu, &set)).collect()
    }
}

/// Reads a list in the kernel's format, `0-3,8`; `None` if it is malformed.
pub fn parse_list(text: &str) -> Option<Vec<usize>> {
    // Far more than any machine has, so that the caller can report a hardware thread that does not
    // exist.
    const NUMBER_MAX: usize = 1 << 20;
    let mut cpus = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if first > last || last >= NUMBER_MAX {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse_list("0-2,5,7-7\n"), Some(vec![0, 1, 2, 5, 7]));
        assert_eq!(parse_list(""), Some(vec![]));
        for wrong in ["x", "3-1", "-1", "1-", "99999999", "0-99999999"] {
            assert_eq!(parse_list(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_pinned_thread_may_run_nowhere_else() {
        let cpu = *allowed().last().expect("some CPU");
        let seen = std::thread::spawn(move || {
            pin(cpu).expect("pin");
            allowed()
        });
        assert_eq!(seen.join().expect("join"), [cpu]);
        assert!(pin(1_000_000).is_err());
    }
}
