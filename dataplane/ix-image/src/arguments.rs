//! The command line that the launcher has built: `ix-image ENTRY STACK CHANNEL now|later DOMAIN`.
use std::ffi::{CStr, c_char, c_int};

/// What stands between application and dataplane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Domain {
    /// Nothing: `none`.
    None,
    /// The dataplane is in another process: `process`.
    Process,
    /// Protection keys: `pku:START-END,…`, the program's mappings.
    Pku(Vec<(usize, usize)>),
}

impl Domain {
    fn parse(text: &str) -> Option<Domain> {
        if text == "none" {
            return Some(Domain::None);
        }
        if text == "process" {
            return Some(Domain::Process);
        }
        let hex = |text: &str| usize::from_str_radix(text, 16).ok();
        let range = |text: &str| {
            let (start, end) = text.split_once('-')?;
            Some((hex(start)?, hex(end)?))
        };
        text.strip_prefix("pku:")?.split(',').map(range).collect::<Option<_>>().map(Domain::Pku)
    }
}

/// Where the program begins, and how to reach the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arguments {
    /// The program's first instruction (of its dynamic loader, if it has one).
    pub entry: usize,
    /// Its stack pointer there.
    pub stack: usize,
    /// The channel's descriptor.
    pub channel: i32,
    /// The dataplane begins when the program first needs it.
    pub later: bool,
    /// The wall.
    pub domain: Domain,
}

impl Arguments {
    /// Reads them; `None` when this is not how a launcher starts us.
    ///
    /// # Safety
    /// `argv` holds `argc` pointers to C strings.
    pub unsafe fn read(argc: c_int, argv: *const *const c_char) -> Option<Arguments> {
        if argc != 6 {
            return None;
        }
        let texts: [Option<&str>; 6] = core::array::from_fn(|i| {
            // SAFETY: `i` is below argc.
            let text = unsafe { CStr::from_ptr(*argv.add(i)) };
            text.to_str().ok()
        });
        let [a, b, c, d, e, f] = texts;
        Arguments::parse([a?, b?, c?, d?, e?, f?])
    }

    fn parse([name, entry, stack, channel, when, domain]: [&str; 6]) -> Option<Arguments> {
        if name != ix_entry::IMAGE_ARGV0 {
            return None;
        }
        let entry = usize::from_str_radix(entry, 16).ok()?;
        let stack = usize::from_str_radix(stack, 16).ok()?;
        let later = match when {
            "now" => false,
            "later" => true,
            _ => return None,
        };
        let (channel, domain) = (channel.parse().ok()?, Domain::parse(domain)?);
        // This wall stands before the program's first instruction.
        if later && matches!(domain, Domain::Pku(_)) {
            return None;
        }
        Some(Arguments { entry, stack, channel, later, domain })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_only_what_a_launcher_writes() {
        let pku = "pku:1000-3000,f000-10000";
        let good = ["ix-image", "7f0012345678", "7ffee000", "960", "now", pku];
        let domain = Domain::Pku(vec![(0x1000, 0x3000), (0xf000, 0x10000)]);
        let (entry, stack) = (0x7f00_1234_5678, 0x7ffe_e000);
        let expected = Arguments { entry, stack, channel: 960, later: false, domain };
        assert_eq!(Arguments::parse(good), Some(expected));
        let none = Arguments { entry: 1, stack: 2, channel: 3, later: true, domain: Domain::None };
        assert_eq!(
            Arguments::parse(["ix-image", "1", "2", "3", "later", "none"]),
            Some(none.clone())
        );
        let apart = Arguments { domain: Domain::Process, ..none };
        assert_eq!(Arguments::parse(["ix-image", "1", "2", "3", "later", "process"]), Some(apart));
        assert_eq!(Arguments::parse(["/bin/ix-image", "1", "2", "3", "now", "none"]), None);
        assert_eq!(Arguments::parse(["ix-image", "1", "x", "3", "now", "none"]), None);
        assert_eq!(Arguments::parse(["ix-image", "1", "2", "3", "soon", "none"]), None);
        assert_eq!(Arguments::parse(["ix-image", "1", "2", "3", "later", pku]), None);
        assert_eq!(Domain::parse("pku:"), None);
        // SAFETY: no pointer is followed when argc is wrong.
        assert_eq!(unsafe { Arguments::read(1, core::ptr::null()) }, None);
    }
}
