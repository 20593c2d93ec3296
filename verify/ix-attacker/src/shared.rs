//! Attacks on a dataplane in a process of its own, with all that its program has: the memory that
//! the two share, the bells, and the image's end of the channel to the broker. `ix run` and the
//! dataplane must go on, and so must others.
use crate::{Gate, batches, call, descriptors};
use ix_abi::{CALLS_MAX, CallSlot, ProcessHeader, ThreadArea, gate_op};
use ix_proto::crossing::{READ_AT, Request, WRITTEN_AT, WrittenPages};
use ix_proto::{Codec, FromImage, Outcome};
use ix_random::Rng;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;

/// What the program shares with its dataplane.
#[derive(Clone, Copy)]
struct Shared {
    /// Receive memory.
    received: usize,
    /// Transmit memory: address and bytes.
    transmit: (usize, usize),
    bell: i32,
    channel: i32,
}

impl Shared {
    fn find(header: *const ProcessHeader) -> Result<Shared, String> {
        // SAFETY: the dataplane's own description of itself.
        let (area, header) = unsafe { (&*((*header).thread_areas as *const ThreadArea), &*header) };
        if area.calls as usize != WRITTEN_AT {
            return Err("the dataplane is not in a process of its own".to_owned());
        }
        let kind = |wanted: i32| descriptors().into_iter().rev().find(|fd| kind_of(*fd) == wanted);
        Ok(Shared {
            received: header.rx_base as usize,
            transmit: (header.tx_base as usize, header.tx_len as usize),
            bell: kind(libc::SOCK_STREAM).ok_or("there is no bell")?,
            channel: kind(libc::SOCK_SEQPACKET).ok_or("there is no channel")?,
        })
    }
}

/// How long all attacks are made at once.
pub struct Until<'a> {
    /// So many seconds.
    pub seconds: u64,
    /// Or until this file is there.
    pub file: Option<&'a str>,
}

impl Until<'_> {
    fn wait(&self) {
        let end = Instant::now() + Duration::from_secs(self.seconds);
        while Instant::now() < end && !self.file.is_some_and(|file| Path::new(file).exists()) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Prints a line for each attack on memory; then makes all the others at once, and asks the
/// dataplane for a cycle. `Err`: it does not go on.
pub fn attack(
    header: *const ProcessHeader,
    gate: Gate,
    until: &Until<'_>,
    seed: u64,
) -> Result<(), String> {
    let shared = Shared::find(header)?;
    for (what, at) in [("receive memory", shared.received), ("event arrays", READ_AT)] {
        for (name, attack) in ON_MEMORY.iter().chain(ON_FILES).chain(BY_NAME) {
            let name = format!("{name}: {what}");
            // Not in a copy, which does not have this memory.
            crate::print(&name, attack(at).map(|()| "it can be written".to_owned()));
        }
    }
    println!("all at once");
    let made = storm(shared, until, seed);
    println!("requests, calls, holes, rings, messages, forks: {}", made.join(" "));
    let (entered, cycle) = goes_on(gate)?;
    println!("seed {seed}: ENTER returned {entered}, RUN_IO {cycle}");
    Ok(())
}

/// Makes all attacks but those on memory, at once, for so many seconds. `Err`: the dataplane does
/// not go on.
pub fn storm_for(
    header: *const ProcessHeader,
    gate: Gate,
    seconds: u64,
    seed: u64,
) -> Result<(), String> {
    storm(Shared::find(header)?, &Until { seconds, file: None }, seed);
    goes_on(gate).map(drop)
}

/// Asks the dataplane for a cycle; returns what ENTER and RUN_IO returned.
fn goes_on(gate: Gate) -> Result<(i64, i64), String> {
    // Whatever request is under way ends.
    gate(gate_op::KICK, 0, 0, 0);
    let entered = gate(gate_op::ENTER, 0, 0, 0);
    let cycle = gate(gate_op::RUN_IO, 0, 0, 0);
    gate(gate_op::LEAVE, 0, 0, 0);
    if entered != 0 || cycle < 0 {
        return Err(format!(
            "the dataplane stands still: ENTER returned {entered}, RUN_IO {cycle}"
        ));
    }
    Ok((entered, cycle))
}

/// `Ok` if the program could write memory that it may only read.
pub type OnMemory = fn(usize) -> Result<(), String>;

/// Name and attack.
pub const ON_MEMORY: &[(&str, OnMemory)] = &[
    ("a system call that fills it", |at| {
        call(libc::SYS_getrandom, [at as u64, 8, 0, 0, 0, 0]).map(drop)
    }),
    ("mprotect", |at| {
        let write = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        call(libc::SYS_mprotect, [page_of(at), PAGE as u64, write, 0, 0, 0]).map(drop)
    }),
    ("MADV_POPULATE_WRITE", |at| advise(at, libc::MADV_POPULATE_WRITE)),
    ("process_vm_writev", |at| {
        let word = 1u64;
        let from = libc::iovec { iov_base: (&raw const word).cast_mut().cast(), iov_len: 8 };
        let to = libc::iovec { iov_base: at as *mut _, iov_len: 8 };
        let own = u64::from(std::process::id());
        let (from, to) = (&raw const from as u64, &raw const to as u64);
        call(libc::SYS_process_vm_writev, [own, from, 1, to, 1, 0]).map(drop)
    }),
    ("/proc/self/mem", |at| {
        use std::os::unix::fs::FileExt;
        let memory = std::fs::OpenOptions::new().write(true).open("/proc/self/mem");
        let memory = memory.map_err(|e| e.to_string())?;
        memory.write_all_at(&[1; 8], at as u64).map_err(|e| e.to_string())
    }),
];

/// The same, for memory with a file: packet memory has one here, and may have none without a wall.
pub const ON_FILES: &[(&str, OnMemory)] = &[
    ("MADV_REMOVE", |at| advise(at, libc::MADV_REMOVE)),
    ("mremap, then mprotect", |at| {
        let copy = [page_of(at), 0, PAGE as u64, libc::MREMAP_MAYMOVE as u64, 0, 0];
        let copy = call(libc::SYS_mremap, copy)?;
        let write = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        call(libc::SYS_mprotect, [copy, PAGE as u64, write, 0, 0, 0]).map(drop)
    }),
    ("ftruncate", |at| file_of(at)?.set_len(0).map_err(|e| e.to_string())),
    ("fallocate, a hole", |at| {
        let hole = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as u64;
        let file = file_of(at)?;
        call(libc::SYS_fallocate, [file.as_raw_fd() as u64, hole, 0, PAGE as u64, 0, 0]).map(drop)
    }),
];

/// By the memory's name in `/proc`, which takes a right over all processes.
const BY_NAME: &[(&str, OnMemory)] = &[
    ("its file, written", |at| {
        use std::io::Write;
        reopened(at)?.write_all(&[1; 8]).map_err(|e| e.to_string())
    }),
    ("its file, cut", |at| reopened(at)?.set_len(0).map_err(|e| e.to_string())),
];

fn page_of(at: usize) -> u64 {
    (at & !(PAGE - 1)) as u64
}

fn advise(at: usize, advice: i32) -> Result<(), String> {
    call(libc::SYS_madvise, [page_of(at), PAGE as u64, advice as u64, 0, 0, 0]).map(drop)
}

/// The file of this memory by a descriptor that the process has of it, opened anew for writing.
fn file_of(at: usize) -> Result<File, String> {
    let maps = std::fs::read_to_string("/proc/self/maps").map_err(|e| e.to_string())?;
    let number = |line: &str| -> Option<u64> {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let [start, end] = [start, end].map(|word| usize::from_str_radix(word, 16).unwrap_or(0));
        (start..end).contains(&at).then(|| words.nth(3)?.parse().ok())?
    };
    let inode = maps.lines().find_map(number).ok_or("it is not mapped")?;
    let paths = descriptors().into_iter().map(|fd| format!("/proc/self/fd/{fd}"));
    let is_it = |path: &String| {
        let is_memory = std::fs::read_link(path)
            .is_ok_and(|link| link.as_os_str().as_encoded_bytes().starts_with(b"/memfd:"));
        is_memory && std::fs::metadata(path).is_ok_and(|file| file.ino() == inode)
    };
    let path = paths.into_iter().find(is_it).ok_or("the process has no descriptor of it")?;
    OpenOptions::new().write(true).open(path).map_err(|e| e.to_string())
}

/// Memory of this process alone, of a file that it keeps open.
pub fn own_file() -> Result<usize, String> {
    let file = call(libc::SYS_memfd_create, [c"ix-own".as_ptr() as u64, 0, 0, 0, 0, 0])?;
    call(libc::SYS_ftruncate, [file, PAGE as u64, 0, 0, 0, 0])?;
    let prot = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let at = [0, PAGE as u64, prot, libc::MAP_SHARED as u64, file, 0];
    call(libc::SYS_mmap, at).map(|at| at as usize)
}

fn reopened(at: usize) -> Result<File, String> {
    let maps = std::fs::read_to_string("/proc/self/maps").map_err(|e| e.to_string())?;
    let start = format!("{at:x}-");
    let range = maps.lines().find_map(|line| line.strip_prefix(&start)?.split(' ').next());
    let range = range.ok_or("it is not mapped")?;
    let path = format!("/proc/self/map_files/{start}{range}");
    OpenOptions::new().write(true).open(path).map_err(|e| e.to_string())
}

/// All at once, each on a thread of its own. Returns how often each was made.
fn storm(shared: Shared, until: &Until<'_>, seed: u64) -> Vec<String> {
    const ALL: [fn(Shared, &mut Rng); 6] =
        [wild_requests, wild_calls, holes, ring, say_anything, forks];
    let stop = AtomicBool::new(false);
    let made = [const { AtomicU64::new(0) }; ALL.len()];
    std::thread::scope(|scope| {
        for (nth, (attack, made)) in ALL.iter().zip(&made).enumerate() {
            let (stop, mut random) = (&stop, Rng::new(seed.wrapping_add(nth as u64)));
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    attack(shared, &mut random);
                    made.fetch_add(1, Ordering::Relaxed);
                    std::thread::yield_now();
                }
            });
        }
        until.wait();
        stop.store(true, Ordering::Relaxed);
    });
    made.into_iter().map(|count| count.into_inner().to_string()).collect()
}

fn request() -> &'static Request {
    // SAFETY: mapped as long as the process lives; atomics.
    unsafe { &(*(WRITTEN_AT as *const WrittenPages)).request }
}

/// A word that a check may get wrong.
fn word(random: &mut Rng) -> u64 {
    match random.below(6) {
        0 => 0,
        1 => random.below(16),
        2 => CALLS_MAX as u64 + random.below(3) - 1,
        3 => 1 << random.below(64),
        4 => u64::MAX - random.below(2),
        _ => random.next_u64(),
    }
}

fn wild_requests(_: Shared, random: &mut Rng) {
    write_wild_requests(random);
}

/// Rewrites the words by which this process asks its dataplane, and says that it sleeps.
pub fn write_wild_requests(random: &mut Rng) {
    let request = request();
    for _ in 0..64 {
        let value = word(random);
        match random.below(8) {
            0 => request.op.store(value, Ordering::Relaxed),
            1 => request.op.store(random.below(8), Ordering::Relaxed),
            2 => request.calls.store(value, Ordering::Relaxed),
            3 => request.calls.store(random.below(CALLS_MAX as u64), Ordering::Relaxed),
            4 => request.wait_us.store(value, Ordering::Relaxed),
            5 => request.cpu.store(value as u32, Ordering::Relaxed),
            6 => request.is_asleep.store(value as u32, Ordering::Relaxed),
            _ => request.kick.store(value, Ordering::SeqCst),
        }
        request.serial.store(random.next_u64(), Ordering::Release);
    }
}

/// Rewrites the call array while it is read.
fn wild_calls(shared: Shared, random: &mut Rng) {
    let array = WRITTEN_AT as *mut CallSlot;
    let operations = batches::operations();
    for _ in 0..64 {
        let mut args = [0; 6];
        for arg in &mut args {
            *arg = match random.below(5) {
                0 => (shared.transmit.0 as u64).wrapping_add(word(random)),
                1 => (shared.transmit.0 + shared.transmit.1) as u64 - random.below(64),
                2 => shared.received as u64 + random.below(1 << 20),
                _ => word(random),
            };
        }
        let op = random.below(operations) as u32;
        let slot = CallSlot { op, args, ..CallSlot::default() };
        // SAFETY: within the array, which the program writes.
        unsafe { array.add(random.below(CALLS_MAX as u64) as usize).write_volatile(slot) };
    }
}

/// Gives pages back to the system while the dataplane reads them.
fn holes(shared: Shared, random: &mut Rng) {
    let (at, bytes) = match random.below(2) {
        0 => (WRITTEN_AT, size_of::<WrittenPages>()),
        _ => shared.transmit,
    };
    let page = at + random.below((bytes / PAGE) as u64) as usize * PAGE;
    let _ = advise(page, libc::MADV_REMOVE);
    // SAFETY: shared memory that the program may write.
    unsafe { (page as *mut u64).write_volatile(random.next_u64()) };
}

/// Fills the bell: bytes, urgent ones, and descriptors.
fn ring(shared: Shared, random: &mut Rng) {
    let bytes = vec![b'x'; random.below(20_000) as usize + 1];
    let flags = if random.below(3) == 0 { libc::MSG_OOB } else { 0 };
    match random.below(4) {
        0 => send_descriptor(shared.bell, &bytes[..1]),
        _ => send(shared.bell, &bytes, flags),
    }
}

/// Says to the broker all that an image may say, and what none would.
fn say_anything(shared: Shared, random: &mut Rng) {
    let number = word(random);
    let (device, queue, serial) = (number as usize, random.below(3) as usize, random.below(4));
    let text = || "\x1b[31mwild ".repeat(random_length(number));
    let message = match random.below(12) {
        0 | 1 => FromImage::Hello { pid: number as u32, asker: number }.encode(),
        2 => FromImage::Ready.encode(),
        3 => FromImage::Failed { asker: number, why: text() }.encode(),
        4 => FromImage::Attached { device, queue }.encode(),
        5 => FromImage::Updated { device, queue, serial }.encode(),
        6 => FromImage::UpdateFailed { device, serial, why: text() }.encode(),
        7 => FromImage::Outcome { serial, outcome: Outcome::Done }.encode(),
        8 => FromImage::Surveyed { serial }.encode(),
        9 => FromImage::Survivor { pid: number as u32 }.encode(),
        10 => Vec::new(),
        _ => (0..random.below(300)).map(|_| random.next_u64() as u8).collect(),
    };
    match random.below(6) {
        0 => send_descriptor(shared.channel, &message),
        _ => send(shared.channel, &message, 0),
    }
}

fn random_length(number: u64) -> usize {
    (number % 4000) as usize
}

/// Short lives, which inherit everything and say hello.
fn forks(shared: Shared, _: &mut Rng) {
    let hello = FromImage::Hello { pid: 1, asker: 1 }.encode();
    // SAFETY: the child makes two system calls.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::send(shared.channel, hello.as_ptr().cast(), hello.len(), libc::MSG_DONTWAIT);
            libc::_exit(0);
        }
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
}

fn send(fd: i32, bytes: &[u8], flags: i32) {
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: bytes of ours. What is full or refused is so.
    unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), flags) };
}

/// Sends a descriptor along.
fn send_descriptor(fd: i32, bytes: &[u8]) {
    const CONTROL: usize = 24;
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control = [0u64; CONTROL / 8];
    // SAFETY: all-zero bytes are a valid header; the control buffer has room for one descriptor.
    unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
        (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), CONTROL);
        let first = libc::CMSG_FIRSTHDR(&raw const header);
        (*first).cmsg_level = libc::SOL_SOCKET;
        (*first).cmsg_type = libc::SCM_RIGHTS;
        (*first).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(first).cast::<i32>().write_unaligned(0);
        libc::sendmsg(fd, &raw const header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    }
}

/// Kind of a socket of Linux's own; 0: none.
pub fn kind_of(fd: i32) -> i32 {
    let option = |name: i32| {
        let (mut value, mut len) = (0i32, 4 as libc::socklen_t);
        let to = (&raw mut value).cast();
        // SAFETY: fills locals.
        let got = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, name, to, &raw mut len) };
        if got == 0 { value } else { 0 }
    };
    if option(libc::SO_DOMAIN) == libc::AF_UNIX { option(libc::SO_TYPE) } else { 0 }
}
