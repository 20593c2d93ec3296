//! Attacks that keep received packets. All programs share packet memory: the attacker may receive
//! no more, but others must not suffer, and all memory must be free again afterwards.
use crate::calls::{Calls, LOCAL, PATIENCE, at};
use crate::serve::{KEPT, STREAM};
use ix_abi::{CALLS_MAX, Call};
use std::time::{Duration, Instant};

/// `ix attack` sends datagrams to this port between two lines with its name.
const FLOODED_PORT: u16 = 7010;
const FLOOD: &str = "!flood";
/// Many connections of `ix attack` send to this port without end between two lines with its name.
const STREAMED_PORT: u16 = 7011;
const STREAMS: &str = "!streams";
/// After this time without packets no more will come.
const QUIET: Duration = Duration::from_millis(500);

/// A peer floods, and no datagram is given back.
pub fn datagrams(c: &Calls) -> Result<String, String> {
    let socket = c.call(Call::UdpBind { at: at(LOCAL, FLOODED_PORT), cookie: KEPT });
    let Ok(socket) = u32::try_from(socket) else { return Ok(format!("no socket: {socket}")) };
    c.echo.borrow_mut().keep(!c.control);
    let outcome = hold_datagrams(c);
    c.call(Call::UdpUnbind { socket });
    outcome
}

fn hold_datagrams(c: &Calls) -> Result<String, String> {
    const MOST: usize = 100_000;
    const GIVEN: u64 = 20_000;
    let count = || {
        let echo = c.echo.borrow();
        (echo.kept.len(), echo.given)
    };
    println!("{FLOOD}\t1");
    until_quiet(c, || {
        let (kept, given) = count();
        (kept as u64, kept > MOST || given > GIVEN)
    });
    // The flood still continues.
    let served = c.serves_on();
    println!("{FLOOD}\t0");
    c.echo.borrow_mut().keep(false);
    let kept = std::mem::take(&mut c.echo.borrow_mut().kept);
    let calls: Vec<Call> = kept.iter().map(|data| Call::UdpRecvDone { data: *data }).collect();
    if !all_taken(c, &calls) {
        return Ok("it does not take them back".to_owned());
    }
    match (kept.len(), count().1) {
        _ if !served => Ok("nobody else was served".to_owned()),
        (0, given_back) if given_back > GIVEN => Ok(format!("{given_back} without an end")),
        (0, given_back) => Err(format!("only {given_back} came")),
        (held, _) if held > MOST => Ok(format!("{held} without an end")),
        (held, _) => {
            Err(format!("no more after {held}, others are served, and all are taken back"))
        }
    }
}

/// Many connections send, and none of their bytes are given back: their windows close.
pub fn streams(c: &Calls) -> Result<String, String> {
    let listen =
        Call::Listen { at: at(LOCAL, STREAMED_PORT), backlog: 0, cookie: STREAM, holds: false };
    let listener = c.call(listen);
    if listener < 0 {
        return Ok(format!("no listener: {listener}"));
    }
    c.echo.borrow_mut().keep(!c.control);
    println!("{STREAMS}\t1");
    let outcome = hold_streams(c);
    println!("{STREAMS}\t0");
    c.echo.borrow_mut().keep(false);
    c.call(Call::Unlisten { listener: listener as u64 });
    let handles = std::mem::take(&mut c.echo.borrow_mut().streams);
    c.echo.borrow_mut().held.clear();
    for handle in handles {
        c.call(Call::Abort { handle });
    }
    outcome
}

fn hold_streams(c: &Calls) -> Result<String, String> {
    const MOST: u64 = 64 << 20;
    const GIVEN: u64 = 16 << 20;
    let streamed = || c.echo.borrow().streamed;
    until_quiet(c, || (streamed(), streamed() > if c.control { GIVEN } else { MOST }));
    let (held, connections) = (streamed(), c.echo.borrow().streams.len());
    match c.control {
        true if held > GIVEN => return Ok(format!("{} MB without an end", held >> 20)),
        true => return Err(format!("only {held} octets came")),
        false if held > MOST => return Ok(format!("{} MB without an end", held >> 20)),
        false if connections < 2 => return Ok(format!("only {connections} connections came")),
        false => {}
    }
    if !c.serves_on() {
        return Ok("nobody else was served".to_owned());
    }
    c.echo.borrow_mut().keep(false);
    let lent = std::mem::take(&mut c.echo.borrow_mut().held);
    let done = |[handle, bytes]: [u64; 2]| Call::RecvDone { handle, bytes };
    let calls: Vec<Call> = lent.into_iter().map(done).collect();
    if !all_taken(c, &calls) {
        return Ok("it does not take it back".to_owned());
    }
    let begin = Instant::now();
    while streamed() == held {
        if begin.elapsed() > PATIENCE || c.cycle(1000) < 0 {
            return Ok("nothing comes any more".to_owned());
        }
    }
    let kilobytes = held >> 10;
    Err(format!(
        "{connections} connections wait after {kilobytes} KB, others are served, then all go on"
    ))
}

/// Runs until the count has not changed for a while, or until `count` says that it is enough.
fn until_quiet(c: &Calls, count: impl Fn() -> (u64, bool)) {
    let (begin, mut last, mut before) = (Instant::now(), Instant::now(), 0);
    loop {
        c.cycle(1000);
        let (now, enough) = count();
        if now != before {
            (before, last) = (now, Instant::now());
        }
        let quiet = now > 0 && last.elapsed() > QUIET;
        if quiet || enough || begin.elapsed() > PATIENCE {
            return;
        }
    }
}

/// Makes these calls; returns whether all were accepted.
fn all_taken(c: &Calls, calls: &[Call]) -> bool {
    calls.chunks(CALLS_MAX / 2).all(|some| {
        some.iter().enumerate().for_each(|(slot, call)| c.put(slot, *call));
        c.run(some.len());
        (0..some.len()).all(|slot| c.ret(slot) >= 0)
    })
}
