//! Tap interfaces.
use crate::{Error, Namespace};
use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

const CLONE_DEVICE: &str = "/dev/net/tun";

impl Namespace {
    /// Makes a tap interface, or adds a queue to one that is there, without a header in front of
    /// frames and without waiting. The interface goes with its last queue.
    pub fn open_tap(&self, name: &str) -> Result<File, Error> {
        let cannot = |e| Error::new(format!("cannot make the tap {name}"), e);
        self.run(|| open(name)).map_err(cannot)
    }

    /// Makes a tap interface that stays until it is deleted.
    pub fn add_tap(&self, name: &str) -> Result<(), Error> {
        let queue = self.open_tap(name)?;
        // SAFETY: TUNSETPERSIST takes a number.
        if unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNSETPERSIST as _, 1) } < 0 {
            return Err(Error::last(format!("cannot keep the tap {name}")));
        }
        Ok(())
    }
}

fn open(name: &str) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let queue = options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open(CLONE_DEVICE)?;
    // SAFETY: an `ifreq` of zeros is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let bytes = name.as_bytes();
    if bytes.len() >= request.ifr_name.len() || CStr::from_bytes_until_nul(bytes).is_ok() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_MULTI_QUEUE;
    request.ifr_ifru.ifru_flags = flags as i16;
    // SAFETY: TUNSETIFF reads and writes an `ifreq`.
    match unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) } {
        0 => Ok(queue),
        _ => Err(io::Error::last_os_error()),
    }
}
