//! A thread's counters, for tests here and in `ix-ctl`.
use ix_proto::control::{Hardware, Thread};

/// Counters of a thread that received 300 packets in 4 cycles, with `hardware` as given.
pub fn thread(hardware: Option<Hardware>) -> Thread {
    let named = |counts: &[(&str, u64)]| {
        counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    };
    Thread {
        counters: named(&[
            ("rx_packets", 300),
            ("tx_packets", 290),
            ("busy_cycles", 5),
            ("events", 310),
            ("calls", 600),
        ]),
        stage_ticks: named(&[
            ("poll", 3000),
            ("process", 30_000),
            ("app", 20_000),
            ("calls", 12_000),
            ("timers", 1000),
            ("transmit", 14_000),
            ("idle", 20_000),
        ]),
        batches: vec![7, 0, 1, 0, 0, 1, 0, 1, 1, 0, 0, 0],
        hardware,
        ..Thread::default()
    }
}
