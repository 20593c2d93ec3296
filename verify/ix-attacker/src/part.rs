//! Processes that speak with the broker themselves, as the image does, and say what no image would:
//! that they need no dataplane any more, or that they cannot have one, while they live on.
use crate::shared::kind_of;
use crate::{Gate, descriptors};
use ix_abi::gate_op;
use ix_proto::crossing::Attach;
use ix_proto::{Codec, FromImage, ToImage};
use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);
/// Longer than a dataplane takes to end, or to start.
const A_MOMENT: Duration = Duration::from_secs(2);
/// Exit status of [`What::HangUp`].
const HUNG_UP: i32 = 7;
/// What one message brings at most.
const CONTROL: usize = 1024;
/// Standard descriptors.
const STANDARD: i32 = 2;

/// The bytes of a message, and its descriptors.
type Message = (Vec<u8>, Vec<i32>);

/// What is tried.
pub enum What {
    /// Says that it cannot map the dataplane's memory, and lives on.
    OwnFarewell,
    /// A child says so for it, and ends.
    ChildsFarewell,
    /// It says so after a child has got a part of the dataplane.
    FarewellBeside,
    /// It says so of another time that it asked.
    StaleFarewell,
    /// Asks for a dataplane, closes the channel before it can be told of it, and ends a moment
    /// later.
    HangUp,
    /// Lets go of its dataplane and asks for another one, again and again.
    Endless,
    /// So many children get a part, and let go of it in every order ([`parts`]). Then it makes
    /// calls without end.
    Partings(u32),
}

/// Never returns where it succeeds: the process lives on until it is ended, but for
/// [`What::HangUp`].
pub fn run(what: &What, gate: Gate) -> Result<(), String> {
    let channel = channel()?;
    if let What::Partings(count) = what {
        println!("begins");
        for nth in 1..=*count {
            parts(channel, nth)?;
        }
        println!("parted {count}");
        never_wait(gate);
    }
    if let What::Endless = what {
        println!("begins");
        let mut bells: Vec<i32> = descriptors();
        bells.retain(|fd| *fd > STANDARD && kind_of(*fd) == libc::SOCK_STREAM);
        close_all(&bells);
        for nth in 1.. {
            close_all(&ask(channel, nth)?.1);
        }
    }
    // The dataplane ends: nobody has it any more.
    let bells = descriptors().into_iter().filter(|fd| kind_of(*fd) == libc::SOCK_STREAM);
    close_all(&bells.filter(|fd| *fd > STANDARD).collect::<Vec<_>>());
    // Until it is this process's own, and not the one before.
    let end = Instant::now() + PATIENCE;
    while let (attach, fds) = ask(channel, 1)?
        && attach.number != 0
    {
        close_all(&fds);
        if Instant::now() > end {
            return Err("the dataplane does not end".to_owned());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    println!("has another one");
    if let What::HangUp = what {
        let bells = descriptors().into_iter().filter(|fd| kind_of(*fd) == libc::SOCK_STREAM);
        close_all(&bells.filter(|fd| *fd > STANDARD).collect::<Vec<_>>());
        // That dataplane is to have ended.
        std::thread::sleep(A_MOMENT);
        say(channel, &FromImage::Hello { pid: 0, asker: 3 })?;
        close_all(&[channel]);
        println!("hung up");
        std::thread::sleep(A_MOMENT);
        std::process::exit(HUNG_UP);
    }
    match what {
        What::ChildsFarewell => ended_child(|| say(channel, &farewell(1)))?,
        What::FarewellBeside => {
            in_a_child(|| ask(channel, 2).map(drop))?;
            say(channel, &farewell(1))?;
        }
        What::StaleFarewell => say(channel, &farewell(2))?,
        _ => say(channel, &farewell(1))?,
    }
    println!("farewell");
    live_on()
}

/// The nth child gets a part and lets go of it: it lives on, ends, or executes another program, or
/// has ended before it is told.
fn parts(channel: i32, nth: u32) -> Result<(), String> {
    let asker = nth.into();
    let lets_go = || {
        close_all(&ask(channel, asker)?.1);
        Ok(())
    };
    match nth % 5 {
        0 => in_a_child(lets_go),
        1 => ended_child(lets_go),
        2 => ended_child(|| ask(channel, asker).map(drop)),
        3 => ended_child(|| say(channel, &FromImage::Hello { pid: 0, asker })),
        _ => ended_child(|| {
            ask(channel, asker)?;
            let why = std::process::Command::new("true").exec();
            Err(why.to_string())
        }),
    }
}

fn farewell(asker: u64) -> FromImage {
    // With a line of its own, and an order to the terminal.
    let why = "farewell, says the attacker\nix: all is well\u{1b}[2J".to_owned();
    FromImage::Failed { asker, why }
}

fn channel() -> Result<i32, String> {
    let found = descriptors().into_iter().rev().find(|fd| kind_of(*fd) == libc::SOCK_SEQPACKET);
    found.ok_or_else(|| "there is no channel".to_owned())
}

/// Asks for a part of the dataplane; returns what is shared then, and its descriptors.
fn ask(channel: i32, asker: u64) -> Result<(Attach, Vec<i32>), String> {
    let end = Instant::now() + PATIENCE;
    say(channel, &FromImage::Hello { pid: 0, asker })?;
    while Instant::now() < end {
        let Some((message, fds)) = receive(channel)? else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        match ToImage::decode(&message) {
            Ok(ToImage::Attach(attach)) if attach.asker == asker => return Ok((attach, fds)),
            // The last asker is to have gone.
            Ok(ToImage::NotAttached { asker: who, .. }) if who == asker => {
                say(channel, &FromImage::Hello { pid: 0, asker })?;
            }
            _ => close_all(&fds),
        }
    }
    Err("the broker does not answer".to_owned())
}

fn say(channel: i32, message: &FromImage) -> Result<(), String> {
    let bytes = message.encode();
    // SAFETY: bytes of ours.
    let sent = unsafe { libc::send(channel, bytes.as_ptr().cast(), bytes.len(), 0) };
    if sent < 0 { Err(std::io::Error::last_os_error().to_string()) } else { Ok(()) }
}

/// The next message with its descriptors, if there is one.
fn receive(channel: i32) -> Result<Option<Message>, String> {
    let mut bytes = vec![0u8; 1 << 16];
    let mut control = [0u64; CONTROL / 8];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut fds = Vec::new();
    // SAFETY: all-zero bytes are a valid header; it names buffers of ours with their lengths. The
    // macros walk what the kernel has written into one of them.
    unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
        (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), CONTROL);
        let got = libc::recvmsg(channel, &raw mut header, libc::MSG_DONTWAIT);
        if got < 0 {
            let error = std::io::Error::last_os_error();
            let none = error.kind() == std::io::ErrorKind::WouldBlock;
            return if none { Ok(None) } else { Err(error.to_string()) };
        }
        bytes.truncate(got as usize);
        let mut at = libc::CMSG_FIRSTHDR(&raw const header);
        while !at.is_null() {
            if (*at).cmsg_type == libc::SCM_RIGHTS {
                let count = ((*at).cmsg_len as usize - libc::CMSG_LEN(0) as usize) / 4;
                let first = libc::CMSG_DATA(at).cast::<i32>();
                fds.extend((0..count).map(|nth| first.add(nth).read_unaligned()));
            }
            at = libc::CMSG_NXTHDR(&raw const header, at);
        }
    }
    Ok(Some((bytes, fds)))
}

fn close_all(fds: &[i32]) {
    for fd in fds {
        // SAFETY: no pointers; a descriptor that nothing here uses any more.
        unsafe { libc::close(*fd) };
    }
}

/// Does this in a child, which then lives on until this process ends. Returns when it is done.
fn in_a_child(act: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    let mut ends = [0; 2];
    // SAFETY: fills a local. The child, of a process with one thread, goes on as this process
    // would.
    let child = unsafe {
        if libc::pipe(ends.as_mut_ptr()) < 0 {
            return Err("cannot make a pipe".to_owned());
        }
        libc::fork()
    };
    let [read, write] = ends;
    if child == 0 {
        // SAFETY: no pointers; then one byte of a local.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            let done = u8::from(act().is_ok());
            libc::write(write, (&raw const done).cast(), 1);
        }
        live_on();
    }
    let mut done = 0u8;
    // SAFETY: fills a local.
    let got = unsafe { libc::read(read, (&raw mut done).cast(), 1) };
    close_all(&ends);
    if child > 0 && (got, done) == (1, 1) { Ok(()) } else { Err("a child cannot".to_owned()) }
}

/// Does this in a child, which has ended and was waited for when this returns.
fn ended_child(act: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    // SAFETY: the child, of a process with one thread, goes on as this process would.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let status = i32::from(act().is_err());
        // SAFETY: no pointers.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: fills a local.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    if (waited, status) == (child, 0) && child > 0 { Ok(()) } else { Err("a child cannot".into()) }
}

/// Keeps elastic thread 0 awake.
fn never_wait(gate: Gate) -> ! {
    gate(gate_op::ENTER, 0, 0, 0);
    loop {
        gate(gate_op::RUN_IO, 0, 0, 0);
    }
}

fn live_on() -> ! {
    loop {
        std::thread::sleep(PATIENCE);
    }
}
