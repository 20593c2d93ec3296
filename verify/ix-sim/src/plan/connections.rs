//! Which connections are made.
use super::{ConnectionPlan, End, Exchange, HostPlan, Options, Scenario};
use ix_random::Rng;

/// The connections of a scenario.
pub fn of(
    rng: &mut Rng,
    scenario: Scenario,
    hosts: &[HostPlan],
    span_us: u64,
    options: &Options,
) -> Vec<ConnectionPlan> {
    let (bulk, echo, churn) = match scenario {
        Scenario::Bulk => (rng.between(1, 4), 0, 0),
        Scenario::Echo => (0, rng.spread(1, 60), 0),
        Scenario::Churn => (0, 0, rng.spread(20, 400)),
        Scenario::Lives => (0, 0, rng.between(300, 600)),
        Scenario::All | Scenario::Migration | Scenario::Life => {
            (rng.below(3), rng.below(10), rng.spread(1, 100))
        }
    };
    // Sometimes all begin at once: floods of SYNs, full backlogs.
    let span_us = if rng.chance(0.2) { 0 } else { span_us };
    let mut all = Vec::new();
    for _ in 0..bulk {
        let bytes =
            |rng: &mut Rng| options.bulk_bytes.unwrap_or_else(|| rng.spread(1_000, 4_000_000));
        let exchange = Exchange::Bulk { up: bytes(rng), down: bytes(rng) };
        all.push(connection(rng, hosts, exchange, span_us / 4, false));
    }
    for _ in 0..echo {
        let size = rng.spread(1, 20_000);
        let count = rng.spread(1, (200_000 / size).clamp(1, 300));
        all.push(connection(rng, hosts, Exchange::Echo { size, count }, span_us / 2, false));
    }
    for _ in 0..churn {
        let lives = scenario == Scenario::Lives;
        let exchange = if lives && rng.chance(0.5) {
            Exchange::Echo { size: rng.between(1, 2_000), count: rng.between(5, 9) }
        } else if rng.chance(0.5) || lives {
            Exchange::Bulk { up: rng.below(20_000), down: rng.below(20_000) }
        } else {
            Exchange::Echo { size: rng.between(1, 2_000), count: rng.between(1, 3) }
        };
        all.push(connection(rng, hosts, exchange, span_us, true));
    }
    all
}

/// The first of the ports that both ends use in a simultaneous open.
const MEETING_PORTS: u16 = 20_000;

/// Simultaneous opens, in half of all runs. They are between hosts whose SYNs can cross, because
/// those take longer than a thread needs for its turn.
pub fn meetings(seed: u64, hosts: &[HostPlan], span_us: u64) -> Vec<ConnectionPlan> {
    // A random stream of its own, so that simultaneous opens do not change what else happens.
    let rng = &mut Rng::new(seed ^ 0x6d65_6574);
    let slowest_us = hosts.iter().map(|host| host.cycle_us).max().unwrap_or(0);
    let far = |host: usize| hosts[host].faults.latency_us >= 3 * slowest_us;
    let count = if rng.chance(0.5) { rng.between(5, 30) as u16 } else { 0 };
    let mut all = Vec::new();
    for number in 0..count {
        let exchange = match rng.below(3) {
            // The application wants to end the connection before it is open.
            0 => Exchange::Bulk { up: 0, down: rng.below(2) * 5_000 },
            1 => Exchange::Bulk { up: rng.below(20_000), down: rng.below(20_000) },
            _ => Exchange::Echo { size: rng.between(1, 2_000), count: rng.between(5, 9) },
        };
        let mut plan = connection(rng, hosts, exchange, span_us, false);
        let first = MEETING_PORTS + 2 * number;
        plan.meets = Some([first, first + 1]);
        if far(plan.client.0) && far(plan.server) {
            all.push(plan);
        }
    }
    all
}

fn connection(
    rng: &mut Rng,
    hosts: &[HostPlan],
    exchange: Exchange,
    span_us: u64,
    aborts: bool,
) -> ConnectionPlan {
    let from = rng.below(hosts.len() as u64) as usize;
    let others = rng.between(1, hosts.len() as u64 - 1) as usize;
    let mut plan = ConnectionPlan {
        after_us: rng.below(span_us + 1),
        client: (from, rng.below(hosts[from].threads as u64) as usize),
        server: (from + others) % hosts.len(),
        v6: false,
        exchange,
        end: rng.pick(&[End::HalfClose, End::ClientCloses, End::ServerCloses]),
        lazy: [rng.chance(0.1), rng.chance(0.1)],
        meets: None,
    };
    if aborts && rng.chance(0.3) {
        let after = rng.below(plan.up() + plan.down() + 1);
        plan.end =
            if rng.chance(0.5) { End::ClientAborts(after) } else { End::ServerAborts(after) };
    }
    plan
}
