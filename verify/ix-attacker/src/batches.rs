//! Random batched calls: any operation with significant arguments, several in a batch. The
//! dataplane must refuse or carry out each of them, and continue.
use crate::calls::Calls;
use ix_abi::{Call, CallError, CallSlot, call_op};
use ix_random::Rng;
use std::time::{Duration, Instant};

/// Batches of one attack.
const BATCHES: u64 = 500;
const CALLS: usize = 48;
/// Resources that calls returned, and that other calls give back.
const KEPT: usize = 256;

/// Results of calls: operation and value.
type Given = Vec<(u32, u64)>;

/// How many operations there are, with one that is none.
pub fn operations() -> u64 {
    const BEYOND: u32 = 256;
    let is_one = |op: &u32| {
        let slot = CallSlot { op: *op, ..CallSlot::default() };
        Call::decode(&slot) != Err(CallError::NoSys)
    };
    (0..BEYOND).filter(is_one).max().map_or(0, |last| u64::from(last) + 2)
}

/// Makes this many of them; as a control, one that is accepted.
pub fn attack(c: &Calls) -> Result<String, String> {
    if c.control {
        return match c.call(Call::Nop) {
            0.. => Ok("a plain one is accepted".to_owned()),
            code => Err(format!("a plain one answers {code}")),
        };
    }
    let mut random = Rng::new(4711);
    let mut given = Given::new();
    for batch in 0..BATCHES {
        if let Err(code) = one(c, &mut random, &mut given) {
            return Ok(format!("batch {batch} answers {code}"));
        }
    }
    give_back(c, &given);
    Err(format!("{} calls, and it goes on", BATCHES * CALLS as u64))
}

/// Makes them for this time; returns their number.
pub fn fuzz(c: &Calls, seconds: u64, seed: u64) -> Result<u64, i64> {
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut random = Rng::new(seed);
    let (mut given, mut made) = (Given::new(), 0);
    while Instant::now() < end {
        one(c, &mut random, &mut given)?;
        made += CALLS as u64;
    }
    give_back(c, &given);
    Ok(made)
}

fn one(c: &Calls, random: &mut Rng, given: &mut Given) -> Result<(), i64> {
    let mut ops = [call_op::NOP; CALLS];
    let operations = operations();
    for (slot, op) in ops.iter_mut().enumerate() {
        *op = random.below(operations) as u32;
        let mut args = [0; 6];
        args.iter_mut().for_each(|arg| *arg = argument(c, random, given));
        if *op == call_op::UDP_LISTEN && random.below(2) == 0 {
            let (own, _) = c.own();
            args[1..].copy_from_slice(&[0, group(random), random.below(3), own, random.below(66)]);
        }
        let is_clients = c.serves(args[0])
            || [call_op::UNLISTEN, call_op::BACKLOG].contains(op)
            || *op == call_op::TX_FREE && !given.contains(&(call_op::TX_ALLOC, args[0]));
        if is_clients {
            *op = call_op::NOP;
        }
        c.put_wild(slot, *op, args);
    }
    let answer = c.run(CALLS);
    if answer < 0 {
        return Err(answer);
    }
    for (slot, op) in ops.into_iter().enumerate() {
        let keeps = [
            call_op::CONNECT,
            call_op::CONNECT_FROM,
            call_op::UDP_BIND,
            call_op::TIMER_SET,
            call_op::TX_ALLOC,
        ];
        let ret = c.ret(slot);
        if keeps.contains(&op) && ret >= 0 {
            given.push((op, ret as u64));
        }
    }
    if given.len() > KEPT {
        give_back(c, given);
        given.clear();
    }
    Ok(())
}

/// The second word of a group's address.
fn group(random: &mut Rng) -> u64 {
    0xffff_ef00_0000 | random.below(1 << 24)
}

fn argument(c: &Calls, random: &mut Rng, given: &[(u32, u64)]) -> u64 {
    const STEP: u64 = 2 << 20;
    let (own, own_bytes) = c.own();
    match random.below(12) {
        0 => 0,
        1 => random.below(64),
        2 => c.data as u64 & !7,
        3 => own + (random.below(own_bytes) & !7),
        4 => c.entry(own + random.below(8192), random.below(4096)),
        5 => c.tx_end - random.below(64),
        6 => 1 << random.below(64),
        // An address of the network, mapped.
        7 => 0xffff_0a09_0000 | random.below(256),
        8 if random.below(2) == 0 => group(random),
        8 => STEP,
        9 | 10 if !given.is_empty() => given[random.below(given.len() as u64) as usize].1,
        _ => random.next_u64(),
    }
}

fn give_back(c: &Calls, given: &[(u32, u64)]) {
    const STEP: u64 = 2 << 20;
    for (op, what) in given {
        c.call(match *op {
            call_op::CONNECT | call_op::CONNECT_FROM => Call::Abort { handle: *what },
            call_op::UDP_BIND => Call::UdpUnbind { socket: *what as u32 },
            call_op::TIMER_SET => Call::TimerCancel { timer: *what },
            _ => Call::TxFree { addr: *what, bytes: STEP },
        });
    }
}
