//! Which of the program's calls goes where. Calls about descriptors of IX, and those that this
//! library must know of, go to its functions; all others are Linux's.
use super::context::{self, Context};
use super::frame::{Frame, Registers, SYSCALL};
use super::ways::{Way, new_numbers, way};
use super::{actions, beside, threads};
use crate::ffi::{descriptors, execute, passing, process, sockets, transfer, uring, waits};
use crate::mem::{is_possible, is_readable, is_readable_name};
use crate::{fds, kept_numbers, limited, log, outside, real, serving};
use libc::{c_int, c_long};
use std::time::{Duration, Instant};

const ARCH_SET_GS: u64 = 0x1001;
const ARCH_GET_GS: u64 = 0x1004;
const PR_SET_SYSCALL_USER_DISPATCH: u64 = 59;

/// What came of a call.
pub enum Outcome {
    /// Its result, as Linux returns it.
    Done(i64),
    /// Linux is to make it.
    Linux,
    /// Linux is to make another one, for which the frame is set.
    Set,
    /// The program goes on at another frame of its own.
    Frame(u64),
}

fn ours(fd: u64) -> bool {
    fds::is_ours(fd as c_int)
}

/// A pointer that the program passes.
fn at<T>(address: u64) -> *mut T {
    core::ptr::with_exposed_provenance_mut(address as usize)
}

/// Whether one of the descriptors that `poll` names is ours.
fn polls_ours(polls: u64, count: u64) -> bool {
    let polls = at::<libc::pollfd>(polls);
    let bytes = (count as usize).saturating_mul(size_of::<libc::pollfd>());
    // SAFETY: an array of the program's with this many entries, which waits for this call.
    count > 0
        && is_possible(polls, bytes)
        && unsafe { core::slice::from_raw_parts(polls, count as usize) }
            .iter()
            .any(|poll| fds::is_ours(poll.fd))
}

/// Whether one of the descriptors in a set of `select` is ours.
fn selects_ours(count: u64, sets: &[u64]) -> bool {
    let words = (count as c_int).max(0).unsigned_abs().div_ceil(64) as usize;
    sets.iter().any(|set| {
        let set = at::<u64>(*set);
        // SAFETY: a set of the program's with a bit for each number below `count`.
        is_possible(set, words * 8)
            && words > 0
            && (0..words).any(|nth| {
                // SAFETY: as above.
                let mut word = unsafe { set.add(nth).read_unaligned() };
                while word != 0 {
                    let fd = nth as c_int * 64 + word.trailing_zeros() as c_int;
                    if fd < count as c_int && fds::is_ours(fd) {
                        return true;
                    }
                    word &= word - 1;
                }
                false
            })
    })
}

/// Whether a message carries descriptors, or may.
fn has_control(message: u64) -> bool {
    let message = at::<libc::msghdr>(message);
    // SAFETY: a structure of the program's, which waits for this call.
    is_possible(message, size_of::<libc::msghdr>())
        && unsafe { !(*message).msg_control.is_null() && (*message).msg_controllen > 0 }
}

/// Whether an operation of `seccomp` sets a filter.
fn sets_filter(operation: u64) -> bool {
    operation == libc::SECCOMP_SET_MODE_STRICT.into()
        || operation == libc::SECCOMP_SET_MODE_FILTER.into()
}

/// Whether a call is not simply Linux's. Uses no thread-local storage.
pub fn is_for_library(registers: &Registers) -> bool {
    let [a, b, c, d, ..] = registers.arguments();
    match (way(registers.number()), registers.number()) {
        (Way::Linux, _) => false,
        (Way::Descriptor | Way::Unmasked, _) => ours(a),
        (_, libc::SYS_newfstatat | libc::SYS_statx) => fds::get(a as c_int) == fds::Entry::Kept,
        (_, libc::SYS_recvmsg | libc::SYS_sendmsg) => ours(a) || has_control(b),
        (_, libc::SYS_splice) => ours(a) || ours(c),
        (_, libc::SYS_close) => ours(a) || uring::are_any(),
        (_, libc::SYS_fcntl) => {
            ours(a) || b as c_int == libc::F_DUPFD || b as c_int == libc::F_DUPFD_CLOEXEC
        }
        (_, libc::SYS_poll | libc::SYS_ppoll) => polls_ours(a, b),
        (_, libc::SYS_select | libc::SYS_pselect6) => selects_ours(a, &[b, c, d]),
        (_, made) if new_numbers(made) > 0 => kept_numbers::are_any(),
        (_, libc::SYS_setrlimit) => a as u32 == libc::RLIMIT_NOFILE,
        (_, libc::SYS_prlimit64) => b as u32 == libc::RLIMIT_NOFILE,
        (_, libc::SYS_arch_prctl) => a == ARCH_SET_GS || a == ARCH_GET_GS,
        (_, libc::SYS_prctl) => {
            a == PR_SET_SYSCALL_USER_DISPATCH || a == libc::PR_SET_SECCOMP as u64
        }
        (_, libc::SYS_seccomp) => sets_filter(a),
        (_, libc::SYS_brk | libc::SYS_sigaltstack) => super::is_beside(),
        // Its own stack, on which it could not come back.
        (_, libc::SYS_munmap) => registers.rsp.wrapping_sub(a) < b,
        // Its mask may be replaced.
        (_, libc::SYS_rt_sigsuspend) => false,
        (Way::Asks | Way::Trap, _) => true,
    }
}

/// Before a call goes on to Linux as it is: a mask that it takes leaves SIGSYS alone.
pub fn before_linux(registers: &mut Registers) {
    real::made_by_program();
    // SAFETY: masks of the program's, where Linux would read them.
    unsafe {
        match registers.number() {
            libc::SYS_rt_sigsuspend => replace(&mut registers.rdi),
            libc::SYS_ppoll => replace(&mut registers.r10),
            libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => replace(&mut registers.r8),
            libc::SYS_pselect6 => {
                let pair = at::<[u64; 2]>(registers.r9);
                if is_readable(pair.cast(), 16)
                    && let Some(mask) = actions::replaced_mask((*pair)[0])
                {
                    let context = &mut *context::current();
                    (context.mask[1], context.mask[2]) = (mask, (*pair)[1]);
                    registers.r9 = context.mask[1..].as_ptr() as u64;
                }
            }
            _ => {}
        }
    }
}

/// # Safety
/// Null, or a mask of the program's.
unsafe fn replace(mask: &mut u64) {
    // SAFETY: the caller's promise.
    if let Some(replaced) = unsafe { actions::replaced_mask(*mask) } {
        *mask = replaced;
    }
}

/// A result of one of the C library's functions, as Linux returns it.
fn linux(result: impl Into<c_long>) -> Outcome {
    let result = result.into();
    Outcome::Done(if result == -1 { -c_long::from(real::errno()) } else { result })
}

/// What a descriptor-making call for Linux needs.
fn with_room(count: usize) -> Outcome {
    kept_numbers::make_room(count, 0);
    Outcome::Linux
}

/// Makes a call that [`is_for_library`] has named, if it needs no more than its arguments; `None`:
/// it does.
pub fn plain(number: i64, arguments: [u64; 6]) -> Option<Outcome> {
    let [a, b, c, d, e, f] = arguments;
    let fd = a as c_int;
    // SAFETY: the program's own arguments, as the system call of this number has them, go to the
    // function that has the same ones.
    Some(unsafe {
        match number {
            libc::SYS_read => linux(transfer::read(fd, at(b), c as usize) as c_long),
            libc::SYS_write => linux(transfer::write(fd, at(b), c as usize) as c_long),
            libc::SYS_readv => linux(transfer::readv(fd, at(b), c as c_int) as c_long),
            libc::SYS_writev => linux(transfer::writev(fd, at(b), c as c_int) as c_long),
            libc::SYS_sendto => {
                let to = (at(e), f as u32);
                linux(transfer::sendto(fd, at(b), c as usize, d as c_int, to.0, to.1) as c_long)
            }
            libc::SYS_recvfrom => {
                let (from, len) = (at(e), at(f));
                linux(transfer::recvfrom(fd, at(b), c as usize, d as c_int, from, len) as c_long)
            }
            libc::SYS_sendmsg if !ours(a) => {
                passing::descriptors_go(at(b));
                Outcome::Linux
            }
            libc::SYS_sendmsg => linux(transfer::sendmsg(fd, at(b), c as c_int) as c_long),
            libc::SYS_recvmsg => linux(transfer::recvmsg(fd, at(b), c as c_int) as c_long),
            libc::SYS_sendmmsg => linux(transfer::sendmmsg(fd, at(b), c as u32, d as c_int)),
            libc::SYS_recvmmsg => linux(transfer::recvmmsg(fd, at(b), c as u32, d as c_int, at(e))),
            libc::SYS_sendfile => {
                linux(transfer::sendfile(fd, b as c_int, at(c), d as usize) as c_long)
            }
            libc::SYS_splice => {
                let (out, len) = (c as c_int, e as usize);
                linux(transfer::splice(fd, at(b), out, at(d), len, f as u32) as c_long)
            }
            libc::SYS_socket => linux(sockets::socket(fd, b as c_int, c as c_int)),
            libc::SYS_bind | libc::SYS_connect if !is_readable_name(at(b), c as u32 as usize) => {
                Outcome::Done(-i64::from(libc::EFAULT))
            }
            libc::SYS_bind => linux(sockets::bind(fd, at(b), c as u32)),
            libc::SYS_listen => linux(sockets::listen(fd, b as c_int)),
            libc::SYS_connect => linux(sockets::connect(fd, at(b), c as u32)),
            libc::SYS_accept => linux(sockets::accept(fd, at(b), at(c))),
            libc::SYS_accept4 => linux(sockets::accept4(fd, at(b), at(c), d as c_int)),
            libc::SYS_shutdown => linux(sockets::shutdown(fd, b as c_int)),
            libc::SYS_getsockname => linux(sockets::getsockname(fd, at(b), at(c))),
            libc::SYS_getpeername => linux(sockets::getpeername(fd, at(b), at(c))),
            libc::SYS_setsockopt => {
                linux(sockets::setsockopt(fd, b as c_int, c as c_int, at(d), e as u32))
            }
            libc::SYS_getsockopt => {
                linux(sockets::getsockopt(fd, b as c_int, c as c_int, at(d), at(e)))
            }
            libc::SYS_close => linux(descriptors::close(fd)),
            libc::SYS_close_range => {
                linux(descriptors::close_range(a as u32, b as u32, c as c_int))
            }
            libc::SYS_dup => linux(descriptors::dup(fd)),
            libc::SYS_dup2 => linux(descriptors::dup2(fd, b as c_int)),
            libc::SYS_dup3 => linux(descriptors::dup3(fd, b as c_int, c as c_int)),
            libc::SYS_fcntl => linux(descriptors::fcntl(fd, b as c_int, c as usize)),
            libc::SYS_ioctl => linux(descriptors::ioctl(fd, b, c as usize)),
            libc::SYS_newfstatat | libc::SYS_statx => {
                let path = at::<u8>(b);
                let names_other = is_possible(path, 1) && *path == b'/';
                if names_other { Outcome::Linux } else { Outcome::Done(-c_long::from(libc::EBADF)) }
            }
            libc::SYS_fstat => match fds::get(fd) {
                fds::Entry::Kept => Outcome::Done(-c_long::from(libc::EBADF)),
                _ => Outcome::Linux,
            },
            libc::SYS_epoll_create if fd <= 0 => Outcome::Done(-c_long::from(libc::EINVAL)),
            libc::SYS_epoll_create => linux(waits::epoll_create1(0)),
            libc::SYS_epoll_create1 => linux(waits::epoll_create1(fd)),
            libc::SYS_epoll_ctl => linux(waits::epoll_ctl(fd, b as c_int, c as c_int, at(d))),
            libc::SYS_epoll_wait => linux(waits::epoll_wait(fd, at(b), c as c_int, d as c_int)),
            libc::SYS_epoll_pwait => {
                linux(waits::epoll_pwait(fd, at(b), c as c_int, d as c_int, at(e)))
            }
            libc::SYS_epoll_pwait2 => {
                linux(waits::epoll_pwait2(fd, at(b), c as c_int, at(d), at(e)))
            }
            libc::SYS_poll => linux(waits::poll(at(a), b, c as c_int)),
            libc::SYS_select => linux(waits::select(fd, at(b), at(c), at(d), at(e))),
            libc::SYS_io_uring_setup => Outcome::Done(uring::setup(a, at(b))),
            libc::SYS_io_uring_enter => {
                let arguments = [a, b, c, d, e, f].map(|argument| argument as c_long);
                // Linux's may wait, as the program itself.
                uring::enter(arguments).map_or(Outcome::Linux, Outcome::Done)
            }
            libc::SYS_io_uring_register => {
                let arguments = [a, b, c, d, e, f].map(|argument| argument as c_long);
                Outcome::Done(uring::call(number, arguments))
            }
            made if new_numbers(made) > 0 => with_room(new_numbers(made)),
            libc::SYS_setrlimit => linux(process::setrlimit(fd, at(b))),
            libc::SYS_prlimit64 => linux(process::prlimit(fd, b as c_int, at(c), at(d))),
            _ => return None,
        }
    })
}

/// Makes a call that [`is_for_library`] has named.
pub fn make(frame: &mut Frame, context: *mut Context) -> Outcome {
    let (number, arguments) = (frame.registers.number(), frame.registers.arguments());
    if let Some(outcome) = plain(number, arguments) {
        return outcome;
    }
    let [a, b, c, d, e, f] = arguments;
    let fd = a as c_int;
    // SAFETY: as in `plain`.
    unsafe {
        match number {
            libc::SYS_setuid
            | libc::SYS_setgid
            | libc::SYS_setreuid
            | libc::SYS_setregid
            | libc::SYS_setgroups
            | libc::SYS_setresuid
            | libc::SYS_setresgid => {
                serving::before_rights_go(&mut outside::everyone_outside());
                Outcome::Linux
            }
            libc::SYS_rt_sigaction => Outcome::Done(actions::set(fd, b, c, d)),
            libc::SYS_rt_sigprocmask => Outcome::Done(actions::mask(&mut frame.mask, fd, b, c, d)),
            libc::SYS_rt_sigreturn => Outcome::Frame(frame.registers.rsp),
            libc::SYS_brk => Outcome::Done(beside::brk(a)),
            libc::SYS_sigaltstack => Outcome::Done(actions::alternate(frame, &*context, a, b)),
            libc::SYS_munmap => linux(libc::munmap(at(a), b as usize)),
            libc::SYS_arch_prctl if a == ARCH_GET_GS => {
                if !is_possible(at::<u64>(b), 8) {
                    return Outcome::Done(-c_long::from(libc::EFAULT));
                }
                at::<u64>(b).write_unaligned(0);
                Outcome::Done(0)
            }
            libc::SYS_arch_prctl => {
                let text = "the program wants the register gs, by which IX finds a thread's state: \
                            it is refused; --posix off runs the program on Linux's sockets";
                log::once(log::Once::RegisterGs, text);
                Outcome::Done(-c_long::from(libc::EPERM))
            }
            libc::SYS_prctl if a == libc::PR_SET_SECCOMP as u64 => {
                let is_strict = b == libc::SECCOMP_MODE_STRICT.into();
                limited::before_filter(limited::filter(is_strict, at(c)), true);
                Outcome::Linux
            }
            libc::SYS_prctl => Outcome::Done(-c_long::from(libc::EINVAL)),
            libc::SYS_seccomp => {
                let is_strict = a == libc::SECCOMP_SET_MODE_STRICT.into();
                limited::before_filter(limited::filter(is_strict, at(c)), true);
                Outcome::Linux
            }
            libc::SYS_fork => threads::fork(frame, context, [libc::SIGCHLD as u64, 0, 0, 0, 0]),
            libc::SYS_vfork => threads::fork(frame, context, [libc::SIGCHLD as u64, 0, 0, 0, 0]),
            libc::SYS_clone => threads::clone(frame, context, [a, b, c, d, e]),
            libc::SYS_clone3 => threads::clone3(frame, context, a, b),
            libc::SYS_execve => linux(execute::execve(at(a), at(b), at(c))),
            libc::SYS_execveat => {
                let empty = is_possible(at::<u8>(b), 1) && *at::<u8>(b) == 0;
                let absolute = is_possible(at::<u8>(b), 1) && *at::<u8>(b) == b'/';
                if e as c_int == libc::AT_EMPTY_PATH && empty {
                    linux(execute::fexecve(fd, at(c), at(d)))
                } else if e == 0 && (fd == libc::AT_FDCWD || absolute) {
                    linux(execute::execve(at(b), at(c), at(d)))
                } else {
                    Outcome::Linux
                }
            }
            libc::SYS_exit => {
                // Here: the program's stack may be another thread's by now.
                actions::set_mask(!0);
                (*context).ends();
                linux(libc::syscall(libc::SYS_exit, a))
            }
            libc::SYS_exit_group => {
                crate::process::finish();
                Outcome::Linux
            }
            libc::SYS_ppoll => timed(c, || waits::ppoll(at(a), b, at(c), at(d))),
            libc::SYS_pselect6 => {
                let pair = at::<u64>(f);
                let mask = if is_possible(pair, 16) { *pair } else { 0 };
                timed(e, || waits::pselect(fd, at(b), at(c), at(d), at(e), at(mask)))
            }
            _ => Outcome::Linux,
        }
    }
}

/// The signal mask that a call has while it waits, if it has one of its own.
pub fn mask_of(registers: &Registers) -> Option<u64> {
    let mask = match registers.number() {
        libc::SYS_ppoll => registers.r10,
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => registers.r8,
        libc::SYS_pselect6 => {
            let pair = at::<u64>(registers.r9);
            // SAFETY: a structure of the program's.
            if is_readable(pair.cast(), 16) { unsafe { pair.read_unaligned() } } else { 0 }
        }
        _ => 0,
    };
    let mask = at::<u64>(mask);
    // SAFETY: a mask of the program's.
    is_readable(mask.cast(), 8).then(|| actions::without_sigsys(unsafe { mask.read_unaligned() }))
}

/// A call that waits for at most `limit`, where Linux writes how much is left of it.
///
/// # Safety
/// Null, or a time of the program's.
unsafe fn timed(limit: u64, call: impl FnOnce() -> c_int) -> Outcome {
    let begun = Instant::now();
    let outcome = linux(call());
    let limit = at::<libc::timespec>(limit);
    let is_wrong = matches!(outcome, Outcome::Done(-22 | -14));
    if is_possible(limit, size_of::<libc::timespec>()) && !is_wrong {
        // SAFETY: the caller's promise.
        unsafe {
            let whole = Duration::new((*limit).tv_sec as u64, (*limit).tv_nsec as u32);
            let left = whole.saturating_sub(begun.elapsed());
            (*limit).tv_sec = left.as_secs() as i64;
            (*limit).tv_nsec = left.subsec_nanos().into();
        }
    }
    outcome
}

/// Calls that Linux makes again after a handler with `SA_RESTART` (signal(7)).
pub fn restarts(number: i64) -> bool {
    matches!(
        number,
        libc::SYS_read
            | libc::SYS_write
            | libc::SYS_readv
            | libc::SYS_writev
            | libc::SYS_ioctl
            | libc::SYS_connect
            | libc::SYS_accept
            | libc::SYS_accept4
            | libc::SYS_recvfrom
            | libc::SYS_recvmsg
            | libc::SYS_recvmmsg
            | libc::SYS_sendto
            | libc::SYS_sendmsg
            | libc::SYS_sendmmsg
            | libc::SYS_sendfile
            | libc::SYS_splice
    )
}

/// Whether the thread is at a call of the C library that waits for a descriptor of the program's.
/// The handler is postponed, so the call must not be made again before it has run.
pub fn waits_in_library(registers: &Registers) -> bool {
    let number = registers.number();
    let waits = restarts(number)
        || matches!(
            number,
            libc::SYS_poll | libc::SYS_ppoll | libc::SYS_select | libc::SYS_pselect6
        );
    // SAFETY: the thread's own code.
    waits
        && !super::sites::is_own(registers.rip)
        && unsafe { (registers.rip as *const [u8; 2]).read_unaligned() } == SYSCALL
        && fds::get(registers.rdi as c_int) != fds::Entry::Private
}
