//! IX's TCP against TCPs that others wrote: every scenario with every peer, as a matrix.
//!
//! Libraries run in virtual time from seeds, so that a failure can be repeated; programs run in
//! real time. `--nocapture` prints the matrix.
mod external;
mod ours;
mod play;
mod smol;
mod stack;

use ix_skip::{Need, skip};
use ix_tcp::Config;
use ours::Ours;
use play::{App, Played, Weather};
use smol::Smoltcp;
use stack::{Opening, Stack};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What both ends offer.
#[derive(Clone, Copy, Debug)]
struct Offer {
    sack: bool,
    timestamps: bool,
    window_scaling: bool,
    /// Largest IP packet on each end.
    mtu: [u16; 2],
    /// Receive buffer of each end.
    buffer_bytes: [u32; 2],
}

const USUAL: Offer = Offer {
    sack: true,
    timestamps: true,
    window_scaling: true,
    mtu: [1500; 2],
    buffer_bytes: [512 << 10, 256 << 10],
};

/// One row of the matrix.
struct Scenario {
    name: &'static str,
    offer: Offer,
    apps: [App; 2],
    weather: Weather,
}

const CLEAR: Weather = Weather { loss: 0, reorder: 0, duplicate: 0 };
const RAIN: Weather = Weather { loss: 50, reorder: 0, duplicate: 0 };
const STORM: Weather = Weather { loss: 100, reorder: 100, duplicate: 50 };
const BULK: usize = 300_000;
/// Bulk bytes in real time, where others wait for their timers.
const SHORT_BULK: usize = 80_000;
/// How long a reader does not read: longer than the first backoffs of the probes of a closed
/// window.
const STALL_US: u64 = 30_000_000;
/// The same in real time.
const SHORT_STALL_US: u64 = 1_500_000;
/// Conversations in real time that run at once.
const AT_ONCE: usize = 11;

const ACTIVE: App = App::new(Opening::Active, 0);
const PASSIVE: App = App::new(Opening::Passive, 0);

fn sends(app: App, sends: usize) -> App {
    App { sends, ..app }
}

fn scenarios(stall_us: u64, bulk_bytes: usize) -> Vec<Scenario> {
    let both = |bytes| [sends(ACTIVE, bytes), sends(PASSIVE, bytes)];
    let plain = |name, apps| Scenario { name, offer: USUAL, apps, weather: CLEAR };
    let bulk = |name, offer, weather| Scenario { name, offer, apps: both(bulk_bytes), weather };
    let last = |app: App| App { waits_for_end: true, ..sends(app, bulk_bytes) };
    vec![
        plain("we connect, they close", [App { waits_for_end: true, ..ACTIVE }, PASSIVE]),
        plain("they connect, we close", [PASSIVE, App { waits_for_end: true, ..ACTIVE }]),
        plain("bulk both ways", both(bulk_bytes)),
        bulk("bulk, 5 % loss", USUAL, RAIN),
        bulk("bulk, loss, reordering, copies", USUAL, STORM),
        plain("half close: they go on", [sends(ACTIVE, 10), last(PASSIVE)]),
        plain("half close: we go on", [last(PASSIVE), sends(ACTIVE, 10)]),
        plain(
            "we reset",
            [
                App { aborts_at: Some(50_000), ..sends(ACTIVE, bulk_bytes) },
                sends(PASSIVE, bulk_bytes),
            ],
        ),
        plain(
            "they reset",
            [
                sends(ACTIVE, bulk_bytes),
                App { aborts_at: Some(50_000), ..sends(PASSIVE, bulk_bytes) },
            ],
        ),
        plain(
            "our window stays closed",
            [App { reads_from_us: stall_us, ..ACTIVE }, sends(PASSIVE, 2_000_000)],
        ),
        plain(
            "their window stays closed",
            [sends(ACTIVE, 2_000_000), App { reads_from_us: stall_us, ..PASSIVE }],
        ),
        plain("simultaneous open", [sends(ACTIVE, 10_000), App::new(Opening::Active, 10_000)]),
        plain("simultaneous close", [sends(ACTIVE, 1), sends(PASSIVE, 1)]),
        bulk("no SACK, loss", Offer { sack: false, ..USUAL }, RAIN),
        bulk("no timestamps, loss", Offer { timestamps: false, ..USUAL }, RAIN),
        bulk("no window scaling", Offer { window_scaling: false, ..USUAL }, CLEAR),
        bulk(
            "nothing but RFC 793, loss",
            Offer { sack: false, timestamps: false, window_scaling: false, ..USUAL },
            RAIN,
        ),
        bulk("we have an MTU of 296", Offer { mtu: [296, 1500], ..USUAL }, CLEAR),
        bulk("they have an MTU of 296", Offer { mtu: [1500, 296], ..USUAL }, RAIN),
        bulk(
            "windows of 1 GB and 16 MB",
            Offer { buffer_bytes: [1 << 30, 16 << 20], ..USUAL },
            RAIN,
        ),
        bulk("windows of a few segments", Offer { buffer_bytes: [4_000, 3_000], ..USUAL }, RAIN),
    ]
}

fn config(offer: &Offer) -> Config {
    Config {
        mss: offer.mtu[0] - ix_tcp::HEADER_BYTES,
        sack: offer.sack,
        timestamps: offer.timestamps,
        window_scaling: offer.window_scaling,
        rcv_buf_bytes: offer.buffer_bytes[0],
        time_wait_us: 1_000_000,
        // No end gives up because of many losses in a row.
        r2_us: u32::MAX,
        ..Config::default()
    }
}

/// Plays all scenarios with a peer that `make` makes; returns a line for each that failed.
fn play_all(seeds: u64, make: impl Fn(&Offer) -> Box<dyn Stack>) -> Vec<String> {
    const LIMIT_US: u64 = 1_800_000_000;
    let mut failures = Vec::new();
    for scenario in scenarios(STALL_US, BULK) {
        let mut verdict = Ok(());
        for seed in 0..seeds {
            let mut ours = Ours::new(config(&scenario.offer));
            let mut theirs = make(&scenario.offer);
            let (apps, weather) = (scenario.apps, scenario.weather);
            let played = Played::new(&mut ours, &mut *theirs, apps, weather, seed);
            verdict = played.run(LIMIT_US).map_err(|why| format!("seed {seed}: {why}"));
            if verdict.is_err() {
                break;
            }
        }
        println!("  {:<32} {}", scenario.name, if verdict.is_ok() { "ok" } else { "FAILED" });
        if let Err(why) = verdict {
            failures.push(format!("{}: {why}", scenario.name));
        }
    }
    failures
}

#[test]
fn smoltcp_understands_us_and_we_it() {
    println!("IX and smoltcp");
    let failures = play_all(5, |offer| {
        let buffer_bytes = offer.buffer_bytes[1] as usize;
        let mtu = usize::from(offer.mtu[1]);
        Box::new(Smoltcp::new(1_000_000, mtu, buffer_bytes, offer.timestamps))
    });
    assert!(failures.is_empty(), "{failures:#?}");
}

/// Plays all scenarios with a peer that is a program, several at once; returns what failed.
/// `lacks`: scenarios that the peer does not support, and why; `rain`: also those on a lossy link,
/// where such peers wait for slow timers.
fn play_all_with(program: &Path, lacks: &[(&str, &str)], rain: bool) -> Vec<String> {
    let mut all = scenarios(SHORT_STALL_US, SHORT_BULK);
    all.retain(|scenario| rain || scenario.weather.loss == 0);
    all.retain(|scenario| {
        let lack = lacks.iter().find(|(name, _)| *name == scenario.name);
        if let Some((name, why)) = lack {
            println!("  {name:<32} not played: {why}");
        }
        lack.is_none()
    });
    let mut failures = Vec::new();
    for some in all.chunks(AT_ONCE) {
        let verdicts: Vec<_> = std::thread::scope(|scope| {
            let play = |scenario| move || external::Played::run(scenario, program, 1);
            let played: Vec<_> = some.iter().map(|one| scope.spawn(play(one))).collect();
            played.into_iter().map(|one| one.join().expect("plays")).collect()
        });
        for (scenario, verdict) in some.iter().zip(verdicts) {
            println!("  {:<32} {}", scenario.name, if verdict.is_ok() { "ok" } else { "FAILED" });
            failures.extend(verdict.err().map(|why| format!("{}: {why}", scenario.name)));
        }
    }
    failures
}

/// A program that was made for one test and is deleted after it.
struct Program(PathBuf);

impl Drop for Program {
    fn drop(&mut self) {
        // What remains is in the folder for temporary files.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Makes a peer by a command in the folder of its sources, which writes a program to the file
/// `out`. `None` if that fails; the test then skips.
fn made(test: &str, folder: &str, mut command: Command, out: &str, mend: &str) -> Option<Program> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers").join(folder);
    // Tests run at once and in several processes: each has a program of its own.
    let made =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{out}-{test}-{}", std::process::id()));
    match command.current_dir(here).arg("-o").arg(&made).output() {
        Ok(output) if output.status.success() => Some(Program(made)),
        Ok(output) => {
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            skip(test, Need::Program(mend), format_args!("cannot make the peer: {errors}"));
            None
        }
        Err(e) => {
            let program = command.get_program().display();
            skip(test, Need::Program(mend), format_args!("{program}: {e}"));
            None
        }
    }
}

/// netstack, unless it cannot be built.
fn netstack(test: &str) -> Option<Program> {
    let mut command = Command::new("go");
    command.arg("build");
    let mend = "install Go, and let it reach its module proxy";
    made(test, "netstack", command, "netstack", mend)
}

/// lwIP, unless it cannot be built.
fn lwip(test: &str) -> Option<Program> {
    let mut command = Command::new("cc");
    command.args(["-Wall", "-O1", "-I/usr/include/lwip", "main.c", "-llwip", "-lpthread"]);
    made(test, "lwip", command, "lwip", "apt-get install gcc liblwip-dev")
}

/// Linux, unless it is not available: a program that uses sockets in a network namespace of its
/// own.
fn linux(test: &str) -> Option<Program> {
    let mut command = Command::new("cc");
    command.args(["-Wall", "-O1", "main.c", "-lpthread"]);
    let program = made(test, "linux", command, "linux", "apt-get install gcc")?;
    let probed = Command::new(&program.0).arg("probe").output().expect("runs");
    if !probed.status.success() {
        let why = String::from_utf8_lossy(&probed.stderr).into_owned();
        skip(test, Need::Root, why.trim_end());
        return None;
    }
    Some(program)
}

const LWIP_LACKS: [(&str, &str); 1] = [("simultaneous open", "lwIP takes no SYN in SYN-SENT")];

#[test]
fn netstack_understands_us_and_we_it() {
    let Some(program) = netstack("netstack_understands_us_and_we_it") else { return };
    println!("IX and gVisor's netstack");
    let failures = play_all_with(&program.0, &[], false);
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn linux_understands_us_and_we_it() {
    let Some(program) = linux("linux_understands_us_and_we_it") else { return };
    println!("IX and Linux");
    let failures = play_all_with(&program.0, &[], true);
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn lwip_understands_us_and_we_it() {
    let Some(program) = lwip("lwip_understands_us_and_we_it") else { return };
    println!("IX and lwIP");
    let failures = play_all_with(&program.0, &LWIP_LACKS, false);
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
#[ignore = "a minute or two: what programs do on a lossy link"]
fn programs_understand_us_and_we_them_in_the_rain() {
    let test = "programs_understand_us_and_we_them_in_the_rain";
    let mut failures = Vec::new();
    if let Some(program) = netstack(test) {
        println!("IX and gVisor's netstack");
        failures.extend(play_all_with(&program.0, &[], true));
    }
    if let Some(program) = lwip(test) {
        println!("IX and lwIP");
        failures.extend(play_all_with(&program.0, &LWIP_LACKS, true));
    }
    assert!(failures.is_empty(), "{failures:#?}");
}
