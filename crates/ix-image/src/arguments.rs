//! The command line that the launcher has built: `ix-image ENTRY STACK CHANNEL`.
use std::ffi::{CStr, c_char, c_int};

/// Where the program begins, and how to reach the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arguments {
    /// The program's first instruction (of its dynamic loader, if it has one).
    pub entry: usize,
    /// Its stack pointer there.
    pub stack: usize,
    /// The channel's descriptor.
    pub channel: i32,
}

impl Arguments {
    /// Reads them; `None` when this is not how a launcher starts us.
    ///
    /// # Safety
    /// `argv` holds `argc` pointers to C strings.
    pub unsafe fn read(argc: c_int, argv: *const *const c_char) -> Option<Arguments> {
        if argc != 4 {
            return None;
        }
        let texts: [Option<&str>; 4] = core::array::from_fn(|i| {
            // SAFETY: `i` is below argc.
            let text = unsafe { CStr::from_ptr(*argv.add(i)) };
            text.to_str().ok()
        });
        Arguments::parse([texts[0]?, texts[1]?, texts[2]?, texts[3]?])
    }

    fn parse([name, entry, stack, channel]: [&str; 4]) -> Option<Arguments> {
        if name != ix_domain::IMAGE_ARGV0 {
            return None;
        }
        let entry = usize::from_str_radix(entry, 16).ok()?;
        let stack = usize::from_str_radix(stack, 16).ok()?;
        Some(Arguments { entry, stack, channel: channel.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_only_what_a_launcher_writes() {
        let good = ["ix-image", "7f0012345678", "7ffee000", "960"];
        let expected = Arguments { entry: 0x7f00_1234_5678, stack: 0x7ffe_e000, channel: 960 };
        assert_eq!(Arguments::parse(good), Some(expected));
        assert_eq!(Arguments::parse(["/bin/ix-image", "1", "2", "3"]), None);
        assert_eq!(Arguments::parse(["ix-image", "1", "x", "3"]), None);
        // SAFETY: no pointer is followed when argc is wrong.
        assert_eq!(unsafe { Arguments::read(1, core::ptr::null()) }, None);
    }
}
