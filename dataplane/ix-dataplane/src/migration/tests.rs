//! Flow groups move between elastic threads under traffic.
use super::MigrateError;
use super::message::Message;
use super::test_net::*;
use crate::config::Config;
use crate::flows::handle::FlowId;
use ix_abi::{Call, CallError, FlowOption};
use ix_proto::GroupSet;
use ix_proto::{MigrationEnd, MigrationRecord};
use ix_rig::{Promise, SimOptions, Spread};
use ix_wire::{FLOW_GROUPS, FlowHash};
use proptest::prelude::*;

fn kind(last: u8, threads: usize, bytes: usize, promise: Promise) -> Kind {
    let spread = Spread::Table(FlowHash::new(Config::default().flow_hash_key));
    let options = SimOptions { promise, spread, fences: true, ..SimOptions::default() };
    Kind { last, threads, options, bytes, config: |_: &mut Config| {} }
}

/// A device without a table: all packets arrive on queue 0.
fn without_table(last: u8, threads: usize, bytes: usize) -> Kind {
    let options = SimOptions { fences: true, ..SimOptions::default() };
    Kind { last, threads, options, bytes, config: |_: &mut Config| {} }
}

/// On a perfect wire every lost or reordered segment shows.
fn assert_nothing_lost(net: &TestNet) {
    for host in &net.hosts {
        for name in ["tcp.out_of_order", "tcp.retransmits", "tcp.rto", "drops.forward_full"] {
            assert_eq!(host.total(name), 0, "{name}");
        }
    }
}

/// Connections from all threads of one host to the other, while groups of both move: `most` at a
/// time. Returns the migrations.
fn move_around(net: &mut TestNet, conns: usize, bytes: usize, most: usize) -> Vec<MigrationRecord> {
    for i in 0..conns {
        let thread = i % net.hosts[0].threads.len();
        net.hosts[0].connect(thread, 2, bytes);
    }
    for _ in 0..400 {
        net.spin(12);
        net.migrate_some(0, most);
        net.migrate_some(1, most);
    }
    net.finish();
    let ended = |host: &Host| host.threads.iter().map(|t| t.app.ended).sum::<usize>();
    assert_eq!([ended(&net.hosts[0]), ended(&net.hosts[1])], [conns, conns]);
    net.hosts.iter().flat_map(Host::records).collect()
}

#[test]
fn groups_move_under_traffic_and_nothing_is_lost() {
    let host = |last, threads| kind(last, threads, 300_000, Promise::Settled);
    let mut net = TestNet::new(&host(1, 2), &host(2, 3), 1);
    let records = move_around(&mut net, 30, 300_000, 30);
    assert_nothing_lost(&net);
    let moved: Vec<_> = records.iter().filter(|r| r.end == MigrationEnd::Early).collect();
    assert!(moved.len() > 100, "{} of {}", moved.len(), records.len());
    assert!(moved.iter().any(|r| r.flows > 0 && r.packets > 0));
    for record in moved {
        let phases = record.prepare_us + record.wait_us + record.rpc_us + record.deferred_us;
        assert!(phases.abs_diff(record.total_us) <= 1, "{record:?}");
        assert!(record.pause_us <= record.total_us && !record.flow_groups.is_empty());
    }
}

#[test]
fn a_device_that_says_nothing_is_waited_for() {
    let host = |last, threads| kind(last, threads, 100_000, Promise::Silent);
    let mut net = TestNet::new(&host(1, 2), &host(2, 2), 2);
    let records = move_around(&mut net, 10, 100_000, 10);
    assert_nothing_lost(&net);
    let bound = |r: &&MigrationRecord| r.end == MigrationEnd::Bound;
    assert!(records.iter().filter(bound).count() > 3);
    assert!(records.iter().filter(bound).all(|r| r.total_us >= 1000), "the bound is 1 ms");
}

#[test]
fn the_first_packet_ends_a_migration_where_queues_keep_order() {
    let host = |last, threads| kind(last, threads, 300_000, Promise::InOrder);
    let mut net = TestNet::new(&host(1, 2), &host(2, 2), 3);
    let records = move_around(&mut net, 20, 300_000, 10);
    assert_nothing_lost(&net);
    let early = |r: &&MigrationRecord| r.end == MigrationEnd::Early;
    assert!(records.iter().filter(early).count() > 3);
}

/// All packets arrive on queue 0: third threads hand them over, on ways that change.
#[test]
fn groups_move_without_a_table_too() {
    let mut net = TestNet::new(&without_table(1, 3, 200_000), &without_table(2, 4, 200_000), 4);
    let records = move_around(&mut net, 30, 200_000, 20);
    assert_nothing_lost(&net);
    assert!(records.iter().filter(|r| r.end == MigrationEnd::Early).count() > 100);
}

/// Two hosts with one connection, and the group that it has at the server.
fn one_connection(threads: usize, config: fn(&mut Config)) -> (TestNet, usize) {
    let host = |last, threads| Kind { config, ..kind(last, threads, 1000, Promise::Settled) };
    connect_one(&host(1, 1), &host(2, threads))
}

fn connect_one(client: &Kind, server: &Kind) -> (TestNet, usize) {
    let mut net = TestNet::new(client, server, 5);
    net.hosts[0].connect(0, 2, 1000);
    let server = |net: &TestNet| {
        let mut conns = net.hosts[1].threads.iter().flat_map(|t| t.app.conns.values());
        conns.next().map(|conn| usize::from(FlowId::from_handle(conn.handle).group))
    };
    while server(&net).is_none() {
        net.step();
    }
    let group = server(&net).unwrap();
    (net, group)
}

/// Moves one group, and runs until it has arrived.
fn move_group(net: &mut TestNet, group: usize, to: usize) {
    let groups: GroupSet = [group].into_iter().collect();
    assert_eq!(net.hosts[1].migrate(&groups, to), 1);
    let commands = net.hosts[1].commands as usize;
    while net.hosts[1].records().len() < commands {
        net.step();
    }
}

/// Messages of different threads overtake each other: an offer that was given up long ago is
/// processed after its groups came another way. `ix sim --scenario migration --seed 200333` has
/// found this.
#[test]
fn a_late_offer_of_groups_that_are_here_changes_nothing() {
    let (mut net, group) = one_connection(3, |_| {});
    let owner = net.hosts[1].shared.owner(group);
    let (other, serial) = ((owner + 1) % 3, 77);
    let groups: GroupSet = [group].into_iter().collect();
    for message in [Message::Offer(serial, groups), Message::Withdraw(serial)] {
        net.hosts[1].threads[owner].elastic.migrations.receive(other, message);
        net.spin(20);
        let migrations = &net.hosts[1].threads[owner].elastic.migrations;
        assert!(migrations.is_home(group), "its packets would go to {other}, and come back");
    }
    net.finish();
    assert_nothing_lost(&net);
}

/// Whether the server's end of the wire is cut.
fn cut(net: &mut TestNet, is_cut: bool) {
    net.faults.loss_percent = if is_cut { 100 } else { 0 };
}

#[test]
fn a_retransmission_comes_from_the_new_thread() {
    let (mut net, group) = one_connection(2, |_| {});
    let from = net.hosts[1].shared.owner(group);
    cut(&mut net, true);
    net.spin(200);
    let before = net.hosts[1].count(1 - from, "tcp.retransmits");
    assert!(net.hosts[1].total("wheel_entries") < 10);
    move_group(&mut net, group, 1 - from);
    for _ in 0..200 {
        net.now_us += 1000;
        net.spin(10);
    }
    assert!(net.hosts[1].count(1 - from, "tcp.retransmits") > before);
    cut(&mut net, false);
    net.finish();
}

#[test]
fn time_wait_ends_on_the_new_thread() {
    // The side that closes first waits; here both do at about the same time.
    let (mut net, group) = one_connection(2, |config| config.tcp.time_wait_us = 500_000);
    let from = net.hosts[1].shared.owner(group);
    while net.conns() > 0 {
        net.spin(10);
    }
    net.spin(100);
    let waits = |net: &TestNet, thread| net.hosts[1].count(thread, "time_wait");
    let waiting = waits(&net, from);
    move_group(&mut net, group, 1 - from);
    assert_eq!((waits(&net, from), waits(&net, 1 - from)), (0, waiting));
    move_group(&mut net, group, from);
    move_group(&mut net, group, 1 - from);
    net.finish();
    for host in &net.hosts {
        assert_eq!(host.total("closed"), 1);
    }
}

#[test]
fn keepalive_goes_on_on_the_new_thread() {
    let (mut net, group) = one_connection(2, |config| {
        config.tcp.keepalive_idle_s = 1;
        config.tcp.keepalive_interval_us = 1_000_000;
    });
    let from = net.hosts[1].shared.owner(group);
    net.hosts.iter_mut().for_each(|host| host.idle = true);
    net.spin(300);
    move_group(&mut net, group, 1 - from);
    for _ in 0..250 {
        net.now_us += 10_000;
        net.spin(10);
    }
    let probes = [from, 1 - from].map(|t| net.hosts[1].count(t, "tcp.keepalive_probes"));
    assert!(probes[0] == 0 && probes[1] > 0, "{probes:?}");
    net.hosts.iter_mut().for_each(|host| host.idle = false);
    net.finish();
}

/// However often groups with distant timers move back and forth, the wheels hold as many entries as
/// there are flows.
#[test]
fn wheels_do_not_keep_what_has_left() {
    let config = |config: &mut Config| config.tcp.time_wait_us = 60_000_000;
    let host = |last, threads| Kind { config, ..kind(last, threads, 2000, Promise::Settled) };
    let mut net = TestNet::new(&host(1, 2), &host(2, 2), 6);
    for i in 0..40 {
        net.hosts[0].connect(i % 2, 2, 2000);
    }
    while net.conns() > 0 {
        net.spin(10);
    }
    let everything = GroupSet::all();
    for round in 0..60 {
        for host in 0..2 {
            net.hosts[host].migrate(&everything, round % 2);
        }
        net.spin(60);
    }
    for host in &mut net.hosts {
        for thread in &mut host.threads {
            thread.elastic.run_housekeeping(net.now_us, true);
        }
        let entries = host.total("wheel_entries");
        assert!(entries <= 2 * 40 + 4, "{entries} entries for {} flows", host.total("flows"));
    }
    net.now_us += 60_000_000;
    net.finish();
}

#[test]
fn calls_on_what_has_left_answer_moved() {
    let (mut net, group) = one_connection(2, |_| {});
    let from = net.hosts[1].shared.owner(group);
    let handle = net.hosts[1].threads[from].app.conns.values().next().unwrap().handle;
    net.hosts.iter_mut().for_each(|host| host.idle = true);
    net.spin(200);
    move_group(&mut net, group, 1 - from);
    let mut ask = |thread: usize, handle: u64| {
        let call = Call::SetOpt { handle, option: FlowOption::Nagle(false) };
        net.hosts[1].threads[thread].ask(call, net.now_us)
    };
    assert_eq!(ask(from, handle), Err(CallError::Moved));
    assert_eq!(ask(1 - from, handle), Ok(0));
    let (stale, no_group) = (handle + (1 << 24), (FLOW_GROUPS as u64) << 48 | 1 << 24);
    for wrong in [0, 1, stale, no_group, u64::MAX] {
        assert_eq!(ask(1 - from, wrong), Err(CallError::BadHandle), "{wrong:x}");
    }
    for wrong in [0, no_group, u64::MAX] {
        assert_eq!(ask(from, wrong), Err(CallError::BadHandle), "{wrong:x}");
    }
    net.hosts.iter_mut().for_each(|host| host.idle = false);
    net.finish();
}

#[test]
fn a_target_that_does_not_answer_gets_nothing() {
    let (mut net, group) = one_connection(3, |_| {});
    let from = net.hosts[1].shared.owner(group);
    let to = (from + 1) % 3;
    net.stuck = Some((1, to, net.now_us + 200_000));
    move_group(&mut net, group, to);
    let record = net.hosts[1].records()[0];
    assert_eq!((record.end, net.hosts[1].shared.owner(group)), (MigrationEnd::Refused, from));
    assert!(record.total_us >= 50_000 && record.total_us < 60_000, "{record:?}");
    // It is told later, and nothing is stuck.
    while net.stuck.is_some_and(|(_, _, until)| net.now_us < until) {
        net.spin(10);
    }
    net.spin(100);
    move_group(&mut net, group, to);
    assert_eq!(net.hosts[1].shared.owner(group), to);
    net.finish();
}

#[test]
fn a_thread_that_takes_none_gets_none() {
    let (mut net, group) = one_connection(2, |_| {});
    let from = net.hosts[1].shared.owner(group);
    net.hosts[1].threads[1 - from].elastic.set_takes_groups(false);
    move_group(&mut net, group, 1 - from);
    assert_eq!(net.hosts[1].records()[0].end, MigrationEnd::Refused);
    assert_eq!(net.hosts[1].shared.owner(group), from);
    let elastic = &mut net.hosts[1].threads[from].elastic;
    assert_eq!(elastic.migrate(GroupSet::all(), from, 9), Err(MigrateError::NoTarget));
    assert_eq!(elastic.migrate(GroupSet::all(), 2, 9), Err(MigrateError::NoTarget));
    net.finish();
}

/// A group is requested for another thread while it is still moving: it goes there next.
#[test]
fn a_chain_of_moves_ends_where_the_last_one_says() {
    let (mut net, group) = one_connection(4, |_| {});
    let groups: GroupSet = [group].into_iter().collect();
    let from = net.hosts[1].shared.owner(group);
    let mut at = from;
    for hop in 1..=40 {
        let to = (at + 1) % 4;
        assert_eq!(net.hosts[1].migrate(&groups, to), 1, "hop {hop}");
        // Only until the owner changes: the migration itself has not ended.
        while net.hosts[1].shared.owner(group) != to {
            net.step();
        }
        at = to;
    }
    net.finish();
    assert!(net.hosts[1].records().iter().all(|r| r.end == MigrationEnd::Early));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]
    /// Whatever the devices are like, however long applications are non-responsive, whatever the
    /// wire loses: every byte arrives in order, and everything that was held is released.
    #[test]
    fn bytes_arrive_while_groups_move(
        seed in any::<u64>(),
        threads in (1usize..=4, 2usize..=4),
        device in 0usize..4,
        faults in (0usize..4, 0usize..10),
        most in 1usize..128,
        pace in 1usize..60,
    ) {
        let host = |last, threads| match device {
            0 => kind(last, threads, 40_000, Promise::Settled),
            1 => kind(last, threads, 40_000, Promise::InOrder),
            2 => kind(last, threads, 40_000, Promise::Silent),
            _ => without_table(last, threads, 40_000),
        };
        let mut net = TestNet::new(&host(1, threads.0), &host(2, threads.1), seed);
        net.faults = Faults { loss_percent: faults.0, late_percent: faults.1 };
        for i in 0..16 {
            net.hosts[0].connect(i % threads.0, 2, 40_000);
        }
        for _ in 0..150 {
            net.spin(pace);
            let host = net.random.index(2);
            net.migrate_some(host, most);
            if net.random.chance(0.05) {
                let host = net.random.index(2);
                let thread = net.random.index(net.hosts[host].threads.len());
                let until = net.now_us + net.random.below(120_000);
                net.stuck = Some((host, thread, until));
            }
        }
        net.finish();
    }
}
/// What the old thread has sent still waits for the wire: the new one sends nothing until it is
/// taken.
#[test]
fn the_new_thread_does_not_overtake_the_old_one() {
    let (mut net, group) = one_connection(2, |_| {});
    let from = net.hosts[1].shared.owner(group);
    net.hosts[1].idle = true;
    net.spin(300);
    net.hosts[1].device.take_sent();
    // One segment from the old thread, which no peer takes.
    let step = |net: &mut TestNet, thread: usize| {
        net.now_us += 5;
        net.hosts[1].run(thread, net.now_us);
    };
    // The application sends this many bytes more, and then nothing.
    let say = |net: &mut TestNet, thread: usize, total: usize| {
        for conn in net.hosts[1].threads[thread].app.conns.values_mut() {
            (conn.total, conn.shut) = (total, true);
        }
        net.hosts[1].idle = false;
        step(net, thread);
        net.hosts[1].idle = true;
        step(net, thread);
    };
    say(&mut net, from, 2000);
    let groups: GroupSet = [group].into_iter().collect();
    net.hosts[1].migrate(&groups, 1 - from);
    for _ in 0..20 {
        step(&mut net, from);
        step(&mut net, 1 - from);
    }
    assert_eq!(net.hosts[1].shared.owner(group), 1 - from);
    say(&mut net, 1 - from, 3000);
    for _ in 0..20 {
        step(&mut net, 1 - from);
    }
    let sent = net.hosts[1].device.take_sent();
    assert!(sent.iter().any(|(q, f)| *q == from && f.len() > 1000));
    assert!(!sent.iter().any(|(q, f)| *q != from && f.len() > 60), "overtaken");
    for _ in 0..5 {
        step(&mut net, 1 - from);
    }
    let sent = net.hosts[1].device.take_sent();
    assert!(sent.iter().any(|(q, f)| *q != from && f.len() > 60));
}

/// The server's threads alone, step by step: what it sends is taken when the test asks for it.
struct Alone {
    net: TestNet,
    from: usize,
    groups: GroupSet,
}

impl Alone {
    /// One idle connection, on a device with room for this many sent frames.
    fn new(sent_frames: usize) -> Alone {
        let config = |config: &mut Config| config.tcp.timestamps = true;
        let host = |last, threads| Kind { config, ..kind(last, threads, 1000, Promise::Settled) };
        let mut server = host(2, 2);
        server.options.wire = sent_frames;
        let (mut net, group) = connect_one(&host(1, 1), &server);
        net.hosts[1].idle = true;
        net.spin(300);
        net.hosts[1].device.take_sent();
        let from = net.hosts[1].shared.owner(group);
        Alone { net, from, groups: [group].into_iter().collect() }
    }

    fn step(&mut self, thread: usize) {
        self.net.now_us += 5;
        self.net.hosts[1].run(thread, self.net.now_us);
    }

    /// The application sends this many bytes, and then nothing.
    fn say(&mut self, thread: usize, total: usize) {
        for conn in self.net.hosts[1].threads[thread].app.conns.values_mut() {
            (conn.total, conn.shut) = (total, true);
        }
        self.net.hosts[1].idle = false;
        self.step(thread);
        self.net.hosts[1].idle = true;
        self.step(thread);
    }

    fn migrate(&mut self) {
        let to = 1 - self.from;
        self.net.hosts[1].migrate(&self.groups, to);
        for _ in 0..20 {
            self.step(self.from);
            self.step(to);
        }
        let group = self.groups.iter().next().unwrap();
        assert_eq!(self.net.hosts[1].shared.owner(group), to);
    }

    /// Queues and sequence numbers of the data that was sent since the last call.
    fn sent(&mut self) -> Vec<(usize, u32)> {
        let sent = self.net.hosts[1].device.take_sent();
        let number = |frame: &[u8]| u32::from_be_bytes(frame[38..42].try_into().unwrap());
        let data = sent.iter().filter(|(_, frame)| frame.len() > 80 && frame[23] == 6);
        data.map(|(queue, frame)| (*queue, number(frame))).collect()
    }
}

/// Packets that wait for their next hop's address are sent by the new thread, before its own.
#[test]
fn what_waits_for_a_next_hop_goes_along() {
    let mut alone = Alone::new(4096);
    let mac = [2, 0, 0, 0, 0, 2];
    alone.net.hosts[1].shared.neighbors.links_changed(&[mac], alone.net.now_us);
    alone.say(alone.from, 2000);
    let asked = alone.net.hosts[1].device.take_sent();
    assert!(!asked.is_empty() && asked.iter().all(|(_, frame)| frame[12..14] == [8, 6]));
    alone.migrate();
    alone.say(1 - alone.from, 3000);
    assert_eq!(alone.sent(), []);
    assert_eq!(alone.net.hosts[1].threads[alone.from].elastic.io.cx.tx_pool.in_use(), 0);
    // The reply arrives; the new thread is the last to learn of it.
    for (_, frame) in asked {
        alone.net.hosts[0].device.deliver(frame);
    }
    for _ in 0..3 {
        alone.net.hosts[0].run(0, alone.net.now_us);
    }
    for (_, frame) in alone.net.hosts[0].device.take_sent() {
        alone.net.hosts[1].device.deliver(frame);
    }
    for _ in 0..4 {
        alone.step(alone.from);
    }
    assert_eq!(alone.sent(), []);
    for _ in 0..4 {
        alone.step(1 - alone.from);
    }
    let sent = alone.sent();
    assert!(sent.len() == 2 && sent.is_sorted(), "{sent:?}");
    assert!(sent.iter().all(|(queue, _)| *queue == 1 - alone.from), "{sent:?}");
    for host in &alone.net.hosts {
        assert_eq!(host.total("tcp.retransmits") + host.total("drops.arp_pending"), 0);
    }
}

/// Also packets that wait for a rate.
#[test]
fn what_waits_for_a_rate_goes_along() {
    for rules in ["rate tx 100kbit", "rate flow 100kbit"] {
        let mut alone = Alone::new(4096);
        let shared = alone.net.hosts[1].shared.clone();
        shared.vnic_rules.set(rules.parse().unwrap());
        alone.say(alone.from, 9000);
        let first = alone.sent();
        assert!(first.len() < 5, "{rules}: {first:?}");
        alone.migrate();
        alone.say(1 - alone.from, 10_000);
        shared.vnic_rules.set(Default::default());
        for _ in 0..4 {
            alone.step(alone.from);
        }
        for _ in 0..4 {
            alone.step(1 - alone.from);
        }
        let rest = alone.sent();
        assert!(rest.iter().all(|(queue, _)| *queue == 1 - alone.from), "{rules}: {rest:?}");
        let numbers: Vec<u32> = first.iter().chain(&rest).map(|(_, n)| *n).collect();
        assert!(numbers.len() == 7 && numbers.is_sorted(), "{rules}: {numbers:?}");
    }
}

/// Packets that wait for room in a device are sent by the old thread, and the new one waits for
/// that.
#[test]
fn what_waits_for_a_device_leaves_first() {
    let mut alone = Alone::new(2);
    alone.say(alone.from, 9000);
    let mut all = alone.sent();
    assert_eq!(all.len(), 2);
    alone.migrate();
    alone.say(1 - alone.from, 10_000);
    let more = alone.sent();
    assert!(more.iter().all(|(queue, _)| *queue == alone.from), "overtaken: {more:?}");
    all.extend(more);
    for _ in 0..10 {
        alone.step(alone.from);
        alone.step(1 - alone.from);
        all.extend(alone.sent());
    }
    let numbers: Vec<u32> = all.iter().map(|(_, number)| *number).collect();
    assert!(numbers.len() == 7 && numbers.is_sorted(), "{numbers:?}");
    assert_eq!(all.last().unwrap().0, 1 - alone.from);
    assert_eq!(alone.net.hosts[1].total("tcp.retransmits"), 0);
}

/// Virtual time may be that of Linux's clock, and is read from nowhere else.
#[test]
fn a_migration_reads_no_clock() {
    let at_us = crate::clock::Clock::new().now_us();
    let records = || {
        let (mut net, group) = one_connection(2, |_| {});
        net.now_us = at_us;
        net.spin(1000);
        let to = 1 - net.hosts[1].shared.owner(group);
        move_group(&mut net, group, to);
        net.hosts[1].records()
    };
    let first = records();
    assert!(first.iter().all(|r| r.total_us < 10_000 && r.descheduled_us == 0), "{first:?}");
    assert_eq!(first, records());
}
