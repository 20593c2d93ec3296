//! `tap`: making the interface's queues, with privilege.
use crate::device::{OpenOptions, OpenedDevice};
use crate::error::OpenError;
use crate::namespace::Namespace;
use crate::steering::SteeringProgram;
use ix_nic::{MTU_MAX, NicInfo, NicKind, SetReta, Steering};
use ix_sys::{Interface, process, tun};
use std::fs::{self, File, TryLockError};
use std::io::{self, IoSlice, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};

/// What Linux may leave unfinished: checksums, and the segmentation of TCP over IPv4. Packets that
/// we could not parse (IPv6, tunnels) or could not tell apart (UDP) come finished.
const CHECKSUMS_AND_SEGMENTS: u32 = libc::TUN_F_CSUM | libc::TUN_F_TSO4;
const NOTHING: u32 = 0;
/// Has a file for each interface that root's dataplanes use; the holder of its lock has that one.
const CLAIMS: &str = "/run/ix/taps";

/// Opens the interface's queues; makes the interface if no interface has this name. It gets this
/// MTU, if one is given.
pub(crate) fn open(
    name: &str,
    (queues, wanted_mtu): (usize, Option<usize>),
    offloads: bool,
    mac: Option<[u8; 6]>,
    options: &OpenOptions,
) -> Result<OpenedDevice, OpenError> {
    let claim = claim(name)?;
    let files = (0..queues).map(|_| open_queue(name, offloads)).collect::<Result<Vec<_>, _>>()?;
    own(&files[0], name)?;
    let offloads = agree_on_offloads(&files[0], offloads);
    let interface =
        Interface::new(name).map_err(|e| OpenError::system("open a socket", name, e))?;
    let ask = |e| OpenError::system("ask for the state of", name, e);
    let (mtu_before, kernel_mac) = (interface.mtu().map_err(ask)?, interface.mac().map_err(ask)?);
    let mtu = wanted_mtu.unwrap_or(mtu_before);
    if mtu > MTU_MAX {
        let largest = MTU_MAX;
        return Err(OpenError::MtuTooLarge { name: name.to_owned(), mtu, largest });
    }
    has_all_queues(name, queues)?;
    // Last, so that a refused device stays as it was.
    if mtu != mtu_before {
        interface.set_mtu(mtu).map_err(|e| OpenError::system("set the MTU of", name, e))?;
    }
    let Steered { steering, reta, table_fd, mode } = steer(&files[0], queues, options);
    let info = NicInfo {
        kind: NicKind::Tap,
        name: name.to_owned(),
        mode: format!("{mode}, {}", offloads.text()),
        queues,
        mac: mac.unwrap_or_else(|| other_end(kernel_mac)),
        mtu,
        vlan: None,
        steering,
        // With a given address the tap is behind a switch, which forwards frames of other
        // interfaces unchanged.
        partial_checksums: matches!(offloads, Offloads::BothWays) || mac.is_some(),
        shared_frames: false,
        table_fd: table_fd.is_some(),
    };
    let queues = files.into_iter().map(OwnedFd::from).collect();
    Ok(OpenedDevice::new(info, queues, reta).with_table_fd(table_fd).with_claim(claim))
}

/// Bytes of the `virtio_net_hdr` of a frame with nothing unfinished: all zero.
const FINISHED: [u8; 10] = [0; 10];

/// Sends a frame by a queue that no dataplane has yet.
pub(crate) fn send(queue: &OwnedFd, frame: &[u8]) -> io::Result<()> {
    let header: &[u8] = if tun::uses_header(queue.as_fd()) { &FINISHED } else { &[] };
    let parts = [IoSlice::new(header), IoSlice::new(frame)];
    File::from(queue.try_clone()?).write_vectored(&parts).map(drop)
}

/// Another process with queues of the interface takes some of our packets. A claim keeps away
/// others who make the same one, and root makes another one than its owner, so the kernel is asked
/// too.
fn has_all_queues(name: &str, queues: usize) -> Result<(), OpenError> {
    let link = Namespace::current().and_then(|here| here.link(name));
    // Before Linux 4.16 none are counted; and an error says nothing of others.
    match link.ok().flatten().map_or(0, |link| link.tap_queues) as usize > queues {
        true => Err(OpenError::InUse { name: name.to_owned() }),
        false => Ok(()),
    }
}

/// Its holder has the interface, in this network namespace, among those who claim it so.
pub(crate) enum Claim {
    /// Root's: a locked file, in a folder where nobody else can make one.
    Locked { _file: File, path: PathBuf },
    /// Anybody else's: an abstract socket, which has one owner and is freed with it.
    Named { _socket: UnixDatagram },
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Claim::Locked { path, .. } = self {
            // While it is locked. An error leaves a file that the next one locks.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Claims the interface's name in this network namespace. Otherwise the kernel would let a second
/// dataplane add its queues to ours and take some of our packets.
fn claim(name: &str) -> Result<Claim, OpenError> {
    if process::is_root() {
        match lock(name) {
            Ok(Some(claim)) => return Ok(claim),
            Ok(None) => return Err(OpenError::InUse { name: name.to_owned() }),
            // Root of a user namespace, whose the folder is not.
            Err(e) if is_forbidden(&e) => {}
            Err(e) => return Err(OpenError::system("claim", name, e)),
        }
    }
    let socket = SocketAddr::from_abstract_name(format!("ix-tap/{name}"));
    let socket = socket.and_then(|address| UnixDatagram::bind_addr(&address));
    socket.map(|_socket| Claim::Named { _socket }).map_err(|e| match e.kind() {
        io::ErrorKind::AddrInUse => OpenError::InUse { name: name.to_owned() },
        _ => OpenError::system("claim", name, e),
    })
}

fn is_forbidden(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EACCES | libc::EPERM | libc::EROFS))
}

/// `None`: another one has it.
fn lock(name: &str) -> io::Result<Option<Claim>> {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(CLAIMS)?;
    let network = fs::metadata("/proc/thread-self/ns/net")?.ino();
    let path = Path::new(CLAIMS).join(format!("{network}-{name}"));
    loop {
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).mode(0o600).open(&path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(e)) => return Err(e),
        }
        // The one before may have removed it since.
        let is_it =
            fs::metadata(&path).is_ok_and(|m| file.metadata().is_ok_and(|f| f.ino() == m.ino()));
        if is_it {
            return Ok(Some(Claim::Locked { _file: file, path }));
        }
    }
}

/// Gives an interface without an owner one: Linux lets any user add a queue to an interface that
/// has none, and so take a part of its packets.
fn own(queue: &File, name: &str) -> Result<(), OpenError> {
    // An owner that an administrator has set stays. (This folder does not show the interfaces of
    // another network namespace; there the owner is set anew.) Root as the owner is no better than
    // none: root of a user namespace is that user.
    let owner = std::fs::read_to_string(format!("/sys/class/net/{name}/owner"));
    let is_set = |uid: &str| uid != "-1" && !(uid == "0" && process::is_root());
    if owner.is_ok_and(|uid| is_set(uid.trim())) {
        return Ok(());
    }
    tun::own(queue).map_err(|e| OpenError::system("own the tap interface", name, e))
}

/// What is left to the other end.
enum Offloads {
    /// Checksums and segmentation, by each end.
    BothWays,
    /// Segmentation by Linux, which takes long frames from us but sends us none; with the reason.
    ToLinux(io::Error),
    /// Nothing; with the reason.
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

/// Tells the kernel what it may leave unfinished, in any case: an interface that existed before may
/// have other settings.
fn agree_on_offloads(queue: &File, wanted: bool) -> Offloads {
    if !tun::uses_header(queue.as_fd()) {
        // This fails if nothing can be set: then nothing is left unfinished.
        let _ = tun::set_offloads(queue.as_fd(), NOTHING);
        return Offloads::None(if wanted { "the driver has none" } else { "as asked" });
    }
    match tun::set_offloads(queue.as_fd(), CHECKSUMS_AND_SEGMENTS) {
        Ok(()) => Offloads::BothWays,
        Err(e) => {
            let _ = tun::set_offloads(queue.as_fd(), NOTHING);
            Offloads::ToLinux(e)
        }
    }
}

fn open_queue(name: &str, offloads: bool) -> Result<File, OpenError> {
    let file = tun::open().map_err(|e| {
        OpenError::system("open /dev/net/tun (`modprobe tun` brings it) for", name, e)
    })?;
    let header = offloads && tun::knows_header(&file);
    match tun::attach(&file, name, header) {
        Ok(()) => Ok(file),
        Err(e) => Err(match e.raw_os_error() {
            Some(libc::EPERM) => OpenError::Privilege {
                what: "make the tap interface",
                name: name.to_owned(),
                needs: "CAP_NET_ADMIN in this network namespace",
            },
            Some(libc::EBUSY) => OpenError::InUse { name: name.to_owned() },
            Some(libc::EINVAL) => {
                OpenError::WrongKind { name: name.to_owned(), needs: "a multi-queue tap" }
            }
            _ => OpenError::system("make the tap interface", name, e),
        }),
    }
}

/// Who steers packets to queues, and how that is changed.
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

/// Attaches the steering program if there are several queues and we may load one.
fn steer(queue: &File, queues: usize, options: &OpenOptions) -> Steered {
    if queues == 1 {
        return Steered::in_software("one queue".to_owned());
    }
    let attached = SteeringProgram::load(options.flow_hash_key, queues).and_then(|steering| {
        tun::set_steering(queue, steering.program.as_fd())?;
        Ok(steering.table)
    });
    match attached {
        Ok(table) => {
            let mode = format!("{queues} queues, steering program");
            // Without a descriptor the table stays as it is, and packets are forwarded between
            // threads.
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

/// Our Ethernet address on the link: locally administered, and not the kernel end's.
fn other_end(kernel: [u8; 6]) -> [u8; 6] {
    let mut mac = kernel;
    mac[0] = mac[0] & !0x01 | 0x02;
    mac[5] ^= 0x01;
    mac
}
