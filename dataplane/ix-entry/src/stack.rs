//! The stack that a new program finds (System V ABI, AMD64 supplement 3.4.1): argument count,
//! argument pointers, environment, auxiliary vector, and the strings they point to.
use crate::auxv::Auxv;

/// What goes onto it.
pub struct InitialStack<'a> {
    /// The program's file, for `AT_EXECFN`.
    pub file: &'a [u8],
    /// Arguments.
    pub args: &'a [&'a [u8]],
    /// Environment.
    pub env: &'a [&'a [u8]],
    /// Auxiliary vector; `AT_RANDOM` and `AT_EXECFN` are set here.
    pub auxv: Auxv,
    /// What `AT_PLATFORM` points to, where it must not stay where Linux has put it.
    pub platform: Option<&'a [u8]>,
    /// What `AT_RANDOM` points to: seeds of the stack protector and of pointer mangling.
    pub random: [u8; 16],
}

impl InitialStack<'_> {
    /// The bytes that end at address `top` (16-byte aligned), and the stack pointer, which is where
    /// they begin.
    pub fn build(mut self, top: u64) -> (u64, Vec<u8>) {
        debug_assert_eq!(top % 16, 0);
        let mut strings = self.random.to_vec();
        let mut place = |text: &[u8]| {
            let offset = strings.len() as u64;
            strings.extend_from_slice(text);
            strings.push(0);
            offset
        };
        let file = place(self.file);
        let platform = self.platform.map(&mut place);
        let args: Vec<u64> = self.args.iter().map(|text| place(text)).collect();
        let env: Vec<u64> = self.env.iter().map(|text| place(text)).collect();
        let strings_at = (top - strings.len() as u64) & !15;

        self.auxv.set(libc::AT_RANDOM, strings_at);
        self.auxv.set(libc::AT_EXECFN, strings_at + file);
        if let Some(platform) = platform {
            self.auxv.set(libc::AT_PLATFORM, strings_at + platform);
        }
        let mut words = vec![args.len() as u64];
        words.extend(args.iter().map(|offset| strings_at + offset));
        words.push(0);
        words.extend(env.iter().map(|offset| strings_at + offset));
        words.push(0);
        words.extend(self.auxv.entries().iter().flat_map(|&(kind, value)| [kind, value]));
        words.extend([libc::AT_NULL, 0]);

        let stack_pointer = (strings_at - 8 * words.len() as u64) & !15;
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.resize((strings_at - stack_pointer) as usize, 0);
        bytes.extend(strings);
        bytes.resize((top - stack_pointer) as usize, 0);
        (stack_pointer, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reads the stack as a C library does.
    struct Reader<'a> {
        base: u64,
        bytes: &'a [u8],
    }

    impl Reader<'_> {
        fn word(&self, addr: u64) -> u64 {
            let at = (addr - self.base) as usize;
            u64::from_le_bytes(self.bytes[at..at + 8].try_into().unwrap())
        }

        fn string(&self, addr: u64) -> String {
            let tail = &self.bytes[(addr - self.base) as usize..];
            let len = tail.iter().position(|&byte| byte == 0).unwrap();
            String::from_utf8(tail[..len].to_vec()).unwrap()
        }

        /// Strings up to a null pointer, and the address behind that.
        fn strings(&self, mut at: u64) -> (Vec<String>, u64) {
            let mut texts = Vec::new();
            while self.word(at) != 0 {
                texts.push(self.string(self.word(at)));
                at += 8;
            }
            (texts, at + 8)
        }
    }

    proptest! {
        #[test]
        fn a_c_library_reads_back_what_was_given(
            args in proptest::collection::vec("[a-z]{0,20}", 1..5),
            env in proptest::collection::vec("[A-Z]{1,9}=[a-z]{0,20}", 0..5),
            pairs in proptest::collection::vec((32u64..50, any::<u64>()), 0..9),
            random in any::<[u8; 16]>(),
        ) {
            let mut auxv = Auxv::default();
            pairs.iter().for_each(|&(kind, value)| auxv.set(kind, value));
            let (a, e): (Vec<&str>, Vec<&str>) =
                (args.iter().map(|s| &**s).collect(), env.iter().map(|s| &**s).collect());
            let top = 0x7000_0000_0000;
            let (a8, e8): (Vec<&[u8]>, Vec<&[u8]>) =
                (a.iter().map(|s| s.as_bytes()).collect(), e.iter().map(|s| s.as_bytes()).collect());
            let (file, auxv, platform) = (b"/bin/it", auxv.clone(), Some(&b"x86_64"[..]));
            let stack =
                InitialStack { file, args: &a8, env: &e8, auxv: auxv.clone(), platform, random };
            let (base, bytes) = stack.build(top);
            prop_assert_eq!(base % 16, 0);
            prop_assert_eq!(base + bytes.len() as u64, top);
            let reader = Reader { base, bytes: &bytes };
            prop_assert_eq!(reader.word(base), args.len() as u64);
            let (args_read, at) = reader.strings(base + 8);
            let (env_read, mut at) = reader.strings(at);
            let mut found = Auxv::default();
            while reader.word(at) != 0 {
                found.set(reader.word(at), reader.word(at + 8));
                at += 16;
            }
            let seed = (found.get(libc::AT_RANDOM).unwrap() - base) as usize;
            prop_assert_eq!(&bytes[seed..seed + 16], &random);
            prop_assert_eq!(reader.string(found.get(libc::AT_EXECFN).unwrap()), "/bin/it");
            for &(kind, value) in auxv.entries() {
                prop_assert_eq!(found.get(kind), Some(value));
            }
            prop_assert_eq!((args_read, env_read), (args, env));
        }
    }
}
