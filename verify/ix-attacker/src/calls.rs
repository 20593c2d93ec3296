//! Attacks through the contract: batched calls with wrong arguments, calls that change while they
//! are read, exhaustion of resources, and misuse of the gate. The elastic thread itself makes them,
//! in the process that goes on to serve.
//!
//! Not the wall stops these attacks but the dataplane's checks, with the wall and without. So the
//! control of each attack is the same call with the application's own resource: it must be
//! accepted.
use crate::Gate;
use crate::batches;
use crate::cookies;
use crate::hold;
use crate::raw::{
    call_and_look, call_on_bare_stack, call_with_bases, call_with_flags, call_with_vectors,
};
use crate::serve::{self, Echo};
use ix_abi::{
    Addr, CALLS_MAX, Call, CallSlot, Endpoint, EventSlot, FlowInfo, Handle, SgArray, SgEntry,
    SourceList, call_op, error, gate_op, v4,
};
use ix_random::Rng;
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What these attacks use.
pub struct Calls {
    /// The gate; the calling thread has entered this elastic thread.
    pub gate: Gate,
    pub thread: u64,
    /// Its call array.
    pub array: *mut CallSlot,
    /// Data of the dataplane.
    pub data: usize,
    /// End of transmit memory.
    pub tx_end: u64,
    /// Whether to do the allowed action instead.
    pub control: bool,
    /// The lowest of the dataplane's descriptors.
    pub descriptor: i32,
    /// Transmit memory of ours, once allocated.
    own: u64,
    /// The client's service.
    pub echo: RefCell<Echo>,
}

/// An attack: `Ok` if it succeeded, else what stopped it.
type Attack = fn(&Calls) -> Result<String, String>;

/// Name and attack.
pub const ATTACKS: &[(&str, Attack)] = &[
    ("a scatter-gather array in the dataplane's memory", |c| {
        let own = c.entry(c.own + 4096, 64);
        c.send(if c.control { own } else { c.data as u64 & !4095 }, 1)
    }),
    ("an entry that points to the dataplane's memory", |c| c.send_from(c.data as u64, 64)),
    ("an entry past the end of transmit memory", |c| c.send_from(c.tx_end - 8, 64)),
    ("an entry that wraps around", |c| c.send_from(u64::MAX - 7, 64)),
    ("more entries than there may be", |c| {
        c.send(c.entry(c.own + 4096, 64), if c.control { 1 } else { u64::MAX })
    }),
    ("an answer into the dataplane's memory", answer_into),
    ("a stale handle", stale_handle),
    ("random handles of 64 bits", random_handles),
    ("cookies that are the dataplane's addresses", cookies::wild),
    ("listen at another's address", |c| {
        c.outcome(Call::Listen { at: c.foreign(7001), backlog: 0, cookie: 0, holds: false })
    }),
    ("send from another's address", |c| {
        c.outcome(Call::UdpBind { at: c.foreign(7002), cookie: 0 })
    }),
    ("share a UDP port that is none", |c| {
        c.share(at(LOCAL, if c.control { SHARED_PORT } else { 0 }))
    }),
    ("share a UDP port of another's address", |c| c.share(c.foreign(SHARED_PORT))),
    ("share a UDP port beyond the last one", |c| c.share_wild(|words| words[2] += 1 << 16)),
    ("share a UDP port in a way that is none", |c| c.share_wild(|words| words[4] = 3)),
    ("calls rewritten while they are read", race),
    ("all timers", |c| {
        let hour = Call::TimerSet { cookie: 1, delay_us: 3_600_000_000 };
        exhaust(c, CALLS_MAX, hour, |timer| Call::TimerCancel { timer })
    }),
    ("all transmit memory", all_memory),
    ("all connections", all_connections),
    ("all groups", all_groups),
    ("all received packets held for ever", hold::datagrams),
    ("all received data of many connections held for ever", hold::streams),
    ("random batched calls", batches::attack),
    ("more calls than the array has", |c| c.gate_call(gate_op::RUN_IO, 0, u64::MAX)),
    ("an elastic thread that is none", |c| c.gate_call(gate_op::RUN_IO, 1 << 40, 0)),
    ("operations that are none", no_operations),
    ("an elastic thread of another's", foreign_thread),
];

/// Misuse of the gate where the dataplane is in the same process, with its rights and descriptors.
const ON_GATE: &[(&str, Attack)] = &[
    ("watch a descriptor of the dataplane", watch_descriptor),
    ("a crossing with wild flags", |c| c.came_back(call_with_flags(c.gate, c.control))),
    ("a crossing with wild control words", |c| c.came_back(call_with_vectors(c.gate, c.control))),
    ("a crossing with wild segment bases", |c| c.came_back(call_with_bases(c.gate, c.control))),
    ("what a crossing leaves in registers", |c| c.came_back(call_and_look(c.gate, c.control))),
    ("a crossing without a stack", |c| c.came_back(call_on_bare_stack(c.gate, c.control))),
];

/// A port for [`Call::UdpShare`].
const SHARED_PORT: u16 = 7005;
const SG_AT: u64 = 0;
/// Transmit memory: the first part for attacks, the second for the client.
const OWN_BYTES: u64 = 2 << 20;
const ECHO_AT: u64 = 1 << 20;
/// Longest wait on a busy machine, for a client that lost packets several times in a row.
pub const PATIENCE: Duration = Duration::from_secs(60);
pub const LOCAL: [u8; 4] = [10, 9, 0, 2];
const PEER: [u8; 4] = [10, 9, 0, 3];
const STRANGER: [u8; 4] = [10, 9, 0, 77];

/// A port of an address.
pub const fn at(address: [u8; 4], port: u16) -> Endpoint {
    Endpoint { addr: v4(address), port }
}

/// Makes all attacks; reports each outcome when the client was served after it. `apart`: the
/// dataplane is in another process, so the gate changes no rights.
pub fn attack_all(calls: &Calls, apart: bool, mut tell: impl FnMut(&str, Result<String, String>)) {
    let on_gate = if apart { &[] } else { ON_GATE };
    for (name, attack) in ATTACKS.iter().chain(on_gate) {
        let outcome = attack(calls);
        tell(name, if calls.serves_on() { outcome } else { Ok(serve::UNSERVED.to_owned()) });
    }
}

impl Calls {
    /// For the elastic thread that the caller has entered.
    pub fn begin(
        (gate, thread): (Gate, u64),
        (array, events): (*mut CallSlot, *const EventSlot),
        (data, tx_end): (usize, u64),
        descriptor: i32,
        control: bool,
    ) -> Result<Calls, String> {
        let echo = RefCell::new(Echo::new(array, events));
        let own = 0;
        let mut calls = Calls { gate, thread, array, data, tx_end, control, descriptor, own, echo };
        match calls.call(Call::TxAlloc { bytes: OWN_BYTES }) {
            own if own > 0 => calls.own = own as u64,
            code => return Err(format!("there is no transmit memory: {code}")),
        }
        calls.echo.borrow_mut().use_memory(calls.own + ECHO_AT);
        Ok(calls)
    }

    /// Returns the attacks once a client is served.
    pub fn with_client(self) -> Result<Calls, String> {
        if self.serves_on() { Ok(self) } else { Err("no client came".to_owned()) }
    }

    /// Serves until the client has got another reply; false: it gets none.
    pub fn serves_on(&self) -> bool {
        let (mark, begin) = (serve::answered(), Instant::now());
        while serve::answered() == mark {
            if begin.elapsed() > PATIENCE || self.cycle(1000) < 0 {
                return false;
            }
        }
        true
    }

    /// Runs cycles for the client alone; waits this long for events.
    pub fn cycle(&self, wait_us: u64) -> i64 {
        let mut echo = self.echo.borrow_mut();
        let calls = echo.join(0);
        let events = (self.gate)(gate_op::RUN_IO, self.thread, calls as u64, wait_us);
        echo.heard(events);
        events
    }

    /// Result of a crossing: the client's part of it.
    fn came_back(&self, outcome: Result<i64, String>) -> Result<String, String> {
        match outcome {
            Ok(events) => {
                self.echo.borrow_mut().heard(events);
                match self.control {
                    true if events >= 0 => Ok("a plain one comes back".to_owned()),
                    false if events >= 0 => Err("it comes back as any other".to_owned()),
                    true => Err(format!("a plain one answers {events}")),
                    false => Ok(format!("it answers {events}")),
                }
            }
            Err(why) => Ok(why),
        }
    }

    /// Writes a call.
    pub fn put(&self, slot: usize, call: Call) {
        self.put_slot(slot, call.encode());
    }

    /// Writes what need not be a call.
    pub fn put_wild(&self, slot: usize, op: u32, args: [u64; 6]) {
        self.put_slot(slot, CallSlot { op, args, ..CallSlot::default() });
    }

    fn put_slot(&self, slot: usize, call: CallSlot) {
        // SAFETY: a slot of the array, which is the application's to write.
        unsafe { self.array.add(slot).write_volatile(call) };
    }

    /// Runs a cycle with this many calls.
    pub fn run(&self, calls: usize) -> i64 {
        let mut echo = self.echo.borrow_mut();
        let calls = echo.join(calls);
        let events = (self.gate)(gate_op::RUN_IO, self.thread, calls as u64, 0);
        echo.heard(events);
        events
    }

    /// Result of a call.
    pub fn ret(&self, slot: usize) -> i64 {
        // SAFETY: as in `put`.
        unsafe { (&raw const (*self.array.add(slot)).ret).read_volatile() }
    }

    /// One call in a cycle of its own.
    pub fn call(&self, call: Call) -> i64 {
        self.put(0, call);
        self.run_one()
    }

    /// What is in the first slot, in a cycle of its own.
    fn run_one(&self) -> i64 {
        match self.run(1) {
            code if code < 0 => code,
            _ => self.ret(0),
        }
    }

    fn outcome(&self, call: Call) -> Result<String, String> {
        say(self.call(call))
    }

    fn gate_call(&self, op: u64, index: u64, calls: u64) -> Result<String, String> {
        let (index, calls) = if self.control { (0, 0) } else { (index, calls) };
        let answer = (self.gate)(op, index, calls, 0);
        if op == gate_op::RUN_IO {
            self.echo.borrow_mut().heard(answer);
        }
        say(answer)
    }

    /// A port of an address that is another's.
    fn foreign(&self, port: u16) -> Endpoint {
        at(if self.control { LOCAL } else { STRANGER }, port)
    }

    /// Transmit memory for attacks.
    pub fn own(&self) -> (u64, u64) {
        (self.own, ECHO_AT)
    }

    /// Whether a handle is the client's.
    pub fn serves(&self, handle: u64) -> bool {
        self.echo.borrow().serves(handle)
    }

    /// A scatter-gather array of one entry in our transmit memory.
    pub fn entry(&self, base: u64, len: u64) -> u64 {
        let at = (self.own + SG_AT) as *mut SgEntry;
        // SAFETY: transmit memory that was allocated for us.
        unsafe { at.write_volatile(SgEntry { base, len }) };
        at as u64
    }

    /// Sends one entry, or as a control one of our own.
    fn send_from(&self, base: u64, len: u64) -> Result<String, String> {
        let base = if self.control { self.own + 4096 } else { base };
        self.send(self.entry(base, len), 1)
    }

    /// A datagram to the peer.
    fn send(&self, list: u64, entries: u64) -> Result<String, String> {
        let socket = self.call(Call::UdpBind { at: at(LOCAL, 7000), cookie: 0 });
        let Ok(socket) = u32::try_from(socket) else {
            return Ok(format!("no socket: {socket}"));
        };
        let sg = SgArray { addr: list, entries };
        let sent = self.outcome(Call::UdpSendV { socket, to: at(PEER, 9), sg, cookie: 0 });
        self.call(Call::UdpUnbind { socket });
        sent
    }

    /// Binds a UDP port that other processes of the program may bind as well, with these words.
    fn share_wild(&self, change: fn(&mut [u64; 6])) -> Result<String, String> {
        let at = at(LOCAL, SHARED_PORT);
        let mut slot = Call::UdpShare { at, cookie: 0, takes: true }.encode();
        if !self.control {
            change(&mut slot.args);
        }
        self.put_slot(0, slot);
        self.unbind(self.run_one())
    }

    fn share(&self, at: Endpoint) -> Result<String, String> {
        self.unbind(self.call(Call::UdpShare { at, cookie: 0, takes: true }))
    }

    /// Ends a socket, if this is one; what the call that has made it answered.
    fn unbind(&self, answer: i64) -> Result<String, String> {
        if let Ok(socket) = u32::try_from(answer) {
            self.call(Call::UdpUnbind { socket });
        }
        say(answer)
    }

    /// A connection attempt that fails later, but has a handle.
    fn connect(&self) -> i64 {
        self.call(CONNECT)
    }
}

/// A connection attempt that nobody answers.
const CONNECT: Call = Call::Connect { cookie: 0, to: at(PEER, 9), congestion: None, local_port: 0 };

/// Resets a connection.
fn abort(handle: Handle) -> Call {
    Call::Abort { handle }
}

fn say(answer: i64) -> Result<String, String> {
    const NAMES: [&str; 15] = [
        "",
        "no such call",
        "invalid",
        "bad handle",
        "fault",
        "no resource",
        "in use",
        "not local",
        "unreachable",
        "refused",
        "timed out",
        "reset",
        "wrong state",
        "too long",
        "moved",
    ];
    match usize::try_from(-answer) {
        Ok(code) if code > 0 => {
            Err(NAMES.get(code).map_or(answer.to_string(), |n| (*n).to_owned()))
        }
        _ => Ok(format!("answered {answer}")),
    }
}

fn answer_into(c: &Calls) -> Result<String, String> {
    let handle = c.connect();
    if handle < 0 {
        return Ok(format!("no connection: {handle}"));
    }
    let own = c.own + 8192;
    let to = if c.control { own } else { c.data as u64 & !4095 };
    const { assert!(size_of::<FlowInfo>() < 4096) };
    let outcome = c.outcome(Call::GetInfo { handle: handle as u64, to });
    c.call(abort(handle as u64));
    outcome
}

fn stale_handle(c: &Calls) -> Result<String, String> {
    let handle = c.connect();
    let first = c.outcome(abort(handle as u64));
    if c.control { first } else { c.outcome(abort(handle as u64)) }
}

/// Calls whose first argument is a handle.
const NAMING: [u32; 23] = [
    call_op::SENDV,
    call_op::RECV_DONE,
    call_op::ACCEPT,
    call_op::REJECT,
    call_op::SHUTDOWN,
    call_op::CLOSE,
    call_op::ABORT,
    call_op::SET_OPT,
    call_op::SET_COOKIE,
    call_op::UNLISTEN,
    call_op::LISTEN_OPT,
    call_op::UDP_UNBIND,
    call_op::UDP_RECV_DONE,
    call_op::TIMER_CANCEL,
    call_op::GET_INFO,
    call_op::GIVE,
    call_op::PACKET_INFO,
    call_op::PACKET_RECV_DONE,
    call_op::PACKET_SENDV,
    call_op::PACKET_UNBIND,
    call_op::UDP_LISTEN,
    call_op::UDP_SENDV,
    call_op::UDP_SET_OPT,
];

fn random_handles(c: &Calls) -> Result<String, String> {
    const ROUNDS: usize = 50;
    let mut random = Rng::new(0x1234_5678);
    // A real one, so that there is a target, and for the control.
    let real = c.connect();
    if c.control {
        return c.outcome(abort(real as u64));
    }
    for _ in 0..ROUNDS {
        for slot in 0..CALLS_MAX {
            let op = NAMING[random.below(NAMING.len() as u64) as usize];
            // Half of them are near a real one.
            let near = real as u64 ^ (1 << random.below(64));
            let handle = if random.below(2) == 0 { near } else { random.next_u64() };
            // The client's handle could be hit by chance, and rightly.
            let handle = if c.serves(handle) { !0 } else { handle };
            c.put_wild(slot, op, [handle, random.next_u64(), random.next_u64(), 0, 0, 0]);
        }
        c.run(CALLS_MAX);
        if let Some(slot) = (0..CALLS_MAX).find(|&slot| c.ret(slot) >= 0) {
            return Ok(format!("one of them was accepted: {}", c.ret(slot)));
        }
    }
    c.call(abort(real as u64));
    Err(format!("{} calls, all refused", ROUNDS * CALLS_MAX))
}

/// Another thread writes calls and scatter-gather entries, good and bad ones, all the time.
fn race(c: &Calls) -> Result<String, String> {
    const ROUNDS: usize = 2000;
    let socket = c.call(Call::UdpBind { at: at(LOCAL, 7003), cookie: 0 });
    let Ok(socket) = u32::try_from(socket) else { return Ok(format!("no socket: {socket}")) };
    if c.control {
        return say(c.call(Call::UdpUnbind { socket }));
    }
    let list = c.entry(c.own + 4096, 64);
    let stop = AtomicBool::new(false);
    let sg = SgArray { addr: list, entries: 1 };
    let good = Call::UdpSendV { socket, to: at(PEER, 9), sg, cookie: 0 };
    let (array, data, own) = (c.array as usize, c.data as u64, c.own + 4096);
    // Former calls are still there, replies to the client among them.
    (0..64).for_each(|slot| c.put(slot, good));
    let mut refused = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Rng::new(99);
            while !stop.load(Ordering::Relaxed) {
                let slot = random.below(64) as usize;
                let elsewhere = SgArray { addr: data, entries: 1 };
                let mut call = match random.below(4) {
                    1 => Call::UdpSendV { socket, to: at(PEER, 9), sg: elsewhere, cookie: 0 },
                    _ => good,
                }
                .encode();
                match random.below(4) {
                    0 => call.args[random.below(6) as usize] = random.next_u64(),
                    1 => call.op = random.next_u64() as u32,
                    _ => {}
                }
                let entry = match random.below(3) {
                    0 => SgEntry { base: data, len: 64 },
                    1 => SgEntry { base: own, len: random.next_u64() },
                    _ => SgEntry { base: own, len: 64 },
                };
                // SAFETY: the application's own arrays, while others read them: that is the attack.
                unsafe {
                    (array as *mut CallSlot).add(slot).write_volatile(call);
                    (list as *mut SgEntry).write_volatile(entry);
                }
            }
        });
        for _ in 0..ROUNDS {
            c.run(64);
            refused += (0..64).filter(|&slot| c.ret(slot) < 0).count();
        }
        stop.store(true, Ordering::Relaxed);
    });
    c.call(Call::UdpUnbind { socket });
    Err(format!("{ROUNDS} rounds, {refused} calls refused, and it goes on"))
}

/// Takes a resource until there is no more, and gives all back. The dataplane must refuse for lack
/// of it, and have it again afterwards.
fn exhaust(c: &Calls, batch: usize, take: Call, give: fn(u64) -> Call) -> Result<String, String> {
    const MOST: usize = 3_000_000;
    let mut taken = Vec::new();
    let lack = loop {
        let batch = if c.control { 1 } else { batch };
        (0..batch).for_each(|slot| c.put(slot, take));
        c.run(batch);
        let answers = (0..batch).map(|slot| c.ret(slot));
        let before = taken.len();
        taken.extend(answers.filter(|answer| *answer >= 0).map(|answer| answer as u64));
        if taken.len() < before + batch {
            break (0..batch).map(|slot| c.ret(slot)).find(|answer| *answer < 0).unwrap_or(0);
        }
        if c.control || taken.len() >= MOST {
            break 0;
        }
    };
    for some in taken.chunks(CALLS_MAX) {
        some.iter().enumerate().for_each(|(slot, id)| c.put(slot, give(*id)));
        c.run(some.len());
    }
    let again = c.call(take);
    if again >= 0 {
        c.call(give(again as u64));
    }
    match lack {
        0 => Ok(format!("{} without an end", taken.len())),
        _ if again < 0 => Ok(format!("after {} there was nothing any more: {again}", taken.len())),
        lack if lack == -error::NO_RESOURCE => Err(format!("no more after {}", taken.len())),
        lack => Ok(format!("after {}: {lack}", taken.len())),
    }
}

fn all_memory(c: &Calls) -> Result<String, String> {
    const STEP: u64 = 2 << 20;
    let mut taken = Vec::new();
    let lack = loop {
        match c.call(Call::TxAlloc { bytes: STEP }) {
            at if at > 0 => taken.push(at as u64),
            lack => break lack,
        }
        if c.control || taken.len() > 100_000 {
            break 0;
        }
    };
    for at in &taken {
        if c.call(Call::TxFree { addr: *at, bytes: STEP }) < 0 {
            return Ok("it does not take it back".to_owned());
        }
    }
    match lack {
        0 => Ok(format!("{} steps without an end", taken.len())),
        _ => say(lack).map_err(|name| format!("{name} after {} steps of 2 MB", taken.len())),
    }
}

fn all_connections(c: &Calls) -> Result<String, String> {
    // In small steps: finding that no port is free checks each of them.
    exhaust(c, 16, CONNECT, abort)
}

/// A group.
pub fn group(nth: usize) -> Addr {
    let [.., b, c, d] = nth.to_be_bytes();
    v4([239, b, c, d])
}

/// To all sources of a group, or to none.
pub fn listen(socket: u32, nth: usize, joins: bool) -> Call {
    let sources = SourceList { addr: 0, count: 0 };
    Call::UdpListen { socket, group: group(nth), excludes: joins, sources }
}

/// A UDP socket of all addresses.
pub fn bind(c: &Calls, port: u16) -> Result<u32, String> {
    let socket = c.call(Call::UdpBind { at: at([0; 4], port), cookie: 0 });
    u32::try_from(socket).map_err(|_| format!("no socket: {socket}"))
}

/// Joins groups until there is no room, and leaves them all with the socket.
fn all_groups(c: &Calls) -> Result<String, String> {
    const PORT: u16 = 7004;
    const BATCH: usize = 512;
    const MOST: usize = 1_000_000;
    let socket = match bind(c, PORT) {
        Ok(socket) => socket,
        Err(why) => return Ok(why),
    };
    let mut joined = 0;
    let lack = loop {
        let batch = if c.control { 1 } else { BATCH };
        (0..batch).for_each(|slot| c.put(slot, listen(socket, joined + slot, true)));
        c.run(batch);
        joined += batch;
        let lack = (0..batch).map(|slot| c.ret(slot)).find(|answer| *answer < 0);
        if lack.is_some() || c.control || joined >= MOST {
            break lack;
        }
    };
    c.call(Call::UdpUnbind { socket });
    let again = match bind(c, PORT) {
        Ok(socket) => {
            let again = c.call(listen(socket, 0, true));
            c.call(Call::UdpUnbind { socket });
            again
        }
        Err(why) => return Ok(why),
    };
    match lack {
        _ if again < 0 => Ok(format!("afterwards there was nothing any more: {again}")),
        Some(lack) => say(lack),
        None => Ok(format!("{joined} groups")),
    }
}

/// The gate ends waits when a descriptor is readable; it must not do so for the dataplane's own.
fn watch_descriptor(c: &Calls) -> Result<String, String> {
    // SAFETY: no pointers.
    let own = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    let fd = if c.control { own } else { c.descriptor };
    let outcome = say((c.gate)(gate_op::WATCH, 0, fd as u64 + 1, 0));
    (c.gate)(gate_op::WATCH, 0, 0, 0);
    // SAFETY: ours alone.
    unsafe { libc::close(own) };
    outcome
}

fn no_operations(c: &Calls) -> Result<String, String> {
    if c.control {
        return c.gate_call(gate_op::KICK, 0, 0);
    }
    let mut random = Rng::new(5);
    for _ in 0..1000 {
        let op = 1000 + random.next_u64() % (1 << 62);
        if (c.gate)(op, random.below(3), random.next_u64(), random.next_u64()) >= 0 {
            return Ok(format!("{op} was accepted"));
        }
        let op = 100 + random.next_u64() as u32 % (1 << 30);
        c.put_wild(0, op, [random.next_u64(), random.next_u64(), 0, 0, 0, 0]);
        if c.run_one() >= 0 {
            return Ok(format!("call {op} was accepted"));
        }
    }
    Err("2000, all refused".to_owned())
}

fn foreign_thread(c: &Calls) -> Result<String, String> {
    let gate = c.gate;
    let run = move || say(gate(gate_op::RUN_IO, 0, 0, 0));
    if c.control {
        return say(c.run(0));
    }
    std::thread::spawn(run).join().unwrap_or_else(|_| Ok("it crashed".to_owned()))
}
