//! TAP's steering program: the flow hash of a frame as eBPF.
//!
//! It computes what [`ix_nic::frame_flow_group`] computes.
use crate::asm::{Assembler, Insn, Label, Reg, Size};
use ix_nic::{SetReta, initial_queue};
use ix_sys::bpf::{HELPER_MAP_LOOKUP, HELPER_SKB_LOAD_BYTES, Map, Program, ProgramKind};
use ix_wire::{FLOW_GROUPS, FlowHash};
use std::io;
use std::os::fd::OwnedFd;

const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
/// More-fragments flag and fragment offset in the third word of the IPv4 header.
const FRAGMENT_BITS: u16 = 0x3fff;

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
    /// A copy of the descriptor, for [`ix_nic::attach_table`].
    pub fn copy(&self) -> io::Result<OwnedFd> {
        self.map.copy()
    }
}

// The program's stack: the loaded headers, placed so that the addresses are aligned; the ports; the
// table's key.
const HEADERS: i16 = -62;
const PORTS: i16 = -68;
const KEY: i16 = -72;

// Offsets in the IPv6 header.
const NEXT_HEADER_V6: i16 = 6;
const SRC_V6: i16 = 8;
const DST_V6: i16 = 24;

/// `table[flow group of the packet]`; packets that are not IP count to flow group 0.
///
/// The context is a `__sk_buff` whose data starts at the Ethernet header. Socket filters have no
/// direct packet access, so the headers are copied to the stack first.
fn steering_program(table: &Map, key: [u64; 2]) -> Vec<Insn> {
    let mut a = Assembler::new();
    let [v6, other, hashed, hashed_v6, mixed, lookup, absent] = std::array::from_fn(|_| a.label());
    let (ctx, ports, hash) = (Reg::R6, Reg::R8, Reg::R7);

    a.mov(ctx, Reg::R1);
    a.mov_imm(Reg::R2, 0);
    load_bytes(&mut a, ctx, HEADERS, (ETHERNET_BYTES + IPV4_BYTES) as i32, other);
    a.load(Size::Half, Reg::R1, Reg::R10, HEADERS + 12);
    a.jump_eq32(Reg::R1, u32::from(u16::to_be(0x86dd)), v6);
    a.jump_ne32(Reg::R1, u32::from(u16::to_be(0x0800)), other);
    load_ports(&mut a, ctx, ports, hashed);

    a.place(hashed);
    load_addresses(&mut a, hash);
    a.jump(mixed);

    a.place(v6);
    a.mov_imm(Reg::R2, 0);
    load_bytes(&mut a, ctx, HEADERS, (ETHERNET_BYTES + IPV6_BYTES) as i32, other);
    load_ports_v6(&mut a, ctx, ports, hashed_v6);
    a.place(hashed_v6);
    load_addresses_v6(&mut a, hash);

    a.place(mixed);
    mix(&mut a, hash, ports, key);
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

/// The same for IPv6; 0 also when extension headers stand before the ports.
fn load_ports_v6(a: &mut Assembler, ctx: Reg, ports: Reg, done: Label) {
    let has_ports = a.label();
    a.mov_imm(ports, 0);
    a.load(Size::Byte, Reg::R1, Reg::R10, HEADERS + 14 + NEXT_HEADER_V6);
    a.jump_eq32(Reg::R1, u32::from(PROTOCOL_TCP), has_ports);
    a.jump_ne32(Reg::R1, u32::from(PROTOCOL_UDP), done);
    a.place(has_ports);
    a.mov_imm(Reg::R2, (ETHERNET_BYTES + IPV6_BYTES) as i32);
    load_bytes(a, ctx, PORTS, 4, done);
    a.load(Size::Word, ports, Reg::R10, PORTS);
    a.big_endian(ports, 32);
}

/// `hash = source << 32 | destination`, each folded to 32 bits as [`FlowHash`] does: its words are
/// rotated by so many bits.
fn load_addresses_v6(a: &mut Assembler, hash: Reg) {
    let (word, carried, folded) = (Reg::R1, Reg::R2, Reg::R3);
    for (address, shifts_up) in [(SRC_V6, true), (DST_V6, false)] {
        a.mov_imm(folded, 0);
        for (number, rotation) in [21, 13, 7, 0].into_iter().enumerate() {
            a.load(Size::Word, word, Reg::R10, HEADERS + 14 + address + 4 * number as i16);
            a.big_endian(word, 32);
            a.shl_imm(word, rotation);
            a.mov(carried, word);
            a.shr_imm(carried, 32);
            a.xor(folded, word);
            a.xor(folded, carried);
        }
        // The upper half holds what the shifts have left there.
        a.shl_imm(folded, 32);
        if shifts_up {
            a.mov(hash, folded);
        } else {
            a.shr_imm(folded, 32);
            a.or(hash, folded);
        }
    }
}

/// `hash = source << 32 | destination` of an IPv4 packet.
fn load_addresses(a: &mut Assembler, hash: Reg) {
    let other = Reg::R1;
    a.load(Size::Word, hash, Reg::R10, HEADERS + 14 + 12);
    a.big_endian(hash, 32);
    a.shl_imm(hash, 32);
    a.load(Size::Word, other, Reg::R10, HEADERS + 14 + 16);
    a.big_endian(other, 32);
    a.or(hash, other);
}

/// The formula of [`FlowHash`], of the addresses in `hash` and the ports.
fn mix(a: &mut Assembler, hash: Reg, ports: Reg, key: [u64; 2]) {
    let (other, folded) = (Reg::R1, Reg::R2);
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
