//! Attacks by processes of the program that come to share its dataplane: very many of them, some
//! that end at any moment, and some whose words lie. Not the wall stops these attacks but the
//! broker and the dataplane, which must go on: another process can still attach afterwards, and the
//! client is served. Without a wall no process attaches; so the control is that of the contract's
//! attacks: what any program may do is done.
use crate::Gate;
use crate::shared::write_wild_requests;
use ix_abi::{Call, CallSlot, Endpoint, ProcessHeader, ThreadArea, gate_op};
use ix_random::Rng;
use std::time::{Duration, Instant};

/// An attack: `Ok` if it succeeded, else what became of it. `true`: the control instead.
pub type Attack = fn(Gate, bool) -> Result<String, String>;

/// Name and attack.
pub const ATTACKS: &[(&str, Attack)] = &[
    ("thousands of processes that attach", thousands),
    ("death at every step of attach and detach", deaths),
    ("words of a request that lie, of sleep among them", lies),
];

/// Processes that attach, and how many of them at a time.
const ATTACHED: usize = 2000;
const AT_A_TIME: usize = 16;
/// Processes that are killed, each so much later after its fork than the one before.
const KILLED: u32 = 200;
const LATER: Duration = Duration::from_micros(25);
/// How long words lie.
const LIES: Duration = Duration::from_millis(300);

fn thousands(gate: Gate, control: bool) -> Result<String, String> {
    if control {
        return plain();
    }
    let mut had = 0;
    for _ in 0..ATTACHED / AT_A_TIME {
        let children: Vec<i32> = (0..AT_A_TIME).map(|_| child(|| attach(gate))).collect();
        had += children.into_iter().filter(|child| wait_for(*child) == 0).count();
    }
    if had == 0 {
        return Ok("not one could attach, so this shows nothing".to_owned());
    }
    goes_on(gate, format!("{ATTACHED} have asked, {had} have had one"))
}

fn deaths(gate: Gate, control: bool) -> Result<String, String> {
    if control {
        return plain();
    }
    let mut killed = 0;
    for nth in 0..KILLED {
        let child = child(|| attach(gate));
        spin(LATER * nth);
        // SAFETY: a child that was not waited for.
        unsafe { libc::kill(child, libc::SIGKILL) };
        killed += usize::from(libc::WIFSIGNALED(wait_for(child)));
    }
    if killed == 0 {
        return Ok("not one was killed on its way, so this shows nothing".to_owned());
    }
    goes_on(gate, format!("{killed} were killed on their way"))
}

fn lies(gate: Gate, control: bool) -> Result<String, String> {
    if control {
        return plain();
    }
    let liar = child(|| {
        let attached = gate(gate_op::ATTACH, 0, 0, 0) > 0;
        let (mut random, since) = (Rng::new(18), Instant::now());
        while attached && since.elapsed() < LIES {
            write_wild_requests(&mut random);
            gate(gate_op::KICK, 0, 0, 0);
        }
        attached
    });
    match wait_for(liar) {
        0 => goes_on(gate, format!("{LIES:?} of it")),
        status => Ok(format!("it could not lie: {status:#x}")),
    }
}

/// Attaches and uses all that it gets once; whether it could.
fn attach(gate: Gate) -> bool {
    let header = gate(gate_op::ATTACH, 0, 0, 0) as *const ProcessHeader;
    if (header as i64) <= 0 || gate(gate_op::ENTER, 0, 0, 0) != 0 {
        return false;
    }
    let at = Endpoint { port: 7100, ..Endpoint::default() };
    let listen = Call::Listen { at, backlog: 8, cookie: 1, holds: false };
    // SAFETY: the dataplane's own description of itself; an array that is this process's to write.
    unsafe {
        let area = &*((*header).thread_areas as *const ThreadArea);
        (area.calls as *mut CallSlot).write_volatile(listen.encode());
    }
    gate(gate_op::RUN_IO, 0, 1, 0) >= 0 && gate(gate_op::LEAVE, 0, 0, 0) == 0
}

/// Another process attaches.
fn goes_on(gate: Gate, what: String) -> Result<String, String> {
    match wait_for(child(|| attach(gate))) {
        0 => Err(format!("{what}, and another one attaches")),
        status => Ok(format!("{what}, and no other one can attach: {status:#x}")),
    }
}

/// What any program may do.
fn plain() -> Result<String, String> {
    match wait_for(child(|| true)) {
        0 => Ok("a child begins and ends".to_owned()),
        status => Err(format!("a child ends with {status:#x}")),
    }
}

/// Starts a child that does this; its status says whether it could.
fn child(act: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child calls the gate and ends. It takes no lock that the other thread of this
    // process, which only calls the gate, could hold.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let could = act();
        // SAFETY: no pointers.
        unsafe { libc::_exit(i32::from(!could)) };
    }
    child
}

fn wait_for(child: i32) -> i32 {
    let mut status = 0;
    // SAFETY: fills a local.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    if waited == child { status } else { -1 }
}

fn spin(time: Duration) {
    let since = Instant::now();
    while since.elapsed() < time {
        std::hint::spin_loop();
    }
}
