//! The part of ELF that planting and loading need: the loadable segments of the image and of
//! programs.
use core::fmt;
use ix_sys::program_file::{self, Elf, PT_INTERP, PT_LOAD, Place};

/// A page of the x86-64.
pub const PAGE: u64 = 4096;

const ET_EXEC: u16 = 2;
const ET_DYN: u16 = 3;

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
    pub const PHENT: u64 = 56;

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
        let header = match program_file::elf(file) {
            Some(Elf::Ours(header)) => header,
            Some(Elf::Foreign) => return Err(ElfError::WrongMachine),
            None => return Err(ElfError::Malformed),
        };
        let fixed = match header.kind {
            ET_DYN => false,
            ET_EXEC => true,
            _ => return Err(ElfError::Malformed),
        };
        let table_bytes = u64::from(header.segments) * Layout::PHENT;
        let table_end = header.table.checked_add(table_bytes);
        let table_end = table_end
            .filter(|end| *end <= file.len() as u64)
            .filter(|_| u64::from(header.entry_bytes) == Layout::PHENT)
            .ok_or(ElfError::Malformed)?;
        let (mut segments, mut interpreter) = (Vec::new(), None);
        let mut align = if fixed { 0 } else { PAGE };
        for in_file in header.segments() {
            match in_file.kind() {
                Some(PT_LOAD) => {
                    let place = in_file.place().ok_or(ElfError::Malformed)?;
                    let flags = in_file.flags().ok_or(ElfError::Malformed)?;
                    segments.push(segment(&place, flags, file.len() as u64)?);
                    align = if fixed { 0 } else { align.max(alignment(&place)?) };
                }
                Some(PT_INTERP) => interpreter = Some(path(in_file)?),
                _ => {}
            }
        }
        let ascending = segments.windows(2).all(|w| page_up(end(&w[0])) <= page_down(w[1].vaddr));
        let span_bytes = segments.last().map_or(0, |s| page_up(end(s)));
        let phdr = segments
            .iter()
            .find(|s| s.offset <= header.table && table_end <= s.offset + s.file_bytes)
            .map(|s| s.vaddr + (header.table - s.offset));
        match phdr {
            Some(phdr) if ascending && header.entry < span_bytes => {
                let (entry, phnum) = (header.entry, header.segments.into());
                let layout = Layout { entry, phdr, phnum, segments, span_bytes, align };
                Ok(Program { layout, interpreter })
            }
            _ => Err(ElfError::Malformed),
        }
    }
}

fn alignment(place: &Place) -> Result<u64, ElfError> {
    match place.align {
        0 => Ok(1),
        align if align.is_power_of_two() && align <= 1 << 30 => Ok(align),
        _ => Err(ElfError::Malformed),
    }
}

/// The path that a segment names, without the zero at its end.
fn path(segment: program_file::Segment<'_>) -> Result<Vec<u8>, ElfError> {
    match segment.bytes() {
        Some([path @ .., 0]) if !path.is_empty() && !path.contains(&0) => Ok(path.to_vec()),
        _ => Err(ElfError::Malformed),
    }
}

fn segment(place: &Place, flags: u32, file_len: u64) -> Result<Segment, ElfError> {
    let has = |flag: u32| flags & flag != 0;
    let (execute, write, read) = (has(libc::PF_X), has(libc::PF_W), has(libc::PF_R));
    if execute && write {
        return Err(ElfError::WritableCode);
    }
    let bit = |on: bool, prot: i32| if on { prot } else { 0 };
    let s = Segment {
        offset: place.offset,
        vaddr: place.vaddr,
        file_bytes: place.file_bytes,
        mem_bytes: place.mem_bytes,
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
            let Some(Elf::Ours(header)) = program_file::elf(&file) else { panic!("no ELF file") };
            let unwanted: Vec<bool> = header.segments().map(|segment| match segment.kind() {
                Some(PT_INTERP) => !keep_interp,
                Some(PT_LOAD) => segment.place().is_some_and(|at| at.offset + at.file_bytes > len),
                _ => false,
            }).collect();
            let table = header.table as usize;
            for (n, _) in unwanted.iter().enumerate().filter(|(_, unwanted)| **unwanted) {
                file[table + n * Layout::PHENT as usize] = 0;
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
