//! The constants of the model, each with its source, or with the derivation of those that no paper
//! prints.
//!
//! Calibrated once, to the papers' static results only, before any policy ran on the model; a
//! policy that misses its target is no reason to change a number here. `tests/calibration.rs`
//! compares every one with the papers.
//!
//! TOCS: Belay et al., "The IX Operating System", TOCS 34(4), 2016. SoCC: Prekas et al., SoCC '15.
//! ix-bench and mutilate: the scripts and the load generator that the papers published.

// --- The processor: Xeon E5-2665, one socket (TOCS 5.1) ---

/// Cores.
pub const CORES: u32 = 8;
/// Hardware threads of a core.
pub const THREADS_PER_CORE: u32 = 2;
/// Clocks that can be held: with turbo the papers' 14 (TOCS 5.3: 1.2 to 2.4 GHz and Turbo Boost).
pub const CLOCKS_KHZ: [u32; 13] = [
    1_200_000, 1_300_000, 1_400_000, 1_500_000, 1_600_000, 1_700_000, 1_800_000, 1_900_000,
    2_000_000, 2_100_000, 2_200_000, 2_300_000, 2_400_000,
];
/// Turbo with all cores active, the only state in which the papers' policies use it (the
/// processor's data sheet; SoCC 3.1: 4.8 times the 1.44 M/s of Linux, 1.19 times table III).
pub const TURBO_KHZ: u32 = 2_800_000;
/// How long the cores stop while the clock changes (as `acpi-cpufreq` reports).
pub const CLOCK_CHANGE_US: u64 = 10;
/// From the command to the first cycle of a parked thread (issue 6: within 50 µs).
pub const WAKE_US: u64 = 50;

// --- Requests: memcached under mutilate (TOCS 5.2.4) ---

/// Connections of the load (SoCC 2: 2,752 in all, 32 of them the measuring client's).
pub const CONNECTIONS: u32 = 2_720;
/// Most requests in flight on a connection; more wait in the client (TOCS 5.2.4).
pub const PIPELINE: u32 = 4;
/// Flow groups: entries of the 82599's redirection table (SoCC 6).
pub const FLOW_GROUPS: u16 = 128;
/// The bound on the packets of a cycle (TOCS 5.1).
pub const BATCH_BOUND: u32 = 64;
/// The objective at the 99th percentile, as a client sees it, µs (TOCS 5.2.4).
pub const SLO_US: f64 = 500.0;
/// Unloaded latency at the 99th percentile, µs, USR on IX (TOCS, table III).
pub const UNLOADED_US: f64 = 33.0;
/// Unloaded latency on Linux.
pub const UNLOADED_LINUX_US: f64 = 66.0;
/// Cost of a cycle relative to the cost of a request: B = 16 gives 29 % more than B = 1, and more
/// than 16 hardly anything (TOCS, figure 13): (o + 1) / (o / 16 + 1) = 1.29.
pub const CYCLE_OVERHEAD: f64 = 0.3155;
/// Gain by the second hardware thread of a core (TOCS 5.4: "a consistent speedup of 1.3×").
pub const HYPERTHREAD_GAIN: f64 = 1.3;
/// Time of one request in a large batch on one hardware thread of the only core in use at 2.4 GHz,
/// µs, USR: such that 8 cores with hyperthreads at 2.4 GHz carry 5,817 K/s at the SLO (TOCS, table
/// III).
pub const REQUEST_US: f64 = 1.473;
/// ETC's longer keys and values: such that the same configuration carries 4,186 K/s (TOCS, table
/// III).
pub const ETC_OVER_USR: f64 = 1.365;
/// A request on Linux 4.2: such that 8 cores carry 902 K/s (USR) and 898 K/s (ETC; TOCS, table
/// III).
pub const REQUEST_LINUX_US: f64 = 6.51;
/// ETC over USR on Linux, where the payload hardly matters.
pub const ETC_OVER_USR_LINUX: f64 = 1.005;
/// How n cores slow each other down: 1 / (1 + κ·n·(n − 1)), Gunther's coherency term. With 0 the
/// Pareto bounds of the background job come out as SoCC's table 1 has them (50 / 47 / 39 %); this
/// one value gives TOCS' (53 / 51 / 44 %, table IV) and 6.8 times one core's rate on eight, the
/// papers' "nearly linear" (TOCS 5.4).
pub const COHERENCY: f64 = 0.003;

// --- Power of the package as RAPL counts it, W ---
//
// One fit to: 91 to 94 W at most (SoCC table 1, TOCS table IV); Pareto bounds of 38 / 38 / 43 W,
// that is 59 / 59 / 54 % saved (TOCS table IV); a frontier of 45 configurations (TOCS 5.3) with
// those of the energy policy among them (TOCS 5.4); cores cheaper than hyperthreads cheaper than
// clock (TOCS 5.4).

/// Power of the package without any active core.
pub const PACKAGE_W: f64 = 16.2;
/// The ring and the last-level cache, which run at the cores' clock, at 1.2 GHz.
pub const UNCORE_W: f64 = 0.61;
/// Leakage of an active core at the voltage of 1.2 GHz.
pub const CORE_LEAKAGE_W: f64 = 0.11;
/// A core that polls on one hardware thread, at 1.2 GHz.
pub const CORE_W: f64 = 1.215;
/// Power of the second hardware thread, as a share of that.
pub const HYPERTHREAD_W: f64 = 0.44;
/// Voltage at 2.4 GHz relative to 1.2 GHz; it rises linearly between.
pub const VOLTAGE_NOMINAL: f64 = 1.325;
/// Voltage of turbo relative to 1.2 GHz.
pub const VOLTAGE_TURBO: f64 = 1.425;
/// A million requests per second, besides the polling.
pub const MILLION_REQUESTS_W: f64 = 0.40;
/// Additional power of turbo on a hot chip (SoCC 2: 4 W).
pub const TURBO_HOT_W: f64 = 4.0;
/// How fast the chip heats and cools (SoCC 2: from 58 to 78 °C "over a few minutes"), s.
pub const HEAT_TIME_S: f64 = 60.0;
/// Share of a core's power that it draws while Linux is idle on it (sleep states of the processor):
/// such that changing only the clock comes close to Linux's frontier (SoCC, figure 3).
pub const LINUX_IDLE: f64 = 0.15;

// --- Moving flow groups (TOCS, table V; µs) ---

/// Mean and 95th percentile of a migration that adds a core.
pub const MIGRATION_ADD_US: (f64, f64) = (462.0, 1_227.0);
/// Mean and 95th percentile of a migration that removes a core.
pub const MIGRATION_REMOVE_US: (f64, f64) = (86.0, 154.0);
/// Share of it that the old thread spends on preparing (119 of 462 and 23 of 86).
pub const MIGRATION_PREPARE: f64 = 0.26;

// --- The dynamic runs (TOCS 5.4; ix-bench: bench_memcached_dynamic.py) ---

/// Time before the pattern at its first rate, s; ix-bench's averages include it.
pub const WARM_UP_S: f64 = 60.0;
/// Duration of the pattern, s.
pub const PATTERN_S: f64 = 240.0;
/// `triangle:MIN:MAX:PERIOD:HOLD`.
pub const SLOPE: &str = "triangle:10000:6300000:240:0";
/// `qtriangle:MIN:MAX:PERIOD:STEP`.
pub const STEP: &str = "qtriangle:700000:6300000:240:500000";
/// `sin_noise:MIN:MAX:PERIOD:NOISE:REDRAW`; mutilate's begins in the middle, upwards.
pub const SINE_NOISE: &str = "sin_noise:500000:6000000:240:250000:5";
