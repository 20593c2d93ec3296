//! How long instructions are (Intel SDM volume 2, chapter 2 and appendix A), as far as it takes to
//! find room behind a system call. What is not known here is an end of the search, never a guess.

/// What an instruction does, as far as anyone here wants to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing: the alignment of what follows.
    Nothing,
    /// `int3`: alignment behind which no code goes on, as Go's and some C compilers write it.
    Trap,
    /// The next instruction is not executed after it: a jump, a return, an invalid one.
    Leaves,
    /// Any other one.
    Other,
}

/// The length of the first instruction of `code`, and what it does; `None`: not known.
pub fn instruction(code: &[u8]) -> Option<(usize, Kind)> {
    let mut at = 0;
    let (mut short, mut repeats) = (false, false);
    loop {
        match code.get(at)? {
            0x66 => short = true,
            0xf2 | 0xf3 => repeats = true,
            0x2e | 0x36 | 0x3e | 0x26 | 0x64 | 0x65 | 0xf0 => {}
            _ => break,
        }
        at += 1;
    }
    let rex = code.get(at).copied().filter(|byte| byte & 0xf0 == 0x40).unwrap_or(0);
    at += usize::from(rex != 0);
    let is_wide = rex & 8 != 0;
    let word = if short && !is_wide { 2 } else { 4 };
    let opcode = *code.get(at)?;
    at += 1;
    let rest = code.get(at..)?;
    let (bytes, kind) = match opcode {
        0x0f => return two_bytes(rest, repeats).map(|(bytes, kind)| (at + bytes, kind)),
        0x00..=0x3f => match opcode & 7 {
            0..=3 => (operand(rest)?, Kind::Other),
            4 => (1, Kind::Other),
            5 => (word, Kind::Other),
            _ => return None,
        },
        0x90 if !repeats && rex == 0 => (0, Kind::Nothing),
        0x50..=0x5f | 0x90..=0x99 | 0x9c..=0x9f | 0xa4..=0xa7 | 0xaa..=0xaf | 0xc9 => {
            (0, Kind::Other)
        }
        0x63 | 0x84..=0x8e | 0xd0..=0xd3 | 0xd8..=0xdf | 0xfe => (operand(rest)?, Kind::Other),
        0x68 | 0xa9 => (word, Kind::Other),
        0x6a | 0x70..=0x7f | 0xa8 | 0xb0..=0xb7 | 0xcd | 0xe0..=0xe3 => (1, Kind::Other),
        0x69 | 0x81 | 0xc7 => (operand(rest)? + word, Kind::Other),
        0x6b | 0x80 | 0x83 | 0xc0 | 0xc1 | 0xc6 => (operand(rest)? + 1, Kind::Other),
        0xb8..=0xbf => (if is_wide { 8 } else { word }, Kind::Other),
        0xc2 => (2, Kind::Leaves),
        0xc3 | 0xf4 => (0, Kind::Leaves),
        0xcc => (0, Kind::Trap),
        0xe8 => (4, Kind::Other),
        0xe9 => (4, Kind::Leaves),
        0xeb => (1, Kind::Leaves),
        0xf5 | 0xf8..=0xfd => (0, Kind::Other),
        0xf6 | 0xf7 => {
            let tests = rest.first()? >> 3 & 7 < 2;
            let bytes = if opcode == 0xf6 { 1 } else { word };
            (operand(rest)? + if tests { bytes } else { 0 }, Kind::Other)
        }
        0xff => {
            let jumps = matches!(rest.first()? >> 3 & 7, 4 | 5);
            (operand(rest)?, if jumps { Kind::Leaves } else { Kind::Other })
        }
        _ => return None,
    };
    (at + bytes <= code.len()).then_some((at + bytes, kind))
}

/// Behind `0f`.
fn two_bytes(code: &[u8], repeats: bool) -> Option<(usize, Kind)> {
    let rest = &code[1.min(code.len())..];
    let (bytes, kind) = match *code.first()? {
        0x0b => (0, Kind::Leaves),
        0x1f if !repeats && rest.first()? >> 3 & 7 == 0 => (operand(rest)?, Kind::Nothing),
        0x05 | 0x31 | 0x77 | 0xa0..=0xa2 | 0xa8 | 0xa9 | 0xc8..=0xcf => (0, Kind::Other),
        0x01 | 0x0d | 0x10..=0x1f | 0x28..=0x2f | 0x40..=0x6f | 0x74..=0x76 | 0x7c..=0x7f => {
            (operand(rest)?, Kind::Other)
        }
        0x90..=0x9f | 0xa3 | 0xa5 | 0xab | 0xad..=0xb8 | 0xbb..=0xc1 | 0xc3 | 0xc7 => {
            (operand(rest)?, Kind::Other)
        }
        0xd0..=0xfe => (operand(rest)?, Kind::Other),
        0x70..=0x73 | 0xa4 | 0xac | 0xba | 0xc2 | 0xc4..=0xc6 => (operand(rest)? + 1, Kind::Other),
        0x80..=0x8f => (4, Kind::Other),
        _ => return None,
    };
    (bytes < code.len()).then_some((1 + bytes, kind))
}

/// Bytes of ModR/M, SIB and displacement.
fn operand(code: &[u8]) -> Option<usize> {
    let (mode, register) = (code.first()? >> 6, code.first()? & 7);
    let has_index = mode != 3 && register == 4;
    let base = if has_index { code.get(1)? & 7 } else { register };
    let displacement = match mode {
        0 if base == 5 => 4,
        1 => 1,
        2 => 4,
        _ => 0,
    };
    Some(1 + usize::from(has_index) + displacement)
}

/// Room for a jump behind a system call: bytes that nothing executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Where it begins, from the end of the system call instruction.
    pub first: usize,
    /// Where it ends.
    pub end: usize,
    /// It consists of `int3`.
    pub traps: bool,
}

/// Alignment in front of which code never goes on ends at a multiple of this.
const ALIGNED: u64 = 8;

/// The first room of at least `least` bytes that begins at most `reach` bytes behind a system call.
/// `code` is what follows the instruction, `address` where that is.
///
/// The instruction was executed, so an instruction begins at its end, and one at each end of one
/// that goes on. Behind one that leaves, compilers write alignment that nothing reaches: no code
/// goes on into it, and no label stands in front of it.
pub fn room(code: &[u8], address: u64, least: usize, reach: usize) -> Option<Room> {
    let (mut at, mut has_left) = (0, false);
    while at <= reach {
        let (bytes, kind) = instruction(code.get(at..)?)?;
        if has_left && matches!(kind, Kind::Nothing | Kind::Trap) {
            let first = at;
            while let Some((bytes, next)) = code.get(at..).and_then(instruction)
                && next == kind
            {
                at += bytes;
            }
            let traps = kind == Kind::Trap;
            let is_alignment = traps || (address + at as u64).is_multiple_of(ALIGNED);
            if is_alignment && at - first >= least {
                return Some(Room { first, end: at, traps });
            }
            has_left = traps;
            continue;
        }
        has_left = kind == Kind::Leaves;
        at += bytes;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Go 1.26's `Syscall6` behind its system call, with the alignment of the next function.
    const GO: &[u8] = &[
        0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, 0x76, 0x15, 0x48, 0xf7, 0xd8, 0x48, 0x89, 0xc1, 0x48,
        0xc7, 0xc0, 0xff, 0xff, 0xff, 0xff, 0x48, 0xc7, 0xc3, 0x00, 0x00, 0x00, 0x00, 0xc3, 0x48,
        0x89, 0xd3, 0x48, 0xc7, 0xc1, 0x00, 0x00, 0x00, 0x00, 0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc,
        0xcc, 0xcc, 0xcc, 0xcc, 0xcc,
    ];

    #[test]
    fn room_is_what_nothing_executes() {
        let found = room(GO, 0x40_8c6e, 5, 127);
        assert_eq!(found, Some(Room { first: 40, end: 50, traps: true }));
        // Too far, or too small.
        assert_eq!(room(GO, 0x40_8c6e, 5, 39), None);
        assert_eq!(room(GO, 0x40_8c6e, 11, 127), None);
        // glibc's `read`: a compare, a branch, a return, ten bytes of alignment.
        let read = [
            &[0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff, 0x77, 0x5b, 0xc3][..],
            &[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, 0x48, 0x83, 0xec, 0x28],
        ]
        .concat();
        let found = room(&read, 0x43_d71d, 5, 127);
        assert_eq!(found, Some(Room { first: 9, end: 19, traps: false }));
        // The same bytes where the next instruction is not aligned.
        assert_eq!(room(&read, 0x43_d71e, 5, 127), None);
        // Alignment that code runs through.
        assert_eq!(room(&[0x90, 0x90, 0x90, 0x90, 0x90, 0xc3], 0x1003, 5, 127), None);
        // An instruction that is not known ends the search.
        assert_eq!(room(&[0xc4, 0xc3, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc], 0, 5, 127), None);
    }
}
