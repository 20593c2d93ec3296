//! Random batched calls: any operation with significant arguments, several in a batch. The
//! dataplane must refuse or carry out each of them, and continue.
use crate::calls::Calls;
use ix_abi::{Call, call_op};
use ix_random::Rng;
use std::time::{Duration, Instant};

/// Batches of one attack.
const BATCHES: u64 = 500;
const CALLS: usize = 48;
/// Resources that calls returned, and that other calls give back.
const KEPT: usize = 256;

/// Results of calls: operation and value.
type Given = Vec<(u32, u64)>;

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
    for (slot, op) in ops.iter_mut().enumerate() {
        *op = random.below(26) as u32;
        let mut args = [0; 6];
        args.iter_mut().for_each(|arg| *arg = argument(c, random, given));
        let is_clients = c.serves(args[0])
            || *op == call_op::UNLISTEN
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
        let keeps = [call_op::CONNECT, call_op::UDP_BIND, call_op::TIMER_SET, call_op::TX_ALLOC];
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
        8 => STEP,
        9 | 10 if !given.is_empty() => given[random.below(given.len() as u64) as usize].1,
        _ => random.next_u64(),
    }
}

fn give_back(c: &Calls, given: &[(u32, u64)]) {
    const STEP: u64 = 2 << 20;
    for (op, what) in given {
        c.call(match *op {
            call_op::CONNECT => Call::Abort { handle: *what },
            call_op::UDP_BIND => Call::UdpUnbind { socket: *what as u32 },
            call_op::TIMER_SET => Call::TimerCancel { timer: *what },
            _ => Call::TxFree { addr: *what, bytes: STEP },
        });
    }
}
