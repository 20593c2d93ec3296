//! What the first bytes of a program's file say of how Linux starts it (execve(2), elf(5)).

/// The segment that names the dynamic loader.
pub const PT_INTERP: u32 = 3;
/// A segment of notes.
pub const PT_NOTE: u32 = 4;

/// An ELF file.
#[derive(Debug)]
pub enum Elf<Segments> {
    /// For x86-64, with these segments.
    Ours(Segments),
    /// For another machine.
    Foreign,
}

/// What the headers of an ELF file say of one segment. The file may be cut off within them.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    file: &'a [u8],
    header_at: usize,
}

/// Reads the start of an ELF file; `None`: it is none, or is cut off before its program headers are
/// named.
pub fn elf(file: &[u8]) -> Option<Elf<impl Iterator<Item = Segment<'_>>>> {
    if file.get(..4)? != b"\x7fELF" {
        return None;
    }
    if file.get(4..6)? != b"\x02\x01" || u16_at(file, 18)? != 62 {
        return Some(Elf::Foreign);
    }
    let table = u64_at(file, 32)? as usize;
    let (size, count) = (u16_at(file, 54)? as usize, u16_at(file, 56)? as usize);
    let at = move |n: usize| table.saturating_add(n * size);
    Some(Elf::Ours((0..count).map(move |n| Segment { file, header_at: at(n) })))
}

impl<'a> Segment<'a> {
    /// Its kind, such as [`PT_INTERP`].
    pub fn kind(self) -> Option<u32> {
        u32_at(self.file, self.header_at)
    }

    /// Its bytes, which are none where the file is cut off before their end.
    pub fn bytes(self) -> Option<&'a [u8]> {
        let word = |offset| u64_at(self.file, self.header_at.checked_add(offset)?);
        let (at, len) = (word(8)? as usize, word(32)? as usize);
        Some(self.file.get(at..at.saturating_add(len)).unwrap_or_default())
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
        let Some(Elf::Ours(mut segments)) = elf(&file) else { panic!("no ELF file of ours") };
        let loader = segments.find(|segment| segment.kind() == Some(PT_INTERP)).expect("a loader");
        let name = loader.bytes().expect("whole");
        assert!(name.starts_with(b"/lib") && name.ends_with(b"\0"), "{name:?}");
        for len in [0, 3, 5, 17, 19, 57] {
            assert!(elf(&file[..len]).is_none(), "{len} bytes");
        }
        let Some(Elf::Ours(mut segments)) = elf(&file[..64]) else {
            panic!("the headers are named")
        };
        assert!(segments.all(|segment| segment.kind().is_none() && segment.bytes().is_none()));
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
