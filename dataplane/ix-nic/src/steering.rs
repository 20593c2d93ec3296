//! Which queue a frame goes to: the flow hash of a raw frame, and the redirection table of a TAP's
//! steering program.
//!
//! [`FlowHash`] covers IPv4 and IPv6 with the ports of TCP and UDP. Other packets and fragments are
//! hashed without ports, and so are IPv6 packets with extension headers; what is not IP belongs to
//! flow group 0. The tag of a VLAN does not count.
use crate::SetReta;
use ix_sys::Mapping;
use ix_wire::{FLOW_GROUPS, FlowHash, FlowTuple, IpAddr, flow_group};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};

const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
/// More-fragments flag and fragment offset in the third word of the IPv4 header.
const FRAGMENT_BITS: u16 = 0x3fff;

/// Bytes from one entry to the next of an array that the kernel lets processes map.
const MAPPED_STRIDE: usize = 8;

/// The flow group of a received frame.
pub fn frame_flow_group(hash: &FlowHash, frame: &[u8]) -> usize {
    let Some((ethernet, ip)) = frame.split_at_checked(ETHERNET_BYTES) else { return 0 };
    let (mut ethertype, mut ip) = ([ethernet[12], ethernet[13]], ip);
    if let ([0x81, 0x00], [_, _, a, b, behind @ ..]) = (ethertype, ip) {
        (ethertype, ip) = ([*a, *b], behind);
    }
    match ethertype {
        [0x08, 0x00] if ip.len() >= IPV4_BYTES => {}
        [0x86, 0xdd] if ip.len() >= IPV6_BYTES => return flow_group(hash_v6(hash, ip)),
        _ => return 0,
    }
    let word = |at: usize| [ip[at], ip[at + 1], ip[at + 2], ip[at + 3]];
    let fragment = u16::from_be_bytes([ip[6], ip[7]]) & FRAGMENT_BITS != 0;
    let ports_at = usize::from(ip[0] & 0x0f) * 4;
    let ports = match ip.get(ports_at..ports_at + 4) {
        Some(p) if !fragment && matches!(ip[9], PROTOCOL_TCP | PROTOCOL_UDP) => p,
        _ => &[0; 4],
    };
    flow_group(hash.hash(&FlowTuple {
        remote: IpAddr::v4(word(12)),
        local: IpAddr::v4(word(16)),
        remote_port: u16::from_be_bytes([ports[0], ports[1]]),
        local_port: u16::from_be_bytes([ports[2], ports[3]]),
    }))
}

fn hash_v6(hash: &FlowHash, ip: &[u8]) -> u64 {
    let address = |at: usize| IpAddr(std::array::from_fn(|i| ip[at + i]));
    let ports = match ip.get(IPV6_BYTES..IPV6_BYTES + 4) {
        Some(p) if matches!(ip[6], PROTOCOL_TCP | PROTOCOL_UDP) => p,
        _ => &[0; 4],
    };
    let port = |at: usize| u16::from_be_bytes([ports[at], ports[at + 1]]);
    hash.incoming(address(8), address(24), port(0), port(2))
}

/// The queue of flow group `group` before the table was ever changed.
pub fn initial_queue(group: usize, queues: usize) -> usize {
    group % queues
}

/// The table of a TAP's steering program, by its descriptor: memory, written without a system call.
pub(crate) struct MappedReta {
    mapping: Mapping,
    queues: usize,
}

// SAFETY: the mapping never changes, and its words are only accessed as atomics.
unsafe impl Sync for MappedReta {}

impl MappedReta {
    pub fn new(fd: BorrowedFd<'_>, queues: usize) -> io::Result<MappedReta> {
        Ok(MappedReta { mapping: Mapping::of_fd(fd, MAPPED_BYTES, 0)?, queues })
    }
}

/// The table's pages.
const MAPPED_BYTES: usize = (FLOW_GROUPS * MAPPED_STRIDE).next_multiple_of(4096);

impl SetReta for MappedReta {
    fn set(&self, flow_group: usize, queue: usize) -> io::Result<()> {
        if flow_group >= FLOW_GROUPS || queue >= self.queues {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let entry = self.mapping.at::<AtomicU32>((flow_group * MAPPED_STRIDE) as u64, 1);
        // SAFETY: `at` checked bounds and alignment, and the mapping lives as long as `self`.
        unsafe { (*entry).store(queue as u32, Ordering::Release) };
        Ok(())
    }
}
