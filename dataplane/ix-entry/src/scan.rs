//! Searches code that the application may run for instructions that change protection-key rights:
//! `wrpkru` (`0F 01 EF`) and `xrstor` (`0F AE /5` with a memory operand), at every offset, because
//! a jump may go anywhere.

use core::hint::black_box;
use ix_sys::program_file::{self, Elf, PT_LOAD};

/// A found instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// `wrpkru`.
    Wrpkru,
    /// `xrstor`, or `xrstor64`.
    Xrstor,
}

/// Bytes of the longest of them that are checked.
pub const BYTES_MAX: usize = 3;

/// Their first bytes, inverted: as constants in our own code they would be found themselves.
const WRPKRU_INVERTED: [u8; 3] = [0xf0, 0xfe, 0x10];
const XRSTOR_INVERTED: [u8; 2] = [0xf0, 0x51];

/// Constants whose inversion the compiler cannot compute.
fn patterns() -> ([u8; 3], [u8; 2]) {
    let (wrpkru, xrstor) = black_box((WRPKRU_INVERTED, XRSTOR_INVERTED));
    (wrpkru.map(|byte| !byte), xrstor.map(|byte| !byte))
}

/// Every offset in `code` where one begins.
pub fn scan(code: &[u8]) -> impl Iterator<Item = (usize, Instruction)> {
    let (wrpkru, xrstor) = patterns();
    code.windows(BYTES_MAX).enumerate().filter_map(move |(at, bytes)| {
        // Of xrstor's last byte, mod is not 3 and reg is 5.
        if bytes == wrpkru {
            Some((at, Instruction::Wrpkru))
        } else if bytes[..2] == xrstor && bytes[2] < 0xc0 && bytes[2] >> 3 & 7 == 5 {
            Some((at, Instruction::Xrstor))
        } else {
            None
        }
    })
}

/// Every offset in an executable file's code where one begins, as the kernel maps it: in whole
/// pages. `None`: it is not an ELF file for x86-64.
pub fn scan_file(file: &[u8]) -> Option<Vec<(usize, Instruction)>> {
    const PAGE: usize = 4096;
    let Elf::Ours(header) = program_file::elf(file)? else { return None };
    let mut found = Vec::new();
    for segment in header.segments() {
        let (place, flags) = (segment.place()?, segment.flags()?);
        if segment.kind()? == PT_LOAD && flags & libc::PF_X != 0 {
            let (start, bytes) = (place.offset as usize, place.file_bytes as usize);
            let end = start.checked_add(bytes)?.checked_next_multiple_of(PAGE)?;
            let start = start & !(PAGE - 1);
            let code = file.get(start..end.min(file.len()))?;
            found.extend(scan(code).map(|(at, instruction)| (start + at, instruction)));
        }
    }
    Some(found)
}

/// Whether one could begin in the last bytes of `code` and end in the mapping after it.
pub fn may_go_on(code: &[u8]) -> bool {
    matches!(code, [.., 0x0f] | [.., 0x0f, 0x01] | [.., 0x0f, 0xae])
}

/// Replaces the instruction at `at` by an illegal one, if it is a known one that no program needs:
/// that of glibc's `pkey_set`, and those of its lazy binding (`LD_BIND_NOW` needs none). The bytes
/// around it prove that it is a separate instruction and not a part of others.
pub fn disarm(code: &mut [u8], at: usize) -> bool {
    /// not eax; and eax, r9d; or eax, esi
    const PKEY_SET: [u8; 7] = [0xf7, 0xd0, 0x44, 0x21, 0xc8, 0x09, 0xf0];
    /// mov eax, STATE_SAVE_MASK; xor edx, edx
    const BIND: [u8; 7] = [0xb8, 0xee, 0x00, 0x00, 0x00, 0x31, 0xd2];
    /// The bytes of xrstor [rsp + 0x40] after the opcode.
    const FROM_STACK: [u8; 3] = [0x6c, 0x24, 0x40];
    let (wrpkru, xrstor) = patterns();
    let Some(before) = at.checked_sub(PKEY_SET.len()).and_then(|start| code.get(start..at)) else {
        return false;
    };
    let known = match code.get(at..at + BYTES_MAX) {
        Some(bytes) if bytes == wrpkru => before == PKEY_SET,
        Some(bytes) if bytes[..2] == xrstor => {
            before == BIND && code.get(at + 2..at + 2 + FROM_STACK.len()) == Some(&FROM_STACK)
        }
        _ => false,
    };
    if known {
        // ud2
        code[at..at + 2].copy_from_slice(&[0x0f, 0x0b]);
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A slow and simple version.
    fn naive(code: &[u8]) -> Vec<usize> {
        let mut found = Vec::new();
        for at in 0..code.len().saturating_sub(2) {
            let wrpkru = code[at] == 0x0f && code[at + 1] == 1 && code[at + 2] == 0xef;
            let modrm = code[at + 2];
            let xrstor = code[at] == 0x0f
                && code[at + 1] == 0xae
                && modrm & 0x38 == 0x28
                && modrm & 0xc0 != 0xc0;
            if wrpkru || xrstor {
                found.push(at);
            }
        }
        found
    }

    /// Bytes that often are parts of the searched ones.
    fn code() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![
            3 => Just(0x0f), 2 => Just(0x01), 2 => Just(0xae), 2 => Just(0xef),
            1 => Just(0x6c), 3 => any::<u8>(),
        ];
        proptest::collection::vec(byte, 0..200)
    }

    proptest! {
        #[test]
        fn finds_what_a_naive_search_finds(code in code()) {
            let found: Vec<usize> = scan(&code).map(|(at, _)| at).collect();
            prop_assert_eq!(found, naive(&code));
        }

        #[test]
        fn finds_it_at_every_offset(mut code in code(), at in 0usize..200, which in any::<bool>()) {
            let bytes = if which { [0x0f, 0x01, 0xef] } else { [0x0f, 0xae, 0x2f] };
            let at = at % (code.len() + 1);
            code.splice(at..at, bytes);
            prop_assert!(scan(&code).any(|(found, _)| found == at));
        }

        /// Cut anywhere: one of the halves has it, or the first one ends suspiciously.
        #[test]
        fn nothing_hides_on_a_border(code in code(), cut in 0usize..200) {
            let cut = cut % (code.len() + 1);
            let (first, second) = code.split_at(cut);
            let across = naive(&code).iter().any(|&at| at < cut && at + BYTES_MAX > cut);
            if across {
                prop_assert!(may_go_on(first) || second.is_empty());
            }
        }

        #[test]
        fn disarming_removes_one_and_makes_none(mut code in code(), at in 0usize..200) {
            let before: Vec<usize> = naive(&code);
            let at = at % (code.len() + 1);
            if disarm(&mut code, at) {
                let mut left = before.clone();
                left.retain(|&found| found != at);
                prop_assert_eq!(naive(&code), left);
            } else {
                prop_assert_eq!(naive(&code), before);
            }
        }
    }

    #[test]
    fn glibcs_own_are_known() {
        let mut pkey_set = [0xf7, 0xd0, 0x44, 0x21, 0xc8, 0x09, 0xf0, 0x0f, 0x01, 0xef, 0x31, 0xc0];
        assert!(disarm(&mut pkey_set, 7));
        assert_eq!(scan(&pkey_set).count(), 0);
        let mut bind = [0xb8, 0xee, 0, 0, 0, 0x31, 0xd2, 0x0f, 0xae, 0x6c, 0x24, 0x40, 0x4c, 0x8b];
        assert!(disarm(&mut bind, 7));
        assert_eq!(scan(&bind).count(), 0);
        // Inside of `call ERR_set_mark`, as in Debian's libcrypto: not an instruction.
        let mut call = [0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0xe8, 0x0f, 0x01, 0xef, 0xff];
        assert!(!disarm(&mut call, 7));
    }

    /// Real bytes, too: the C library of this machine has `pkey_set`, and no other one.
    #[test]
    fn the_c_library_can_be_disarmed() {
        let Ok(mut library) = std::fs::read("/lib/x86_64-linux-gnu/libc.so.6") else {
            let need = ix_skip::Need::Kernel("use Debian or Ubuntu");
            ix_skip::skip(
                "the_c_library_can_be_disarmed",
                need,
                "no /lib/x86_64-linux-gnu/libc.so.6",
            );
            return;
        };
        let found: Vec<usize> = scan(&library)
            .filter(|(_, instruction)| *instruction == Instruction::Wrpkru)
            .map(|(at, _)| at)
            .collect();
        assert_eq!(found.iter().filter(|&&at| disarm(&mut library, at)).count(), 1);
    }
}
