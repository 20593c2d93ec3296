//! The simulator sees what it must: each kind of failure, made on purpose, is a violation.
use ix_sim::plan::{End, Exchange, Families, Options, Plan, Scenario};
use ix_sim::wire::Faults;
use ix_sim::world::World;
use ix_wire::checksum::Checksum;

/// One connection on a perfect network.
fn plan(seed: u64, exchange: Exchange) -> Plan {
    let options = Options { loss: Some(0.0), bulk_bytes: None };
    let mut plan = Plan::new(seed, Scenario::Bulk, &options).over(Families::V4);
    plan.connections.truncate(1);
    let connection = &mut plan.connections[0];
    (connection.exchange, connection.end) = (exchange, End::HalfClose);
    connection.lazy = [false, false];
    for host in &mut plan.hosts {
        host.faults = Faults::none(50);
        host.stall = 0.0;
    }
    plan.changes.clear();
    plan
}

const BULK: Exchange = Exchange::Bulk { up: 100_000, down: 100_000 };

#[test]
fn a_perfect_network_has_nothing_to_repair() {
    let outcome = World::new(1, plan(1, BULK)).run();
    assert_eq!(outcome.violations, Vec::<String>::new());
    assert_eq!((outcome.connections, outcome.bytes), (1, 200_000));
    assert_eq!(outcome.counter("tcp.out_of_order"), 0);
}

/// A payload byte changes, and the checksum with it: no protocol can know.
#[test]
fn a_wrong_byte_is_seen() {
    let mut world = World::new(1, plan(1, BULK));
    let mut frames = 0;
    world.set_tamper(Box::new(move |frame| {
        frames += usize::from(frame.len() > 500);
        if frames == 20 {
            flip_last_byte(frame);
            frames += 1;
        }
    }));
    let violations = world.run().violations;
    assert!(violations.iter().any(|what| what.contains("wrong byte")), "{violations:?}");
}

fn flip_last_byte(frame: &mut [u8]) {
    const TCP: usize = 14 + 20;
    let last = frame.len() - 1;
    frame[last] ^= 0x55;
    frame[TCP + 16..TCP + 18].fill(0);
    let mut sum = Checksum::new();
    sum.add_bytes(&frame[26..34]);
    let length = (frame.len() - TCP) as u16;
    sum.add_bytes(&[0, 6, (length >> 8) as u8, length as u8]);
    sum.add_bytes(&frame[TCP..]);
    let field = sum.finish().to_be_bytes();
    frame[TCP + 16..TCP + 18].copy_from_slice(&field);
}

#[test]
fn a_connection_that_never_ends_is_seen() {
    let mut plan = plan(2, BULK);
    plan.hosts[0].faults.cut = true;
    plan.hosts[1].faults.cut = true;
    plan.deadline_us = plan.start_us + 10_000_000;
    let violations = World::new(2, plan).run().violations;
    assert!(violations.iter().any(|what| what.contains("deadline")), "{violations:?}");
}

/// Somebody on the way resets the connection: the applications did not plan that.
#[test]
fn a_lost_connection_is_seen() {
    let mut world = World::new(3, plan(3, BULK));
    let mut frames = 0;
    world.set_tamper(Box::new(move |frame| {
        const FLAGS: usize = 14 + 20 + 13;
        frames += 1;
        if frames == 30 && frame.len() > FLAGS {
            frame[FLAGS] = 0x14;
            let last = frame.len() - 1;
            frame[last] ^= 0x55;
            flip_last_byte(frame);
        }
    }));
    let violations = world.run().violations;
    assert!(violations.iter().any(|what| what.contains("lost its connection")), "{violations:?}");
}
