//! Plans in which sequence numbers wrap soon: the clock decides where a connection begins (RFC 9293
//! section 3.4.1: a tick every 4 µs), so it is set to the right time.
use ix_sim::observer::segment::{ACK, SYN, Segment};
use ix_sim::plan::{Options, Plan, Scenario};
use ix_sim::world::World;
use std::cell::Cell;
use std::rc::Rc;

/// A transfer whose client's numbers wrap within 20 KB, and the number that it begins with.
pub fn about_to_wrap(seed: u64) -> (Plan, u32) {
    let options = Options { loss: None, bulk_bytes: Some(100_000) };
    let mut plan = Plan::new(seed, Scenario::Bulk, &options);
    plan.connections.truncate(1);
    plan.connections[0].after_us = 0;
    let before = u32::MAX - 20_000;
    let ticks = before.wrapping_sub(first_number(seed, plan.clone()));
    plan.begin_at(plan.start_us + 4 * u64::from(ticks));
    let begins = first_number(seed, plan.clone());
    (plan, begins)
}

/// The initial sequence number of the only connection.
fn first_number(seed: u64, plan: Plan) -> u32 {
    let mut world = World::new(seed, plan);
    let first = Rc::new(Cell::new(None));
    let seen = first.clone();
    world.set_trace(Box::new(move |_, _, frame| {
        if let Some(Ok(segment)) = Segment::read(frame)
            && segment.has(SYN)
            && !segment.has(ACK)
            && seen.get().is_none()
        {
            seen.set(Some(segment.seq));
        }
    }));
    world.run();
    first.get().expect("a SYN arrives")
}
