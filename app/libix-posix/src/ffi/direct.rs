//! `syscall(2)`. Libraries use it for calls that older C libraries do not have. Of those about
//! sockets, calls for several datagrams, those that name or make connections, `close` and those of
//! io_uring are handled here. All others go on unchanged.
use super::descriptors::close;
use super::sockets::{accept, accept4, bind, connect, getpeername, getsockname, listen, shutdown};
use super::transfer::{recvmmsg, sendmmsg};
use super::uring;
use crate::mem::is_readable_name;
use crate::{fds, signals};
use libc::{c_int, c_long, c_uint};

/// # Safety
/// As the C library's `syscall`. It takes any number of arguments. On x86-64 they are where those
/// of a function with seven arguments are. Linux does not read arguments that were not passed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    let (fd, messages, flags) = (a as c_int, b as usize as *mut libc::mmsghdr, d as c_int);
    // SAFETY: the program's own arguments, as the system calls have them.
    let result = unsafe {
        match number {
            libc::SYS_sendmmsg if fds::is_ours(fd) => {
                return sendmmsg(fd, messages, c as c_uint, flags).into();
            }
            libc::SYS_recvmmsg if fds::is_ours(fd) => {
                let timeout = e as usize as *mut libc::timespec;
                return recvmmsg(fd, messages, c as c_uint, flags, timeout).into();
            }
            libc::SYS_accept if fds::is_ours(fd) => {
                return accept(fd, b as usize as *mut _, c as usize as *mut _).into();
            }
            libc::SYS_accept4 if fds::is_ours(fd) => {
                return accept4(fd, b as usize as *mut _, c as usize as *mut _, flags).into();
            }
            // Of this library's own calls, too, some are made so.
            libc::SYS_bind
            | libc::SYS_connect
            | libc::SYS_listen
            | libc::SYS_shutdown
            | libc::SYS_getsockname
            | libc::SYS_getpeername
                if fds::is_ours(fd) && !signals::is_held() =>
            {
                // As by Linux, an address is not read where the program cannot.
                let reads = matches!(number, libc::SYS_bind | libc::SYS_connect);
                if reads && !is_readable_name(b as usize as *const u8, c as usize) {
                    super::fail(libc::EFAULT);
                    return -1;
                }
                let (address, len) = (b as usize as *mut libc::sockaddr, c as usize as *mut _);
                return match number {
                    libc::SYS_bind => bind(fd, address, c as libc::socklen_t),
                    libc::SYS_connect => connect(fd, address, c as libc::socklen_t),
                    libc::SYS_listen => listen(fd, b as c_int),
                    libc::SYS_shutdown => shutdown(fd, b as c_int),
                    libc::SYS_getsockname => getsockname(fd, address, len),
                    _ => getpeername(fd, address, len),
                }
                .into();
            }
            // libuv closes so, with every connection of Node.
            libc::SYS_close if fds::is_ours(fd) && !signals::is_held() => {
                return close(fd).into();
            }
            libc::SYS_io_uring_setup | libc::SYS_io_uring_enter | libc::SYS_io_uring_register => {
                uring::call(number, [a, b, c, d, e, f])
            }
            // A ring's memory must not keep it.
            libc::SYS_close if uring::are_any() && !signals::is_held() => return close(fd).into(),
            _ => bare(number, [a, b, c, d, e, f]),
        }
    };
    // Linux returns an error as a number of the last page.
    if (-4095..0).contains(&result) {
        super::fail(-result as c_int);
        return -1;
    }
    result
}

/// The system call instruction.
///
/// # Safety
/// As the system call.
pub(super) unsafe fn bare(number: c_long, [a, b, c, d, e, f]: [c_long; 6]) -> c_long {
    let result;
    // SAFETY: Linux's convention on x86-64; what the call does to memory is the caller's promise.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            in("r8") e,
            in("r9") f,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}
