//! The phases of migrations, as in the papers' table.
use ix_proto::{MigrationEnd, MigrationRecord};

/// A column of the table: its name, its value from a record, and what the papers measured while a
/// core was added (TOCS '16, Table V): average, 95th percentile, maximum, standard deviation.
struct Phase {
    name: &'static str,
    of: fn(&MigrationRecord) -> f64,
    paper: [f64; 4],
}

const PHASES: [Phase; 6] = [
    Phase { name: "prepare", of: |r| r.prepare_us.into(), paper: [119.0, 212.0, 10_082.0, 653.0] },
    Phase { name: "wait", of: |r| r.wait_us.into(), paper: [113.0, 475.0, 1_018.0, 158.0] },
    Phase { name: "rpc", of: |r| r.rpc_us.into(), paper: [102.0, 238.0, 378.0, 75.0] },
    Phase { name: "deferred", of: |r| r.deferred_us.into(), paper: [125.0, 460.0, 2_534.0, 283.0] },
    Phase { name: "total", of: |r| r.total_us.into(), paper: [462.0, 1_227.0, 12_804.0, 927.0] },
    Phase { name: "packets", of: |r| r.packets.into(), paper: [83.0, 285.0, 2_753.0, 280.0] },
];

/// Records of migrations that took place.
#[derive(Default)]
pub struct Phases(Vec<MigrationRecord>);

impl Phases {
    /// Adds records, without those of refused migrations.
    pub fn add(&mut self, records: Vec<MigrationRecord>) {
        self.0.extend(records.into_iter().filter(|record| record.end != MigrationEnd::Refused));
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Figures of a row. A pause excludes the time in which Linux ran something else.
    pub fn figures(&self) -> Vec<(&'static str, f64)> {
        let running = self.sorted(|r| r.pause_us.saturating_sub(r.descheduled_us).into());
        let wall = self.sorted(|r| r.pause_us.into());
        let ended = |how| self.0.iter().filter(|record| record.end == how).count() as f64;
        let mut figures = vec![
            ("median_us", at(&running, 0.5)),
            ("p99_us", at(&running, 0.99)),
            ("median_wall_us", at(&wall, 0.5)),
            ("p99_wall_us", at(&wall, 0.99)),
            ("max_wall_us", at(&wall, 1.0)),
            ("ended_early", ended(MigrationEnd::Early)),
            ("ended_by_bound", ended(MigrationEnd::Bound)),
            ("ended_overdue", ended(MigrationEnd::Overdue)),
        ];
        let names = ["prepare_us", "wait_us", "rpc_us", "deferred_us", "total_us", "packets"];
        for (phase, name) in PHASES.iter().zip(names) {
            figures.push((name, mean(&self.sorted(phase.of))));
        }
        figures
    }

    /// The papers' table, with our figures beside it.
    pub fn table(&self) -> Vec<String> {
        let heading =
            "          |       avg paper / here |       p95 |      max |    stddev   (µs)";
        let mut lines = vec![heading.to_owned()];
        for Phase { name, of, paper } in &PHASES {
            let values = self.sorted(of);
            let here = [mean(&values), at(&values, 0.95), at(&values, 1.0), deviation(&values)];
            let cells: Vec<String> = paper
                .iter()
                .zip(here)
                .map(|(paper, here)| format!("{paper:>6.0} / {here:<8.0}"))
                .collect();
            lines.push(format!("{name:<10}| {}", cells.join("| ")));
        }
        lines.push(
            "paper: 16 hardware threads of a Xeon, an Intel 82599, no other work on its cores; here \
             two threads, the load generator and Linux share the cores"
                .to_owned(),
        );
        lines
    }

    fn sorted(&self, of: impl Fn(&MigrationRecord) -> f64) -> Vec<f64> {
        let mut values: Vec<f64> = self.0.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values
    }
}

/// A quantile of sorted values, by nearest rank.
fn at(sorted: &[f64], quantile: f64) -> f64 {
    let rank = (quantile * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied().unwrap_or(0.0)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn deviation(values: &[f64]) -> f64 {
    let mean = mean(values);
    let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    (squares / values.len().max(1) as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_those_that_took_place() {
        let record = |n: u32, end| MigrationRecord {
            pause_us: n,
            descheduled_us: if n > 90 { n * 2 } else { 1 },
            packets: n % 2,
            end,
            ..MigrationRecord::default()
        };
        let mut phases = Phases::default();
        phases.add((1..=100).map(|n| record(n, MigrationEnd::Early)).collect());
        phases.add((1..=50).map(|n| record(n * 1000, MigrationEnd::Refused)).collect());
        let figures = phases.figures();
        let figure = |name: &str| figures.iter().find(|f| f.0 == name).expect(name).1;
        assert_eq!(phases.len(), 100);
        assert_eq!((figure("median_wall_us"), figure("p99_wall_us")), (50.0, 99.0));
        // Ten of them did not run at all.
        assert_eq!((figure("median_us"), figure("p99_us")), (39.0, 88.0));
        assert_eq!((figure("ended_early"), figure("packets")), (100.0, 0.5));
        let table = phases.table();
        assert!(table[6].starts_with("packets") && table[6].contains("83 / 0"), "{table:#?}");
        assert_eq!(Phases::default().figures()[0].1, 0.0);
    }
}
