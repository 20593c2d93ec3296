//! The attacker: a program on IX, which `ix attack` runs behind the wall and without it. Each attack is
//! made by a forked copy of it, so that one that ends in a crash does not end the others; the copy
//! stands behind the same wall. The dataplane runs on another thread all the while and must go on.
//!
//! It is small, and not part of `ix`: behind the wall no program starts whose code has the bytes of a
//! key switch anywhere, as a large one has now and then by chance.
mod calls;
mod code;
mod crossing;
mod fuzz;
mod memory;
mod random;
mod raw;
mod system;

use calls::Calls;
use ix_abi::{Call, ENV_HEADER, ProcessHeader, ThreadArea, ThreadStatus, error, gate_op};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// What an attack can aim at.
#[derive(Clone, Copy)]
pub struct Targets {
    /// Code of the dataplane.
    pub code: usize,
    /// Its data: a page that nobody else uses much.
    pub data: usize,
    /// What the application may only read: the header.
    pub shown: usize,
    /// Received packets.
    pub received: usize,
    /// The lowest of its descriptors.
    pub descriptor: i32,
    /// The file that the dataplane's code comes from: the code itself cannot be read.
    pub image: &'static [u8],
}

/// What stops an attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Protection keys.
    Keys,
    /// What may be asked of Linux.
    Calls,
    /// The look at code.
    Code,
    /// Files in `/proc` that are not the program's.
    Files,
    /// None of these alone, or the dataplane's own checks.
    Other,
}

/// An attack: `Ok` when it got what it wanted, else what stopped it.
pub type Attack = fn(&Targets) -> Result<String, String>;

/// `ix-attacker FUZZ SEED IMAGE [PART]` (or `ix-attacker crossing`, for `ix bench gate`): random system calls, their seed, the dataplane's code.
struct Args {
    fuzz: u32,
    seed: u64,
    image: &'static [u8],
    /// The part of the wall that is left out: only what it stops is tried. Without any wall, what no
    /// part stops alone; and where the dataplane's own checks stop it, what is allowed instead.
    part: Option<Part>,
}

impl Args {
    fn read() -> Option<Args> {
        let mut words = std::env::args().skip(1);
        let (fuzz, seed) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let image = std::fs::read(words.next()?).ok()?.leak();
        let part = match words.next().as_deref() {
            None => None,
            Some("keys") => Some(Part::Keys),
            Some("calls") => Some(Part::Calls),
            Some("code") => Some(Part::Code),
            Some("files") => Some(Part::Files),
            Some("none") => Some(Part::Other),
            Some(_) => return None,
        };
        Some(Args { fuzz, seed, image, part })
    }
}

type Gate = extern "C" fn(u64, u64, u64, u64) -> i64;

fn main() {
    if std::env::args().nth(1).as_deref() == Some("crossing") {
        // SAFETY: the dataplane's own description of itself.
        let gate = header().map(|header| unsafe { gate_of(header) });
        let done = gate.ok_or("no dataplane here".to_owned()).and_then(crossing::measure);
        if let Err(why) = done {
            eprintln!("ix-attacker: {why}");
            std::process::exit(1);
        }
        return;
    }
    let (Some(args), Some(header)) = (Args::read(), header()) else {
        eprintln!("ix-attacker: this is what `ix attack` runs; it is not for starting by hand");
        std::process::exit(2);
    };
    let targets = targets(header, args.image);
    // SAFETY: the dataplane's own description of itself.
    let (gate, areas) = unsafe { (gate_of(header), (*header).thread_areas as *const ThreadArea) };
    // SAFETY: as above.
    let status = unsafe { (*areas).status } as usize;
    static STOP: AtomicBool = AtomicBool::new(false);
    static ROUNDS: AtomicU64 = AtomicU64::new(0);
    // SAFETY: as above.
    let (array, tx_end) =
        unsafe { ((*areas).calls as usize, (*header).tx_base + (*header).tx_len) };
    let part = args.part;
    let elastic = std::thread::spawn(move || {
        if gate(gate_op::ENTER, 0, 0, 0) != 0 {
            return -1;
        }
        if part.is_none_or(|part| part == Part::Other) {
            let control = part.is_some();
            let calls = Calls::new(gate, array as *mut Call, targets.data, tx_end, control);
            calls::attack_all(calls, print);
        }
        while !STOP.load(Ordering::Relaxed) {
            let result = gate(gate_op::RUN_IO, 0, 0, 1000);
            if result < 0 {
                return result;
            }
            ROUNDS.fetch_add(1, Ordering::Relaxed);
        }
        gate(gate_op::LEAVE, 0, 0, 0)
    });
    while ROUNDS.load(Ordering::Relaxed) == 0 && !elastic.is_finished() {
        std::thread::yield_now();
    }
    let all = memory::ATTACKS.iter().chain(system::ATTACKS).chain(code::ATTACKS);
    if args.part.is_none_or(|part| part == Part::Keys) {
        print("write received packets", memory::write_received(&targets));
    }
    for (name, stops, attack) in all {
        if args.part.is_none_or(|part| part == *stops) {
            print(name, in_a_copy(|| attack(&targets)));
        }
    }
    if args.part.is_none_or(|part| part == Part::Other) {
        print("random system calls", fuzz_all(&targets, &args));
    }
    let before = ROUNDS.load(Ordering::Relaxed);
    // SAFETY: the status is mapped for ever.
    let now_us =
        || unsafe { (&raw const (*(status as *const ThreadStatus)).now_us).read_volatile() };
    let (since, start) = (std::time::Instant::now(), now_us());
    while (ROUNDS.load(Ordering::Relaxed) == before || now_us() == start)
        && since.elapsed().as_secs() < 20
    {
        std::thread::yield_now();
    }
    let goes_on = ROUNDS.load(Ordering::Relaxed) > before;
    STOP.store(true, Ordering::Relaxed);
    let left = elastic.join().unwrap_or(-error::STATE);
    if !goes_on || left != 0 {
        println!("the dataplane stands still\tsucceeded\tRUN_IO answered {left}");
        std::process::exit(1);
    }
}

/// A fuzzer ends itself sooner or later, by a signal or a handler that it has set: then another one
/// goes on. The first that gets through to the dataplane's memory ends it.
fn fuzz_all(targets: &Targets, args: &Args) -> Result<String, String> {
    const BATCH: u32 = 500;
    let made = shared_counter();
    let mut fuzzers = 0;
    loop {
        let seed = args.seed.wrapping_add(fuzzers).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let outcome = in_a_copy(|| fuzz::run(targets, BATCH, seed, made));
        fuzzers += 1;
        let calls = made.load(Ordering::Relaxed);
        let said = |detail| format!("{calls} calls in {fuzzers} copies, then {detail}");
        match outcome {
            Ok(detail) => return Ok(said(detail)),
            Err(detail) if calls >= args.fuzz => return Err(said(detail)),
            Err(_) if fuzzers > u64::from(args.fuzz) => return Ok(said("too few calls".into())),
            Err(_) => {}
        }
    }
}

fn print(name: &str, outcome: Result<String, String>) {
    match outcome {
        Ok(detail) => println!("{name}\tsucceeded\t{detail}"),
        Err(detail) => println!("{name}\trefused\t{detail}"),
    }
}

fn header() -> Option<*const ProcessHeader> {
    let text = std::env::var(ENV_HEADER).ok()?;
    let header = usize::from_str_radix(&text, 16).ok()? as *const ProcessHeader;
    (!header.is_null()).then_some(header)
}

/// # Safety
/// The header is the dataplane's.
unsafe fn gate_of(header: *const ProcessHeader) -> Gate {
    // SAFETY: the caller's promise: the word is the gate's address.
    unsafe { std::mem::transmute((*header).gate) }
}

fn targets(header: *const ProcessHeader, image: &'static [u8]) -> Targets {
    // SAFETY: the dataplane's own description of itself.
    let (gate, received) = unsafe { ((*header).gate as usize, (*header).rx_base as usize) };
    // The image's data follows its code.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let data = maps
        .lines()
        .filter(|line| line.split(' ').nth(1) == Some("rw-p"))
        .filter_map(|line| usize::from_str_radix(line.split('-').next()?, 16).ok())
        .find(|&start| start > gate)
        .unwrap_or(gate);
    let descriptor = descriptors().into_iter().filter(|&fd| fd >= 900).min().unwrap_or(-1);
    Targets { code: gate, data, shown: header as usize, received, descriptor, image }
}

/// A word that copies of this process share with it.
fn shared_counter() -> &'static AtomicU32 {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping of a page, zeroed, never unmapped.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), 4096, prot, flags, -1, 0) };
    static NONE: AtomicU32 = AtomicU32::new(0);
    // SAFETY: as above.
    if at == libc::MAP_FAILED { &NONE } else { unsafe { &*at.cast() } }
}

/// Open descriptors of this process; the list is Linux's.
fn descriptors() -> Vec<i32> {
    let Ok(folder) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    folder.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Makes an attack in a forked copy of this process.
fn in_a_copy(attack: impl FnOnce() -> Result<String, String>) -> Result<String, String> {
    const LONGEST_S: u32 = 60;
    let mut ends = [0; 2];
    // SAFETY: fills a local.
    if unsafe { libc::pipe(ends.as_mut_ptr()) } < 0 {
        return Ok("cannot make a pipe".to_owned());
    }
    // SAFETY: the copy only makes the attack and ends; it takes no lock that the other thread,
    // which only calls the gate, could hold.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: no pointers.
        unsafe { libc::alarm(LONGEST_S) };
        // A crash is what is expected: no file of it.
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: reads a local.
        unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
        let text = match attack() {
            Ok(detail) => format!("+{detail}"),
            Err(detail) => format!("-{detail}"),
        };
        // SAFETY: writes a local; the copy ends at once.
        unsafe {
            libc::write(ends[1], text.as_ptr().cast(), text.len());
            libc::_exit(0);
        }
    }
    let mut status = 0;
    let mut text = [0u8; 512];
    // SAFETY: closes our end, fills locals.
    let n = unsafe {
        libc::close(ends[1]);
        let n = libc::read(ends[0], text.as_mut_ptr().cast(), text.len());
        libc::close(ends[0]);
        libc::waitpid(child, &mut status, 0);
        n
    };
    let text = String::from_utf8_lossy(&text[..n.max(0) as usize]);
    match text.split_at_checked(1) {
        Some(("+", detail)) => Ok(detail.to_owned()),
        Some((_, detail)) => Err(detail.to_owned()),
        None if libc::WIFSIGNALED(status) => {
            Err(format!("killed by signal {}", libc::WTERMSIG(status)))
        }
        None => Err(format!("ended with status {}", libc::WEXITSTATUS(status))),
    }
}

/// A system call; `Ok` with its answer, or the error's name.
pub fn call(number: i64, args: [u64; 6]) -> Result<u64, String> {
    let [a, b, c, d, e, f] = args;
    // SAFETY: an attack: whatever it does, it does to the copy, or is refused.
    let answer = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if answer == -1 {
        return Err(std::io::Error::last_os_error().to_string());
    }
    Ok(answer as u64)
}
