//! The mappings of this process, as Linux lists them.

/// A line of `/proc/self/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub start: usize,
    pub end: usize,
    pub read: bool,
    pub write: bool,
    pub execute: bool,
    pub shared: bool,
    /// Offset of the mapping in its file.
    pub offset: u64,
    pub name: String,
}

impl Mapping {
    /// `PROT_…`.
    pub fn prot(&self) -> i32 {
        let bit = |on: bool, bit: i32| if on { bit } else { 0 };
        bit(self.read, libc::PROT_READ)
            | bit(self.write, libc::PROT_WRITE)
            | bit(self.execute, libc::PROT_EXEC)
    }

    fn parse(line: &str) -> Option<Mapping> {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let rights = words.next()?.as_bytes();
        let offset = u64::from_str_radix(words.next()?, 16).ok()?;
        let name = words.skip(2).collect::<Vec<_>>().join(" ");
        let address = |text| usize::from_str_radix(text, 16).ok();
        Some(Mapping {
            start: address(start)?,
            end: address(end)?,
            read: *rights.first()? == b'r',
            write: *rights.get(1)? == b'w',
            execute: *rights.get(2)? == b'x',
            shared: *rights.get(3)? == b's',
            offset,
            name,
        })
    }
}

/// All mappings.
pub fn mappings() -> std::io::Result<Vec<Mapping>> {
    let text = std::fs::read_to_string("/proc/self/maps")?;
    Ok(text.lines().filter_map(Mapping::parse).collect())
}

/// The parts of a mapping outside of these ranges, because Linux may have merged adjacent mappings.
/// Its special mappings (`[stack]`, `[vdso]`) grow, and count as one.
pub fn without(mapping: &Mapping, ranges: &[(usize, usize)]) -> Vec<Mapping> {
    let touches = |&&(start, end): &&(usize, usize)| mapping.start < end && start < mapping.end;
    let mut holes: Vec<_> = ranges.iter().filter(touches).copied().collect();
    if mapping.name.starts_with('[') && !holes.is_empty() {
        return Vec::new();
    }
    holes.sort_unstable();
    holes.push((mapping.end, mapping.end));
    let (mut pieces, mut at) = (Vec::new(), mapping.start);
    for (start, end) in holes {
        if at < start {
            pieces.push(Mapping { start: at, end: start, ..mapping.clone() });
        }
        at = at.max(end);
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_out_is_all_that_is_missing() {
        let mapping = |name: &str| {
            Mapping::parse(&format!("1000-9000 rw-p 0 0:0 0 {name}")).expect("well-formed")
        };
        let left = |name: &str, holes: &[(usize, usize)]| -> Vec<_> {
            without(&mapping(name), holes).iter().map(|m| (m.start, m.end)).collect()
        };
        assert_eq!(left("", &[]), [(0x1000, 0x9000)]);
        assert_eq!(left("", &[(0, 0x1000), (0x9000, 0xa000)]), [(0x1000, 0x9000)]);
        let holes = [(0x8000, 0xb000), (0x2000, 0x3000), (0x2000, 0x4000)];
        assert_eq!(left("", &holes), [(0x1000, 0x2000), (0x4000, 0x8000)]);
        assert_eq!(left("", &[(0, 0xf000)]), []);
        assert_eq!(left("[stack]", &[(0x2000, 0x9000)]), []);
        assert_eq!(left("[stack]", &[]), [(0x1000, 0x9000)]);
    }

    #[test]
    fn reads_what_linux_writes() {
        let line = "7f12a000-7f12c000 r-xs 00001000 fe:01 1234    /lib/a b.so";
        let expected = Mapping {
            start: 0x7f12_a000,
            end: 0x7f12_c000,
            read: true,
            write: false,
            execute: true,
            shared: true,
            offset: 0x1000,
            name: "/lib/a b.so".to_owned(),
        };
        assert_eq!(Mapping::parse(line), Some(expected));
        let own = mappings().expect("own mappings");
        let here = reads_what_linux_writes as *const () as usize;
        assert!(own.iter().any(|m| m.execute && (m.start..m.end).contains(&here)));
    }
}
