//! What a dataplane says of itself, for tests of its readers.
use ix_proto::control::{
    Commands, Group, MemoryUse, Report, Sharer, Sharing, Status, TIME_BOUNDS_US, Thread, Times,
    Window,
};
use ix_proto::{GroupSet, MigrationEnd, MigrationRecord, ThreadState};
use std::collections::BTreeMap;

/// Two threads, one of them parked, at a time in µs, under a load that grows with it.
pub fn sample(now_us: u64) -> Status {
    let n = now_us / 1000;
    Status {
        program: "/usr/bin/ix-echo".to_owned(),
        pid: 7,
        now_us,
        ticks_per_us: 2500,
        batch_bound: 64,
        devices: vec!["tap:ix0".to_owned()],
        device_states: vec!["up".to_owned()],
        threads: vec![
            thread(ThreadState::Active, 2, GroupSet::all(), n, 1.0),
            thread(ThreadState::Parked, 3, GroupSet::EMPTY, 0, 0.0),
        ],
        groups: (0..128).map(|g| Group { thread: Some(0), packets: n * g }).collect(),
        commands: Commands { done: 2, refused: 1, ended: 3, ..Commands::default() },
        migrations_ever: 12,
        migrations: vec![MigrationRecord {
            flow_groups: (0..64).collect(),
            from: 1,
            flows: 31,
            packets: 2,
            prepare_us: 11,
            wait_us: 42,
            rpc_us: 23,
            total_us: 76,
            pause_us: 60,
            end: MigrationEnd::Early,
            ..MigrationRecord::default()
        }],
        controller: Some(Report {
            pid: 99,
            policy: "energy".to_owned(),
            slo_us: 300.0,
            rung: 2,
            rungs: 5,
            configuration: "1 core".to_owned(),
            last: "ix-echo (7) up to 1 core".to_owned(),
            power_w: None,
        }),
        sharing: Some(Sharing {
            processes: vec![Sharer { number: 0, pid: 7 }, Sharer { number: 2, pid: 9 }],
            refused: 1,
            died: 3,
            memory: MemoryUse {
                receive_bytes: 6 << 20,
                build_bytes: 4096,
                transmit_bytes: 0,
                own_bytes: 2_500_000,
            },
        }),
        ..Status::default()
    }
}

fn thread(state: ThreadState, cpu: u32, flow_groups: GroupSet, n: u64, busy: f64) -> Thread {
    let named = |counts: &[(&str, u64)]| -> BTreeMap<String, u64> {
        counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    };
    let mut waited = vec![0; TIME_BOUNDS_US.len() + 1];
    (waited[1], waited[5]) = (n - n / 5, n / 5);
    Thread {
        state,
        cpu,
        flow_groups,
        window: Window {
            queueing_delay_us: [12.5 * busy, 12.0, 11.0],
            queue_depth: [70.0 * busy, 60.0, 50.0],
            batch: [8.0 * busy, 8.0, 8.0],
            iteration_us: [10.0 * busy, 10.0, 10.0],
            idle: [1.0 - 0.6 * busy, 0.4, 0.4],
            rate_per_s: [1000.0 * busy, 990.0, 900.0],
        },
        counters: named(&[
            ("rx_packets", n),
            ("tx_packets", n),
            ("rx_bytes", 64 * n),
            ("tx_bytes", 64 * n),
            ("cycles", n),
            ("busy_cycles", n),
            ("events", n),
            ("calls", n),
            ("flows", 3),
        ]),
        drops: named(&[("no_flow", n / 100), ("backlog", 0)]),
        tcp: named(&[("fast_retransmits", 1)]),
        busy_cycles_took: Times { counts: vec![n; TIME_BOUNDS_US.len() + 1], sum_ns: n * 1000 },
        stage_ticks: named(&[("poll", n), ("process", n), ("app", 2 * n), ("idle", 4 * n)]),
        batches: vec![0, n, 0],
        packets_waited: Times { counts: waited, sum_ns: n * 1000 },
        ..Thread::default()
    }
}
