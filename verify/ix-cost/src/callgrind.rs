//! Runs a scenario under callgrind and parses the counts.
//!
//! The format is that of the Callgrind manual, chapter "Callgrind Format Specification", without
//! compression of names and positions.
use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// The place of executed instructions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Source file of the line: for inlined code, that of the inlined function.
    pub file: String,
    /// Line in the file.
    pub line: u32,
    /// The function, as the linker names it.
    pub function: String,
    /// Source file in which the function begins.
    pub home: String,
}

/// What is counted of executed instructions. All but `instructions` are 0 without simulated caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Instructions.
    pub instructions: u64,
    /// Accesses to data: reads, and writes.
    pub accesses: u64,
    /// Instructions that were not in the first cache of instructions.
    pub code_misses: u64,
    /// Accesses to data that were not in the first cache of data.
    pub data_misses: u64,
    /// Instructions and data that were not in the second cache.
    pub far_misses: u64,
}

impl Counts {
    /// Combines each count with the same of another.
    fn with(self, other: Counts, both: impl Fn(u64, u64) -> u64) -> Counts {
        Counts {
            instructions: both(self.instructions, other.instructions),
            accesses: both(self.accesses, other.accesses),
            code_misses: both(self.code_misses, other.code_misses),
            data_misses: both(self.data_misses, other.data_misses),
            far_misses: both(self.far_misses, other.far_misses),
        }
    }

    /// The sum of two.
    pub fn plus(self, other: Counts) -> Counts {
        self.with(other, u64::saturating_add)
    }

    /// A line's numbers, in the order of callgrind's events: with simulated caches
    /// `Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw`, of which zeroes at the end may be left out.
    fn read<'a>(words: impl Iterator<Item = &'a str>) -> Result<Counts> {
        let mut events = [0u64; 9];
        for (event, word) in events.iter_mut().zip(words) {
            *event = word.parse()?;
        }
        let [ir, dr, dw, i1mr, d1mr, d1mw, ilmr, dlmr, dlmw] = events;
        Ok(Counts {
            instructions: ir,
            accesses: dr + dw,
            code_misses: i1mr,
            data_misses: d1mr + d1mw,
            far_misses: ilmr + dlmr + dlmw,
        })
    }
}

/// What one run counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// By place. Counts of functions without source (of the C library) are their callers' in our
    /// code.
    pub places: BTreeMap<Place, Counts>,
    /// Instructions in the two turn functions of [`crate::pair`] and all that they call: client,
    /// server.
    pub sides: [u64; 2],
    /// Instructions of a function itself, by its name.
    pub own: BTreeMap<String, u64>,
    /// Instructions that one function spends in another one that it calls, by both names.
    pub calls: BTreeMap<(String, String), u64>,
    /// How often the instruction at an address was executed, and its function; only with simulated
    /// caches.
    pub code: BTreeMap<u64, (u64, String)>,
}

/// A run: its messages and its instructions.
pub struct Run {
    /// Messages done.
    pub messages: u64,
    /// Instructions.
    pub profile: Profile,
}

/// Whether valgrind is installed.
pub fn is_there() -> bool {
    Command::new("valgrind").arg("--version").output().is_ok_and(|out| out.status.success())
}

/// The simulated caches: of a common processor, the same on every machine.
pub const CACHES: &str = "32 KB for instructions, 32 KB for data, 2 MB for both, lines of 64 bytes";
const CACHE_FLAGS: [&str; 5] = [
    "--cache-sim=yes",
    "--I1=32768,8,64",
    "--D1=32768,8,64",
    "--LL=2097152,16,64",
    "--dump-instr=yes",
];
/// Bytes of a line of a cache.
pub const LINE_BYTES: u64 = 64;

/// Runs a scenario under callgrind, with `caches` with simulated caches.
pub fn run(scenario: &str, messages: u64, caches: bool) -> Result<Run> {
    let name = format!("ix-cost-{}-{scenario}-{messages}.out", std::process::id());
    let out = std::env::temp_dir().join(name);
    let played = run_to(&out, scenario, messages, caches);
    let text = std::fs::read_to_string(&out);
    let _ = std::fs::remove_file(&out);
    let messages = played?;
    let text = text.with_context(|| format!("callgrind left no {}", out.display()))?;
    Ok(Run { messages, profile: parse(&text)? })
}

/// Runs a program under one of valgrind's tools, at the same addresses each time.
pub fn under(tool: &str) -> Command {
    let mut command = Command::new("valgrind");
    // The environment is on the stack: a long one would move it.
    command.arg(format!("--tool={tool}")).env_clear();
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command
}

fn run_to(out: &Path, scenario: &str, messages: u64, caches: bool) -> Result<u64> {
    let own = std::env::current_exe().context("cannot find the own program")?;
    let mut command = under("callgrind");
    command
        .args(["--compress-strings=no", "--compress-pos=no"])
        .args(CACHE_FLAGS.iter().take(if caches { CACHE_FLAGS.len() } else { 0 }))
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(own)
        .args([scenario, "--play", &messages.to_string()]);
    let output = command.output().context("cannot run valgrind")?;
    if !output.status.success() {
        bail!("{scenario} under callgrind: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let said = String::from_utf8_lossy(&output.stdout);
    let first = said.split_whitespace().next().unwrap_or_default();
    first.parse().with_context(|| format!("{scenario} said `{}`", said.trim()))
}

/// The state of a reader of callgrind's file.
#[derive(Default)]
struct Reader<'a> {
    object: &'a str,
    file: &'a str,
    function: &'a str,
    home: &'a str,
    callee: &'a str,
    callee_object: Option<&'a str>,
    /// The next line of costs is a call's, inclusive.
    call: bool,
    profile: Profile,
}

/// Parses callgrind's file.
fn parse(text: &str) -> Result<Profile> {
    let mut reader = Reader::default();
    let mut begun = false;
    for line in text.lines() {
        // The header ends at the first object or function.
        begun = begun || line.starts_with("ob=") || line.starts_with("fl=");
        if begun {
            reader.line(line).with_context(|| format!("callgrind's line `{line}`"))?;
        }
    }
    if reader.profile.places.is_empty() {
        bail!("callgrind counted nothing");
    }
    Ok(reader.profile)
}

impl<'a> Reader<'a> {
    fn line(&mut self, line: &'a str) -> Result<()> {
        match line.split_once('=') {
            Some(("ob", name)) => self.object = name,
            Some(("fl", name)) => (self.file, self.home) = (name, name),
            Some(("fi" | "fe", name)) => self.file = name,
            Some(("fn", name)) => self.function = name,
            Some(("cob", name)) => self.callee_object = Some(name),
            Some(("cfn", name)) => self.callee = name,
            Some(("calls", _)) => self.call = true,
            _ if line.starts_with(|c: char| c.is_ascii_digit()) => self.cost(line)?,
            // Files of calls, totals, blank lines.
            _ => {}
        }
        Ok(())
    }

    fn cost(&mut self, line: &str) -> Result<()> {
        let mut words = line.split_whitespace();
        let mut position = words.next().context("no position")?;
        let address = position.strip_prefix("0x").map(|at| u64::from_str_radix(at, 16));
        let address = address.transpose()?;
        if address.is_some() {
            position = words.next().context("no line")?;
        }
        let at = position.parse()?;
        let mut words = words.peekable();
        words.peek().context("no cost")?;
        let counts = Counts::read(words)?;
        let count = counts.instructions;
        let call = std::mem::take(&mut self.call);
        let into = self.callee_object.take().filter(|_| call);
        if call {
            let edge = (plain(self.function).to_owned(), plain(self.callee).to_owned());
            *self.profile.calls.entry(edge).or_default() += count;
            for (side, name) in ["client_turn", "server_turn"].iter().enumerate() {
                if self.callee.contains(name) {
                    self.profile.sides[side] += count;
                }
            }
        } else {
            *self.profile.own.entry(plain(self.function).to_owned()).or_default() += count;
            if let Some(address) = address.filter(|_| !is_library(self.object)) {
                let fresh = || (0, plain(self.function).to_owned());
                self.profile.code.entry(address).or_insert_with(fresh).0 += count;
            }
        }
        // The cost of a call counts where it goes, except for calls into libraries, which have no
        // source of ours; their own costs are left out in turn. The C library itself calls `main`.
        let charged =
            if call { into.is_some_and(is_library) && !is_start(self.callee) } else { true };
        if charged && !is_library(self.object) {
            let place = Place {
                file: self.file.to_owned(),
                line: at,
                function: self.function.to_owned(),
                home: self.home.to_owned(),
            };
            let sum = self.profile.places.entry(place).or_default();
            *sum = sum.plus(counts);
        }
        Ok(())
    }
}

fn is_library(object: &str) -> bool {
    object.contains(".so")
}

fn is_start(function: &str) -> bool {
    function.starts_with("__libc_start_main") || function == "(below main)"
}

impl Profile {
    /// Counts beyond those of `other`. Negative differences, which only noise at start-up
    /// causes, count as none.
    pub fn minus(mut self, other: &Profile) -> Profile {
        for (place, counts) in &mut self.places {
            let theirs = other.places.get(place).copied().unwrap_or_default();
            *counts = counts.with(theirs, u64::saturating_sub);
        }
        for (address, (count, _)) in &mut self.code {
            *count = count.saturating_sub(other.code.get(address).map_or(0, |before| before.0));
        }
        for (name, count) in &mut self.own {
            *count = count.saturating_sub(other.own.get(name).copied().unwrap_or(0));
        }
        for (edge, count) in &mut self.calls {
            *count = count.saturating_sub(other.calls.get(edge).copied().unwrap_or(0));
        }
        for (mine, theirs) in self.sides.iter_mut().zip(other.sides) {
            *mine = mine.saturating_sub(theirs);
        }
        self
    }

    /// The lines of code of each function, of instructions that were executed at least this often.
    pub fn code_lines(&self, at_least: u64) -> BTreeMap<&str, BTreeSet<u64>> {
        let mut lines = BTreeMap::<&str, BTreeSet<u64>>::new();
        for (address, (count, function)) in &self.code {
            if *count >= at_least {
                lines.entry(function).or_default().insert(address / LINE_BYTES);
            }
        }
        lines
    }

    /// Instructions by a key, most first.
    pub fn by(&self, key: impl Fn(&Place) -> String) -> Vec<(String, u64)> {
        let sums = self.counts_by(key).into_iter();
        let mut sums: Vec<_> = sums.map(|(name, counts)| (name, counts.instructions)).collect();
        sums.retain(|(_, count)| *count > 0);
        sums.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        sums
    }

    /// All counts by a key.
    pub fn counts_by(&self, key: impl Fn(&Place) -> String) -> BTreeMap<String, Counts> {
        let mut sums = BTreeMap::<String, Counts>::new();
        for (place, counts) in &self.places {
            let sum = sums.entry(key(place)).or_default();
            *sum = sum.plus(*counts);
        }
        sums
    }
}

impl Place {
    /// The crate; inlined code of other crates belongs to the place where it was inlined.
    pub fn krate(&self) -> String {
        let of = |file: &str| Some(in_crate(file)?.split_once('/')?.0.to_owned());
        of(&self.file).or_else(|| of(&self.home)).unwrap_or_else(|| "other".to_owned())
    }

    /// The file of our sources, shortened; for inlined code from elsewhere, where it was inlined.
    pub fn source(&self) -> String {
        let of = |file: &str| Some(in_crate(file)?.replacen("/src/", "/", 1));
        of(&self.file).or_else(|| of(&self.home)).unwrap_or_else(|| short(&self.home).to_owned())
    }

    /// The function without its hash.
    pub fn function_name(&self) -> &str {
        plain(&self.function)
    }

    /// Line of source; with the function that it is part of, where it is not ours.
    pub fn line_and_function(&self) -> String {
        match in_crate(&self.file) {
            Some(_) => self.source_line(),
            None => format!("{} in {}", self.source_line(), self.function_name()),
        }
    }

    /// Line of source, of any crate.
    pub fn source_line(&self) -> String {
        let file = in_crate(&self.file).unwrap_or_else(|| short(&self.file));
        format!("{file}:{}", self.line)
    }
}

/// The name of a function without its hash.
fn plain(function: &str) -> &str {
    let name = function
        .rsplit_once("::h")
        .filter(|(_, hash)| hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()));
    name.map_or(function, |(name, _)| name)
}

/// The folders that hold our crates, from the workspace's root.
const ROOMS: [&str; 7] = ["sys", "core", "dataplane", "host", "app", "programs", "verify"];

/// The path of one of our files, from its crate's name on.
fn in_crate(file: &str) -> Option<&str> {
    // The standard library also has a folder `core`, but no crate with our names in it.
    let below = |room: &&str| file.split_once(&format!("/{room}/")).map(|(_, below)| below);
    ROOMS
        .iter()
        .find_map(below)
        .filter(|below| below.starts_with("ix-") || below.starts_with("libix"))
}

/// The last three parts of a path.
fn short(file: &str) -> &str {
    let cut = file.rmatch_indices('/').nth(2).map_or(0, |(at, _)| at + 1);
    &file[cut..]
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
# callgrind format
positions: line
events: Ir
summary: 999

ob=/t/ix-cost
fl=/w/core/ix-tcp/src/snd.rs
fn=ix_tcp::snd::output::h0123456789abcdef
10 100
fi=/rust/library/core/src/num.rs
7 20
fe=/w/core/ix-tcp/src/snd.rs
cob=/lib/libc.so.6
cfi=???
cfn=memcpy
calls=3 0
11 30
cfi=/w/verify/ix-cost/src/pair.rs
cfn=ix_cost::pair::server_turn
calls=1 5
12 5000

ob=/lib/libc.so.6
fl=???
fn=memcpy
0 30
cob=/t/ix-cost
cfn=main
calls=1 0
0 7777
totals: 999
";

    #[test]
    fn self_costs_and_calls_into_libraries_are_charged_once() {
        let profile = parse(FILE).unwrap();
        assert_eq!(profile.by(Place::krate), [("ix-tcp".to_owned(), 150)]);
        assert_eq!(profile.sides, [0, 5000]);
        let lines = profile.by(Place::source_line);
        assert_eq!(lines[0], ("ix-tcp/src/snd.rs:10".to_owned(), 100));
        assert_eq!(lines[1], ("ix-tcp/src/snd.rs:11".to_owned(), 30));
        assert_eq!(lines[2], ("core/src/num.rs:7".to_owned(), 20));
        let functions = profile.by(|place| place.function_name().to_owned());
        assert_eq!(functions, [("ix_tcp::snd::output".to_owned(), 150)]);
    }

    #[test]
    fn the_difference_of_two_runs_has_no_start_up() {
        let profile = parse(FILE).unwrap();
        let twice = FILE.replace("10 100", "10 300").replace("12 5000", "12 9000");
        let counted = parse(&twice).unwrap().minus(&profile);
        assert_eq!(counted.by(Place::krate), [("ix-tcp".to_owned(), 200)]);
        assert_eq!(counted.sides, [0, 4000]);
    }

    #[test]
    fn simulated_caches_are_counted_by_place_and_calls_by_name() {
        let text = FILE.replace("\n10 100\n", "\n0x7f 10 90 30 20 1 2 3 4 5 6\n0x80 10 10\n");
        let profile = parse(&text).unwrap();
        let counts = profile.counts_by(Place::source_line)["ix-tcp/src/snd.rs:10"];
        let expected = Counts {
            instructions: 100,
            accesses: 50,
            code_misses: 1,
            data_misses: 5,
            far_misses: 15,
        };
        assert_eq!(counts, expected);
        assert_eq!(profile.own["ix_tcp::snd::output"], 120);
        let edge = ("ix_tcp::snd::output".to_owned(), "memcpy".to_owned());
        assert_eq!(profile.calls[&edge], 30);
        let lines = |at_least| profile.code_lines(at_least)["ix_tcp::snd::output"].clone();
        assert_eq!((lines(10), lines(11)), ([1, 2].into(), [1].into()));
    }

    #[test]
    fn nonsense_is_an_error() {
        assert!(parse("").is_err());
        assert!(parse("fl=x\nfn=y\n12 many\n").is_err());
    }
}
