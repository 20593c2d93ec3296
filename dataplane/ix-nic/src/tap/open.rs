//! Making the interface's queues, with privilege.
use super::vnet::{self, Undone};
use crate::device::{OpenOptions, OpenedDevice};
use crate::error::OpenError;
use crate::netdev::{self, Interface};
use crate::steering::SteeringProgram;
use crate::sys::check;
use crate::{NicInfo, SetReta, Steering};
use ix_mem::ROOM_BYTES;
use std::fs::{File, OpenOptions as FileOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

const CLONE_DEVICE: &str = "/dev/net/tun";
const ETHERNET_BYTES: usize = 14;

/// Opens the interface's queues; makes the interface if there is none of this name.
pub(crate) fn open(
    name: &str,
    queues: usize,
    offloads: bool,
    mac: Option<[u8; 6]>,
    options: &OpenOptions,
) -> Result<OpenedDevice, OpenError> {
    let claim = claim(name)?;
    let files = (0..queues).map(|_| open_queue(name, offloads)).collect::<Result<Vec<_>, _>>()?;
    let offloads = agree_on_offloads(&files[0], offloads);
    let interface =
        Interface::new(name).map_err(|e| OpenError::system("open a socket", name, e))?;
    let ask = |e| OpenError::system("ask for the state of", name, e);
    let (mtu, kernel_mac) = (interface.mtu().map_err(ask)?, interface.mac().map_err(ask)?);
    if mtu + ETHERNET_BYTES > ROOM_BYTES {
        let largest = ROOM_BYTES - ETHERNET_BYTES;
        return Err(OpenError::MtuTooLarge { name: name.to_owned(), mtu, largest });
    }
    let Steered { steering, reta, table_fd, mode } = steer(&files[0], queues, options);
    let info = NicInfo {
        kind: "tap",
        name: name.to_owned(),
        mode: format!("{mode}, {}", offloads.text()),
        queues,
        mac: mac.unwrap_or_else(|| other_end(kernel_mac)),
        mtu,
        steering,
        // With an address that was asked for it stands behind a switch, which hands on frames of other
        // interfaces as they are.
        partial_checksums: matches!(offloads, Offloads::BothWays) || mac.is_some(),
        shared_frames: false,
        table_fd: table_fd.is_some(),
        xdp: None,
    };
    let queues = files.into_iter().map(OwnedFd::from).collect();
    Ok(OpenedDevice::new(info, queues, reta).with_table_fd(table_fd).with_claim(claim))
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

/// What is left to the end that has it easier.
enum Offloads {
    /// Checksums and segments, by each end.
    BothWays,
    /// Segments by Linux, which takes long frames from us but gives us none; and why.
    ToLinux(io::Error),
    /// Nothing; and why.
    None(&'static str),
}

impl Offloads {
    fn text(&self) -> String {
        match self {
            Offloads::BothWays => "checksum and segmentation offload".to_owned(),
            Offloads::ToLinux(e) => format!("segmentation offload to Linux only ({e})"),
            Offloads::None(why) => format!("no offloads ({why})"),
        }
    }
}

/// Says what Linux may leave undone. The interface may have been there before us, so in each case.
fn agree_on_offloads(queue: &File, wanted: bool) -> Offloads {
    if !vnet::is_used(queue.as_fd()) {
        // Refused where nothing can be set: nothing is left undone there.
        let _ = vnet::set_undone(queue.as_fd(), Undone::Nothing);
        return Offloads::None(if wanted { "the driver has none" } else { "as asked" });
    }
    match vnet::set_undone(queue.as_fd(), Undone::ChecksumsAndSegments) {
        Ok(()) => Offloads::BothWays,
        Err(e) => {
            let _ = vnet::set_undone(queue.as_fd(), Undone::Nothing);
            Offloads::ToLinux(e)
        }
    }
}

fn open_queue(name: &str, offloads: bool) -> Result<File, OpenError> {
    let mut options = FileOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
    let file = options.open(CLONE_DEVICE).map_err(|e| {
        OpenError::system("open /dev/net/tun (`modprobe tun` brings it) for", name, e)
    })?;
    let mut request = netdev::request(name);
    let mut flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_MULTI_QUEUE;
    if offloads && vnet::is_known(file.as_fd()) {
        flags |= libc::IFF_VNET_HDR;
    }
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

/// Who decides about queues, and how that is changed.
struct Steered {
    steering: Steering,
    reta: Option<Box<dyn SetReta>>,
    table_fd: Option<OwnedFd>,
    mode: String,
}

impl Steered {
    fn in_software(mode: String) -> Steered {
        Steered { steering: Steering::Software, reta: None, table_fd: None, mode }
    }
}

/// Attaches the steering program where there is something to steer and we may load one.
fn steer(queue: &File, queues: usize, options: &OpenOptions) -> Steered {
    if queues == 1 {
        return Steered::in_software("one queue".to_owned());
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
            // Without a descriptor the table stays as it is, and packets are handed over.
            let table_fd = table.copy().ok();
            let (steering, reta) = (Steering::Table, Some(Box::new(table) as Box<dyn SetReta>));
            Steered { steering, reta, table_fd, mode }
        }
        Err(e) => {
            let why = match e.raw_os_error() {
                Some(libc::EPERM) => "needs CAP_BPF".to_owned(),
                _ => e.to_string(),
            };
            let mode = format!("{queues} queues, flows steered in software (program: {why})");
            Steered::in_software(mode)
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
