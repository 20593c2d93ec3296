//! The points of `ix bench loss`: at most 60, each with a name.
use super::{Harm, PLAIN};

/// What goes over the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Bulk data from the server, which is IX or Linux, to a Linux client.
    Out,
    /// Bulk data from a Linux client to the server.
    In,
    /// Replies of 10 KB from the server, each asked for when the one before has arrived.
    Replies,
}

impl Work {
    pub fn name(self) -> &'static str {
        match self {
            Work::Out => "out",
            Work::In => "in",
            Work::Replies => "replies",
        }
    }
}

/// One point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cell {
    pub work: Work,
    pub harm: Harm,
    pub flows: usize,
    /// Congestion control of both.
    pub congestion: &'static str,
}

impl Cell {
    /// Its name: work, round trip, faults, flows if there are several, and the congestion control
    /// if it is not CUBIC.
    pub fn name(&self) -> String {
        let Harm { rtt_us, jitter_percent, loss_percent, burst, reorder_percent } = self.harm;
        let mut name = format!("{}-{}ms-{loss_percent}%", self.work.name(), rtt_us as f64 / 1e3);
        if burst > 1.0 {
            name += "-bursts";
        }
        if jitter_percent > 0.0 {
            name += "-jitter";
        }
        if reorder_percent > 0.0 {
            name += "-reordered";
        }
        if self.flows > 1 {
            name += &format!("-{}", self.flows);
        }
        if self.congestion != CUBIC {
            name += &format!("-{}", self.congestion);
        }
        name
    }

    /// Seconds before the measurement begins, and its length: longer on longer paths.
    pub fn times(&self, seconds: f64) -> (f64, f64) {
        let rtt_s = self.harm.rtt_us as f64 * 1e-6;
        (0.5 + 10.0 * rtt_s, seconds + 20.0 * rtt_s)
    }
}

const CUBIC: &str = "cubic";
const BBR: &str = "bbr";

/// Points that `--quick` measures.
const QUICK: [&str; 10] = [
    "out-0.1ms-0%",
    "out-10ms-0%",
    "out-10ms-1%",
    "out-10ms-0%-reordered",
    "out-80ms-0.1%",
    "out-80ms-0%-jitter",
    "out-80ms-1%-16",
    "in-80ms-0%",
    "replies-80ms-1%-16",
    "out-80ms-1%-bbr",
];

/// All points, or those of `--quick`.
pub(super) fn cells(quick: bool) -> Vec<Cell> {
    let mut cells = Vec::new();
    let mut add = |work, flows, rtts_us: &[u64], losses: &[f64]| {
        for &rtt_us in rtts_us {
            for &loss_percent in losses {
                let harm = Harm { rtt_us, loss_percent, ..PLAIN };
                cells.push(Cell { work, flows, harm, congestion: CUBIC });
            }
        }
    };
    add(Work::Out, 1, &[100, 1_000, 10_000, 80_000, 300_000], &[0.0, 0.1, 1.0, 5.0]);
    add(Work::Out, 16, &[10_000, 80_000, 300_000], &[0.0, 1.0]);
    add(Work::In, 1, &[10_000, 80_000, 300_000], &[0.0, 1.0]);
    add(Work::In, 16, &[10_000, 80_000], &[0.0, 1.0]);
    add(Work::Replies, 1, &[100, 10_000, 80_000, 300_000], &[0.0, 1.0]);
    add(Work::Replies, 16, &[80_000], &[0.0, 1.0]);
    let one = |work, harm| Cell { work, flows: 1, harm, congestion: CUBIC };
    let bursts = Harm { loss_percent: 1.0, burst: 5.0, ..PLAIN };
    let far = Harm { rtt_us: 80_000, ..PLAIN };
    cells.extend([
        one(Work::Out, bursts),
        one(Work::Out, Harm { reorder_percent: 2.0, ..PLAIN }),
        one(Work::Out, Harm { reorder_percent: 2.0, ..far }),
        one(Work::Out, Harm { jitter_percent: 10.0, ..PLAIN }),
        one(Work::Out, Harm { jitter_percent: 10.0, ..far }),
        one(Work::In, Harm { jitter_percent: 10.0, ..far }),
        Cell {
            flows: 16,
            ..one(Work::Out, Harm { jitter_percent: 10.0, loss_percent: 1.0, ..far })
        },
        Cell { flows: 16, ..one(Work::Replies, Harm { jitter_percent: 10.0, ..far }) },
    ]);
    for (rtt_us, loss_percent, flows) in [
        (10_000, 0.0, 1),
        (10_000, 1.0, 1),
        (80_000, 0.0, 1),
        (80_000, 1.0, 1),
        (80_000, 5.0, 1),
        (80_000, 1.0, 16),
    ] {
        let harm = Harm { rtt_us, loss_percent, ..PLAIN };
        cells.push(Cell { flows, congestion: BBR, ..one(Work::Out, harm) });
    }
    if quick {
        cells.retain(|cell| QUICK.contains(&cell.name().as_str()));
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn there_are_at_most_sixty_each_with_its_name_and_ten_quick_ones() {
        let all = cells(false);
        let names: BTreeSet<String> = all.iter().map(Cell::name).collect();
        assert!(all.len() <= 60, "{}", all.len());
        assert_eq!(names.len(), all.len());
        assert_eq!(cells(true).len(), QUICK.len());
    }

    #[test]
    fn jitter_is_a_part_of_the_round_trip() {
        let harm = Harm { rtt_us: 80_000, jitter_percent: 10.0, ..PLAIN };
        assert_eq!((harm.back().jitter_ns, harm.back().delay_ns), (8_000_000, 40_000_000));
        assert_eq!(harm.queue_bytes(), 1_000_000);
        assert_eq!(Harm { rtt_us: 100, ..PLAIN }.queue_bytes(), super::super::QUEUE_MIN_BYTES);
    }
}
