//! Linux without some of its system calls, for a command: a filter refuses them (seccomp(2)).
use libc::{BPF_ABS, BPF_AND, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, sock_filter};
use std::io;
use std::mem::offset_of;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// A system call, or its calls with one value of one argument under a mask.
#[derive(Clone, Copy)]
pub struct Lacks {
    pub call: libc::c_long,
    /// Index, mask and value.
    pub only: Option<(usize, u32, u32)>,
}

impl Lacks {
    pub const fn call(call: libc::c_long) -> Lacks {
        Lacks { call, only: None }
    }
}

fn step(code: u32, k: u32, (jt, jf): (u8, u8)) -> sock_filter {
    sock_filter { code: code as u16, jt, jf, k }
}

fn load(offset: usize) -> sock_filter {
    step(BPF_LD | BPF_W | BPF_ABS, offset as u32, (0, 0))
}

fn filter(all: &[Lacks], errno: i32) -> Vec<sock_filter> {
    let equals = |value, no| step(BPF_JMP | BPF_JEQ | BPF_K, value, (0, no));
    let refuse = step(BPF_RET | BPF_K, libc::SECCOMP_RET_ERRNO | errno as u32, (0, 0));
    let mut steps = Vec::new();
    for Lacks { call, only } in all {
        steps.push(load(offset_of!(libc::seccomp_data, nr)));
        match only {
            None => steps.push(equals(*call as u32, 1)),
            Some((index, mask, value)) => steps.extend([
                equals(*call as u32, 4),
                load(offset_of!(libc::seccomp_data, args) + 8 * index),
                step(libc::BPF_ALU | BPF_AND | BPF_K, *mask, (0, 0)),
                equals(*value, 1),
            ]),
        }
        steps.push(refuse);
    }
    steps.push(step(BPF_RET | BPF_K, libc::SECCOMP_RET_ALLOW, (0, 0)));
    steps
}

/// These calls of the command, and of whatever it starts, fail with this error. Needs root.
pub fn lack(command: &mut Command, all: &[Lacks], errno: i32) {
    let mut steps = filter(all, errno);
    let mode = libc::SECCOMP_MODE_FILTER;
    let install = move || {
        let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
        // SAFETY: a program of that length, which Linux copies.
        match unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: it makes one system call.
    unsafe { command.pre_exec(install) };
}
