//! Attacks with code: instructions that change rights, brought in by the attacker or found in the
//! dataplane.
use crate::system::share_memory;
use crate::{Attack, Part, Targets, call, in_a_copy, is_walled};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};

/// Name, what stops it, and attack.
pub const ATTACKS: &[(&str, Part, Attack)] = &[
    ("executable anonymous memory", Part::Code, |_| executable(7, 0x22, u64::MAX)),
    ("make own memory executable", Part::Code, make_executable),
    ("wrpkru in a mapped file", Part::Code, |_| from_file(&wrpkru())),
    ("unaligned wrpkru in a mapped file", Part::Code, unaligned),
    ("xrstor in a mapped file", Part::Code, |_| from_file(&xrstor())),
    ("a file changed after it was mapped", Part::Code, changed_file),
    ("jump to the dataplane's system call", Part::Other, jump_to_syscall),
    ("jump to the dataplane's first key switch", Part::Other, jump_to_wrpkru),
    ("jump to each of its key switches", Part::Other, jump_to_all),
    ("jumps into the midst of the gate", Part::Other, jump_into_gate),
    ("jump to where a forked process begins", Part::Other, forge_birth),
];

const PAGE: u64 = 4096;

/// Constants would be in our own code, and keep this program from starting.
fn wrpkru() -> [u8; 3] {
    black_box([0xf0u8, 0xfe, 0x10]).map(|byte| !byte)
}

fn xrstor() -> [u8; 3] {
    black_box([0xf0u8, 0x51, 0xd0]).map(|byte| !byte)
}

/// Within the distance of a call.
fn unaligned(_: &Targets) -> Result<String, String> {
    let [a, b, c] = wrpkru();
    from_file(&[0xe8, a, b, c, 0xff])
}

fn executable(prot: u64, flags: u64, fd: u64) -> Result<String, String> {
    call(libc::SYS_mmap, [0, PAGE, prot, flags, fd, 0]).map(|_| "mapped".to_owned())
}

fn make_executable(_: &Targets) -> Result<String, String> {
    let own = call(libc::SYS_mmap, [0, PAGE, 3, 0x22, u64::MAX, 0])?;
    call(libc::SYS_mprotect, [own, PAGE, 5, 0, 0, 0]).map(|_| "changed".to_owned())
}

fn file_of(code: &[u8]) -> Result<u64, String> {
    let fd = call(libc::SYS_memfd_create, [c"attack".as_ptr() as u64, 0, 0, 0, 0, 0])?;
    call(libc::SYS_ftruncate, [fd, PAGE, 0, 0, 0, 0])?;
    call(libc::SYS_pwrite64, [fd, code.as_ptr() as u64, code.len() as u64, 100, 0, 0])?;
    Ok(fd)
}

fn from_file(code: &[u8]) -> Result<String, String> {
    const PRIVATE: u64 = 2;
    executable(5, PRIVATE, file_of(code)?)
}

/// The checked code differs from the code that runs.
fn changed_file(_: &Targets) -> Result<String, String> {
    const SHARED: u64 = 1;
    const RET: u8 = 0xc3;
    let fd = file_of(&[0x90, 0x90, 0x90, RET])?;
    let code = call(libc::SYS_mmap, [0, PAGE, 5, SHARED, fd, 0])?;
    let new = wrpkru();
    call(libc::SYS_pwrite64, [fd, new.as_ptr() as u64, 3, 100, 0, 0])?;
    // SAFETY: the page was mapped readable just now.
    let now = unsafe { std::slice::from_raw_parts((code + 100) as *const u8, 3) };
    if now == new { Ok("the code has changed".to_owned()) } else { Err("it has not".to_owned()) }
}

/// The dataplane's code from its file, and its address.
fn code_of(t: &Targets) -> Result<(&'static [u8], usize), String> {
    let image = t.image;
    let (file_offset, vaddr, bytes) = code_segment(image).ok_or("no code in the image")?;
    let code = &image[file_offset..file_offset + bytes];
    let maps = std::fs::read_to_string("/proc/self/maps").map_err(|e| e.to_string())?;
    let start = maps
        .lines()
        .filter_map(|line| {
            let (start, end) = line.split(' ').next()?.split_once('-')?;
            let hex = |text| usize::from_str_radix(text, 16).ok();
            Some((hex(start)?, hex(end)?))
        })
        .find(|&(start, end)| (start..end).contains(&t.code))
        .map(|(start, _)| start + vaddr % PAGE as usize)
        .ok_or("no code of the dataplane is mapped")?;
    Ok((code, start))
}

/// Addresses of these bytes in the dataplane's code; `None` stands for any byte.
fn find(t: &Targets, wanted: &[Option<u8>]) -> Result<usize, String> {
    let (code, start) = code_of(t)?;
    let is_it = |bytes: &[u8]| {
        bytes.iter().zip(wanted).all(|(byte, wanted)| wanted.is_none_or(|wanted| wanted == *byte))
    };
    let at = code.windows(wanted.len()).position(is_it).ok_or("no such instruction")?;
    Ok(start + at)
}

/// Calls a system call instruction of the dataplane for a call that the wall refuses.
fn jump_to_syscall(t: &Targets) -> Result<String, String> {
    // syscall; ret
    let at = find(t, &[0x0f, 0x05, 0xc3].map(Some))?;
    let mut answer = libc::SYS_pkey_alloc as u64;
    // SAFETY: an attack: the instructions are `syscall` and `ret`, whatever comes of it.
    unsafe {
        std::arch::asm!("call {at}", at = in(reg) at, inout("rax") answer,
            in("rdi") 0u64, in("rsi") 0u64, out("rcx") _, out("r11") _);
    }
    match answer as i64 {
        key @ 0.. => Ok(format!("answered {key}")),
        errno => Err(std::io::Error::from_raw_os_error(-errno as i32).to_string()),
    }
}

/// The one key switch that returns to its caller, from before there was a program.
fn jump_to_wrpkru(t: &Targets) -> Result<String, String> {
    const RIGHTS: u32 = 0x5555_5540;
    let mut wanted = wrpkru().map(Some).to_vec();
    wanted.extend([0x3d, 0x40, 0x55, 0x55, 0x55, 0x0f, 0x85].map(Some));
    // A jump's distance; cmp qword ptr [rip + _], 0.
    wanted.extend([None; 4]);
    wanted.extend([0x48, 0x83, 0x3d].map(Some));
    let at = find(t, &wanted)?;
    // SAFETY: an attack: the instructions are a change of rights, comparisons and `ret`.
    unsafe {
        std::arch::asm!("call {at}", at = in(reg) at, inout("eax") RIGHTS => _,
            inout("ecx") 0 => _, inout("edx") 0 => _);
        let data = t.data as *mut u8;
        data.write_volatile(data.read_volatile());
    }
    Ok("came back with rights".to_owned())
}

/// Jumps to all of them, intended or accidental, with the dataplane's rights and with no rights in
/// the register.
fn jump_to_all(t: &Targets) -> Result<String, String> {
    const RIGHTS: [u64; 3] = [0x5555_5540, 0, 0x5555_556c];
    let (code, start) = code_of(t)?;
    let is_switch = |bytes: &[u8]| {
        bytes == wrpkru()
            || bytes[..2] == xrstor()[..2] && bytes[2] >> 3 & 7 == 5 && bytes[2] < 0xc0
    };
    let switches = code.windows(3).enumerate().filter(|(_, bytes)| is_switch(bytes));
    let places: Vec<_> = switches.map(|(at, _)| start + at).collect();
    jumps(t, places.iter().flat_map(|at| RIGHTS.map(|rights| (*at, rights))))
}

/// Jumps anywhere into its first instructions, aligned or not.
fn jump_into_gate(t: &Targets) -> Result<String, String> {
    const BYTES: usize = 512;
    const STEP: usize = 5;
    jumps(t, (1..BYTES).step_by(STEP).map(|at| (t.code + at, t.data as u64)))
}

/// Calls each address from a separate copy, with this value in the first register; a copy that
/// comes back tries to write.
fn jumps(t: &Targets, places: impl Iterator<Item = (usize, u64)>) -> Result<String, String> {
    const LONGEST_S: u32 = 5;
    const STDERR: i32 = 2;
    let mut made = 0;
    for (at, first) in places {
        made += 1;
        let data = t.data;
        let outcome = in_a_copy(|| {
            // SAFETY: an attack, in a copy that ends. What the dataplane says of each would be
            // much.
            unsafe {
                libc::close(STDERR);
                libc::alarm(LONGEST_S);
                std::arch::asm!("call {at}", at = in(reg) at, inout("rax") first => _,
                    inout("rcx") 0u64 => _, inout("rdx") 0u64 => _, inout("rdi") data => _,
                    inout("rsi") data => _, inout("r12") data => _, inout("r14") 1u64 => _,
                    out("r13") _, out("r15") _, clobber_abi("C"));
                let data = data as *mut u8;
                data.write_volatile(data.read_volatile());
            }
            Ok(String::new())
        });
        if outcome.is_ok() {
            return Ok(format!("came back with rights from {at:#x}, {first:#x}"));
        }
    }
    match made {
        0 => Ok("there is nowhere to jump to".to_owned()),
        made => Err(format!("{made}, none came back with rights")),
    }
}

/// While one thread forks processes, another one jumps to where they begin: it would act as the new
/// process, release locks that are held meanwhile, and make the dataplane believe that it is a
/// copy.
fn forge_birth(t: &Targets) -> Result<String, String> {
    const RIGHTS: u64 = 0x5555_5540;
    const FOR: std::time::Duration = std::time::Duration::from_secs(2);
    // Records of threads; the lowest free one is taken.
    const TRIED: u64 = 8;
    static BORN: AtomicBool = AtomicBool::new(false);
    if !is_walled() {
        return share_memory();
    }
    let mut wanted = wrpkru().map(Some).to_vec();
    wanted.extend([0x3d, 0x40, 0x55, 0x55, 0x55, 0x0f, 0x85].map(Some));
    // A jump's distance; cmp r14, _.
    wanted.extend([None; 4]);
    wanted.extend([0x49, 0x81, 0xfe].map(Some));
    let at = find(t, &wanted)?;
    // SAFETY: an attack: who is refused gets SIGILL, whose handler goes on behind the jump.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = go_on as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGILL, &action, std::ptr::null_mut());
    }
    let maker = std::thread::spawn(|| {
        // SAFETY: no arguments.
        let own = unsafe { libc::getpid() };
        let begin = std::time::Instant::now();
        while begin.elapsed() < FOR {
            // SAFETY: a child ends at once. One that is no process of its own says so.
            unsafe {
                let child = libc::syscall(libc::SYS_fork);
                if child == 0 {
                    if libc::syscall(libc::SYS_getpid) == i64::from(own) {
                        BORN.store(true, Ordering::SeqCst);
                        loop {
                            libc::syscall(libc::SYS_pause);
                        }
                    }
                    libc::syscall(libc::SYS_exit_group, 0);
                }
                libc::waitpid(child as i32, std::ptr::null_mut(), 0);
            }
        }
    });
    let mut jumps = 0u64;
    while !maker.is_finished() && !BORN.load(Ordering::SeqCst) {
        let record = jumps % TRIED;
        jumps += 1;
        // SAFETY: as above; whatever the jump changes is named.
        unsafe {
            std::arch::asm!(
                "lea rdi, [rip + 2f]", "mov [rsi], rdi", "mov [rsi + 8], rsp", "jmp r9", "2:",
                out("rdi") _, inout("rsi") &raw mut GO_ON => _, inout("r9") at => _,
                inout("rax") RIGHTS => _, inout("rcx") 0u64 => _, inout("rdx") 0u64 => _,
                inout("r14") record => _, out("r12") _, out("r13") _, out("r15") _,
                clobber_abi("C"));
        }
    }
    match BORN.load(Ordering::SeqCst) {
        true => Ok(format!("after {jumps} jumps a process began in this one")),
        false => Err(format!("{jumps} jumps, no process began in this one")),
    }
}

/// Where a refused jump continues: instruction and stack.
static mut GO_ON: [u64; 2] = [0; 2];

extern "C" fn go_on(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel's or the dataplane's frame; only the thread that jumps gets here.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        registers[libc::REG_RIP as usize] = GO_ON[0] as i64;
        registers[libc::REG_RSP as usize] = GO_ON[1] as i64;
    }
}

/// Offset in the file, address and bytes of the executable segment of a 64-bit ELF file.
fn code_segment(file: &[u8]) -> Option<(usize, usize, usize)> {
    let word =
        |at: usize| Some(u64::from_le_bytes(file.get(at..at + 8)?.try_into().ok()?) as usize);
    let half =
        |at: usize| Some(usize::from(u16::from_le_bytes(file.get(at..at + 2)?.try_into().ok()?)));
    let (table, count) = (word(32)?, half(56)?);
    (0..count).map(|i| table + i * 56).find_map(|at| {
        let kind = u32::from_le_bytes(file.get(at..at + 4)?.try_into().ok()?);
        let flags = u32::from_le_bytes(file.get(at + 4..at + 8)?.try_into().ok()?);
        (kind == 1 && flags & 1 != 0).then_some(())?;
        Some((word(at + 8)?, word(at + 16)?, word(at + 32)?))
    })
}
