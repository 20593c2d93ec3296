//! The flow hash of a raw frame: in Rust for the simulated device, and as an eBPF program for TAP.
//!
//! Both compute [`FlowHash`] over IPv4 with the ports of TCP and UDP; other IPv4 and fragments hash
//! without ports, and what is not IPv4 belongs to flow group 0.
use crate::SetReta;
use crate::bpf::asm::{Assembler, Insn, Label, Reg, Size};
use crate::bpf::{
    HELPER_MAP_LOOKUP, HELPER_SKB_LOAD_BYTES, MAPPED_STRIDE, Map, Program, ProgramKind,
};
use crate::sys::Mapping;
use ix_wire::{FLOW_GROUPS, FlowHash, FlowTuple, IpAddr, flow_group};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
/// More-fragments flag and fragment offset in the third word of the IPv4 header.
const FRAGMENT_BITS: u16 = 0x3fff;

/// The flow group of a received frame.
pub fn frame_flow_group(hash: &FlowHash, frame: &[u8]) -> usize {
    let Some((ethernet, ip)) = frame.split_at_checked(ETHERNET_BYTES) else { return 0 };
    if ethernet[12..14] != [0x08, 0x00] || ip.len() < IPV4_BYTES {
        return 0;
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

/// The queue that flow group `group` has before anybody changes the table.
pub fn initial_queue(group: usize, queues: usize) -> usize {
    group % queues
}

/// A redirection table in a BPF array and the program that looks it up.
pub(crate) struct SteeringProgram {
    pub table: BpfReta,
    pub program: Program,
}

impl SteeringProgram {
    /// Loads the program, with flow groups spread evenly over `queues`.
    pub fn load(hash_key: [u64; 2], queues: usize) -> io::Result<SteeringProgram> {
        let map = Map::mappable(c"ix_reta", FLOW_GROUPS as u32)?;
        let insns = steering_program(&map, hash_key);
        let program = Program::load(ProgramKind::SocketFilter, c"ix_steering", &insns, 0)?;
        let table = BpfReta { map, queues };
        for group in 0..FLOW_GROUPS {
            table.set(group, initial_queue(group, queues))?;
        }
        Ok(SteeringProgram { table, program })
    }
}

/// The redirection table of a steering program.
#[derive(Debug)]
pub(crate) struct BpfReta {
    map: Map,
    queues: usize,
}

impl SetReta for BpfReta {
    fn set(&self, flow_group: usize, queue: usize) -> io::Result<()> {
        if flow_group >= FLOW_GROUPS || queue >= self.queues {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.map.set(flow_group as u32, queue as u32)
    }
}

impl BpfReta {
    /// A descriptor for [`MappedReta`].
    pub fn copy(&self) -> io::Result<OwnedFd> {
        self.map.copy()
    }
}

/// The same table in a process that has only its descriptor: memory, written without a system call.
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

// The program's stack: the headers as loaded, so placed that the addresses are aligned; the ports;
// the table's key.
const HEADERS: i16 = -38;
const PORTS: i16 = -44;
const KEY: i16 = -48;

/// `table[flow group of the packet]`, or queue 0 for what is not IPv4 (by its flow group 0).
///
/// The context is a `__sk_buff` whose data starts at the Ethernet header. Socket filters have no
/// direct packet access, so the headers are copied to the stack first.
fn steering_program(table: &Map, key: [u64; 2]) -> Vec<Insn> {
    let mut a = Assembler::new();
    let (other, hashed, lookup, absent) = (a.label(), a.label(), a.label(), a.label());
    let (ctx, ports, hash) = (Reg::R6, Reg::R8, Reg::R7);

    a.mov(ctx, Reg::R1);
    a.mov_imm(Reg::R2, 0);
    load_bytes(&mut a, ctx, HEADERS, (ETHERNET_BYTES + IPV4_BYTES) as i32, other);
    a.load(Size::Half, Reg::R1, Reg::R10, HEADERS + 12);
    a.jump_ne32(Reg::R1, u32::from(u16::to_be(0x0800)), other);
    load_ports(&mut a, ctx, ports, hashed);

    a.place(hashed);
    hash_flow(&mut a, hash, ports, key);
    a.and_imm(hash, FLOW_GROUPS as i32 - 1);
    a.jump(lookup);

    a.place(other);
    a.mov_imm(hash, 0);

    a.place(lookup);
    a.store(Size::Word, Reg::R10, KEY, hash);
    a.mov_map(Reg::R1, table.raw());
    a.mov(Reg::R2, Reg::R10);
    a.add_imm(Reg::R2, i32::from(KEY));
    a.call(HELPER_MAP_LOOKUP);
    a.jump_zero(Reg::R0, absent);
    a.load(Size::Word, Reg::R0, Reg::R0, 0);
    a.place(absent); // the key is below the table's size: only the verifier believes in this path
    a.exit();
    a.finish()
}

/// Copies `bytes` of the packet at offset `R2` to the stack, or goes to `too_short`.
fn load_bytes(a: &mut Assembler, ctx: Reg, to: i16, bytes: i32, too_short: Label) {
    a.mov(Reg::R1, ctx);
    a.mov(Reg::R3, Reg::R10);
    a.add_imm(Reg::R3, i32::from(to));
    a.mov_imm(Reg::R4, bytes);
    a.call(HELPER_SKB_LOAD_BYTES);
    a.jump_negative(Reg::R0, too_short);
}

/// `ports = source port << 16 | destination port`, or 0 when the packet has none.
fn load_ports(a: &mut Assembler, ctx: Reg, ports: Reg, done: Label) {
    let has_ports = a.label();
    a.mov_imm(ports, 0);
    a.load(Size::Half, Reg::R1, Reg::R10, HEADERS + 14 + 6);
    a.big_endian(Reg::R1, 16);
    a.and_imm(Reg::R1, i32::from(FRAGMENT_BITS));
    a.jump_ne32(Reg::R1, 0, done);
    a.load(Size::Byte, Reg::R1, Reg::R10, HEADERS + 14 + 9);
    a.jump_eq32(Reg::R1, u32::from(PROTOCOL_TCP), has_ports);
    a.jump_ne32(Reg::R1, u32::from(PROTOCOL_UDP), done);
    a.place(has_ports);
    a.load(Size::Byte, Reg::R2, Reg::R10, HEADERS + 14);
    a.and_imm(Reg::R2, 0x0f);
    a.shl_imm(Reg::R2, 2);
    a.add_imm(Reg::R2, ETHERNET_BYTES as i32);
    load_bytes(a, ctx, PORTS, 4, done);
    a.load(Size::Word, ports, Reg::R10, PORTS);
    a.big_endian(ports, 32);
}

/// The formula of [`FlowHash`] for IPv4.
fn hash_flow(a: &mut Assembler, hash: Reg, ports: Reg, key: [u64; 2]) {
    let (other, folded) = (Reg::R1, Reg::R2);
    a.load(Size::Word, hash, Reg::R10, HEADERS + 14 + 12);
    a.big_endian(hash, 32);
    a.shl_imm(hash, 32);
    a.load(Size::Word, other, Reg::R10, HEADERS + 14 + 16);
    a.big_endian(other, 32);
    a.or(hash, other);
    for (round, multiplier) in FlowHash::MULTIPLIERS.into_iter().enumerate() {
        if round == 1 {
            a.xor(hash, ports);
        }
        if let Some(&key) = key.get(round) {
            a.mov_imm64(other, key);
            a.xor(hash, other);
        }
        a.mov_imm64(other, multiplier);
        a.mul(hash, other);
        a.mov(folded, hash);
        a.shr_imm(folded, 32);
        a.xor(hash, folded);
    }
}
