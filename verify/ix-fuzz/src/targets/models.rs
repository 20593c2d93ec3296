//! Structures compared with naive models, which are beside them in their crates.
use crate::bytes::Bytes;
use ix_dataplane::fuzzing::{FlowStep, WheelStep};
use ix_tcp::fuzzing::ScoreboardStep;

/// Steps in one input.
const STEPS_MAX: usize = 400;

fn steps<T>(bytes: &mut Bytes<'_>, mut step: impl FnMut(&mut Bytes<'_>) -> T) -> Vec<T> {
    let mut steps = Vec::new();
    while !bytes.is_empty() && steps.len() < STEPS_MAX {
        steps.push(step(bytes));
    }
    steps
}

/// The timing wheel behaves like a sorted map.
pub fn wheel(input: &[u8]) {
    let mut bytes = Bytes::new(input);
    let start_us = bytes.scaled(55);
    let steps = steps(&mut bytes, |bytes| match bytes.u8() % 4 {
        0 => WheelStep::Advance(bytes.scaled(45), 1 + usize::from(bytes.u8() % 40)),
        _ => WheelStep::Insert(bytes.scaled(45)),
    });
    ix_dataplane::fuzzing::wheel_is_a_sorted_map(start_us, &steps);
}

/// The flow table behaves like a hash map.
pub fn flow_table(input: &[u8]) {
    let mut bytes = Bytes::new(input);
    let steps = steps(&mut bytes, |bytes| match bytes.u8() % 5 {
        0 => FlowStep::Remove(usize::from(bytes.u16())),
        // Few homes, so that chains grow; some at the table's end, so that they wrap.
        1 => FlowStep::Insert(u64::from(bytes.u8() % 4) << 32),
        2 => FlowStep::Insert((u64::MAX - u64::from(bytes.u8() % 4)) << 32),
        3 => FlowStep::Insert(bytes.u64()),
        _ => FlowStep::Remove(usize::from(bytes.u8())),
    });
    ix_dataplane::fuzzing::flow_table_is_a_hash_map(&steps);
}

/// Reassembly keeps the same octets as a map of octets, and reports its blocks.
pub fn reassembly(input: &[u8]) {
    let mut bytes = Bytes::new(input);
    let base = bytes.u32();
    let inserts = steps(&mut bytes, |bytes| {
        (1 + usize::from(bytes.u8() % 200), 1 + usize::from(bytes.u8() % 60))
    });
    ix_tcp::fuzzing::reassembly_is_a_map_of_octets(base, &inserts[..inserts.len().min(60)]);
}

/// The scoreboard marks what the blocks of RFC 2018 cover, and its sums are right.
pub fn sack(input: &[u8]) {
    let mut bytes = Bytes::new(input);
    let iss = bytes.u32();
    let steps = steps(&mut bytes, |bytes| match bytes.u8() % 8 {
        0 | 1 => ScoreboardStep::Send(bytes.scaled(14) as u32),
        2 => ScoreboardStep::Wait(bytes.scaled(24)),
        what => {
            let part = if what < 5 { 0 } else { bytes.u8() };
            let block = |bytes: &mut Bytes<'_>| (bytes.scaled(10) as u32, bytes.scaled(10) as u32);
            ScoreboardStep::Ack(part, (0..bytes.u8() % 5).map(|_| block(bytes)).collect())
        }
    });
    ix_tcp::fuzzing::scoreboard_marks_what_blocks_cover(iss, &steps);
}
