//! ELF files (elf(5)), of which only the beginning may be there, and how Linux starts a program
//! (execve(2)). Nothing of IX reads such headers elsewhere.

/// A segment that is mapped.
pub const PT_LOAD: u32 = 1;
/// The segment that names the dynamic loader.
pub const PT_INTERP: u32 = 3;
/// A segment of notes.
pub const PT_NOTE: u32 = 4;

/// An ELF file.
#[derive(Debug)]
pub enum Elf<'a> {
    /// For x86-64.
    Ours(Header<'a>),
    /// For another machine.
    Foreign,
}

/// What an ELF file for x86-64 says of itself.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a> {
    file: &'a [u8],
    /// `ET_EXEC`, `ET_DYN` or another kind.
    pub kind: u16,
    /// Where it begins to run.
    pub entry: u64,
    /// Offset of the table of segments.
    pub table: u64,
    /// Bytes of an entry of that table.
    pub entry_bytes: u16,
    /// Number of segments.
    pub segments: u16,
}

/// What the table says of one segment. The file may be cut off within it.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    file: &'a [u8],
    header_at: usize,
}

/// Where a segment is in the file, and where in memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its offset in the file.
    pub offset: u64,
    /// Its address.
    pub vaddr: u64,
    /// Its length in the file.
    pub file_bytes: u64,
    /// Its length in memory.
    pub mem_bytes: u64,
    /// What its address is a multiple of; 0 and 1: anything.
    pub align: u64,
}

/// Reads the start of an ELF file; `None`: it is none, or is cut off before its segments are
/// counted.
pub fn elf(file: &[u8]) -> Option<Elf<'_>> {
    if file.get(..4)? != b"\x7fELF" {
        return None;
    }
    if file.get(4..6)? != b"\x02\x01" || u16_at(file, 18)? != 62 {
        return Some(Elf::Foreign);
    }
    Some(Elf::Ours(Header {
        file,
        kind: u16_at(file, 16)?,
        entry: u64_at(file, 24)?,
        table: u64_at(file, 32)?,
        entry_bytes: u16_at(file, 54)?,
        segments: u16_at(file, 56)?,
    }))
}

impl<'a> Header<'a> {
    /// Its segments, in the table's order.
    pub fn segments(self) -> impl Iterator<Item = Segment<'a>> {
        let Header { file, table, entry_bytes, segments, .. } = self;
        let at = move |n| (table as usize).saturating_add(n * usize::from(entry_bytes));
        (0..usize::from(segments)).map(move |n| Segment { file, header_at: at(n) })
    }
}

impl<'a> Segment<'a> {
    /// Its kind, such as [`PT_INTERP`].
    pub fn kind(self) -> Option<u32> {
        u32_at(self.file, self.header_at)
    }

    /// `PF_R`, `PF_W` and `PF_X`.
    pub fn flags(self) -> Option<u32> {
        u32_at(self.file, self.header_at.checked_add(4)?)
    }

    /// Where it is.
    pub fn place(self) -> Option<Place> {
        let word = |offset| u64_at(self.file, self.header_at.checked_add(offset)?);
        let (offset, vaddr) = (word(8)?, word(16)?);
        let (file_bytes, mem_bytes, align) = (word(32)?, word(40)?, word(48)?);
        Some(Place { offset, vaddr, file_bytes, mem_bytes, align })
    }

    /// Its bytes, which are none where the file is cut off before their end.
    pub fn bytes(self) -> Option<&'a [u8]> {
        let Place { offset, file_bytes, .. } = self.place()?;
        let end = offset.saturating_add(file_bytes) as usize;
        Some(self.file.get(offset as usize..end).unwrap_or_default())
    }
}

/// Whether there is a note by this owner: `IX` by libix (`libix::raw`), `Go` by Go's linker.
pub fn has_note(mut notes: &[u8], owner: &[u8]) -> bool {
    while let Some(head) = notes.get(..12) {
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (name, text) = (word(0) as usize, word(4) as usize);
        if notes.get(12..12 + name) == Some(owner) {
            return true;
        }
        let whole = 12 + name.next_multiple_of(4) + text.next_multiple_of(4);
        notes = notes.get(whole..).unwrap_or_default();
    }
    false
}

/// The interpreter of a script and the argument that it gets before the script's name; `None`: the
/// file names none.
pub fn interpreter(file: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    let line = file.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?.trim_ascii();
    match line.iter().position(u8::is_ascii_whitespace) {
        Some(at) => Some((&line[..at], Some(line[at..].trim_ascii()))),
        None => (!line.is_empty()).then_some((line, None)),
    }
}

fn part<const BYTES: usize>(file: &[u8], at: usize) -> Option<[u8; BYTES]> {
    file.get(at..at.checked_add(BYTES)?)?.try_into().ok()
}

fn u16_at(file: &[u8], at: usize) -> Option<u16> {
    part(file, at).map(u16::from_le_bytes)
}

fn u32_at(file: &[u8], at: usize) -> Option<u32> {
    part(file, at).map(u32::from_le_bytes)
}

fn u64_at(file: &[u8], at: usize) -> Option<u64> {
    part(file, at).map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shell_names_a_loader() {
        let file = std::fs::read("/bin/sh").expect("a shell");
        let Some(Elf::Ours(header)) = elf(&file) else { panic!("no ELF file of ours") };
        let mut segments = header.segments();
        let loader = segments.find(|segment| segment.kind() == Some(PT_INTERP)).expect("a loader");
        let name = loader.bytes().expect("whole");
        assert!(name.starts_with(b"/lib") && name.ends_with(b"\0"), "{name:?}");
        for len in [0, 3, 5, 17, 19, 57] {
            assert!(elf(&file[..len]).is_none(), "{len} bytes");
        }
        let Some(Elf::Ours(header)) = elf(&file[..64]) else { panic!("the headers are named") };
        assert!(
            header.segments().all(|segment| segment.kind().is_none() && segment.bytes().is_none())
        );
        let mut other = file.clone();
        other[18] = 183;
        assert!(matches!(elf(&other), Some(Elf::Foreign)));
    }

    #[test]
    fn scripts_name_their_interpreters() {
        for (file, expected) in [
            (&b"#!/bin/sh\nexit"[..], Some((&b"/bin/sh"[..], None))),
            (b"#! /usr/bin/env  python3 -u \n", Some((b"/usr/bin/env", Some(&b"python3 -u"[..])))),
            (b"#!/bin/sh", Some((b"/bin/sh", None))),
            (b"#!\n/bin/sh", None),
            (b"#!  \t\n", None),
            (b"exit 0\n", None),
            (b"", None),
        ] {
            assert_eq!(interpreter(file), expected, "{file:?}");
        }
    }
}
