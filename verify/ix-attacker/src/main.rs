//! The attacker: a program on IX, which `ix attack` runs behind the wall and without it. A forked
//! copy makes each attack, so that a crash does not end the others; the copy is behind the same
//! wall. Meanwhile the dataplane runs on another thread and must continue.
//!
//! It is small, and not part of `ix`: behind the wall no program starts whose code contains the
//! bytes of a key switch, as a large one sometimes does by chance.
mod aim;
mod apart;
mod attaches;
mod batches;
mod calls;
mod code;
mod cookies;
mod crossing;
mod fuzz;
mod groups;
mod hold;
mod kernel;
mod later;
mod memory;
mod opens;
mod part;
mod process;
mod queues;
mod raw;
mod refuses;
mod rights;
mod searches;
mod serve;
mod shared;
mod system;
mod tenant;

use aim::{Aim, Whom};
use calls::Calls;
use ix_abi::{
    CallSlot, ENV_HEADER, EventSlot, ProcessHeader, ThreadArea, ThreadStatus, error, gate_op,
};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Targets of an attack.
#[derive(Clone, Copy)]
pub struct Targets {
    /// Code of the dataplane.
    pub code: usize,
    /// Its data: a page with little other use.
    pub data: usize,
    /// Memory that the application may only read: the header.
    pub shown: usize,
    /// Received packets.
    pub received: usize,
    /// The lowest of its descriptors.
    pub descriptor: i32,
    /// The process that closes the program's connections at its end; 0: unknown.
    pub survivor: i32,
    /// The file of the dataplane's code, because the code itself cannot be read.
    pub image: &'static [u8],
}

/// What stops an attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Protection keys.
    Keys,
    /// The restriction of system calls.
    Calls,
    /// The check of code.
    Code,
    /// Files in `/proc` that do not belong to the program.
    Files,
    /// No single one of these, or the dataplane's own checks.
    Other,
}

/// An attack: `Ok` if it succeeded, else what stopped it.
pub type Attack = fn(&Targets) -> Result<String, String>;

/// `ix-attacker FUZZ SEED IMAGE [PART]`: random system calls, their seed, the dataplane's code.
/// Instead of a part: `apart` or, without a wall, `apart-control`. Other first words:
///
/// * `crossing`, `wake` and `cycle`: for `ix bench gate`;
/// * `calls SECONDS SEED`: a fuzzer of batched calls, with a wall or without;
/// * `searches ADDRESS`: searches for ports in vain; nobody has the address;
/// * `groups`: changes groups that sockets listen to, until it is ended;
/// * `opens USER FILE`: as this user opens memory of processes that start, until the file is there;
///   under no `ix run`;
/// * `refuses`: makes calls that keep commands from its dataplane, and serves clients, until it is
///   ended;
/// * `shared SECONDS SEED [FILE]`: attacks on a dataplane in a process of its own, all at once, at
///   the longest until the file is there;
/// * `part farewell`, `childs-farewell`, `farewell-beside`, `stale-farewell`, `hang-up`, `endless`
///   or a number: processes that speak with the broker themselves, and live on without a dataplane;
/// * `rights WHOM LINK CONTROL [NOT...]`: attacks on such a one, and on its operators' socket, by
///   its program's rights, without these;
/// * `tenant SEED BROKER VICTIM CLIENT`: a hostile tenant beside the one whose `ix run` and address
///   these are, until it is ended;
/// * `queues`: for `ix attack --vnic`.
struct Args {
    fuzz: u32,
    seed: u64,
    image: &'static [u8],
    /// The dataplane is in a process of its own, or this is the control of attacks on such a one.
    apart: bool,
    /// The part of the wall that is left out: only attacks that it stops are tried. Without any
    /// wall, those that no single part stops; and for those that the dataplane's own checks stop,
    /// the allowed action instead.
    part: Option<Part>,
}

impl Args {
    fn read() -> Option<Args> {
        let mut words = std::env::args().skip(1);
        let (fuzz, seed) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let image = std::fs::read(words.next()?).ok()?.leak();
        let word = words.next();
        let apart = word.as_deref().is_some_and(|word| word.starts_with("apart"));
        let part = match word.as_deref() {
            None | Some("apart") => None,
            Some("apart-control") => Some(Part::Other),
            Some("keys") => Some(Part::Keys),
            Some("calls") => Some(Part::Calls),
            Some("code") => Some(Part::Code),
            Some("files") => Some(Part::Files),
            Some("none") => Some(Part::Other),
            Some(_) => return None,
        };
        Some(Args { fuzz, seed, image, apart, part })
    }
}

type Gate = extern "C" fn(u64, u64, u64, u64) -> i64;

fn main() {
    let first = std::env::args().nth(1);
    if let Some(what) = first.as_deref().and_then(crossing::What::named) {
        // SAFETY: the dataplane's own description of itself.
        let gate = header().map(|header| unsafe { gate_of(header) });
        let done = gate
            .ok_or("no dataplane here".to_owned())
            .and_then(|gate| crossing::measure(gate, what));
        if let Err(why) = done {
            eprintln!("ix-attacker: {why}");
            std::process::exit(1);
        }
        return;
    }
    match first.as_deref() {
        Some("calls" | "searches" | "groups" | "refuses") => return make_calls(),
        Some("opens") => return open_others(),
        Some("shared") => return attack_shared(),
        Some("part") => return part(),
        Some("rights") => return attack_by_rights(),
        Some("tenant") => return attack_tenant(),
        Some("queues") => {
            if let Err(why) = queues::run() {
                eprintln!("ix-attacker: {why}");
                std::process::exit(1);
            }
            return;
        }
        _ => {}
    }
    let (Some(args), Some(header)) = (Args::read(), header()) else {
        eprintln!("ix-attacker: `ix attack` runs this program; it cannot be started by hand");
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
    let (array, events, tx_end) = unsafe {
        let area = &*areas;
        (area.calls as usize, area.events as usize, (*header).tx_base + (*header).tx_len)
    };
    let (part, apart) = (args.part, args.apart);
    let elastic = std::thread::spawn(move || {
        if gate(gate_op::ENTER, 0, 0, 0) != 0 {
            return -1;
        }
        let arrays = (array as *mut CallSlot, events as *const EventSlot);
        let aims = (targets.data, tx_end);
        let whose = (gate, 0);
        let calls = Calls::begin(whose, arrays, aims, targets.descriptor, part.is_some());
        let calls = match calls.and_then(Calls::with_client) {
            Ok(calls) => calls,
            Err(why) => {
                println!("a client\tsucceeded\t{why}\t0");
                return -1;
            }
        };
        if part.is_none_or(|part| part == Part::Other) {
            calls::attack_all(&calls, apart, print);
        }
        while !STOP.load(Ordering::Relaxed) {
            let result = calls.cycle(1000);
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
    if elastic.is_finished() {
        std::process::exit(1);
    }
    match args.apart {
        true => attack_apart(&targets, header, part.is_some()),
        false => attack_within(&targets, &args),
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
        println!("the dataplane stands still\tsucceeded\tRUN_IO returned {left}\t0");
        std::process::exit(1);
    }
}

/// Attacks by a program whose process the dataplane is in: all that keys and the examination of
/// system calls stop.
fn attack_within(targets: &Targets, args: &Args) {
    let all = memory::ATTACKS.iter().chain(system::ATTACKS).chain(code::ATTACKS);
    if args.part.is_none_or(|part| part == Part::Keys) {
        print("write received packets", served_on(|| memory::write_received(targets)));
    }
    let tries = |stops: Part| args.part.is_none_or(|part| part == stops);
    if later::ATTACKS.iter().any(|(_, stops, _)| tries(*stops)) {
        let later = later::Later::come();
        for (nth, (name, stops, attack)) in later::ATTACKS.iter().enumerate() {
            if tries(*stops) {
                let outcome = match &later {
                    Ok(later) => served_on(|| later.attack(nth, *attack)),
                    Err(why) => Ok(why.clone()),
                };
                print(name, outcome);
            }
        }
    }
    // There is one since a thread has entered, and a new one since a device has changed.
    let targets = &Targets { survivor: survivor(), ..*targets };
    for (name, stops, attack) in all {
        if args.part.is_none_or(|part| part == *stops) {
            print(name, served_on(|| in_a_copy(|| attack(targets))));
        }
    }
    if args.part.is_none_or(|part| part == Part::Other) {
        print("random system calls", served_on(|| fuzz_all(targets, args)));
    }
}

/// Attacks on a dataplane in another process, and on memory of it that the program only reads.
fn attack_apart(targets: &Targets, header: *const ProcessHeader, control: bool) {
    // SAFETY: the dataplane's own description of itself.
    let events = unsafe {
        let events = (*((*header).thread_areas as *const ThreadArea)).events as *const EventSlot;
        // A slot that this program does not need.
        events.add(ix_abi::EVENTS_MAX - 1) as usize
    };
    let write = |name: &str, what: &str, attack: shared::OnMemory, at: usize| {
        let outcome = served_on(|| attack(at).map(|()| "written".to_owned()));
        print(&format!("{name}: {what}"), outcome);
    };
    for (name, attack) in shared::ON_MEMORY {
        write(name, "receive memory", *attack, targets.received);
        write(name, "event array", *attack, events);
    }
    let with_file = if control { shared::own_file() } else { Ok(targets.received) };
    for (name, attack) in shared::ON_FILES {
        match &with_file {
            Ok(at) => write(name, "receive memory", *attack, *at),
            Err(why) => println!("{name}: receive memory\trefused\t{why}\t0"),
        }
    }
    // SAFETY: as above.
    let gate = unsafe { gate_of(header) };
    for (name, attack) in attaches::ATTACKS {
        print(name, served_on(|| attack(gate, control)));
    }
    // Without a wall the dataplane is in this process.
    let aim = if control { Ok(Aim::within()) } else { Aim::find(Whom::Program, [""; 2]) };
    match aim {
        Ok(aim) => try_all(&aim, process::ATTACKS.iter().chain(apart::ATTACKS).copied()),
        Err(why) => println!("the dataplane's process\tsucceeded\t{why}\t0"),
    }
}

/// Attacks what a program shares with a dataplane in a process of its own.
fn attack_shared() {
    let number = |nth| std::env::args().nth(nth).and_then(|text| text.parse::<u64>().ok());
    let (Some(seconds), Some(seed), Some(header)) = (number(2), number(3), header()) else {
        eprintln!("ix-attacker: write `shared SECONDS SEED [FILE]`, under `ix run`");
        std::process::exit(2);
    };
    // SAFETY: the dataplane's own description of itself.
    let gate = unsafe { gate_of(header) };
    let file = std::env::args().nth(4);
    let until = shared::Until { seconds, file: file.as_deref() };
    if let Err(why) = shared::attack(header, gate, &until, seed) {
        eprintln!("ix-attacker: {why}; seed {seed}");
        std::process::exit(1);
    }
}

/// Opens memory of others.
fn open_others() {
    let user = std::env::args().nth(2).and_then(|user| user.parse().ok());
    let done = match (user, std::env::args().nth(3)) {
        (Some(user), Some(until)) => opens::attack(user, &until),
        _ => Err("write `opens USER FILE`".to_owned()),
    };
    if let Err(why) = done {
        eprintln!("ix-attacker: {why}");
        std::process::exit(1);
    }
}

/// Speaks with the broker as the image does.
fn part() {
    let what = match std::env::args().nth(2).as_deref() {
        Some("farewell") => Some(part::What::OwnFarewell),
        Some("childs-farewell") => Some(part::What::ChildsFarewell),
        Some("farewell-beside") => Some(part::What::FarewellBeside),
        Some("stale-farewell") => Some(part::What::StaleFarewell),
        Some("hang-up") => Some(part::What::HangUp),
        Some("endless") => Some(part::What::Endless),
        Some(count) => count.parse().ok().map(part::What::Partings),
        None => None,
    };
    let done = match (&what, header()) {
        // SAFETY: the dataplane's own description of itself.
        (Some(what), Some(header)) => part::run(what, unsafe { gate_of(header) }),
        _ => Err("write `part` and what, under `ix run`".to_owned()),
    };
    if let Err(why) = done {
        eprintln!("ix-attacker: {why}");
        std::process::exit(1);
    }
}

/// Is a hostile tenant.
fn attack_tenant() {
    fn word<T: std::str::FromStr>(nth: usize) -> Option<T> {
        std::env::args().nth(nth)?.parse().ok()
    }
    let (Some(seed), Some(broker), Some(own), Some(client), Some(header)) =
        (word(2), word(3), word(4), word(5), header())
    else {
        eprintln!("ix-attacker: write `tenant SEED BROKER VICTIM CLIENT`, under `ix run`");
        std::process::exit(2);
    };
    // SAFETY: the dataplane's own description of itself.
    let gate = unsafe { gate_of(header) };
    let victim = tenant::Victim { broker, own, client };
    if let Err(why) = tenant::run(header, gate, seed, &victim) {
        eprintln!("ix-attacker: {why}; seed {seed}");
        std::process::exit(1);
    }
}

/// Serves a client, and meanwhile attacks a dataplane in a process of its own by the rights of its
/// program.
fn attack_by_rights() {
    let mut words = std::env::args().skip(2);
    let whom = words.next().and_then(|word| Whom::named(&word));
    let (link, control) = (words.next(), words.next());
    // What the machine's root lacks here shows nothing.
    let left_out: Vec<String> = words.collect();
    let (Some(whom), Some(link), Some(control), Some(header)) = (whom, link, control, header())
    else {
        eprintln!("ix-attacker: `ix attack` runs this program; it cannot be started by hand");
        std::process::exit(2);
    };
    static STOP: AtomicBool = AtomicBool::new(false);
    static ROUNDS: AtomicU64 = AtomicU64::new(0);
    let targets = targets(header, &[]);
    // SAFETY: the dataplane's own description of itself.
    let (gate, array, events) = unsafe {
        let area = &*((*header).thread_areas as *const ThreadArea);
        (gate_of(header), area.calls as usize, area.events as usize)
    };
    let elastic = std::thread::spawn(move || -> Result<(), String> {
        let arrays = (array as *mut CallSlot, events as *const EventSlot);
        let entered = gate(gate_op::ENTER, 0, 0, 0);
        if entered != 0 {
            return Err(format!("cannot enter: {entered}"));
        }
        let calls = Calls::begin((gate, 0), arrays, (targets.data, 0), -1, false)?.with_client()?;
        while !STOP.load(Ordering::Relaxed) {
            let result = calls.cycle(1000);
            if result < 0 {
                return Err(format!("RUN_IO returned {result}"));
            }
            ROUNDS.fetch_add(1, Ordering::Relaxed);
        }
        gate(gate_op::LEAVE, 0, 0, 0);
        Ok(())
    });
    while ROUNDS.load(Ordering::Relaxed) == 0 && !elastic.is_finished() {
        std::thread::yield_now();
    }
    match Aim::find(whom, [&link, &control]) {
        Ok(aim) if !elastic.is_finished() => {
            let is_tried = |name: &str| left_out.iter().all(|other| other != name);
            let there = kernel::ATTACKS.iter().filter(|(_, is_there, _)| is_there());
            let there = there.map(|(name, _, attack)| (*name, *attack));
            let all = process::ATTACKS.iter().chain(rights::ATTACKS).copied().chain(there);
            try_all(&aim, all.filter(|(name, _)| is_tried(name)));
        }
        Ok(_) => {}
        Err(why) => println!("the dataplane's process\tsucceeded\t{why}\t0"),
    }
    STOP.store(true, Ordering::Relaxed);
    if let Err(why) = elastic.join().unwrap_or(Err("a panic".to_owned())) {
        println!("the dataplane stands still\tsucceeded\t{why}\t0");
        std::process::exit(1);
    }
}

/// Makes attacks on the process of a dataplane, each in a copy of this one.
fn try_all(aim: &Aim, attacks: impl Iterator<Item = (&'static str, aim::Attack)>) {
    for (name, attack) in attacks {
        let attack = || aim.become_whom().and_then(|()| attack(aim));
        let done = || attack().map(|()| "it may".to_owned());
        print(name, served_on(|| in_a_copy(done)));
    }
}

/// Makes batched calls of one kind for a while, from elastic thread 0.
fn make_calls() {
    let word = |nth| std::env::args().nth(nth).unwrap_or_default();
    let fuzz = word(2).parse().ok().zip(word(3).parse().ok());
    let away = word(2).parse().ok();
    let has_no_words = ["groups", "refuses"].contains(&word(1).as_str());
    let is_whole = has_no_words || fuzz.is_some() || away.is_some();
    let (true, Some(header)) = (is_whole, header()) else {
        eprintln!(
            "ix-attacker: write `calls SECONDS SEED`, `searches ADDRESS`, `groups` or `refuses`, under \
             `ix run`"
        );
        std::process::exit(2);
    };
    let made = enter(header, 0).and_then(|c| match (fuzz, away) {
        (Some((seconds, seed)), _) => fuzz_calls(&c, seconds, seed),
        (None, Some(away)) => searches::attack(&c, away),
        (None, None) if word(1) == "refuses" => refuse_all(&c, header),
        (None, None) => groups::attack(&c),
    });
    if let Err(why) = made {
        eprintln!("ix-attacker: the dataplane stands still: {why}");
        std::process::exit(1);
    }
    // SAFETY: the dataplane's own description of itself.
    let gate = unsafe { gate_of(header) };
    gate(gate_op::LEAVE, 0, 0, 0);
}

/// Enters an elastic thread, to make calls on it.
fn enter(header: *const ProcessHeader, thread: u32) -> Result<Calls, String> {
    let targets = targets(header, &[]);
    // SAFETY: the dataplane's own description of itself, which has so many threads.
    let (gate, area, tx_end) = unsafe {
        let areas = (*header).thread_areas as *const ThreadArea;
        (gate_of(header), &*areas.add(thread as usize), (*header).tx_base + (*header).tx_len)
    };
    let arrays = (area.calls as *mut CallSlot, area.events as *const EventSlot);
    match gate(gate_op::ENTER, thread.into(), 0, 0) {
        0 => {
            let aims = (targets.data, tx_end);
            Calls::begin((gate, thread.into()), arrays, aims, targets.descriptor, false)
        }
        code => Err(format!("cannot enter: {code}")),
    }
}

/// Keeps commands from all elastic threads, and serves clients on each.
fn refuse_all(first: &Calls, header: *const ProcessHeader) -> Result<(), String> {
    // SAFETY: the dataplane's own description of itself.
    let threads = unsafe { (*header).threads };
    let header = header as usize;
    for thread in 1..threads {
        let serve = move || enter(header as *const ProcessHeader, thread).and_then(refuses::serve);
        std::thread::spawn(move || {
            if let Err(why) = serve() {
                eprintln!("ix-attacker: elastic thread {thread} stands still: {why}");
                std::process::exit(1);
            }
        });
    }
    refuses::attack(first)
}

fn fuzz_calls(c: &Calls, seconds: u64, seed: u64) -> Result<(), String> {
    let made = batches::fuzz(c, seconds, seed).map_err(|code| format!("{code}; seed {seed}"))?;
    println!("{made} calls, seed {seed}");
    Ok(())
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

/// Makes an attack; the client must be served after it.
fn served_on(attack: impl FnOnce() -> Result<String, String>) -> Result<String, String> {
    const PATIENCE_S: u64 = 60;
    let outcome = attack();
    let (mark, begin) = (serve::answered(), std::time::Instant::now());
    while serve::answered() == mark {
        if begin.elapsed().as_secs() > PATIENCE_S {
            return Ok(serve::UNSERVED.to_owned());
        }
        std::thread::yield_now();
    }
    outcome
}

/// A line: attack, what became of it, details, and how many requests of the client were answered
/// since the line before.
fn print(name: &str, outcome: Result<String, String>) {
    static TOLD: AtomicU64 = AtomicU64::new(0);
    let answered = serve::answered();
    let served = answered - TOLD.swap(answered, Ordering::Relaxed);
    match outcome {
        Ok(detail) => println!("{name}\tsucceeded\t{detail}\t{served}"),
        Err(detail) => println!("{name}\trefused\t{detail}\t{served}"),
    }
}

/// The survivor is a child of our parent.
fn survivor() -> i32 {
    // SAFETY: no arguments.
    let (own, parent) = unsafe { (libc::getpid(), libc::getppid()) };
    let Ok(folder) = std::fs::read_dir("/proc") else { return 0 };
    let numbers = folder.flatten().filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    let is_it = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // Behind the name: the state, then the parent.
        let mut behind = stat.rsplit(") ").next().unwrap_or_default().split(' ');
        let lives = !matches!(behind.next(), None | Some("Z" | "X"));
        *pid != own && lives && behind.next() == Some(&parent.to_string())
    };
    numbers.filter(is_it).max().unwrap_or(0)
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
    let shown = header as usize;
    Targets { code: gate, data, shown, received, descriptor, survivor: 0, image }
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
pub fn in_a_copy(attack: impl FnOnce() -> Result<String, String>) -> Result<String, String> {
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

/// Whether there is a wall: without one `ix attack` runs this program as root.
pub fn is_walled() -> bool {
    // SAFETY: no arguments.
    unsafe { libc::geteuid() != 0 }
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
