//! The dataplane image in the launcher: a descriptor to map from, and its layout.
use ix_entry::elf::{ElfError, Layout};
use ix_entry::scan::{BYTES_MAX, Instruction, disarm, scan};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use std::ffi::CStr;
use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

/// Why there is no image.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The bytes are not an image.
    #[error("the dataplane image is damaged: {0}; build ix again")]
    Elf(#[from] ElfError),
    /// Its code changes memory rights without a check afterwards.
    #[error(
        "the dataplane image has unchecked code at offset {0:#x}; build ix again, or say --domain none"
    )]
    Code(usize),
    /// A system call failed.
    #[error("cannot hold the dataplane image in memory: {0}")]
    System(#[from] io::Error),
}

/// A static position-independent executable, ready to be planted any number of times.
#[derive(Debug)]
pub struct Image {
    fd: OwnedFd,
    layout: Layout,
}

impl Image {
    /// Makes it of the bytes inside the `ix` command, which are copied to a sealed memfd. `walled`:
    /// the code is checked, and must not contain the bytes of an unchecked key switch anywhere, not
    /// even by chance.
    pub fn from_bytes(bytes: &[u8], walled: bool) -> Result<Image, ImageError> {
        let layout = Layout::parse(bytes)?;
        let mut bytes = bytes.to_vec();
        if walled {
            check_code(&mut bytes, &layout)?;
        }
        Ok(Image { fd: unchanging(c"ix-image", &bytes)?.into(), layout })
    }

    /// Makes it of a file, so that perf and gdb find its symbols. The file must not change while
    /// programs run on it. Its code is not checked, so it must not be used behind a wall.
    pub fn from_file(path: &Path) -> Result<Image, ImageError> {
        let mut file = File::open(path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(Image { layout: Layout::parse(&bytes)?, fd: file.into() })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// A copy of this name that others may execute and not read. A process that executes it cannot
    /// be traced or dumped by its own user, from its first instruction on.
    pub(crate) fn unreadable(&self, name: &CStr) -> io::Result<OwnedFd> {
        let from = File::from(self.fd.try_clone()?);
        let mut bytes = vec![0; from.metadata()?.len() as usize];
        from.read_exact_at(&mut bytes, 0)?;
        let file = unchanging(name, &bytes)?;
        file.set_permissions(Permissions::from_mode(0o111))?;
        Ok(file.into())
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }
}

/// Ensures that the application cannot use the image's own code to get more rights: each change of
/// rights is followed by a check, and lazy binding, which a static program never does, is made
/// harmless.
fn check_code(bytes: &mut [u8], layout: &Layout) -> Result<(), ImageError> {
    for segment in layout.segments.iter().filter(|s| s.prot & libc::PROT_EXEC != 0) {
        let start = segment.offset as usize;
        let range = start..start + segment.file_bytes as usize;
        let Some(code) = bytes.get_mut(range) else { return Err(ImageError::Code(start)) };
        let found: Vec<_> = scan(code).collect();
        for (at, instruction) in found {
            if !is_checked(code, at, instruction) && !disarm(code, at) {
                return Err(ImageError::Code(start + at));
            }
        }
    }
    Ok(())
}

/// Whether a comparison and a jump follow at once.
fn is_checked(code: &[u8], at: usize, instruction: Instruction) -> bool {
    let after = &code[at + BYTES_MAX..];
    match (instruction, after) {
        // cmp eax, imm32; jne
        (Instruction::Wrpkru, [0x3d, _, _, _, _, 0x0f, 0x85, ..]) => true,
        (Instruction::Wrpkru, [0x3d, _, _, _, _, 0x75, ..]) => true,
        // cmp eax, [rip + disp32]; jne
        (Instruction::Xrstor, [0x3b, 0x05, _, _, _, _, 0x0f, 0x85, ..]) => true,
        _ => false,
    }
}

/// Makes an empty memfd that can be sealed; the dataplane makes its control page of one.
pub fn memfd(name: &CStr) -> io::Result<OwnedFd> {
    Ok(memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?)
}

/// Makes a memfd of these bytes, which nobody can change: not even a process that has a descriptor
/// of it, and that other processes which execute it must not trust.
pub fn unchanging(name: &CStr, bytes: &[u8]) -> io::Result<File> {
    let mut file = File::from(memfd(name)?);
    file.write_all(bytes)?;
    // No process has it mapped for writing, so this is as good as F_SEAL_WRITE, which fails while
    // the kernel holds one of the pages for a moment (reclaim, DAMON).
    seal(file.as_fd(), SealFlags::FUTURE_WRITE | SealFlags::GROW | SealFlags::SHRINK)?;
    Ok(file)
}

/// Fixes the size of a memfd, so that neither side can make the other one fault by truncating it.
pub fn seal_size(fd: BorrowedFd<'_>) -> io::Result<()> {
    seal(fd, SealFlags::GROW | SealFlags::SHRINK)
}

/// Adds seals, and the seal that forbids more.
fn seal(fd: BorrowedFd<'_>, seals: SealFlags) -> io::Result<()> {
    Ok(fcntl_add_seals(fd, seals | SealFlags::SEAL)?)
}
