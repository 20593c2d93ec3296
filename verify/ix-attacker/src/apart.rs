//! Attacks on a dataplane in a process of its own (`ix attack --domain process`) beside those of
//! [`crate::process`], which root of a namespace may make: its user is that of files in `/proc`.
//! The control is the same attack where there is no wall: the dataplane is then in this process, so
//! the attack is on the attacker's own parent.
use crate::aim::{Aim, Attack};
use crate::call;
use std::fs::{self, File};

/// Asks for the right to signal, and does nothing. (Linux lets everybody in a session send the
/// signal that only continues a process.)
const NO_SIGNAL: u64 = 0;

/// All attacks: name, and what is tried.
pub const ATTACKS: &[(&str, Attack)] = &[
    ("/proc/PID/ns/net", |aim| File::open(aim.file("ns/net")).map(drop).map_err(|e| e.to_string())),
    ("/proc/PID/fd, the list", |aim| {
        fs::read_dir(aim.file("fd")).map(drop).map_err(|e| e.to_string())
    }),
    ("/proc/PID/oom_score_adj, to be killed first", |aim| {
        fs::write(aim.file("oom_score_adj"), "1000").map_err(|e| e.to_string())
    }),
    ("move_pages", |aim| call(libc::SYS_move_pages, [aim.dataplane, 0, 0, 0, 0, 0]).map(drop)),
    ("any signal to its thread", |aim| {
        let process = aim.dataplane;
        call(libc::SYS_tgkill, [process, process, NO_SIGNAL, 0, 0, 0]).map(drop)
    }),
    ("become its user", become_it),
];

/// Becomes the user that the process belongs to. That of one that cannot be dumped is in its status
/// only.
fn become_it(aim: &Aim) -> Result<(), String> {
    let status = fs::read_to_string(aim.file("status")).map_err(|e| e.to_string())?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let user = users.and_then(|users| users.split_whitespace().next()?.parse::<u64>().ok());
    let user = user.ok_or("its status has no user")?;
    call(libc::SYS_setresuid, [user, user, user, 0, 0, 0]).map(drop)
}
