//! From a bare AF_XDP socket to bound rings, in the process that has the packet memory.
use super::describe::DESCRIPTION_BYTES;
use super::ring::{Consumer, Producer};
use crate::device::RingSizes;
use crate::error::AttachError;
use crate::{XdpBind, XdpFeatures, XdpMode};
use ix_mem::{FRAME_BYTES, PacketMemory, ROOM_BYTES};
use ix_sys::socket::{get_option, set_option};
use ix_sys::{Mapping, check};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// After its owner has ended, a socket keeps its queue until the kernel's workqueue has run.
const BUSY_RETRIES: u32 = 100;
const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// Most packets that a call sends in copy mode, 32 at first: Linux 6.17. `libc` has no name for it.
const XDP_MAX_TX_SKB_BUDGET: i32 = 9;

/// A socket and its four rings.
pub(super) struct Socket {
    pub fd: OwnedFd,
    pub rx: Consumer<libc::xdp_desc>,
    pub fill: Producer<u64>,
    pub tx: Producer<libc::xdp_desc>,
    pub completion: Consumer<u64>,
}

impl Socket {
    /// Registers `memory` with the socket, unless it shares that of another one
    /// ([`Socket::bind_beside`]), and maps its rings. Not bound yet.
    pub fn new(
        fd: OwnedFd,
        memory: Option<(&PacketMemory, XdpFeatures)>,
        sizes: RingSizes,
        name: &str,
    ) -> Result<Socket, AttachError> {
        let system = |action| move |e| system(action, name, e);
        if let Some((memory, features)) = memory {
            register_memory(fd.as_fd(), memory, features).map_err(|e| match e.raw_os_error() {
                Some(libc::ENOBUFS | libc::ENOMEM | libc::EPERM) => {
                    AttachError::Memlock { name: name.to_owned(), bytes: memory.device_area().1 }
                }
                _ => system("register packet memory with")(e),
            })?;
        }
        for (option, entries) in [
            (libc::XDP_UMEM_FILL_RING, sizes.fill),
            (libc::XDP_UMEM_COMPLETION_RING, sizes.tx),
            (libc::XDP_RX_RING, sizes.rx),
            (libc::XDP_TX_RING, sizes.tx),
        ] {
            set_option(fd.as_fd(), libc::SOL_XDP, option, entries.cast_signed())
                .map_err(system("make a ring for"))?;
        }
        // Linux before 6.17 does not know it; then more calls send the same packets.
        let _ = set_option(fd.as_fd(), libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, sizes.tx as i32);
        let at: libc::xdp_mmap_offsets =
            get_option(fd.as_fd(), libc::SOL_XDP, libc::XDP_MMAP_OFFSETS)
                .map_err(system("ask for the rings of"))?;
        let map = |offsets: &libc::xdp_ring_offset, entry: usize, entries: u32, page: i64| {
            let bytes = offsets.desc as usize + entry * entries as usize;
            Mapping::of_fd(fd.as_fd(), bytes, page).map_err(system("map a ring of"))
        };
        let desc = size_of::<libc::xdp_desc>();
        let rx = map(&at.rx, desc, sizes.rx, libc::XDP_PGOFF_RX_RING)?;
        let tx = map(&at.tx, desc, sizes.tx, libc::XDP_PGOFF_TX_RING)?;
        let fill = map(&at.fr, 8, sizes.fill, libc::XDP_UMEM_PGOFF_FILL_RING as i64)?;
        let completion = map(&at.cr, 8, sizes.tx, libc::XDP_UMEM_PGOFF_COMPLETION_RING as i64)?;
        Ok(Socket {
            rx: Consumer::new(rx, &at.rx, sizes.rx),
            fill: Producer::new(fill, &at.fr, sizes.fill),
            tx: Producer::new(tx, &at.tx, sizes.tx),
            completion: Consumer::new(completion, &at.cr, sizes.tx),
            fd,
        })
    }

    /// Binds to a queue in the fastest mode that the interface accepts and that takes packets of
    /// `mtu` bytes.
    pub fn bind(
        &self,
        (bind, mtu): (XdpBind, usize),
        queue: usize,
        name: &str,
    ) -> Result<Bound, AttachError> {
        let mut answers = String::new();
        let mut only_busy = true;
        let is_long = mtu > MTU_OF_BUFFER;
        for attempt in Attempt::all(bind).filter(|attempt| attempt.frags || !is_long) {
            match self.bind_patiently(bind.ifindex, queue, attempt.flags(bind.features), None) {
                Ok(()) => return Ok(Bound { attempt, refused: answers }),
                Err(e) if e.raw_os_error() == Some(libc::ENETDOWN) => {
                    return Err(AttachError::Down { name: name.to_owned() });
                }
                Err(e) => {
                    only_busy &= e.raw_os_error() == Some(libc::EBUSY);
                    let separator = if answers.is_empty() { "" } else { "; " };
                    answers += &format!("{separator}{} refused: {e}", attempt.text());
                    if only_busy {
                        break; // another way finds the queue just as busy
                    }
                }
            }
        }
        let mode = (bind.mode != XdpMode::Auto).then(|| bind.mode.name());
        Err(match only_busy {
            true if !answers.is_empty() => AttachError::Busy { name: name.to_owned(), queue },
            _ if is_long => {
                let name = name.to_owned();
                AttachError::LongFrames { name, mtu, largest: MTU_OF_BUFFER, mode, answers }
            }
            _ => AttachError::Refused { name: name.to_owned(), queue, mode, answers },
        })
    }

    /// Binds to another queue of the interface than `other` is bound to, in the same mode and with
    /// the same packet memory.
    pub fn bind_beside(
        &self,
        other: BorrowedFd<'_>,
        ifindex: u32,
        queue: usize,
        name: &str,
    ) -> Result<(), AttachError> {
        let name = name.to_owned();
        self.bind_patiently(ifindex, queue, libc::XDP_SHARED_UMEM, Some(other)).map_err(|e| match e
            .raw_os_error()
        {
            Some(libc::ENETDOWN) => AttachError::Down { name },
            Some(libc::EBUSY) => AttachError::Busy { name, queue },
            _ => {
                let answers = format!("in the mode of the thread's first queue: {e}");
                AttachError::Refused { name, queue, mode: None, answers }
            }
        })
    }

    fn bind_patiently(
        &self,
        ifindex: u32,
        queue: usize,
        flags: u16,
        other: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        for _ in 0..BUSY_RETRIES {
            match self.bind_once(ifindex, queue, flags, other) {
                Err(e) if e.raw_os_error() == Some(libc::EBUSY) => std::thread::sleep(BUSY_PAUSE),
                result => return result,
            }
        }
        self.bind_once(ifindex, queue, flags, other)
    }

    fn bind_once(
        &self,
        ifindex: u32,
        queue: usize,
        flags: u16,
        other: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: flags,
            sxdp_ifindex: ifindex,
            sxdp_queue_id: queue as u32,
            sxdp_shared_umem_fd: other.map_or(0, |other| other.as_raw_fd() as u32),
        };
        let len = size_of_val(&address) as libc::socklen_t;
        // SAFETY: `address` is `len` readable bytes for the length of the call.
        let ret = unsafe { libc::bind(self.fd.as_raw_fd(), (&raw const address).cast(), len) };
        check(ret).map(drop)
    }

    /// The kernel's counters of this socket.
    pub fn statistics(&self) -> io::Result<libc::xdp_statistics> {
        get_option(self.fd.as_fd(), libc::SOL_XDP, libc::XDP_STATISTICS)
    }

    /// Makes the kernel look at the transmit ring. Never blocks.
    pub fn wake_tx(&self) -> io::Result<()> {
        let (fd, none) = (self.fd.as_raw_fd(), std::ptr::null());
        // SAFETY: no data and no address are passed.
        check(unsafe { libc::sendto(fd, none, 0, libc::MSG_DONTWAIT, none.cast(), 0) }).map(drop)
    }

    /// Makes the kernel look at the fill ring. Never blocks.
    pub fn wake_rx(&self) {
        let (fd, none) = (self.fd.as_raw_fd(), std::ptr::null_mut());
        let no_address = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: no data and no address are asked for. An error repeats when packets are sent,
        // and is handled there.
        unsafe { libc::recvfrom(fd, none, 0, libc::MSG_DONTWAIT, no_address.0, no_address.1) };
    }
}

/// Longest packet that one buffer holds, bytes.
pub(super) const MTU_OF_BUFFER: usize = ROOM_BYTES - ETHERNET_BYTES;
const ETHERNET_BYTES: usize = 14;

/// The mode in which a socket is bound.
pub(super) struct Bound {
    pub attempt: Attempt,
    /// Why the faster modes were refused.
    pub refused: String,
}

/// One mode in which to bind.
#[derive(Clone, Copy)]
pub(super) struct Attempt {
    pub zero_copy: bool,
    pub frags: bool,
}

impl Attempt {
    /// The modes, fastest first. Avoiding copies matters more than frames in several buffers.
    fn all(bind: XdpBind) -> impl Iterator<Item = Attempt> {
        let ways = match bind.mode {
            XdpMode::Auto => &[true, false][..],
            XdpMode::ZeroCopy => &[true],
            XdpMode::Copy | XdpMode::Generic => &[false],
        };
        let frags = if bind.frags { &[true, false][..] } else { &[false] };
        ways.iter().flat_map(move |&zero_copy| {
            frags.iter().map(move |&frags| Attempt { zero_copy, frags })
        })
    }

    fn flags(self, features: XdpFeatures) -> u16 {
        let copy = if self.zero_copy { libc::XDP_ZEROCOPY } else { libc::XDP_COPY };
        let frags = if self.frags { libc::XDP_USE_SG } else { 0 };
        let wakeup = if features.need_wakeup { libc::XDP_USE_NEED_WAKEUP } else { 0 };
        copy | frags | wakeup
    }

    pub fn text(self) -> &'static str {
        match (self.zero_copy, self.frags) {
            (true, true) => "zero-copy, multi-buffer",
            (true, false) => "zero-copy",
            (false, true) => "copy, multi-buffer",
            (false, false) => "copy",
        }
    }
}

fn register_memory(
    fd: BorrowedFd<'_>,
    memory: &PacketMemory,
    features: XdpFeatures,
) -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid registration of nothing.
    let mut umem: libc::xdp_umem_reg = unsafe { std::mem::zeroed() };
    let (start, bytes) = memory.device_area();
    (umem.addr, umem.len) = (start as u64, bytes as u64);
    umem.chunk_size = FRAME_BYTES as u32;
    if features.describes {
        umem.flags = libc::XDP_UMEM_TX_METADATA_LEN;
        umem.tx_metadata_len = DESCRIPTION_BYTES as u32;
    }
    // XDP reserves 256 bytes in front of a packet: our HEADROOM_BYTES.
    let (value, len) = ((&raw const umem).cast(), size_of_val(&umem) as libc::socklen_t);
    // SAFETY: `umem` is `len` readable bytes for the length of the call. The kernel keeps the pages
    // of `memory` that it names, and writes only into frames that the fill ring gives it.
    let ret =
        unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_XDP, libc::XDP_UMEM_REG, value, len) };
    check(ret).map(drop)
}

fn system(action: &'static str, name: &str, source: io::Error) -> AttachError {
    AttachError::System { action, name: name.to_owned(), source }
}
