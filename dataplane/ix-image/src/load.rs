//! The other way to start (`--entry loading`): Linux executes the image, which maps the program and
//! its dynamic loader as Linux would have done. Then all continues as if the image had been
//! planted. The stack that Linux has made stays the image's; the program gets a new one.
use crate::arguments::{Arguments, Domain};
use crate::wall::maps::mappings;
use ix_entry::elf::{Layout, PAGE, Program, Segment, page_down, page_up};
use ix_entry::stack::InitialStack;
use ix_entry::{Auxv, IMAGE_ARGV0, LOAD};
use std::ffi::{CStr, CString, OsStr, c_char, c_int};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;

const TUNABLES: &[u8] = b"GLIBC_TUNABLES=";
/// Smallest and largest stack of the program; within these its limit decides.
const STACK_BYTES: core::ops::RangeInclusive<u64> = 1 << 20..=64 << 20;

/// What must be loaded.
pub struct Request {
    file: Vec<u8>,
    /// The channel's descriptor.
    pub channel: i32,
    later: bool,
    domain: Domain,
    args: Vec<Vec<u8>>,
    env: Vec<Vec<u8>>,
    auxv: Auxv,
}

impl Request {
    /// Reads the request from the image's command line ([`ix_entry::LOAD`]); `None` if that is a
    /// different one.
    ///
    /// # Safety
    /// `argv` and `env` are where Linux, or the launcher, has put them for a new process.
    pub unsafe fn read(
        argc: c_int,
        argv: *const *const c_char,
        env: *const *const c_char,
    ) -> Option<Request> {
        // SAFETY: the caller's promise: pointers to C strings up to a null pointer.
        let (args, env, auxv) = unsafe {
            let args = strings(argv);
            (args, strings(env), auxv_behind(env))
        };
        if argc < 8 {
            return None;
        }
        Request::parse(&args, env, auxv)
    }

    fn parse(args: &[Vec<u8>], env: Vec<Vec<u8>>, auxv: Auxv) -> Option<Request> {
        let [name, load, file, channel, when, domain, tunables, args @ ..] = args else {
            return None;
        };
        if name != IMAGE_ARGV0.as_bytes() || load != LOAD.as_bytes() || args.is_empty() {
            return None;
        }
        let (later, domain) = match (&when[..], &domain[..]) {
            (b"now", b"none") => (false, Domain::None),
            (b"later", b"none") => (true, Domain::None),
            (b"now", b"process") => (false, Domain::Process),
            (b"later", b"process") => (true, Domain::Process),
            // Its mappings are known once the program is loaded.
            (b"now", b"pku") => (false, Domain::Pku(Vec::new())),
            _ => return None,
        };
        let mut env: Vec<_> = env.into_iter().filter(|text| !text.starts_with(TUNABLES)).collect();
        let tunables = tunables.strip_prefix(b"-")?;
        if !tunables.is_empty() {
            env.push([TUNABLES, tunables].concat());
        }
        let channel = core::str::from_utf8(channel).ok()?.parse().ok()?;
        Some(Request { file: file.clone(), channel, later, domain, args: args.to_vec(), env, auxv })
    }

    /// Loads the program; returns where it begins.
    pub fn load(self) -> Result<Arguments, String> {
        let (program, base) = load(&self.file)?;
        let mut ranges = vec![range(base, &program.layout)];
        let (mut entry, mut loader_base) = (base + program.layout.entry, 0);
        if let Some(path) = &program.interpreter {
            let (loader, base) = load(path)?;
            ranges.push(range(base, &loader.layout));
            (entry, loader_base) = (base + loader.layout.entry, base);
        }
        let stack = stack().map_err(|e| cannot(&self.file, "no stack", e))?;
        ranges.push(stack);
        let Request { file, channel, later, domain, args, env, mut auxv } = self;
        auxv.set(libc::AT_PHDR, base + program.layout.phdr);
        auxv.set(libc::AT_PHENT, Layout::PHENT);
        auxv.set(libc::AT_PHNUM, program.layout.phnum);
        auxv.set(libc::AT_BASE, loader_base);
        auxv.set(libc::AT_ENTRY, base + program.layout.entry);
        // SAFETY: Linux has put a C string there, on the stack that stays the image's.
        let platform =
            auxv.get(libc::AT_PLATFORM).map(|at| unsafe { CStr::from_ptr(at as *const _) });
        let first = InitialStack {
            file: &file,
            platform: platform.map(CStr::to_bytes),
            args: &args.iter().map(Vec::as_slice).collect::<Vec<_>>(),
            env: &env.iter().map(Vec::as_slice).collect::<Vec<_>>(),
            auxv,
            random: random().map_err(|e| cannot(&file, "getrandom", e))?,
        };
        let stack = put(first, stack).ok_or_else(|| {
            cannot(&file, "arguments and environment", "too long for its stack (ulimit -s)")
        })?;
        set_name(&file);
        // SAFETY: it was just put there.
        let _ = unsafe { show_arguments(stack) };
        let domain = match domain {
            Domain::Pku(_) => {
                Domain::Pku(with_linux(ranges).map_err(|e| cannot(&file, "its mappings", e))?)
            }
            other => other,
        };
        Ok(Arguments { entry: entry as usize, stack, channel, later, domain })
    }
}

pub fn cannot(file: &[u8], what: &str, why: impl core::fmt::Display) -> String {
    format!("cannot load {}: {what}: {why}", String::from_utf8_lossy(file))
}

/// # Safety
/// Pointers to C strings up to a null pointer.
pub unsafe fn strings(mut at: *const *const c_char) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    // SAFETY: the caller's promise.
    unsafe {
        while !(*at).is_null() {
            all.push(CStr::from_ptr(*at).to_bytes().to_vec());
            at = at.add(1);
        }
    }
    all
}

/// # Safety
/// The environment is where it was put for a new process, with the auxiliary vector behind it.
pub unsafe fn auxv_behind(mut env: *const *const c_char) -> Auxv {
    // SAFETY: the caller's promise; both end with a null, or a pair that begins with one.
    unsafe {
        while !(*env).is_null() {
            env = env.add(1);
        }
        let start = env.add(1).cast::<[u64; 2]>();
        let mut pairs = 0;
        while (*start.add(pairs))[0] != libc::AT_NULL {
            pairs += 1;
        }
        Auxv::from_bytes(core::slice::from_raw_parts(start.cast(), pairs * 16))
    }
}

/// Maps the segments of a file; returns what its headers say, and its base.
pub fn load(path: &[u8]) -> Result<(Program, u64), String> {
    let file = File::open(OsStr::from_bytes(path)).map_err(|e| cannot(path, "open", e))?;
    let view = View::new(&file).map_err(|e| cannot(path, "mmap", e))?;
    let planted = "if Linux runs it, say --entry planted";
    let program = Program::parse(view.bytes())
        .map_err(|e| cannot(path, "its headers", format!("{e}; {planted}")))?;
    let base = map(&file, &program.layout).map_err(|e| cannot(path, "its segments", e))?;
    Ok((program, base))
}

/// A file's bytes.
struct View(*mut libc::c_void, usize);

impl View {
    fn new(file: &File) -> io::Result<View> {
        let bytes = file.metadata()?.len() as usize;
        let flags = libc::MAP_PRIVATE;
        // SAFETY: a new mapping.
        let at = unsafe {
            libc::mmap(core::ptr::null_mut(), bytes, libc::PROT_READ, flags, file.as_raw_fd(), 0)
        };
        if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(View(at, bytes)) }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: mapped as long as `self`. Who truncates a program that starts ends it, as ever.
        unsafe { core::slice::from_raw_parts(self.0.cast(), self.1) }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: exactly what `new` has mapped.
        unsafe { libc::munmap(self.0, self.1) };
    }
}

fn range(base: u64, layout: &Layout) -> (u64, u64) {
    let first = layout.segments.first().map_or(0, |segment| page_down(segment.vaddr));
    (base + first, base + layout.span_bytes)
}

fn map(file: &File, layout: &Layout) -> io::Result<u64> {
    let base = reserve(layout)?;
    layout.segments.iter().try_for_each(|segment| map_segment(file, base, segment))?;
    Ok(base)
}

/// Reserves address space without access. Not with MAP_NORESERVE: the image's own reservation has
/// that flag, and Linux could merge the two.
fn reserve(layout: &Layout) -> io::Result<u64> {
    const FIXED: i32 = libc::MAP_FIXED_NOREPLACE;
    let (first, end) = range(0, layout);
    if layout.align == 0 {
        return map_nothing(first, end - first, FIXED).map(|_| 0);
    }
    let bytes = end + layout.align - PAGE;
    let start = map_nothing(0, bytes, 0)?;
    let base = start.next_multiple_of(layout.align);
    for (from, to) in [(start, base), (base + end, start + bytes)] {
        if from < to {
            // SAFETY: part of the mapping just made.
            unsafe { libc::munmap(from as *mut _, (to - from) as usize) };
        }
    }
    Ok(base)
}

fn map_nothing(at: u64, bytes: u64, flags: i32) -> io::Result<u64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
    // SAFETY: a new mapping, where nothing is.
    let at = unsafe { libc::mmap(at as *mut _, bytes as usize, libc::PROT_NONE, flags, -1, 0) };
    if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(at as u64) }
}

/// Zero pages of a segment are those of the reservation, which are anonymous.
fn map_segment(file: &File, base: u64, segment: &Segment) -> io::Result<()> {
    let placed = segment.placed(base);
    if placed.file_bytes > 0 {
        let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
        let (start, offset) = (placed.start as *mut _, placed.offset as i64);
        let bytes = placed.file_bytes as usize;
        // SAFETY: within the reservation, which nobody uses yet.
        let at = unsafe { libc::mmap(start, bytes, segment.prot, flags, file.as_raw_fd(), offset) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
    }
    if let Some(tail) = placed.tail {
        let bytes = (placed.zeroes() - tail) as usize;
        // SAFETY: the rest of the last page, which is writable, as the layout's check has seen to.
        unsafe { core::ptr::write_bytes(tail as *mut u8, 0, bytes) };
    }
    if placed.zero_bytes > 0 {
        protect(placed.zeroes(), placed.zero_bytes, segment.prot)?;
    }
    Ok(())
}

fn protect(at: u64, bytes: u64, prot: i32) -> io::Result<()> {
    // SAFETY: part of a reservation of ours.
    let answer = unsafe { libc::mprotect(at as *mut _, bytes as usize, prot) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Maps the program's stack above a guard page; returns the addresses of both.
pub fn stack() -> io::Result<(u64, u64)> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills a local.
    if unsafe { libc::getrlimit(libc::RLIMIT_STACK, &mut limit) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let bytes = page_up(limit.rlim_cur.clamp(*STACK_BYTES.start(), *STACK_BYTES.end()));
    let guard = map_nothing(0, PAGE + bytes, 0)?;
    protect(guard + PAGE, bytes, libc::PROT_READ | libc::PROT_WRITE)?;
    Ok((guard, guard + PAGE + bytes))
}

/// Writes the initial stack; returns the stack pointer. `None` if it takes more than a quarter of
/// the stack.
pub fn put(first: InitialStack<'_>, (guard, top): (u64, u64)) -> Option<usize> {
    let (stack_pointer, bytes) = first.build(top);
    if bytes.len() as u64 > (top - guard) / 4 {
        return None;
    }
    // SAFETY: the end of the stack, of that length.
    unsafe {
        core::ptr::copy_nonoverlapping(bytes.as_ptr(), stack_pointer as *mut u8, bytes.len());
    }
    Some(stack_pointer as usize)
}

/// The program's mappings, with those that Linux has made for it.
fn with_linux(ranges: Vec<(u64, u64)>) -> io::Result<Vec<(usize, usize)>> {
    let linux = mappings()?.into_iter().filter(|m| m.name.starts_with("[v") || m.name == "[heap]");
    let linux = linux.map(|m| (m.start, m.end));
    Ok(ranges.into_iter().map(|(start, end)| (start as usize, end as usize)).chain(linux).collect())
}

/// Sets the name that `ps` shows, shortened as Linux does it.
fn set_name(file: &[u8]) {
    let name = file.rsplit(|byte| *byte == b'/').next().unwrap_or(file);
    if let Ok(name) = CString::new(name) {
        // SAFETY: a C string.
        unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
    }
}

/// What Linux notes of a process's memory, in the order of `struct prctl_mm_map`.
#[repr(C)]
struct Noted {
    code: [u64; 2],
    data: [u64; 2],
    brk: [u64; 2],
    stack: u64,
    arguments: [u64; 2],
    environment: [u64; 2],
    auxv: u64,
    auxv_bytes: u32,
    executable: u32,
}

/// Has `ps` show the program's arguments, and what it writes over them, in place of the image's.
/// `None`: Linux does not let us, and shows the image's.
///
/// # Safety
/// The stack pointer of an initial stack.
unsafe fn show_arguments(stack: usize) -> Option<()> {
    // SAFETY: the caller's promise: a number, pointers to strings up to a null pointer, and others
    // up to a null pointer. The strings of each kind stand one behind the other.
    let (arguments, environment) = unsafe {
        let count = *(stack as *const usize);
        let first = (stack as *const *const c_char).add(1);
        (span(first)?, span(first.add(count + 1)))
    };
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name, in brackets, may have spaces; the state follows, which is field 3 of proc(5).
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    // SAFETY: no pointers; asks only.
    let brk = unsafe { libc::syscall(libc::SYS_brk, 0) } as u64;
    let noted = Noted {
        code: [field(26)?, field(27)?],
        data: [field(45)?, field(46)?],
        brk: [field(47)?, brk],
        stack: field(28)?,
        arguments,
        environment: environment.unwrap_or([arguments[1]; 2]),
        auxv: 0,
        auxv_bytes: 0,
        executable: u32::MAX,
    };
    let (what, bytes) = (libc::PR_SET_MM_MAP as u64, size_of::<Noted>() as u64);
    // SAFETY: a local of that size. Nothing of the process changes, only what others read of it.
    let done = unsafe { libc::prctl(libc::PR_SET_MM, what, &raw const noted as u64, bytes, 0) };
    (done == 0).then_some(())
}

/// Where strings begin and end; `None`: there are none.
///
/// # Safety
/// Pointers to C strings, one behind the other, up to a null pointer.
unsafe fn span(mut at: *const *const c_char) -> Option<[u64; 2]> {
    // SAFETY: the caller's promise.
    unsafe {
        let first = *at;
        let mut end = first;
        while !(*at).is_null() {
            end = (*at).add(CStr::from_ptr(*at).count_bytes() + 1);
            at = at.add(1);
        }
        (!first.is_null()).then_some([first as u64, end as u64])
    }
}

pub fn random() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    // SAFETY: fills a local of that length; so few bytes never come short.
    let n = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if n == 16 { Ok(bytes) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_only_what_a_launcher_writes() {
        let words =
            |words: &[&str]| words.iter().map(|w| w.as_bytes().to_vec()).collect::<Vec<_>>();
        let env = words(&["A=1", "GLIBC_TUNABLES=glibc.pthread.rseq=0"]);
        let parse = |line: &[&str]| Request::parse(&words(line), env.clone(), Auxv::default());
        let good = ["ix-image", "load", "/bin/it", "960", "now", "pku", "-a=b", "it", "x y"];
        let request = parse(&good).expect("well-formed");
        assert_eq!((request.channel, request.later), (960, false));
        assert_eq!(request.domain, Domain::Pku(Vec::new()));
        assert_eq!(request.args, words(&["it", "x y"]));
        assert_eq!(request.env, words(&["A=1", "GLIBC_TUNABLES=a=b"]));
        let other = |at: usize, word: &'static str| {
            let mut line = good;
            line[at] = word;
            parse(&line)
        };
        assert_eq!(other(6, "-").expect("no tunables").env, words(&["A=1"]));
        for (at, word) in [(0, "it"), (1, "plant"), (3, "x"), (4, "later"), (5, "kvm"), (6, "a")] {
            assert!(other(at, word).is_none(), "{word}");
        }
        assert!(parse(&good[..7]).is_none());
    }

    #[test]
    fn finds_its_own_auxiliary_vector() {
        unsafe extern "C" {
            static environ: *const *const c_char;
        }
        let linux = Auxv::from_bytes(&std::fs::read("/proc/self/auxv").expect("readable"));
        // SAFETY: the test's environment is where Linux has put it unless somebody has set a
        // variable, which no test here does.
        assert_eq!(unsafe { auxv_behind(environ) }, linux);
    }
}
