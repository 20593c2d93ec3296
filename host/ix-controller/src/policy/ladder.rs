//! Ladders: the order in which resources are added, and its rungs on a machine.
use super::Gain;
use crate::{Clock, Configuration, Machine};

/// A quantity that a ladder names without knowing the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The least of the machine.
    Lowest,
    /// All of the machine; of clocks, the fastest that can be held.
    Highest,
    /// This much (clocks: kHz).
    Exactly(u32),
}

/// A part of a ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Add {
    /// Cores, one per rung.
    Cores,
    /// The other hardware threads of all cores, in one rung.
    Hyperthreads,
    /// The next faster clock, one per rung.
    Clock,
    /// Turbo, in one rung.
    Turbo,
    /// All resources, in one rung.
    Everything,
}

impl Add {
    /// All of them.
    pub const ALL: [Add; 5] =
        [Add::Cores, Add::Hyperthreads, Add::Clock, Add::Turbo, Add::Everything];

    /// Name in files.
    pub fn name(self) -> &'static str {
        match self {
            Add::Cores => "cores",
            Add::Hyperthreads => "hyperthreads",
            Add::Clock => "clock",
            Add::Turbo => "turbo",
            Add::Everything => "everything",
        }
    }
}

/// The order in which resources are added, as data.
#[derive(Clone, Debug, PartialEq)]
pub struct Ladder {
    /// Cores of the lowest rung.
    pub cores: Level,
    /// Hardware threads of a core on the lowest rung.
    pub threads_per_core: Level,
    /// Clock of the lowest rung.
    pub clock: Level,
    /// What is added to the lowest rung, in this order.
    pub add: Vec<Add>,
    /// Cores that no dataplane uses go to the background job.
    pub background: bool,
}

/// A ladder on a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Rungs {
    /// Configurations, lowest first; at least one. Each gives more than those before it.
    pub list: Vec<Configuration>,
    /// Throughput of each by the policy's assumptions, relative to the lowest.
    pub capacities: Vec<f64>,
    /// Parts of the ladder that this machine lacks, one line each.
    pub skipped: Vec<String>,
}

impl Ladder {
    /// The rungs on a machine for a dataplane that may have this many cores, and hardware threads
    /// of each. What the machine lacks is skipped.
    pub fn rungs(
        &self,
        machine: &Machine,
        gain: &Gain,
        cores: u32,
        threads_per_core: u32,
    ) -> Rungs {
        let mut skipped = Vec::new();
        let threads = threads_per_core.max(1);
        let clocks = &machine.clocks_khz;
        let mut now = Configuration {
            cores: within(self.cores, cores.max(1)),
            threads_per_core: within(self.threads_per_core, threads),
            clock: clock_at(self.clock, clocks),
        };
        let mut list = vec![now];
        for &add in &self.add {
            let before = list.len();
            match add {
                Add::Cores => {
                    while now.cores < cores {
                        now.cores += 1;
                        list.push(now);
                    }
                }
                Add::Hyperthreads => {
                    now.threads_per_core = threads;
                    list.push(now);
                }
                Add::Clock => {
                    for &khz in clocks.iter().filter(|&&khz| Some(Clock::Khz(khz)) > now.clock) {
                        list.push(Configuration { clock: Some(Clock::Khz(khz)), ..now });
                    }
                    now = list[list.len() - 1];
                }
                Add::Turbo if machine.turbo => {
                    now.clock = Some(Clock::Turbo);
                    list.push(now);
                }
                Add::Turbo => {}
                Add::Everything => {
                    now.cores = cores.max(now.cores);
                    now.threads_per_core = threads;
                    now.clock = if machine.turbo { Some(Clock::Turbo) } else { machine.nominal() };
                    list.push(now);
                }
            }
            list.dedup();
            if list.len() == before {
                skipped.push(format!("{}: {}", add.name(), lacks(add, machine, cores, threads)));
            }
        }
        let capacity = |c: &Configuration| gain.capacity(c, machine.nominal());
        let lowest = capacity(&list[0]);
        let capacities = list.iter().map(|c| capacity(c) / lowest).collect();
        Rungs { list, capacities, skipped }
    }
}

impl Rungs {
    /// The rung of the present state after a restart: the same configuration, else the lowest that
    /// gives as much, else the highest.
    pub fn nearest(&self, present: &Configuration, gain: &Gain, nominal: Option<Clock>) -> usize {
        if let Some(same) = self.list.iter().position(|c| c == present) {
            return same;
        }
        // An unknown clock may be a fast one: superfluous resources are removed later.
        let mut present = *present;
        present.clock = present.clock.or(nominal);
        let capacity = gain.capacity(&present, nominal) / gain.capacity(&self.list[0], nominal);
        self.lowest_with(capacity * (1.0 - 1e-9))
    }

    /// The lowest rung with at least this capacity, else the highest.
    pub fn lowest_with(&self, capacity: f64) -> usize {
        let top = self.list.len() - 1;
        self.capacities.iter().position(|&c| c >= capacity).unwrap_or(top)
    }

    /// Number of the highest rung.
    pub fn top(&self) -> usize {
        self.list.len() - 1
    }
}

fn within(level: Level, most: u32) -> u32 {
    match level {
        Level::Lowest => 1,
        Level::Highest => most,
        Level::Exactly(n) => n.clamp(1, most),
    }
}

/// The clock for a level; between two clocks, the faster one.
fn clock_at(level: Level, clocks: &[u32]) -> Option<Clock> {
    let khz = match level {
        Level::Lowest => clocks.first(),
        Level::Highest => clocks.last(),
        Level::Exactly(khz) => clocks.iter().find(|&&k| k >= khz).or(clocks.last()),
    };
    khz.copied().map(Clock::Khz)
}

fn lacks(add: Add, machine: &Machine, cores: u32, threads: u32) -> String {
    match add {
        Add::Cores => format!("this dataplane may use no more than {cores}"),
        Add::Hyperthreads => {
            format!("this dataplane may use {threads} hardware thread of each core")
        }
        Add::Clock if machine.clocks_khz.is_empty() => {
            "clocks cannot be set on this machine (see `ix doctor`)".to_owned()
        }
        Add::Clock => "the base already is the fastest".to_owned(),
        Add::Turbo if machine.turbo => "it is already in use".to_owned(),
        Add::Turbo => "turbo cannot be switched on this machine (see `ix doctor`)".to_owned(),
        Add::Everything => "the base has everything".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Core, Policy};

    /// The papers' server: 8 cores of two hardware threads, 1.2 to 2.4 GHz, turbo.
    fn papers() -> Machine {
        let core = |n| Core { cpus: vec![n, n + 8], package: 0 };
        Machine {
            cores: (0..8).map(core).collect(),
            clocks_khz: (0..13).map(|n| 1_200_000 + n * 100_000).collect(),
            turbo: true,
        }
    }

    fn rungs(name: &str, machine: &Machine, cores: u32, threads: u32) -> Rungs {
        let policy = Policy::built_in(name).expect("known");
        policy.ladder.rungs(machine, &policy.gain, cores, threads)
    }

    fn described(rungs: &Rungs) -> Vec<String> {
        rungs.list.iter().map(|c| c.to_string()).collect()
    }

    #[test]
    fn the_papers_policies_have_their_rungs_on_the_papers_server() {
        let energy = rungs("energy", &papers(), 8, 2);
        assert_eq!(energy.list.len(), 22);
        let names = described(&energy);
        assert_eq!(names[0], "1×1 at 1.20 GHz");
        assert_eq!(names[7], "8×1 at 1.20 GHz");
        assert_eq!(names[8], "8×2 at 1.20 GHz");
        assert_eq!(names[20], "8×2 at 2.40 GHz");
        assert_eq!(names[21], "8×2 at turbo");
        // 8 cores, 1.3 for their second thread, twice the clock, a tenth for turbo.
        assert!((energy.capacities[21] - 8.0 * 1.3 * 2.0 * 1.16).abs() < 1e-9);
        let consolidation = rungs("consolidation", &papers(), 8, 2);
        assert_eq!(consolidation.list.len(), 9);
        assert_eq!(described(&consolidation)[7], "8×2 at 2.40 GHz");
        assert_eq!(
            described(&rungs("minmax", &papers(), 8, 2)),
            ["1×1 at 1.20 GHz", "8×2 at turbo"]
        );
        for rungs in [energy, consolidation] {
            assert!(rungs.capacities.is_sorted_by(|a, b| a < b), "{:?}", rungs.capacities);
            assert_eq!(rungs.skipped, Vec::<String>::new());
        }
    }

    #[test]
    fn what_a_machine_lacks_is_skipped_and_named() {
        let bare = Machine { clocks_khz: Vec::new(), turbo: false, ..papers() };
        let energy = rungs("energy", &bare, 2, 1);
        assert_eq!(described(&energy), ["1×1", "2×1"]);
        assert_eq!(energy.skipped.len(), 3, "{:?}", energy.skipped);
        assert!(energy.skipped[0].starts_with("hyperthreads: "));
        assert!(energy.skipped[1].contains("clocks cannot be set"));
        assert!(energy.skipped[2].contains("turbo cannot"));
        assert_eq!(described(&rungs("energy", &bare, 1, 2)), ["1×1", "1×2"]);
        assert_eq!(described(&rungs("minmax", &bare, 1, 1)), ["1×1"]);
        assert_eq!(described(&rungs("consolidation", &bare, 2, 1)), ["1×1", "2×1"]);
    }

    #[test]
    fn a_restarted_controller_finds_the_rung_of_what_it_sees() {
        let energy = rungs("energy", &papers(), 8, 2);
        let gain = Gain::default();
        let nearest = |cores, threads_per_core, clock| {
            let present = Configuration { cores, threads_per_core, clock };
            energy.nearest(&present, &gain, papers().nominal())
        };
        for (n, rung) in energy.list.iter().enumerate() {
            assert_eq!(nearest(rung.cores, rung.threads_per_core, rung.clock), n);
        }
        let ghz = |tenths: u32| Some(Clock::Khz(tenths * 100_000));
        // 3 cores at 2.4 GHz give as much as 6 at 1.2.
        assert_eq!(nearest(3, 1, ghz(24)), 5);
        assert_eq!(nearest(3, 1, None), 5);
        assert_eq!(nearest(9, 2, Some(Clock::Turbo)), 21);
    }

    #[test]
    fn a_clock_between_two_is_the_faster_one() {
        let clocks = papers().clocks_khz;
        let at = |khz| clock_at(Level::Exactly(khz), &clocks);
        assert_eq!(at(1_250_000), Some(Clock::Khz(1_300_000)));
        assert_eq!(at(800_000), Some(Clock::Khz(1_200_000)));
        assert_eq!(at(9_000_000), Some(Clock::Khz(2_400_000)));
    }
}
