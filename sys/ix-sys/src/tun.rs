//! Ethernet interfaces whose other end is a process: `/dev/net/tun` (linux/if_tun.h).
use crate::check;
use crate::interface::Request;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

/// The device that becomes a queue of an interface when it is attached.
pub const CLONE_DEVICE: &str = "/dev/net/tun";

/// Opens [`CLONE_DEVICE`] for nonblocking reads. It is not a queue of an interface yet.
pub fn open() -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open(CLONE_DEVICE)
}

/// Makes an open device a queue of the Ethernet interface of this name, which is made if it does
/// not exist. With `header` each frame begins with a `virtio_net_hdr`. The interface is deleted
/// with its last queue.
pub fn attach(file: &File, name: &str, header: bool) -> io::Result<()> {
    let mut request = Request::new(name);
    let mut flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_MULTI_QUEUE;
    if header {
        flags |= libc::IFF_VNET_HDR;
    }
    request.set((flags as i16).to_ne_bytes());
    // SAFETY: TUNSETIFF reads and writes an `ifreq`.
    let ret = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) };
    check(ret).map(drop)
}

/// Keeps the interface when its last queue is closed.
pub fn keep(queue: &File) -> io::Result<()> {
    // SAFETY: TUNSETPERSIST takes a number.
    check(unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNSETPERSIST as _, 1) }).map(drop)
}

/// Gives the queue's interface an owner. Linux lets any user add a queue to an interface that has
/// none, and gives that queue a part of the packets. Root makes it a user whom no process has,
/// because root of a user namespace may be the same user as we are.
#[cfg(feature = "host")]
pub fn own(queue: &File) -> io::Result<()> {
    use crate::process;
    let own = |user: u32| {
        // SAFETY: TUNSETOWNER takes a number.
        check(unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNSETOWNER as _, user) }).map(drop)
    };
    // The root of a namespace may have no such user.
    if process::is_root() && own(process::USER_OF_NO_PROCESS).is_ok() {
        return Ok(());
    }
    own(process::user_id())
}

/// True if the driver supports `virtio_net_hdr`; `file` need not be a queue yet.
pub fn knows_header(file: &File) -> bool {
    let mut features: libc::c_uint = 0;
    // SAFETY: TUNGETFEATURES writes one integer.
    let ret =
        unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNGETFEATURES as _, &raw mut features) };
    check(ret).is_ok() && features & libc::IFF_VNET_HDR as libc::c_uint != 0
}

/// True if frames of this queue begin with a `virtio_net_hdr`.
pub fn uses_header(queue: BorrowedFd<'_>) -> bool {
    let mut request = Request::new("");
    // SAFETY: TUNGETIFF writes an `ifreq`.
    let ret = unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNGETIFF as _, &raw mut request) };
    let flags = i16::from_ne_bytes(request.part(0));
    check(ret).is_ok() && i32::from(flags) & libc::IFF_VNET_HDR != 0
}

/// Sets what Linux may leave unfinished in the frames that it delivers: bits of `TUN_F_…`.
pub fn set_offloads(queue: BorrowedFd<'_>, offloads: u32) -> io::Result<()> {
    let flags = libc::c_ulong::from(offloads);
    // SAFETY: TUNSETOFFLOAD takes a number.
    check(unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNSETOFFLOAD as _, flags) }).map(drop)
}

/// Lets this program choose the queue of each packet that Linux sends. The interface keeps it.
pub fn set_steering(queue: &File, program: BorrowedFd<'_>) -> io::Result<()> {
    let program = program.as_raw_fd();
    // SAFETY: TUNSETSTEERINGEBPF reads one descriptor number.
    let ret = unsafe {
        libc::ioctl(queue.as_raw_fd(), libc::TUNSETSTEERINGEBPF as _, &raw const program)
    };
    check(ret).map(drop)
}
