//! Attacks by the groups that sockets listen to: many sources of one, and changes without a pause,
//! of which routers, devices and the broker are told.
use crate::calls::{Calls, bind, group, listen};
use ix_abi::{Addr, Call, GROUP_SOURCES_MAX, SourceList, v4};
use std::time::{Duration, Instant};

/// Calls of a batch; the array has room for an answer of ours beside them.
const CALLS: usize = 1000;
/// First port of the sockets.
const PORT: u16 = 20_000;
/// Where sources begin in transmit memory; entries of scatter-gather arrays are before.
const SOURCES_AT: u64 = 8192;
const SOURCES_BYTES: u64 = (GROUP_SOURCES_MAX * size_of::<Addr>()) as u64;

/// The first answer that is a refusal.
fn refusal(c: &Calls, calls: usize) -> Option<i64> {
    (0..calls).map(|slot| c.ret(slot)).find(|answer| *answer < 0)
}

/// Many sockets listen to many sources of one group each, and prints how long the longest batch of
/// changes took. Then groups begin and end without a pause, until this process is ended.
pub fn attack(c: &Calls) -> Result<(), String> {
    const BATCHES: u8 = 3;
    let sockets: Vec<u32> =
        (0..CALLS).map(|nth| bind(c, PORT + nth as u16)).collect::<Result<_, _>>()?;
    let mut longest = Duration::ZERO;
    for batch in 0..BATCHES {
        for (nth, socket) in sockets.iter().enumerate() {
            let sources = sources(c, nth, batch);
            let group = group(0);
            c.put(nth, Call::UdpListen { socket: *socket, group, excludes: false, sources });
        }
        let since = Instant::now();
        if c.run(CALLS) < 0 || refusal(c, CALLS).is_some() {
            return Err(format!("a batch of sources is refused: {:?}", refusal(c, CALLS)));
        }
        // The next cycle tells the broker.
        c.run(0);
        longest = longest.max(since.elapsed());
    }
    println!("sources of a group: {} ms at the longest", longest.as_millis());
    for socket in &sockets[1..] {
        c.call(Call::UdpUnbind { socket: *socket });
    }
    println!("without a pause");
    for round in 0.. {
        for joins in [true, false] {
            let nth = |slot| round * CALLS + slot;
            (0..CALLS).for_each(|slot| c.put(slot, listen(sockets[0], nth(slot), joins)));
            match c.run(CALLS) {
                0.. => {}
                code => return Err(format!("round {round} answers {code}")),
            }
        }
    }
    Ok(())
}

/// Other sources for each socket and batch.
fn sources(c: &Calls, nth: usize, batch: u8) -> SourceList {
    let (own, bytes) = c.own();
    let offset = SOURCES_AT + nth as u64 * SOURCES_BYTES;
    assert!(offset + SOURCES_BYTES <= bytes, "there is room");
    for number in 0..GROUP_SOURCES_MAX {
        let [high, low] = (nth as u16).to_be_bytes();
        let source = v4([10 + batch, high, low, number as u8]);
        let at = own + offset + (number * size_of::<Addr>()) as u64;
        // SAFETY: transmit memory that was allocated for us.
        unsafe { (at as *mut Addr).write_volatile(source) };
    }
    SourceList { addr: own + offset, count: GROUP_SOURCES_MAX as u64 }
}
