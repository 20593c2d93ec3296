//! What a filter of system calls says of a call (seccomp(2), `linux/filter.h`), as far as that
//! depends on the number alone.
use libc::sock_filter;

/// Longest filter, instructions (`BPF_MAXINSNS`).
pub const FILTER_MAX: usize = 4096;
/// Where a call's number and its architecture are in `struct seccomp_data`.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
/// `AUDIT_ARCH_X86_64`.
const X86_64: u32 = 0xc000_003e;
/// The part of a verdict that says what happens.
const ACTION: u32 = 0xffff_0000;

/// Whether a filter lets a call through; `None`: that depends on more than its number, or the
/// filter is none.
pub fn allows(filter: &[sock_filter], number: u32) -> Option<bool> {
    let verdict = run(filter, number)? & ACTION;
    Some(matches!(verdict, libc::SECCOMP_RET_ALLOW | libc::SECCOMP_RET_LOG))
}

/// Runs a filter. Jumps go forward only, so it ends.
fn run(filter: &[sock_filter], number: u32) -> Option<u32> {
    use libc::{BPF_ABS, BPF_ALU, BPF_IMM, BPF_JMP, BPF_LD, BPF_LDX, BPF_MEM, BPF_MISC, BPF_RET};
    use libc::{BPF_ST, BPF_STX};
    let (mut at, mut a, mut x, mut memory) = (0usize, 0u32, 0u32, [0u32; 16]);
    loop {
        let &sock_filter { code, jt, jf, k } = filter.get(at)?;
        at += 1;
        let code = u32::from(code);
        let operand = if code & 0x08 != 0 { x } else { k };
        let mode = code & 0xe0;
        match code & 7 {
            BPF_LD if mode == BPF_ABS && k == NUMBER_AT => a = number,
            BPF_LD if mode == BPF_ABS && k == ARCHITECTURE_AT => a = X86_64,
            BPF_LD if mode == BPF_IMM => a = k,
            BPF_LD if mode == BPF_MEM => a = *memory.get(k as usize)?,
            BPF_LDX if mode == BPF_IMM => x = k,
            BPF_LDX if mode == BPF_MEM => x = *memory.get(k as usize)?,
            BPF_ST => *memory.get_mut(k as usize)? = a,
            BPF_STX => *memory.get_mut(k as usize)? = x,
            BPF_ALU => a = calculated(code & 0xf0, a, operand)?,
            BPF_JMP => {
                let holds = match code & 0xf0 {
                    0x00 => {
                        at += k as usize;
                        continue;
                    }
                    0x10 => a == operand,
                    0x20 => a > operand,
                    0x30 => a >= operand,
                    0x40 => a & operand != 0,
                    _ => return None,
                };
                at += usize::from(if holds { jt } else { jf });
            }
            BPF_RET => return Some(if code & 0x18 == 0x10 { a } else { k }),
            BPF_MISC if code & 0xf8 == 0 => x = a,
            BPF_MISC => a = x,
            _ => return None,
        }
    }
}

/// `BPF_ALU`.
fn calculated(operation: u32, a: u32, operand: u32) -> Option<u32> {
    Some(match operation {
        0x00 => a.wrapping_add(operand),
        0x10 => a.wrapping_sub(operand),
        0x20 => a.wrapping_mul(operand),
        0x30 => a.checked_div(operand)?,
        0x40 => a | operand,
        0x50 => a & operand,
        0x60 => a.checked_shl(operand)?,
        0x70 => a.checked_shr(operand)?,
        0x80 => a.wrapping_neg(),
        0x90 => a.checked_rem(operand)?,
        0xa0 => a ^ operand,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn word(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
        sock_filter { code, jt, jf, k }
    }

    /// What libseccomp writes for a list of calls: the architecture, then the numbers.
    #[test]
    fn a_list_of_numbers_is_read() {
        let filter = [
            word(0x20, 0, 0, ARCHITECTURE_AT),
            word(0x15, 1, 0, X86_64),
            word(0x06, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
            word(0x20, 0, 0, NUMBER_AT),
            word(0x15, 2, 0, libc::SYS_read as u32),
            word(0x35, 1, 0, 300),
            word(0x06, 0, 0, libc::SECCOMP_RET_ERRNO | 1),
            word(0x06, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        assert_eq!(allows(&filter, libc::SYS_read as u32), Some(true));
        assert_eq!(allows(&filter, 300), Some(true));
        assert_eq!(allows(&filter, libc::SYS_ppoll as u32), Some(false));
        // An argument decides: not known.
        let by_argument = [word(0x20, 0, 0, 16), word(0x06, 0, 0, libc::SECCOMP_RET_ALLOW)];
        assert_eq!(allows(&by_argument, 0), None);
        // No end.
        assert_eq!(allows(&filter[..4], 0), None);
    }
}
