//! Maps the image into a process that is stopped at its first instruction.
//!
//! ```text
//! span of the kernel's choice (one reservation, so everything of the image is contiguous):
//!   guard │ image's first stack, 1 MB │ guard │ R │ RX │ RW (relro) │ RW, bss
//! ```
use crate::error::{LaunchError, system};
use crate::image::Image;
use crate::launch::{Domain, LaunchConfig};
use crate::tracee::Tracee;
use ix_entry::IMAGE_ARGV0;
use ix_entry::elf::{Layout, PAGE, Segment};
use ix_entry::stack::InitialStack;
use ix_sys::process;
use std::io;
use std::os::fd::RawFd;

/// The image's first stack; elastic threads have their own.
const STACK_BYTES: u64 = 1 << 20;

/// The image's environment. glibc must not register restartable sequences: the kernel has one such
/// area for each thread, and the program's own C library needs it.
pub const IMAGE_ENV: &str = "GLIBC_TUNABLES=glibc.pthread.rseq=0";

/// Plants the image and continues the process with it. `image_fd` and `channel_fd` are numbers in
/// the process; `image_fd` is closed.
pub fn plant(
    mut tracee: Tracee,
    image: &Image,
    image_fd: RawFd,
    channel_fd: RawFd,
    config: &LaunchConfig,
) -> Result<(), LaunchError> {
    let layout = image.layout();
    let domain = match config.domain {
        Domain::None | Domain::Process => config.domain.word().to_owned(),
        Domain::Pku => {
            let maps = tracee.maps().map_err(system("/proc/PID/maps"))?;
            let ranges = maps.lines().filter_map(|line| line.split(' ').next());
            format!("pku:{}", ranges.collect::<Vec<_>>().join(","))
        }
    };
    tracee.borrow_code()?;
    if config.domain == Domain::Pku && process::is_root() {
        // Before anything of the image is there: no other process of the program's user may reach
        // what the wall does not keep yet. Without root's rights we could not reach it either; the
        // image does it then.
        tracee.forbid_tracing()?;
    }
    if let Some((user, group)) = config.user_after_exec() {
        tracee.become_user(user, group)?;
    }
    let span_bytes = PAGE + STACK_BYTES + PAGE + layout.span_bytes;
    let span = reserve(&mut tracee, span_bytes)?;
    let stack = span + PAGE;
    let base = stack + STACK_BYTES + PAGE;
    protect(&mut tracee, stack, STACK_BYTES, libc::PROT_READ | libc::PROT_WRITE)?;
    for segment in &layout.segments {
        map_segment(&mut tracee, base, segment, image_fd)?;
    }
    tracee.syscall("close", libc::SYS_close, [image_fd as u64, 0, 0, 0, 0, 0])?;
    tracee.restore_code()?;
    let arguments = arguments(&tracee, channel_fd, config.later, domain);
    let (rsp, bytes) = first_stack(&tracee, layout, base, stack + STACK_BYTES, &arguments)?;
    tracee.write(rsp, &bytes).map_err(system("process_vm_writev"))?;
    tracee.detach(base + layout.entry, rsp)
}

/// Address space without access.
fn reserve(tracee: &mut Tracee, bytes: u64) -> Result<u64, LaunchError> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let args = [0, bytes, libc::PROT_NONE as u64, flags as u64, u64::MAX, 0];
    tracee.syscall("mmap", libc::SYS_mmap, args)
}

fn protect(tracee: &mut Tracee, addr: u64, bytes: u64, prot: i32) -> Result<(), LaunchError> {
    let args = [addr, bytes, prot as u64, 0, 0, 0];
    tracee.syscall("mprotect", libc::SYS_mprotect, args).map(drop)
}

/// Its pages of zeros are those of the reservation, which are anonymous.
fn map_segment(
    tracee: &mut Tracee,
    base: u64,
    segment: &Segment,
    image_fd: RawFd,
) -> Result<(), LaunchError> {
    let placed = segment.placed(base);
    if placed.file_bytes > 0 {
        let flags = (libc::MAP_PRIVATE | libc::MAP_FIXED) as u64;
        let (start, bytes, prot) = (placed.start, placed.file_bytes, segment.prot as u64);
        let args = [start, bytes, prot, flags, image_fd as u64, placed.offset];
        tracee.syscall("mmap", libc::SYS_mmap, args)?;
    }
    if let Some(tail) = placed.tail {
        tracee.zero_to_page_end(tail).map_err(system("process_vm_writev"))?;
    }
    if placed.zero_bytes > 0 {
        protect(tracee, placed.zeroes(), placed.zero_bytes, segment.prot)?;
    }
    Ok(())
}

/// The image starts like any program, with an auxiliary vector that describes the image. Entries
/// about the machine and the user are the process's own; entries about the program's file are
/// replaced.
fn first_stack(
    tracee: &Tracee,
    layout: &Layout,
    base: u64,
    top: u64,
    arguments: &[String],
) -> Result<(u64, Vec<u8>), LaunchError> {
    let mut auxv = tracee.auxv().map_err(system("/proc/PID/auxv"))?;
    auxv.set(libc::AT_PHDR, base + layout.phdr);
    auxv.set(libc::AT_PHENT, Layout::PHENT);
    auxv.set(libc::AT_PHNUM, layout.phnum);
    auxv.set(libc::AT_BASE, 0);
    auxv.set(libc::AT_ENTRY, base + layout.entry);
    // Arguments and environment are ours, so that nothing of them has to be ignored.
    auxv.set(libc::AT_SECURE, 0);
    let args: Vec<&[u8]> = arguments.iter().map(String::as_bytes).collect();
    let stack = InitialStack {
        file: args[0],
        args: &args,
        env: &[IMAGE_ENV.as_bytes()],
        platform: None,
        auxv,
        random: random().map_err(system("getrandom"))?,
    };
    Ok(stack.build(top))
}

/// See [`IMAGE_ARGV0`].
fn arguments(tracee: &Tracee, channel_fd: RawFd, later: bool, domain: String) -> [String; 6] {
    [
        IMAGE_ARGV0.to_owned(),
        format!("{:x}", tracee.entry_rip()),
        format!("{:x}", tracee.entry_rsp()),
        channel_fd.to_string(),
        (if later { "later" } else { "now" }).to_owned(),
        domain,
    ]
}

fn random() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    ix_sys::random::fill(&mut bytes).map(|()| bytes)
}
