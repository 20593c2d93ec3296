//! An assembler for the few eBPF instructions that our programs need.
//!
//! Encoding: RFC 9669. Jumps name labels; [`Assembler::finish`] fills in the distances. A jump too
//! far for its 16 bits goes through an unconditional one, which has 32 bits (Linux 6.6).
pub(crate) use ix_sys::bpf::Insn;
use std::os::fd::RawFd;

/// A register. `R1..R5` are arguments and lost over calls, `R6..R9` are kept, `R10` is the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs, dead_code)] // The whole set, whether we use each or not.
pub enum Reg {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
    R10,
}

/// Width of a load or store, as the opcode encodes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Size {
    /// 32 bits.
    Word = 0x00,
    /// 16 bits.
    Half = 0x08,
    /// 8 bits.
    Byte = 0x10,
    /// 64 bits.
    Double = 0x18,
}

/// A place in the program, which may not be known yet.
#[derive(Clone, Copy, Debug)]
pub struct Label(usize);

/// A program under construction.
#[derive(Default)]
pub struct Assembler {
    insns: Vec<Insn>,
    labels: Vec<Option<usize>>,
    jumps: Vec<(usize, Label)>,
}

// Instruction classes and the bits that make an opcode (RFC 9669 section 4 and 5).
const CLASS_LD: u8 = 0x00;
const CLASS_LDX: u8 = 0x01;
const CLASS_STX: u8 = 0x03;
const MODE_ATOMIC: u8 = 0xc0;
/// With the bit that returns the old value.
const COMPARE_EXCHANGE: i32 = 0xf1;
const CLASS_ALU: u8 = 0x04;
const CLASS_JMP: u8 = 0x05;
const CLASS_JMP32: u8 = 0x06;
const CLASS_ALU64: u8 = 0x07;
const MODE_MEM: u8 = 0x60;
const SIZE_DOUBLE: u8 = 0x18;
const SOURCE_REG: u8 = 0x08;
const TO_BE: u8 = 0x08;
const PSEUDO_MAP_FD: u8 = 1;

const ADD: u8 = 0x00;
const SUB: u8 = 0x10;
const MUL: u8 = 0x20;
const OR: u8 = 0x40;
const AND: u8 = 0x50;
const LSH: u8 = 0x60;
const RSH: u8 = 0x70;
const XOR: u8 = 0xa0;
const MOV: u8 = 0xb0;
const END: u8 = 0xd0;

const JA: u8 = 0x00;
const JEQ: u8 = 0x10;
const JGT: u8 = 0x20;
const JNE: u8 = 0x50;
const JLT: u8 = 0xa0;
const JLE: u8 = 0xb0;
const JSLT: u8 = 0xc0;
const CALL: u8 = 0x80;
const EXIT: u8 = 0x90;

impl Assembler {
    /// An empty program.
    pub fn new() -> Assembler {
        Assembler::default()
    }

    /// A label to be placed later.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Places a label here.
    pub fn place(&mut self, label: Label) {
        self.labels[label.0] = Some(self.insns.len());
    }

    /// `dst = src`
    pub fn mov(&mut self, dst: Reg, src: Reg) {
        self.alu_reg(MOV, dst, src);
    }

    /// `dst = imm`
    pub fn mov_imm(&mut self, dst: Reg, imm: i32) {
        self.alu_imm(MOV, dst, imm);
    }

    /// `dst = imm`, all 64 bits.
    pub fn mov_imm64(&mut self, dst: Reg, imm: u64) {
        self.wide(dst, 0, imm);
    }

    /// `dst =` the map behind this descriptor.
    pub fn mov_map(&mut self, dst: Reg, map: RawFd) {
        self.wide(dst, PSEUDO_MAP_FD, map as u64);
    }

    /// `dst = *(size *)(src + off)`
    pub fn load(&mut self, size: Size, dst: Reg, src: Reg, off: i16) {
        self.emit(CLASS_LDX | MODE_MEM | size as u8, dst, src as u8, off, 0);
    }

    /// `*(size *)(dst + off) = src`
    pub fn store(&mut self, size: Size, dst: Reg, off: i16, src: Reg) {
        self.emit(CLASS_STX | MODE_MEM | size as u8, dst, src as u8, off, 0);
    }

    /// `*(u64 *)(dst + off) += src`, atomically.
    pub fn atomic_add(&mut self, dst: Reg, off: i16, src: Reg) {
        self.atomic(i32::from(ADD), dst, off, src);
    }

    /// `*(u64 *)(dst + off) = src` if it equals `R0`; `R0 =` its old value.
    pub fn compare_exchange(&mut self, dst: Reg, off: i16, src: Reg) {
        self.atomic(COMPARE_EXCHANGE, dst, off, src);
    }

    fn atomic(&mut self, op: i32, dst: Reg, off: i16, src: Reg) {
        self.emit(CLASS_STX | MODE_ATOMIC | Size::Double as u8, dst, src as u8, off, op);
    }

    /// `dst += imm`
    pub fn add_imm(&mut self, dst: Reg, imm: i32) {
        self.alu_imm(ADD, dst, imm);
    }

    /// `dst += src`
    pub fn add(&mut self, dst: Reg, src: Reg) {
        self.alu_reg(ADD, dst, src);
    }

    /// `dst -= src`
    pub fn sub(&mut self, dst: Reg, src: Reg) {
        self.alu_reg(SUB, dst, src);
    }

    /// `dst *= src`
    pub fn mul(&mut self, dst: Reg, src: Reg) {
        self.alu_reg(MUL, dst, src);
    }

    /// `dst |= src`
    pub fn or(&mut self, dst: Reg, src: Reg) {
        self.alu_reg(OR, dst, src);
    }

    /// `dst ^= src`
    pub fn xor(&mut self, dst: Reg, src: Reg) {
        self.alu_reg(XOR, dst, src);
    }

    /// `dst &= src`
    pub fn and(&mut self, dst: Reg, src: Reg) {
        self.alu_reg(AND, dst, src);
    }

    /// `dst &= imm`
    pub fn and_imm(&mut self, dst: Reg, imm: i32) {
        self.alu_imm(AND, dst, imm);
    }

    /// `dst <<= imm`
    pub fn shl_imm(&mut self, dst: Reg, imm: i32) {
        self.alu_imm(LSH, dst, imm);
    }

    /// `dst >>= imm`, filling with zeros.
    pub fn shr_imm(&mut self, dst: Reg, imm: i32) {
        self.alu_imm(RSH, dst, imm);
    }

    /// Reads the low `bits` of `dst` as a big-endian number.
    pub fn big_endian(&mut self, dst: Reg, bits: i32) {
        self.emit(CLASS_ALU | END | TO_BE, dst, 0, 0, bits);
    }

    /// Jumps to `to`.
    pub fn jump(&mut self, to: Label) {
        self.branch(CLASS_JMP | JA, Reg::R0, 0, 0, to);
    }

    /// Jumps to `to` if the low 32 bits of `a` equal `imm`.
    pub fn jump_eq32(&mut self, a: Reg, imm: u32, to: Label) {
        self.branch(CLASS_JMP32 | JEQ, a, 0, imm as i32, to);
    }

    /// Jumps to `to` if the low 32 bits of `a` differ from `imm`.
    pub fn jump_ne32(&mut self, a: Reg, imm: u32, to: Label) {
        self.branch(CLASS_JMP32 | JNE, a, 0, imm as i32, to);
    }

    /// Jumps to `to` if `a == 0`.
    pub fn jump_zero(&mut self, a: Reg, to: Label) {
        self.branch(CLASS_JMP | JEQ, a, 0, 0, to);
    }

    /// Jumps to `to` if `a < 0`.
    pub fn jump_negative(&mut self, a: Reg, to: Label) {
        self.branch(CLASS_JMP | JSLT, a, 0, 0, to);
    }

    /// Jumps to `to` if `a > b`, unsigned.
    pub fn jump_gt(&mut self, a: Reg, b: Reg, to: Label) {
        self.branch(CLASS_JMP | JGT | SOURCE_REG, a, b as u8, 0, to);
    }

    /// Jumps to `to` if `a < b`, unsigned.
    pub fn jump_lt(&mut self, a: Reg, b: Reg, to: Label) {
        self.branch(CLASS_JMP | JLT | SOURCE_REG, a, b as u8, 0, to);
    }

    /// Jumps to `to` if `a <= b`, unsigned.
    pub fn jump_le(&mut self, a: Reg, b: Reg, to: Label) {
        self.branch(CLASS_JMP | JLE | SOURCE_REG, a, b as u8, 0, to);
    }

    /// Calls a kernel helper by its number.
    pub fn call(&mut self, helper: i32) {
        self.emit(CLASS_JMP | CALL, Reg::R0, 0, 0, helper);
    }

    /// Ends the program with `R0`.
    pub fn exit(&mut self) {
        self.emit(CLASS_JMP | EXIT, Reg::R0, 0, 0, 0);
    }

    /// The finished program.
    ///
    /// # Panics
    /// When a label was never placed: a mistake in the program's text.
    pub fn finish(self) -> Vec<Insn> {
        let target = |label: &Label| self.labels[label.0].expect("label placed");
        let jumps: Vec<_> = self.jumps.iter().map(|(at, label)| (*at, target(label))).collect();
        // A detour lengthens the program and so other jumps: repeat until no jump is too far.
        let mut far = vec![false; jumps.len()];
        loop {
            let places = self.places(&jumps, &far);
            let is_near = |(at, to): &(usize, usize)| {
                i16::try_from(distance(places[*at] + 1, places[*to])).is_ok()
            };
            let found = |n: &usize| !far[*n] && !is_near(&jumps[*n]);
            let more: Vec<usize> = (0..jumps.len()).filter(found).collect();
            if more.is_empty() {
                return self.lay_out(&jumps, &far, &places);
            }
            more.into_iter().for_each(|n| far[n] = true);
        }
    }

    /// Address of each instruction, and of the end, with these detours.
    fn places(&self, jumps: &[(usize, usize)], far: &[bool]) -> Vec<usize> {
        let mut lengths = vec![1; self.insns.len()];
        for ((at, _), far) in jumps.iter().zip(far) {
            if *far && self.insns[*at].code != CLASS_JMP | JA {
                lengths[*at] += DETOUR;
            }
        }
        let (mut places, mut end) = (Vec::with_capacity(lengths.len() + 1), 0);
        for length in lengths {
            places.push(end);
            end += length;
        }
        places.push(end);
        places
    }

    fn lay_out(mut self, jumps: &[(usize, usize)], far: &[bool], places: &[usize]) -> Vec<Insn> {
        let mut detours = vec![None; self.insns.len()];
        for ((at, to), far) in jumps.iter().zip(far) {
            let (from, to) = (places[*at] + 1, places[*to]);
            let jump = &mut self.insns[*at];
            match (far, jump.code) {
                // The jump is near, as the check above has shown.
                (false, _) => jump.off = distance(from, to) as i16,
                (true, code) if code == CLASS_JMP | JA => *jump = long_jump(distance(from, to)),
                (true, _) => {
                    // Skips the long jump, or not.
                    jump.off = 1;
                    let around = Insn { code: CLASS_JMP | JA, regs: 0, off: 1, imm: 0 };
                    detours[*at] = Some([around, long_jump(distance(from + DETOUR, to))]);
                }
            }
        }
        let whole = |(insn, detour): (Insn, Option<[Insn; DETOUR]>)| {
            std::iter::once(insn).chain(detour.into_iter().flatten())
        };
        self.insns.into_iter().zip(detours).flat_map(whole).collect()
    }

    fn alu_reg(&mut self, op: u8, dst: Reg, src: Reg) {
        self.emit(CLASS_ALU64 | op | SOURCE_REG, dst, src as u8, 0, 0);
    }

    fn alu_imm(&mut self, op: u8, dst: Reg, imm: i32) {
        self.emit(CLASS_ALU64 | op, dst, 0, 0, imm);
    }

    fn wide(&mut self, dst: Reg, src: u8, imm: u64) {
        self.emit(CLASS_LD | SIZE_DOUBLE, dst, src, 0, imm as u32 as i32);
        self.emit(0, Reg::R0, 0, 0, (imm >> 32) as u32 as i32);
    }

    fn branch(&mut self, code: u8, dst: Reg, src: u8, imm: i32, to: Label) {
        self.jumps.push((self.insns.len(), to));
        self.emit(code, dst, src, 0, imm);
    }

    fn emit(&mut self, code: u8, dst: Reg, src: u8, off: i16, imm: i32) {
        self.insns.push(Insn { code, regs: dst as u8 | src << 4, off, imm });
    }
}

/// Instructions that replace a far jump.
const DETOUR: usize = 2;

/// From behind a jump to its target.
fn distance(from: usize, to: usize) -> isize {
    to as isize - from as isize
}

/// A long jump; any program fits into its range.
fn long_jump(distance: isize) -> Insn {
    Insn { code: CLASS_JMP32 | JA, regs: 0, off: 0, imm: distance as i32 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ix_sys::bpf::{Program, ProgramKind};

    // Expected encodings written out by hand from the tables of RFC 9669.
    #[test]
    fn encodes_as_the_rfc_says() {
        let mut a = Assembler::new();
        a.mov_imm(Reg::R0, 2);
        a.load(Size::Half, Reg::R3, Reg::R7, 12);
        a.mov_imm64(Reg::R4, 0x1122_3344_5566_7788);
        a.big_endian(Reg::R4, 32);
        a.store(Size::Word, Reg::R10, -4, Reg::R1);
        a.call(51);
        a.exit();
        let insn = |code, regs, off, imm| Insn { code, regs, off, imm };
        let expected = [
            insn(0xb7, 0x00, 0, 2),
            insn(0x69, 0x73, 12, 0),
            insn(0x18, 0x04, 0, 0x5566_7788),
            insn(0x00, 0x00, 0, 0x1122_3344),
            insn(0xdc, 0x04, 0, 32),
            insn(0x63, 0x1a, -4, 0),
            insn(0x85, 0x00, 0, 51),
            insn(0x95, 0x00, 0, 0),
        ];
        assert_eq!(a.finish(), expected);
    }

    #[test]
    fn jumps_reach_labels_before_and_behind() {
        let mut a = Assembler::new();
        let (back, end) = (a.label(), a.label());
        a.place(back);
        a.jump_eq32(Reg::R1, 7, end);
        a.mov_imm(Reg::R0, 1);
        a.jump(back);
        a.place(end);
        a.exit();
        let insns = a.finish();
        assert_eq!(insns[0].off, 2);
        assert_eq!(insns[2].off, -3);
    }

    /// Returns 1 + 2 + 4 + 8 if each jump goes where it should: forwards and backwards, with a
    /// condition that holds, that fails, or without one. Each crosses at least `between`
    /// instructions.
    fn leaps(between: usize) -> Vec<Insn> {
        const RX_QUEUE: i16 = 16;
        let mut a = Assembler::new();
        let [over, there, back, end, mire, swamp] = std::array::from_fn(|_| a.label());
        let wade = |a: &mut Assembler| (0..between).for_each(|_| a.add_imm(Reg::R0, 100));
        a.mov_imm(Reg::R0, 1);
        a.load(Size::Word, Reg::R2, Reg::R1, RX_QUEUE);
        // `R2` is 0. The kernel refuses code that cannot be reached.
        a.jump_ne32(Reg::R2, 0, mire);
        a.jump_ne32(Reg::R2, 0, swamp);
        a.jump_eq32(Reg::R2, 0, over);
        wade(&mut a);
        a.place(back);
        a.add_imm(Reg::R0, 8);
        a.jump(end);
        a.place(mire);
        wade(&mut a);
        a.place(over);
        a.add_imm(Reg::R0, 2);
        a.jump(there);
        a.place(swamp);
        wade(&mut a);
        a.place(there);
        a.add_imm(Reg::R0, 4);
        a.jump(back);
        a.place(end);
        a.exit();
        a.finish()
    }

    #[test]
    fn far_jumps_arrive_where_near_ones_do() {
        for between in [1, 8_000, 10_920, 10_921, 10_922, 16_400, 32_767, 32_768, 60_000] {
            let program = Program::load(ProgramKind::Xdp, c"ix_leaps", &leaps(between), 0);
            let program = match program {
                Err(e) if e.raw_os_error() == Some(libc::EPERM) => {
                    let test = "far_jumps_arrive_where_near_ones_do";
                    ix_skip::skip(test, ix_skip::Need::Root, e);
                    return;
                }
                other => other.expect("the verifier takes it"),
            };
            assert_eq!(program.test_run(&[0; 64]).expect("it runs"), 15, "{between}");
        }
    }
}
