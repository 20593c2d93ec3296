//! The part of ELF that planting and loading need: the loadable segments of the image and of
//! programs.
use core::fmt;

/// A page of the x86-64.
pub const PAGE: u64 = 4096;

const EHDR_BYTES: usize = 64;
const PHDR_BYTES: usize = 56;
const PT_LOAD: u32 = 1;
const PT_INTERP: u32 = 3;
const ET_EXEC: u16 = 2;
const ET_DYN: u16 = 3;
const EM_X86_64: u16 = 62;

/// Why bytes are not a usable image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElfError {
    /// Too short, wrong magic, or headers outside the file.
    Malformed,
    /// Another class, byte order or machine.
    WrongMachine,
    /// Not position-independent, or it needs a dynamic loader.
    NotStaticPie,
    /// A segment is both writable and executable.
    WritableCode,
}

impl fmt::Display for ElfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ElfError::Malformed => "not a well-formed ELF file",
            ElfError::WrongMachine => "not an x86-64 ELF file",
            ElfError::NotStaticPie => "not a static position-independent executable",
            ElfError::WritableCode => "a segment is both writable and executable",
        })
    }
}

impl std::error::Error for ElfError {}

/// A loadable segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Offset in the file.
    pub offset: u64,
    /// Offset in memory, from the image's base.
    pub vaddr: u64,
    /// Bytes in the file.
    pub file_bytes: u64,
    /// Bytes in memory; those beyond `file_bytes` are zero.
    pub mem_bytes: u64,
    /// `PROT_READ`, `PROT_WRITE`, `PROT_EXEC`.
    pub prot: i32,
}

/// Addresses of a segment when its image is mapped: whole pages from the file, then zeros to the
/// end of the last of these pages, then pages of zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The first page.
    pub start: u64,
    /// File offset of the pages from the file.
    pub offset: u64,
    /// Bytes of whole pages from the file; 0: none.
    pub file_bytes: u64,
    /// Address from which the last page from the file must be zero, if its rest belongs to the
    /// segment.
    pub tail: Option<u64>,
    /// Bytes of whole pages of zeros after those; 0: none.
    pub zero_bytes: u64,
}

impl Segment {
    /// With the image at `base`.
    pub fn placed(&self, base: u64) -> Placed {
        let start = page_down(base + self.vaddr);
        let file_end = base + self.vaddr + self.file_bytes;
        let mem_end = base + self.vaddr + self.mem_bytes;
        let zeroes = if self.file_bytes > 0 { page_up(file_end) } else { start };
        let tail = (self.file_bytes > 0 && mem_end > file_end).then_some(file_end);
        Placed {
            start,
            offset: page_down(self.offset),
            file_bytes: zeroes - start,
            tail,
            zero_bytes: page_up(mem_end).saturating_sub(zeroes),
        }
    }
}

impl Placed {
    /// Address of the pages of zeros.
    pub fn zeroes(&self) -> u64 {
        self.start + self.file_bytes
    }
}

/// Content of the headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Entry point, from the base.
    pub entry: u64,
    /// Program headers, from the base.
    pub phdr: u64,
    /// Number of program headers.
    pub phnum: u64,
    /// Loadable segments by ascending address.
    pub segments: Vec<Segment>,
    /// Bytes of the pages from the base to the end of the last segment.
    pub span_bytes: u64,
    /// Alignment of the base; 0: the base is 0, because the addresses are fixed.
    pub align: u64,
}

/// A program, or a dynamic loader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Its segments.
    pub layout: Layout,
    /// The path of its dynamic loader, as in its file.
    pub interpreter: Option<Vec<u8>>,
}

impl Layout {
    /// Size of a program header.
    pub const PHENT: u64 = PHDR_BYTES as u64;

    /// Checks the headers of an image and collects what is needed to map it.
    pub fn parse(file: &[u8]) -> Result<Layout, ElfError> {
        match Program::parse(file)? {
            Program { layout, interpreter: None } if layout.align != 0 => Ok(layout),
            _ => Err(ElfError::NotStaticPie),
        }
    }
}

impl Program {
    /// Checks the headers of a program and collects what is needed to map it.
    pub fn parse(file: &[u8]) -> Result<Program, ElfError> {
        let header = file.get(..EHDR_BYTES).ok_or(ElfError::Malformed)?;
        if header[..4] != *b"\x7fELF" {
            return Err(ElfError::Malformed);
        }
        let (class64, little_endian) = (header[4] == 2, header[5] == 1);
        if !class64 || !little_endian || u16_at(header, 18) != EM_X86_64 {
            return Err(ElfError::WrongMachine);
        }
        let fixed = match u16_at(header, 16) {
            ET_DYN => false,
            ET_EXEC => true,
            _ => return Err(ElfError::Malformed),
        };
        let (entry, phoff) = (u64_at(header, 24), u64_at(header, 32));
        let (phentsize, phnum) = (u16_at(header, 54) as usize, u16_at(header, 56) as usize);
        let table = usize::try_from(phoff)
            .ok()
            .and_then(|at| file.get(at..at.checked_add(phnum * PHDR_BYTES)?))
            .filter(|_| phentsize == PHDR_BYTES)
            .ok_or(ElfError::Malformed)?;
        let (mut segments, mut interpreter) = (Vec::new(), None);
        let mut align = if fixed { 0 } else { PAGE };
        for ph in table.chunks_exact(PHDR_BYTES) {
            match u32_at(ph, 0) {
                PT_LOAD => {
                    segments.push(segment(ph, file.len() as u64)?);
                    align = if fixed { 0 } else { align.max(alignment(ph)?) };
                }
                PT_INTERP => interpreter = Some(path(ph, file)?),
                _ => {}
            }
        }
        let ascending = segments.windows(2).all(|w| page_up(end(&w[0])) <= page_down(w[1].vaddr));
        let span_bytes = segments.last().map_or(0, |s| page_up(end(s)));
        let phdr_end = phoff.saturating_add(table.len() as u64);
        let phdr = segments
            .iter()
            .find(|s| s.offset <= phoff && phdr_end <= s.offset + s.file_bytes)
            .map(|s| s.vaddr + (phoff - s.offset));
        match phdr {
            Some(phdr) if ascending && entry < span_bytes => {
                let phnum = phnum as u64;
                let layout = Layout { entry, phdr, phnum, segments, span_bytes, align };
                Ok(Program { layout, interpreter })
            }
            _ => Err(ElfError::Malformed),
        }
    }
}

fn alignment(ph: &[u8]) -> Result<u64, ElfError> {
    match u64_at(ph, 48) {
        0 => Ok(1),
        align if align.is_power_of_two() && align <= 1 << 30 => Ok(align),
        _ => Err(ElfError::Malformed),
    }
}

/// The part of the file that a program header refers to, without the zero at its end.
fn path(ph: &[u8], file: &[u8]) -> Result<Vec<u8>, ElfError> {
    let range = |start: u64, bytes: u64| {
        let start = usize::try_from(start).ok()?;
        file.get(start..start.checked_add(usize::try_from(bytes).ok()?)?)
    };
    let text = range(u64_at(ph, 8), u64_at(ph, 32)).ok_or(ElfError::Malformed)?;
    match text {
        [path @ .., 0] if !path.is_empty() && !path.contains(&0) => Ok(path.to_vec()),
        _ => Err(ElfError::Malformed),
    }
}

fn segment(ph: &[u8], file_len: u64) -> Result<Segment, ElfError> {
    let flags = u32_at(ph, 4);
    let (execute, write, read) = (flags & 1 != 0, flags & 2 != 0, flags & 4 != 0);
    if execute && write {
        return Err(ElfError::WritableCode);
    }
    let bit = |on: bool, prot: i32| if on { prot } else { 0 };
    let s = Segment {
        offset: u64_at(ph, 8),
        vaddr: u64_at(ph, 16),
        file_bytes: u64_at(ph, 32),
        mem_bytes: u64_at(ph, 40),
        prot: bit(read, libc::PROT_READ)
            | bit(write, libc::PROT_WRITE)
            | bit(execute, libc::PROT_EXEC),
    };
    // An address beyond 2^40 is invalid, and is excluded so that the sums below cannot overflow.
    let bounded = s.vaddr < 1 << 40 && s.mem_bytes < 1 << 40;
    let in_file = s.offset.checked_add(s.file_bytes).is_some_and(|end| end <= file_len);
    let congruent = s.offset % PAGE == s.vaddr % PAGE;
    // Only a writable segment can have its tail zeroed.
    let tail = s.file_bytes == s.mem_bytes || (s.file_bytes < s.mem_bytes && write);
    if bounded && in_file && congruent && tail { Ok(s) } else { Err(ElfError::Malformed) }
}

fn end(s: &Segment) -> u64 {
    s.vaddr + s.mem_bytes
}

/// The page that holds an address.
pub fn page_down(addr: u64) -> u64 {
    addr & !(PAGE - 1)
}

/// The first page boundary at or after an address.
pub fn page_up(addr: u64) -> u64 {
    page_down(addr + PAGE - 1)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(core::array::from_fn(|i| bytes[at + i]))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(core::array::from_fn(|i| bytes[at + i]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(core::array::from_fn(|i| bytes[at + i]))
}

/// Kind of a file that the kernel would not run, for the error message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// ELF for this machine.
    Native,
    /// ELF for another machine or class.
    Foreign,
    /// Begins with `#!`.
    Script,
    /// Anything else.
    Unknown,
}

/// Classifies a file by its first bytes.
pub fn file_kind(head: &[u8]) -> FileKind {
    match head {
        [0x7f, b'E', b'L', b'F', 2, 1, rest @ ..] if rest.len() >= 14 => {
            let native = u16_at(head, 18) == EM_X86_64;
            if native { FileKind::Native } else { FileKind::Foreign }
        }
        [0x7f, b'E', b'L', b'F', ..] => FileKind::Foreign,
        [b'#', b'!', ..] => FileKind::Script,
        _ => FileKind::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn own_file() -> Vec<u8> {
        std::fs::read("/proc/self/exe").unwrap()
    }

    #[test]
    fn a_dynamic_executable_is_refused() {
        assert_eq!(Layout::parse(&own_file()), Err(ElfError::NotStaticPie));
        let loader = Program::parse(&own_file()).unwrap().interpreter.unwrap();
        assert!(loader.starts_with(b"/lib"));
    }

    #[test]
    fn other_machines_are_refused() {
        let mut file = own_file();
        file[18] = 183; // EM_AARCH64
        assert_eq!(Layout::parse(&file), Err(ElfError::WrongMachine));
        assert_eq!(file_kind(&file), FileKind::Foreign);
        assert_eq!(file_kind(&own_file()), FileKind::Native);
        assert_eq!(file_kind(b"#!/bin/sh\n"), FileKind::Script);
        assert_eq!(file_kind(b"\x7fELF"), FileKind::Foreign);
        assert_eq!(file_kind(b""), FileKind::Unknown);
    }

    proptest! {
        /// Whatever the bytes, the segments of an accepted layout are in order, within its span and
        /// in the file.
        #[test]
        fn damaged_headers_never_give_a_bad_layout(
            damage in proptest::collection::vec((0usize..1024, any::<u8>()), 0..6),
            keep_interp in any::<bool>(),
        ) {
            let mut file = own_file();
            file.truncate(1 << 16);
            let len = file.len() as u64;
            let phoff = u64_at(&file, 32) as usize;
            for i in 0..u16_at(&file, 56) as usize {
                let ph = phoff + i * PHDR_BYTES;
                if u32_at(&file, ph) == PT_INTERP && !keep_interp {
                    file[ph] = 0;
                }
                let end = u64_at(&file, ph + 8) + u64_at(&file, ph + 32);
                if u32_at(&file, ph) == PT_LOAD && end > len {
                    file[ph] = 0;
                }
            }
            for (at, byte) in damage {
                file[at] = byte;
            }
            if let Ok(Program { layout, .. }) = Program::parse(&file) {
                let mut at = 0;
                for s in &layout.segments {
                    prop_assert!(page_down(s.vaddr) >= at);
                    prop_assert!(s.offset + s.file_bytes <= len);
                    prop_assert!(s.prot & libc::PROT_WRITE == 0 || s.prot & libc::PROT_EXEC == 0);
                    at = page_up(s.vaddr + s.mem_bytes);
                }
                prop_assert_eq!(at, layout.span_bytes);
                prop_assert!(layout.entry < layout.span_bytes);
            }
        }
    }
}
