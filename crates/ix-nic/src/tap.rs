//! `tap`: an Ethernet link to the Linux stack of this machine, by reads and writes.
//!
//! A system call a packet each way. No `vnet_hdr`: Linux then finishes checksums and cuts TCP
//! segments itself before it hands a frame over. The interface dies with its descriptors.
use crate::device::{OpenOptions, OpenedDevice};
use crate::error::OpenError;
use crate::netdev::{self, Interface};
use crate::steering::SteeringProgram;
use crate::sys::check;
use crate::{DeviceDrops, NEVER_RINGS, Nic, NicInfo, RxPacket, SetReta, Steering};
use ix_mem::{FRAME_BYTES, HEADROOM_BYTES, Mbuf, PacketMemory, Pool};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions as FileOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

const CLONE_DEVICE: &str = "/dev/net/tun";
const ETHERNET_BYTES: usize = 14;
const FRAME_ROOM: usize = FRAME_BYTES - HEADROOM_BYTES;

/// Opens the interface's queues; makes the interface if there is none of this name.
pub(crate) fn open(
    name: &str,
    queues: usize,
    options: &OpenOptions,
) -> Result<OpenedDevice, OpenError> {
    let claim = claim(name)?;
    let files = (0..queues).map(|_| open_queue(name)).collect::<Result<Vec<_>, _>>()?;
    let interface =
        Interface::new(name).map_err(|e| OpenError::system("open a socket", name, e))?;
    let ask = |e| OpenError::system("ask for the state of", name, e);
    let (mtu, kernel_mac) = (interface.mtu().map_err(ask)?, interface.mac().map_err(ask)?);
    if mtu + ETHERNET_BYTES > FRAME_ROOM {
        let largest = FRAME_ROOM - ETHERNET_BYTES;
        return Err(OpenError::MtuTooLarge { name: name.to_owned(), mtu, largest });
    }
    let (steering, reta, mode) = steer(&files[0], queues, options);
    let info = NicInfo {
        kind: "tap",
        name: name.to_owned(),
        mode,
        queues,
        mac: other_end(kernel_mac),
        mtu,
        steering,
        partial_checksums: false,
        shared_frames: false,
        xdp: None,
    };
    let queues = files.into_iter().map(OwnedFd::from).collect();
    Ok(OpenedDevice::new(info, queues, reta).with_claim(claim))
}

/// Takes the interface's name in this network namespace. The kernel would let a second dataplane
/// add its queues to ours and have some of our packets; an abstract socket has one owner, and goes
/// with it.
fn claim(name: &str) -> Result<UnixDatagram, OpenError> {
    let socket = SocketAddr::from_abstract_name(format!("ix-tap/{name}"));
    socket.and_then(|address| UnixDatagram::bind_addr(&address)).map_err(|e| match e.kind() {
        io::ErrorKind::AddrInUse => OpenError::InUse { name: name.to_owned() },
        _ => OpenError::system("claim", name, e),
    })
}

fn open_queue(name: &str) -> Result<File, OpenError> {
    let mut options = FileOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
    let file = options.open(CLONE_DEVICE).map_err(|e| {
        OpenError::system("open /dev/net/tun (`modprobe tun` brings it) for", name, e)
    })?;
    let mut request = netdev::request(name);
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_MULTI_QUEUE;
    request.ifr_ifru.ifru_flags = flags as i16;
    // SAFETY: TUNSETIFF reads and writes an `ifreq`.
    let ret = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) };
    match check(ret) {
        Ok(_) => Ok(file),
        Err(e) => Err(match e.raw_os_error() {
            Some(libc::EPERM) => OpenError::Privilege {
                what: "make the tap interface",
                name: name.to_owned(),
                needs: "CAP_NET_ADMIN in this network namespace",
            },
            Some(libc::EBUSY) => OpenError::InUse { name: name.to_owned() },
            Some(libc::EINVAL) => OpenError::NotOurKind { name: name.to_owned() },
            _ => OpenError::system("make the tap interface", name, e),
        }),
    }
}

/// Attaches the steering program where there is something to steer and we may load one.
fn steer(
    queue: &File,
    queues: usize,
    options: &OpenOptions,
) -> (Steering, Option<Box<dyn SetReta>>, String) {
    if queues == 1 {
        return (Steering::Software, None, "one queue".to_owned());
    }
    let attached = SteeringProgram::load(options.flow_hash_key, queues).and_then(|steering| {
        let program = steering.program.as_fd().as_raw_fd();
        // SAFETY: TUNSETSTEERINGEBPF reads one descriptor number. The interface keeps the program.
        let ret = unsafe {
            libc::ioctl(queue.as_raw_fd(), libc::TUNSETSTEERINGEBPF as _, &raw const program)
        };
        check(ret).map(|_| steering.table)
    });
    match attached {
        Ok(table) => {
            let mode = format!("{queues} queues, steering program");
            (Steering::Table, Some(Box::new(table)), mode)
        }
        Err(e) => {
            let why = match e.raw_os_error() {
                Some(libc::EPERM) => "needs CAP_BPF".to_owned(),
                _ => e.to_string(),
            };
            let mode = format!("{queues} queues, flows steered in software (program: {why})");
            (Steering::Software, None, mode)
        }
    }
}

/// Our Ethernet address on the link: locally administered, and not the kernel's end's.
fn other_end(kernel: [u8; 6]) -> [u8; 6] {
    let mut mac = kernel;
    mac[0] = mac[0] & !0x01 | 0x02;
    mac[5] ^= 0x01;
    mac
}

/// One queue of a tap interface.
pub(crate) struct TapNic {
    info: NicInfo,
    queue: File,
    drops: DeviceDrops,
    /// The interface was removed; its descriptors are good for nothing any more.
    gone: bool,
}

impl TapNic {
    /// The queue behind a descriptor that [`open`] made.
    pub fn new(info: NicInfo, fd: OwnedFd) -> TapNic {
        TapNic { info, queue: File::from(fd), drops: DeviceDrops::default(), gone: false }
    }

    /// Writes one frame; false when the device has no room for it now.
    fn send(&mut self, frame: &[u8]) -> bool {
        loop {
            match self.queue.write(frame) {
                Ok(_) => return true,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return false,
                // EIO while the link is down, ENOBUFS and ENOMEM: lost, as on a wire.
                Err(_) => {
                    self.drops.tx_failed += 1;
                    return true;
                }
            }
        }
    }
}

impl Nic for TapNic {
    fn info(&self) -> &NicInfo {
        &self.info
    }

    fn receive(
        &mut self,
        memory: &PacketMemory,
        rx_pool: &mut Pool,
        max: usize,
        out: &mut Vec<RxPacket>,
    ) -> usize {
        let mut received = 0;
        while received < max {
            let Some(mut mbuf) = rx_pool.take() else { break };
            mbuf.set_range(HEADROOM_BYTES, FRAME_ROOM);
            match self.queue.read(mbuf.bytes_mut(memory)) {
                // As long as the room: the kernel may have cut it.
                Ok(FRAME_ROOM) => {
                    self.drops.rx_invalid += 1;
                    rx_pool.put(mbuf);
                }
                Ok(len) => {
                    mbuf.truncate(len);
                    out.push(RxPacket { mbuf, more: false });
                    received += 1;
                }
                Err(e) => {
                    rx_pool.put(mbuf);
                    if e.kind() != io::ErrorKind::Interrupted {
                        self.gone |= e.raw_os_error() == Some(libc::EBADFD);
                        break; // EAGAIN: no more
                    }
                }
            }
        }
        received
    }

    fn transmit(
        &mut self,
        memory: &PacketMemory,
        tx_pool: &mut Pool,
        packets: &mut VecDeque<Mbuf>,
    ) {
        while let Some(mbuf) = packets.pop_front() {
            if !self.send(mbuf.bytes(memory)) {
                packets.push_front(mbuf);
                return;
            }
            tx_pool.put(mbuf);
        }
    }

    fn kick(&mut self, _memory: &PacketMemory, _tx_pool: &mut Pool) {}

    fn frames_held(&self) -> (usize, usize) {
        (0, 0)
    }

    fn doorbell(&self) -> Option<RawFd> {
        // The descriptor of an interface that is gone polls as an error for ever.
        Some(if self.gone { NEVER_RINGS } else { self.queue.as_raw_fd() })
    }

    fn drops(&mut self) -> DeviceDrops {
        self.drops
    }

    fn close(&mut self, _rx_pool: &mut Pool, _tx_pool: &mut Pool) {}
}
