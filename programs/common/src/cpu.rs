//! Placement on hardware threads.
use std::io;
use std::str::FromStr;

/// Hardware threads of a command line: a list such as `0,2-3`, never empty.
#[derive(Clone, Debug)]
pub struct Cpus(pub Vec<usize>);

impl FromStr for Cpus {
    type Err = String;
    fn from_str(text: &str) -> Result<Cpus, String> {
        parse_list(text).map(Cpus)
    }
}

/// A list such as `0,2-3`.
pub fn parse_list(list: &str) -> Result<Vec<usize>, String> {
    let number = |text: &str| {
        text.trim().parse::<usize>().map_err(|_| format!("`{list}` is no CPU list such as 0,2-3"))
    };
    let mut cpus = Vec::new();
    for part in list.split(',') {
        match part.split_once('-') {
            None => cpus.push(number(part)?),
            Some((first, last)) => cpus.extend(number(first)?..=number(last)?),
        }
    }
    Ok(cpus)
}

/// Pins the calling thread.
pub fn pin(cpu: usize) -> io::Result<()> {
    // SAFETY: all-zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { core::mem::zeroed() };
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: `cpu` is within the set, checked above.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the set is valid and of the size given.
    match unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        assert_eq!(parse_list("0,2-4").unwrap(), [0, 2, 3, 4]);
        assert!(parse_list("a").is_err() && parse_list("").is_err() && parse_list("1-").is_err());
    }
}
