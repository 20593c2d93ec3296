//! Lines of memory that two elastic threads of one dataplane touch, found by playing both under
//! valgrind's lackey: what runs on dedicated hardware threads must share nothing on the common
//! path.
//!
//! The threads take turns on one hardware thread and in virtual time, so that the same run touches
//! the same lines every time. Left out is what the threads have in common only here: the stack;
//! what the harness or the client touches, which is the wire, whose buffers go from hand to hand;
//! and the application's memory, which is from one heap, while `malloc` gives each thread its own.
use crate::callgrind::{LINE_BYTES, under};
use crate::pair::{Trio, server_addr};
use crate::scenario::{Client, Server};
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::rc::Rc;

/// Connections of the echo.
const CONNECTIONS: usize = 64;
/// Messages before lines are counted, and while they are.
const WARM: u64 = 1_024;
const COUNTED: u64 = 2_048;
/// A line that both threads touch less often than once in so many messages is not on the common
/// path.
const RARE: u64 = 64;
/// Crates whose accesses are the harness's, and the application's.
const HARNESS: [&str; 2] = ["ix_cost::", "ix_rig::"];
const APPLICATION: &str = "libix::";
/// Functions of the standard library act for those that call them.
const STANDARD: [&str; 3] = ["alloc::", "core::", "std::"];
/// Bytes of stack that the turns use at most.
const STACK_BYTES: u64 = 1 << 20;
/// Without valgrind's own lines, which are no trace.
const QUIET: &[&str] = &["--quiet"];
/// Lines that are shown.
const SHOWN: usize = 20;
/// The flag of [`play`], for the command line that [`count`] runs.
const PLAY: &str = "--play-shared";

/// On which queue a packet comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Queues {
    /// On that of its flow group's thread.
    Own,
    /// On any: the threads have to hand packets over, which shows that sharing is seen.
    Any,
}

/// Plays the two threads natively. Prints where the marks and the stack are in memory, and how many
/// messages were counted.
pub fn play(queues: Queues) {
    let [client, first, second] = Trio::<Client, Server>::marks();
    let on_stack = 0;
    println!(
        "{client} {first} {second} {} {}",
        begin as fn() as usize, &raw const on_stack as usize
    );
    let done = Rc::new(Cell::new(0));
    let servers = [Server::echo(), Server::echo()];
    // Never dropped: the buffers of its connections are in its packet memory.
    let trio = Trio::new(Client::echo(&done), servers, queues == Queues::Any);
    let mut trio = std::mem::ManuallyDrop::new(trio);
    let mut opened = 0;
    while done.get() < WARM {
        while opened < CONNECTIONS {
            trio.client.io().connect(server_addr(false), 0);
            opened += 1;
            if opened % 16 == 0 {
                break;
            }
        }
        trio.turn();
    }
    begin();
    let start = done.get();
    while done.get() < start + COUNTED {
        trio.turn();
    }
    println!("{}", done.get() - start);
}

/// Lines are counted from here on.
#[inline(never)]
fn begin() {
    std::hint::black_box(COUNTED);
}

/// Who runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    Client,
    Thread(usize),
}

/// What was done with a line.
#[derive(Default)]
struct Line {
    /// By each thread: reads and writes.
    by: [[u64; 2]; 2],
    /// It is the wire's or the client's.
    foreign: bool,
    /// Who did it: thread, whether it wrote, and the function.
    how: BTreeMap<(usize, bool, usize), u64>,
}

impl Line {
    /// How often a thread had to fetch it because the other had written: at most as often as either
    /// of them touched it.
    fn shared(&self) -> u64 {
        let [a, b] = self.by.map(|[reads, writes]| (reads + writes, writes));
        if self.foreign || a.1 + b.1 == 0 { 0 } else { a.0.min(b.0) }
    }
}

/// Whose accesses those of a function are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    Harness,
    Application,
    Dataplane,
    /// The caller's.
    Caller,
}

impl Whose {
    fn of(function: &str) -> Whose {
        let plain = function.trim_start_matches('<');
        match () {
            () if HARNESS.iter().any(|name| function.contains(name)) => Whose::Harness,
            () if STANDARD.iter().any(|name| plain.starts_with(name)) => Whose::Caller,
            () if function.contains(APPLICATION) => Whose::Application,
            () => Whose::Dataplane,
        }
    }
}

/// The functions of this program, by address.
struct Functions(Vec<(u64, String, Whose)>);

impl Functions {
    fn read(program: &std::path::Path) -> Result<Functions> {
        let output =
            Command::new("nm").args(["--demangle", "--defined-only"]).arg(program).output();
        let output = output.context("cannot run nm (apt-get install binutils)")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let symbols = text.lines().filter_map(|line| {
            let mut words = line.splitn(3, ' ');
            let address = u64::from_str_radix(words.next()?, 16).ok()?;
            let code = matches!(words.next()?, "t" | "T" | "w" | "W");
            let name = words.next().unwrap_or_default();
            code.then(|| (address, name.to_owned(), Whose::of(name)))
        });
        let mut symbols: Vec<_> = symbols.collect();
        symbols.sort_by_key(|(address, _, _)| *address);
        if symbols.is_empty() {
            bail!("nm finds no functions in {}", program.display());
        }
        Ok(Functions(symbols))
    }

    /// The function with this instruction; `None`: not ours.
    fn at(&self, address: u64) -> Option<usize> {
        self.0.partition_point(|(begin, ..)| *begin <= address).checked_sub(1)
    }

    fn whose(&self, function: usize) -> Whose {
        self.0[function].2
    }
}

/// A reader of lackey's trace.
struct Reader<'a> {
    functions: &'a Functions,
    /// What is added to the program's addresses where it runs.
    bias: u64,
    /// Where the code of this program ends.
    end: u64,
    /// Where the stack of the turns begins, downwards.
    stack: u64,
    marks: [u64; 4],
    counting: bool,
    who: Who,
    function: usize,
    lines: HashMap<u64, Line>,
    /// Lines that each thread has touched in its turn, and the sum over all its turns.
    turn: HashSet<u64>,
    touched: u64,
}

impl Reader<'_> {
    /// Takes one line of the trace: `I  address,size`, ` L address,size`, ` S…`, ` M…`.
    fn take(&mut self, text: &str) {
        let Some((kind, rest)) = text.split_at_checked(3) else { return };
        let Some((address, size)) = rest.split_once(',') else { return };
        let Ok(address) = u64::from_str_radix(address, 16) else { return };
        let (reads, writes) = match kind {
            "I  " => return self.step(address),
            " L " => (1, 0),
            " S " => (0, 1),
            " M " => (1, 1),
            _ => return,
        };
        let on_stack = (self.stack - STACK_BYTES..self.stack).contains(&address);
        if self.counting && !on_stack {
            let size = size.trim().parse().unwrap_or(1u64).max(1);
            for line in address / LINE_BYTES..=(address + size - 1) / LINE_BYTES {
                self.touch(line, reads, writes);
            }
        }
    }

    fn step(&mut self, address: u64) {
        let [client, first, second, begin] = self.marks;
        let who = match address {
            _ if address == client => Who::Client,
            _ if address == first => Who::Thread(0),
            _ if address == second => Who::Thread(1),
            _ => {
                self.counting |= address == begin;
                // A library's instructions are those of the function that called it.
                if (self.bias..self.end).contains(&address)
                    && let Some(function) = self.functions.at(address - self.bias)
                    && self.functions.whose(function) != Whose::Caller
                {
                    self.function = function;
                }
                return;
            }
        };
        self.touched += self.turn.drain().count() as u64;
        self.who = who;
    }

    fn touch(&mut self, number: u64, reads: u64, writes: u64) {
        let line = self.lines.entry(number).or_default();
        let Who::Thread(thread) = self.who else {
            line.foreign = true;
            return;
        };
        match self.functions.whose(self.function) {
            Whose::Harness => {
                line.foreign = true;
                return;
            }
            Whose::Application | Whose::Caller => {
                self.turn.insert(number);
                return;
            }
            Whose::Dataplane => {}
        }
        self.turn.insert(number);
        line.by[thread][0] += reads;
        line.by[thread][1] += writes;
        *line.how.entry((thread, writes > 0, self.function)).or_default() += 1;
    }
}

/// Plays both ways and prints what the threads share; whether it is nothing on the path of a
/// message that comes on its own queue.
pub fn judge() -> Result<bool> {
    println!("two elastic threads of one server, {CONNECTIONS} connections");
    let alone = count(Queues::Own)? == 0;
    println!("\nfor comparison, packets on any queue, which the threads hand over:");
    if count(Queues::Any)? == 0 {
        bail!("threads that hand packets over seem to share nothing: this count is wrong");
    }
    Ok(alone)
}

/// Plays under lackey and prints what both threads touch; the number of lines that they share on
/// the path of a message.
fn count(queues: Queues) -> Result<usize> {
    let word = queues.to_possible_value().context("a word")?;
    let own = std::env::current_exe().context("cannot find the own program")?;
    let functions = Functions::read(&own)?;
    // Where the program is in memory under valgrind: the same each time.
    let output = under("none")
        .arg(&own)
        .args([PLAY, word.get_name()])
        .output()
        .context("cannot run valgrind")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let mut numbers = said.split_whitespace().map(str::parse::<u64>);
    let mut next = || numbers.next().and_then(Result::ok).context("the program did not play");
    let marks = [next()?, next()?, next()?, next()?];
    let (stack, messages) = (next()?, next()?);
    let known = functions.0.iter().find(|(_, name, _)| name == "ix_cost::shared::begin");
    let bias = marks[3] - known.context("nm does not know where counting begins")?.0;

    let mut command = under("lackey");
    command.args([QUIET, &["--trace-mem=yes", "--basic-counts=no"]].concat()).arg(&own);
    command.args([PLAY, word.get_name()]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let mut trace = BufReader::with_capacity(1 << 20, child.stderr.take().context("no trace")?);
    let mut reader = Reader {
        end: bias + functions.0.last().map_or(0, |(address, ..)| *address),
        stack,
        functions: &functions,
        bias,
        marks,
        counting: false,
        who: Who::Client,
        function: 0,
        lines: HashMap::new(),
        turn: HashSet::new(),
        touched: 0,
    };
    let mut text = String::new();
    while trace.read_line(&mut text)? > 0 {
        reader.take(text.trim_end());
        text.clear();
    }
    if !child.wait()?.success() || reader.lines.is_empty() {
        bail!("the program did not play under lackey: {}", text.trim());
    }
    Ok(print(&reader, messages))
}

fn print(reader: &Reader<'_>, messages: u64) -> usize {
    let each = |count: u64| count as f64 / messages as f64;
    println!("lines of {LINE_BYTES} bytes that a message touches: {:.1}", each(reader.touched));
    let mut shared: Vec<_> = reader.lines.iter().filter(|(_, line)| line.shared() > 0).collect();
    shared.sort_by_key(|(number, line)| (std::cmp::Reverse(line.shared()), **number));
    let (common, rare): (Vec<_>, Vec<_>) =
        shared.into_iter().partition(|(_, line)| line.shared() * RARE >= messages);
    println!(
        "lines of the dataplane that one thread writes and the other touches: {} on the path of a \
         message, {} less often than once in {RARE} messages",
        common.len(),
        rare.len()
    );
    for (number, line) in common.iter().chain(&rare).take(SHOWN) {
        println!("\n{:#x}: {:.4} times a message", **number * LINE_BYTES, each(line.shared()));
        for ((thread, writes, function), count) in &line.how {
            let what = if *writes { "writes" } else { "reads" };
            let (_, name, _) = &reader.functions.0[*function];
            println!("  thread {thread} {what} {:.4}: {name}", each(*count));
        }
    }
    common.len()
}
