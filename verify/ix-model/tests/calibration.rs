//! The model's constants against the papers' numbers. Each number here is a paper's, none ours.
use ix_controller::{Clock, Configuration};
use ix_model::pareto::{self, Objective, Static};
use ix_model::service::{System, Workload};
use ix_model::{Pattern, papers, space};
use std::sync::OnceLock;

const SEED: u64 = 1;

/// All 224 configurations of the dataplane under USR; swept once for all tests.
fn ix() -> &'static [Static] {
    static SWEPT: OnceLock<Vec<Static>> = OnceLock::new();
    SWEPT.get_or_init(|| pareto::sweep(System::Ix, Workload::Usr, &space::all(), SEED))
}

fn linux() -> &'static [Static] {
    static SWEPT: OnceLock<Vec<Static>> = OnceLock::new();
    SWEPT.get_or_init(|| pareto::sweep(System::Linux, Workload::Usr, &space::all(), SEED))
}

fn at(cores: u32, threads_per_core: u32, khz: u32) -> Configuration {
    Configuration { cores, threads_per_core, clock: Some(Clock::Khz(khz)) }
}

fn found(swept: &'static [Static], configuration: Configuration) -> &'static Static {
    swept.iter().find(|s| s.configuration == configuration).expect("swept")
}

/// Mean over a run of the papers, second by second.
fn mean(pattern: Pattern, of: impl Fn(f64) -> f64) -> f64 {
    let load = pattern.load(SEED);
    let seconds = load.seconds() as u32;
    (0..seconds).map(|s| of(load.at(f64::from(s) + 0.5))).sum::<f64>() / f64::from(seconds)
}

fn assert_near(here: f64, paper: f64, within: f64, what: &str) {
    assert!((here - paper).abs() <= within, "{what}: {here:.2}, the paper {paper} ± {within}");
}

#[test]
fn table_iii_rates_at_the_slo() {
    // TOCS, table III: eight cores with hyperthreads, no power management.
    for (system, workload, paper) in [
        (System::Ix, Workload::Etc, 4_186e3),
        (System::Ix, Workload::Usr, 5_817e3),
        (System::Linux, Workload::Etc, 898e3),
        (System::Linux, Workload::Usr, 902e3),
    ] {
        let here = pareto::highest(system, workload, &at(8, 2, 2_400_000), SEED).at_slo_per_s;
        assert_near(here / paper, 1.0, 0.01, &format!("{system:?}, {workload:?}"));
    }
}

#[test]
fn table_iii_latency_without_load() {
    // TOCS, table III: 33 and 66 µs at the 99th percentile, USR.
    for (system, paper) in [(System::Ix, 33.0), (System::Linux, 66.0)] {
        let nominal = at(8, 2, 2_400_000);
        let here = pareto::p99_us(system, Workload::Usr, &nominal, 10_000.0, SEED);
        assert_near(here, paper, 2.0, &format!("{system:?}"));
    }
}

#[test]
fn figure_13_batches() {
    // TOCS 6: B = 16 gives 29 % more than B = 1, more than 16 hardly anything.
    let each = |batch: f64| 1.0 + papers::CYCLE_OVERHEAD / batch;
    assert_near(each(1.0) / each(16.0), 1.29, 0.005, "B = 16 over B = 1");
    assert_near(each(16.0) / each(64.0), 1.0, 0.02, "B = 64 over B = 16");
}

#[test]
fn the_observations_behind_the_policies() {
    // TOCS 5.4: nearly linear up to eight cores; 1.3 times by hyperthreads; proportional to clock.
    let rate = |cores, threads, khz| found(ix(), at(cores, threads, khz)).at_slo_per_s;
    let linear = rate(8, 2, 2_400_000) / rate(1, 2, 2_400_000);
    assert!((6.5..8.0).contains(&linear), "eight cores carry {linear:.2} times one core's rate");
    assert_near(rate(8, 2, 2_400_000) / rate(8, 1, 2_400_000), 1.3, 0.05, "hyperthreads");
    assert_near(rate(8, 2, 2_400_000) / rate(8, 2, 1_200_000), 2.0, 0.1, "clock");
    // SoCC 3.1: no gain by hyperthreads on Linux, which is best with one thread a core.
    let linux_rate = |threads| found(linux(), at(8, threads, 2_400_000)).at_slo_per_s;
    assert_near(linux_rate(2) / linux_rate(1), 0.95, 0.06, "hyperthreads on Linux");
    // The patterns go up to 6.3 M/s within the SLO of the largest configuration.
    assert!(found(ix(), space::most()).at_slo_per_s > 6_300e3);
}

#[test]
fn cores_are_cheaper_than_hyperthreads_and_those_than_clock() {
    // TOCS 5.4, observations 3 and 4: watts for a million requests a second more.
    let price = |from: Configuration, to: Configuration| {
        let (from, to) = (found(ix(), from), found(ix(), to));
        let watts = to.power_w(to.at_slo_per_s) - from.power_w(from.at_slo_per_s);
        watts / (to.at_slo_per_s - from.at_slo_per_s) * 1e6
    };
    let low = 1_200_000;
    let core = price(at(1, 1, low), at(8, 1, low));
    let hyperthreads = price(at(8, 1, low), at(8, 2, low));
    let clock = price(at(8, 2, low), at(8, 2, 2_400_000));
    assert!(core < hyperthreads && hyperthreads < clock, "{core} {hyperthreads} {clock} W");
}

#[test]
fn table_iv_most_power() {
    // TOCS, table IV: 92, 93, 94 W for everything the server has; SoCC, table 1: 91, 92, 94.
    let most = found(ix(), space::most());
    for pattern in Pattern::ALL {
        let here = mean(pattern, |rate| most.power_w(rate));
        assert!((91.0..=94.0).contains(&here), "{}: {here:.1} W", pattern.name());
    }
    assert!(most.power_w(6_300e3) <= 94.0);
}

#[test]
fn table_iv_bounds_of_energy() {
    // TOCS, table IV: 59, 59, 54 % saved.
    let most = found(ix(), space::most());
    for (pattern, paper) in Pattern::ALL.into_iter().zip([59.0, 59.0, 54.0]) {
        let all = mean(pattern, |rate| most.power_w(rate));
        let bound = mean(pattern, |rate| pareto::power_bound_w(ix(), rate));
        assert_near(100.0 * (1.0 - bound / all), paper, 2.0, pattern.name());
    }
}

#[test]
fn table_iv_bounds_of_the_background_job() {
    // TOCS, table IV: 53, 51, 44 % of its peak.
    for (pattern, paper) in Pattern::ALL.into_iter().zip([53.0, 51.0, 44.0]) {
        let bound = mean(pattern, |rate| pareto::background_bound(ix(), rate));
        assert_near(100.0 * bound, paper, 2.0, pattern.name());
    }
}

#[test]
fn figure_8_about_45_configurations_with_the_policys_among_them() {
    // TOCS 5.3: 45 of 224; TOCS 5.4: a superset of the energy policy's 22.
    let frontier = pareto::frontier(ix(), Objective::Power);
    assert_near(pareto::contributing(&frontier) as f64, 45.0, 3.0, "configurations");
    let cores = (1..=8).map(|cores| at(cores, 1, 1_200_000));
    let clocks = space::clocks().map(|clock| Configuration { clock: Some(clock), ..at(8, 2, 0) });
    let ladder: Vec<_> = cores.chain(clocks).collect();
    assert_eq!(ladder.len(), 22);
    for rung in ladder {
        assert!(frontier.iter().any(|s| s.best.configuration == rung), "{rung} is not on it");
    }
}

#[test]
fn figure_9_linux() {
    // TOCS 5.3, SoCC 3.1: IX's frontier is below Linux's wherever Linux is; by about half at the
    // middle of Linux's range (SoCC: below half from 54 % of its capacity on, Linux 3.16).
    let linux_most = linux().iter().map(|s| s.at_slo_per_s).fold(0.0, f64::max);
    let steps = (linux_most / pareto::GRID_PER_S) as u32;
    for rate in (1..steps).map(|step| f64::from(step) * pareto::GRID_PER_S) {
        let (here, there) =
            (pareto::power_bound_w(ix(), rate), pareto::power_bound_w(linux(), rate));
        // With next to no load Linux' core sleeps where IX' polls: less than a watt.
        let room_w = if rate < 100e3 { 1.0 } else { 0.0 };
        assert!(here < there + room_w, "{rate}: IX {here:.1} W, Linux {there:.1} W");
    }
    let half = 0.54 * linux_most;
    let ratio = pareto::power_bound_w(ix(), half) / pareto::power_bound_w(linux(), half);
    assert!(ratio < 0.7, "{ratio}");
    // Changing only the clock is nearly as good on Linux, and far from it on IX.
    let low = 0.2 * linux_most;
    let premium = |swept: &[Static]| {
        pareto::power_bound_w(&pareto::clock_only(swept), low) / pareto::power_bound_w(swept, low)
    };
    assert!(premium(linux()) < 1.2, "Linux: {}", premium(linux()));
    assert!(premium(ix()) > 1.5, "IX: {}", premium(ix()));
}
