//! The application's system calls, one at a time. [`super::policy`] says which go on to the
//! kernel unchanged and which must be checked, and refuses all others.
use super::asm::app_syscall;
use super::deliver::{self, from_app, to_app};
use super::handler::{refuse, set_mask};
use super::parts::{Part, stands};
use super::policy::{Kind, Verdict, verdict};
use super::record::Record;
use super::{arrivals, memory, threads};
use crate::sys;
use core::sync::atomic::{AtomicI32, Ordering};
use ix_dataplane::metrics::Refusal;

/// Descriptors from this number on are the dataplane's.
pub static FD_BASE: AtomicI32 = AtomicI32::new(i32::MAX);

const EBADF: i64 = libc::EBADF as i64;
const EFAULT: i64 = libc::EFAULT as i64;
const EINVAL: i64 = libc::EINVAL as i64;
const ENOSYS: i64 = libc::ENOSYS as i64;
const USER_TOP: u64 = 1 << 47;

/// Carries out a system call of the application; `None` if its registers are already set.
pub fn system_call(record: &mut Record, number: u64, args: [u64; 6]) -> Option<i64> {
    let verdict = match verdict(number, &args, FD_BASE.load(Ordering::Relaxed)) {
        // glibc then does as on an old kernel: only `clone` is checked.
        verdict if stands(Part::Calls) || number == libc::SYS_clone3 as u64 => verdict,
        Verdict::Look(kind) => Verdict::Look(kind),
        _ => Verdict::Forward,
    };
    let kind = match verdict {
        Verdict::Forward => return Some(forward(record, number, args)),
        Verdict::Refuse => return Some(refuse(Refusal::SystemCall)),
        Verdict::BadDescriptor => {
            refuse(Refusal::Descriptor);
            return Some(-EBADF);
        }
        Verdict::Absent => return Some(-ENOSYS),
        Verdict::Look(kind) => kind,
    };
    Some(match kind {
        Kind::Memory => memory::system_call(record, number as i64, args),
        Kind::SigAction => deliver::sigaction(record, args),
        Kind::SigMask => deliver::sigprocmask(record, args),
        Kind::SigStack => deliver::sigaltstack(record, args),
        Kind::SigReturn => {
            deliver::sigreturn(record);
            return None;
        }
        Kind::Clone => threads::clone(record, args),
        Kind::Fork => threads::clone(record, [libc::SIGCHLD as u64, 0, 0, 0, 0, 0]),
        Kind::Exit => threads::exit(record, args[0]),
        Kind::ExitGroup => {
            super::farewell(record);
            forward(record, number, args)
        }
        Kind::ArchPrctl => arch_prctl(record, args),
        Kind::TidAddress if !stands(Part::Calls) => forward(record, number, args),
        Kind::TidAddress => threads::set_tid_address(record, args[0]),
        Kind::Limit => limit(record, number, args),
        Kind::SendMessage => send_message(record, args, false),
        Kind::SendMessages => send_message(record, args, true),
        Kind::Signal if reaches_survivor(args[0]) => refuse(Refusal::SystemCall),
        Kind::ThreadSignal if reaches_survivor(args[1]) => refuse(Refusal::SystemCall),
        Kind::Owner if reaches_survivor(args[2]) => refuse(Refusal::SystemCall),
        Kind::Signal | Kind::ThreadSignal | Kind::Owner => forward(record, number, args),
    })
}

/// Whether a signal to this target reaches the survivor, which has the application's user: its
/// process, its group, or all processes.
fn reaches_survivor(target: u64) -> bool {
    let (target, survivor) = (target as i32, crate::survivor::process());
    let everybody = -1;
    stands(Part::Calls) && (target == everybody || survivor > 0 && target.abs() == survivor)
}

/// Makes the call in the kernel, with the application's rights and signal mask.
pub fn forward(record: &mut Record, number: u64, args: [u64; 6]) -> i64 {
    set_mask(record, record.app_mask & !deliver::faults());
    let call = [number, args[0], args[1], args[2], args[3], args[4], args[5]];
    arrivals::call_begins(record);
    // SAFETY: the thread's own record. The policy has allowed the call; whatever pointers it has
    // are the application's to use or else the kernel refuses them.
    let answer = unsafe { app_syscall(record, &call) };
    arrivals::call_ends(record);
    answer
}

fn arch_prctl(record: &mut Record, args: [u64; 6]) -> i64 {
    const SET_GS: u64 = 0x1001;
    const SET_FS: u64 = 0x1002;
    const GET_FS: u64 = 0x1003;
    match args[0] {
        SET_FS if args[1] < USER_TOP => {
            record.app_fs = args[1];
            0
        }
        SET_GS if args[1] < USER_TOP => {
            // SAFETY: no pointers; nothing of ours uses gs.
            unsafe { sys::syscall(libc::SYS_arch_prctl, [SET_GS, args[1], 0, 0, 0, 0]) }
        }
        GET_FS => {
            let fs = record.app_fs.to_ne_bytes();
            if to_app(record, args[1], &fs) { 0 } else { -EFAULT }
        }
        _ => -EINVAL,
    }
}

/// The limit of open files may not rise to the dataplane's numbers.
fn limit(record: &mut Record, number: u64, args: [u64; 6]) -> i64 {
    let (resource, new) = match number as i64 {
        libc::SYS_prlimit64 => (args[1], args[2]),
        _ => (args[0], args[1]),
    };
    if new != 0 && number as i64 == libc::SYS_prlimit64 && reaches_survivor(args[0]) {
        return refuse(Refusal::SystemCall);
    }
    if new == 0 || resource as u32 != libc::RLIMIT_NOFILE {
        return forward(record, number, args);
    }
    let Some(wanted) = from_app::<[u64; 2]>(record, new) else { return -EFAULT };
    if wanted[0] > FD_BASE.load(Ordering::Relaxed) as u64 && stands(Part::Calls) {
        return refuse(Refusal::Descriptor);
    }
    // The kernel must see the checked value.
    let Some(at) = show(record, &wanted) else { return -EFAULT };
    let mut args = args;
    args[if number as i64 == libc::SYS_prlimit64 { 2 } else { 1 }] = at;
    forward(record, number, args)
}

/// Writes a value where the application can read but not change it.
fn show<T: Copy>(record: &mut Record, value: &T) -> Option<u64> {
    // SAFETY: the thread's own page, with room for it.
    unsafe {
        let out = &raw mut (*record.shown).out;
        (size_of::<T>() <= size_of_val(&*out)).then(|| {
            out.cast::<T>().write_unaligned(*value);
            out as u64
        })
    }
}

/// `struct msghdr` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct Message {
    name: u64,
    name_bytes: u64,
    parts: u64,
    part_count: u64,
    control: u64,
    control_bytes: u64,
    flags: u64,
}

const CONTROL_MAX: usize = 1024;

/// `sendmsg`, and the first message of `sendmmsg`: it must not send a descriptor of the dataplane.
fn send_message(record: &mut Record, args: [u64; 6], first_of_many: bool) -> i64 {
    let Some(mut message) = from_app::<Message>(record, args[1]) else { return -EFAULT };
    let mut shown = ([0u64; 7], [0u8; CONTROL_MAX]);
    let bytes = message.control_bytes as usize;
    if message.control != 0 && bytes != 0 {
        if bytes > CONTROL_MAX {
            return -EINVAL;
        }
        let Some(control) = from_app::<[u8; CONTROL_MAX]>(record, message.control)
            .or_else(|| short_control(record, message.control, bytes))
        else {
            return -EFAULT;
        };
        let reserved = sends_reserved(&control[..bytes], FD_BASE.load(Ordering::Relaxed));
        if reserved && stands(Part::Calls) {
            refuse(Refusal::Descriptor);
            return -EBADF;
        }
        shown.1 = control;
        // SAFETY: the address behind the header on the thread's own page.
        message.control = unsafe { &raw const (*record.shown).out } as u64 + 56;
    }
    // SAFETY: seven words.
    shown.0 = unsafe { core::mem::transmute::<Message, [u64; 7]>(message) };
    let Some(at) = show(record, &shown) else { return -EINVAL };
    let flags = if first_of_many { args[3] } else { args[2] };
    let sent = forward(record, libc::SYS_sendmsg as u64, [args[0], at, flags, 0, 0, 0]);
    if !first_of_many || sent < 0 {
        return sent;
    }
    // Fewer than requested is a result that callers expect.
    let length = (sent as u32).to_ne_bytes();
    if to_app(record, args[1].wrapping_add(56), &length) { 1 } else { -EFAULT }
}

/// Reads control data that ends near the end of a mapping.
fn short_control(record: &mut Record, addr: u64, bytes: usize) -> Option<[u8; CONTROL_MAX]> {
    let mut control = [0; CONTROL_MAX];
    for at in (0..bytes).step_by(8) {
        let word = from_app::<[u8; 8]>(record, addr + at as u64)?;
        let end = (at + 8).min(bytes);
        control[at..end].copy_from_slice(&word[..end - at]);
    }
    Some(control)
}

/// Whether a control message passes a descriptor from `base` on (cmsg(3)).
fn sends_reserved(control: &[u8], base: i32) -> bool {
    const HEADER: usize = 16;
    let mut rest = control;
    while rest.len() >= HEADER {
        let length = usize::from_ne_bytes(core::array::from_fn(|i| rest[i]));
        if length < HEADER || length > rest.len() {
            // The kernel refuses it too.
            return false;
        }
        let fds = rest[HEADER..length].chunks_exact(4);
        for fd in fds {
            // Whatever kind of message it is: numbers that large stand for nothing else here.
            let fd = i32::from_ne_bytes(core::array::from_fn(|i| fd[i]));
            let kind = i32::from_ne_bytes(core::array::from_fn(|i| rest[12 + i]));
            if kind == libc::SCM_RIGHTS && fd >= base {
                return true;
            }
        }
        rest = &rest[length.next_multiple_of(8).min(rest.len())..];
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_of_the_dataplane_are_not_sent() {
        let message = |fds: &[i32]| {
            let mut bytes = (16 + 4 * fds.len()).to_ne_bytes().to_vec();
            bytes.extend(libc::SOL_SOCKET.to_ne_bytes());
            bytes.extend(libc::SCM_RIGHTS.to_ne_bytes());
            fds.iter().for_each(|fd| bytes.extend(fd.to_ne_bytes()));
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            bytes
        };
        assert!(!sends_reserved(&message(&[0, 3, 959]), 960));
        assert!(sends_reserved(&message(&[0, 960]), 960));
        let two = [message(&[1]), message(&[1023])].concat();
        assert!(sends_reserved(&two, 960));
        assert!(!sends_reserved(&[0xff; 64], 960));
        assert!(!sends_reserved(&[], 960));
    }
}
