//! The papers' three load patterns, as their load generator makes them.
use crate::papers as p;
use ix_workload::pattern::Rate;

/// A load over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Up and down evenly.
    Slope,
    /// Up and down in steps of 500 K/s.
    Step,
    /// A sine with noise that is redrawn each 5 s.
    SineNoise,
}

impl Pattern {
    /// All of them, in the papers' order.
    pub const ALL: [Pattern; 3] = [Pattern::Slope, Pattern::Step, Pattern::SineNoise];

    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            Pattern::Slope => "slope",
            Pattern::Step => "step",
            Pattern::SineNoise => "sine+noise",
        }
    }

    /// As mutilate's command line has it.
    pub fn formula(self) -> &'static str {
        match self {
            Pattern::Slope => p::SLOPE,
            Pattern::Step => p::STEP,
            Pattern::SineNoise => p::SINE_NOISE,
        }
    }

    /// Its rates. The noise is a function of the seed.
    pub fn load(self, seed: u64) -> Load {
        let rate = self.formula().parse().expect("the papers' patterns are well-formed");
        // `Rate`'s sine begins at its lowest, mutilate's a quarter of a period later.
        let quarter = if self == Pattern::SineNoise { p::PATTERN_S / 4.0 } else { 0.0 };
        Load { rate, offset_s: quarter, seed }
    }
}

/// A pattern with its seed.
#[derive(Clone, Debug)]
pub struct Load {
    rate: Rate,
    offset_s: f64,
    seed: u64,
}

impl Load {
    /// Requests a second, `at_s` into the run: first a minute at the pattern's first rate (without
    /// noise), as mutilate's `--qps-warmup=60` does it, then the pattern.
    pub fn at(&self, at_s: f64) -> f64 {
        let in_pattern = at_s - p::WARM_UP_S;
        match (&self.rate, in_pattern < 0.0) {
            (Rate::SinNoise { min, max, .. }, true) => (min + max) / 2.0,
            (rate, true) => rate.at(self.offset_s, self.seed),
            (rate, false) => rate.at(in_pattern + self.offset_s, self.seed),
        }
    }

    /// Length of the run, s.
    pub fn seconds(&self) -> f64 {
        p::WARM_UP_S + p::PATTERN_S
    }
}
