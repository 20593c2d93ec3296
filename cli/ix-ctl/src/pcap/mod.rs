//! `ix pcap`: what a running dataplane sees and sends, as a file for Wireshark.
//!
//! The dataplane writes into memory that the command only reads (`ix_dataplane::capture`). The
//! broker makes that memory, and ends the capture if the command is silent for some seconds.
mod files;
mod format;
mod headers;
mod remarks;

use crate::ctl::args::CtlArgs;
use clap::Args;
use files::Files;
use format::Entry;
use headers::header_bytes;
use ix_broker::control::Client;
use ix_dataplane::capture::{CaptureMemory, Captured, RingReader};
use ix_proto::capture::FilterError;
use ix_proto::control::{CaptureStarted, CaptureWish, Request};
use ix_report::problem::{Problem, Result};
use ix_sys::{clock, signal};
use remarks::Remarks;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Help of the command.
pub const HELP: &str = "\
    Writes the packets that a running dataplane receives and sends to a pcapng file, which \
    Wireshark and tcpdump open. Its interfaces are the devices, its queues the elastic threads. \
    A comment on a packet says why the dataplane dropped it, that another elastic thread \
    received it, or that its flow group has moved. The dataplane never waits for the capture: \
    packets that are not read in time are lost, counted, and named in a comment. SIGINT ends \
    the capture.\n\n\
    FILTER is made of `host A`, `port N`, `flow A:N` (a peer's address and port), `tcp`, \
    `udp`, `icmp`, `arp`, `group N`, `thread N`, `drops`, `in`, `out`, joined by `and`, \
    `or`, `not` and parentheses. A capture shows what peers send, so it needs the operators' \
    socket, and the user of `ix run` or root.\n\n\
    Examples:\n  \
    ix pcap -w all.pcapng\n  \
    ix pcap -w - tcp and port 80 | wireshark -k -i -\n  \
    ix pcap -w drops.pcapng --count 100 drops\n  \
    ix pcap -w shown.pcapng --headers --seconds 5\n  \
    ix pcap -w last.pcapng --ring-files 5 --ring-bytes 100000000 --snaplen 128";

/// Flags of `ix pcap`.
#[derive(Args, Debug)]
pub struct PcapArgs {
    /// File to write; `-`: standard output
    #[arg(short = 'w', long = "write", value_name = "FILE")]
    pub write: PathBuf,
    /// Most bytes of each packet to keep
    #[arg(short = 's', long, value_name = "BYTES", default_value_t = 2048)]
    pub snaplen: u32,
    /// Keep headers alone, and no byte of what TCP, UDP, ICMP and other protocols carry
    #[arg(long)]
    pub headers: bool,
    /// End after this many packets
    #[arg(short = 'c', long, value_name = "N")]
    pub count: Option<u64>,
    /// End after this many seconds
    #[arg(long, value_name = "T")]
    pub seconds: Option<f64>,
    /// Write to this many files in turn, overwriting the oldest: FILE.0, FILE.1, …
    #[arg(long, value_name = "N", requires = "ring_bytes")]
    pub ring_files: Option<u32>,
    /// Most bytes of each of these files
    #[arg(long, value_name = "BYTES", requires = "ring_files")]
    pub ring_bytes: Option<u64>,
    /// Memory of each elastic thread for packets that were not read yet, bytes
    #[arg(long, value_name = "BYTES", default_value_t = BUFFER_BYTES)]
    pub buffer: u64,
    /// Which dataplane
    #[command(flatten)]
    pub dataplane: CtlArgs,
    /// Packets to capture (default: all)
    #[arg(value_name = "FILTER", trailing_var_arg = true)]
    pub filter: Vec<String>,
}

/// Bytes of a whole packet.
const WHOLE_BYTES: u32 = 9_216;
/// Memory of each elastic thread for packets that were not read yet.
const BUFFER_BYTES: u64 = 8 << 20;
/// Between two looks at the rings.
const LOOK: Duration = Duration::from_millis(5);
/// Packets of several threads are put in order within this time.
const ORDER_US: u64 = 50_000;
/// Between two words that we still read.
const KEEP: Duration = Duration::from_secs(1);

/// Captures until there is enough.
pub fn main(args: &PcapArgs) -> Result<()> {
    let pid = std::process::id();
    let (snaplen, ring_bytes) = (args.snaplen, args.buffer);
    let refused = |why| Problem::new("cannot capture", why).mend("see `ix pcap --help`");
    let filter = args.filter.join(" ").parse().map_err(|e: FilterError| refused(e.to_string()))?;
    let wish = CaptureWish { pid, filter, snaplen, ring_bytes };
    wish.check().map_err(refused)?;
    if args.ring_files == Some(0) {
        return Err(Problem::new("cannot capture", "--ring-files is 0").mend("give at least 1"));
    }
    let mut client = Client::connect(&args.dataplane.find()?)?;
    let devices = client.status()?.devices;
    let ring = (args.ring_files.unwrap_or(0), args.ring_bytes.unwrap_or(0));
    let files = Files::create(args.write.clone(), ring, devices, args.snaplen)?;
    let request = Request::Capture { wish };
    let started: CaptureStarted = client.get(&request)?;
    catch_end();
    let memory = open(&started)?;
    eprintln!("ix: capturing to {}", args.write.display());
    let mut session = Session::new(memory, files, args);
    let outcome = session.run(&mut client, &request);
    // It may be gone, and the capture with it.
    let stopped = client.ask(&Request::CaptureStop { pid });
    outcome?;
    session.end()?;
    eprintln!("ix: {} packets captured, {} lost", session.taken, session.lost);
    stopped.map(drop)
}

/// Captures packets of the dataplane of a control socket into a file, for some seconds: their
/// headers alone, or whole ones.
pub fn for_seconds(control: &Path, write: PathBuf, seconds: f64, whole: bool) -> Result<()> {
    main(&PcapArgs {
        write,
        snaplen: if whole { WHOLE_BYTES } else { headers::MOST_BYTES },
        headers: !whole,
        count: None,
        seconds: Some(seconds),
        ring_files: None,
        ring_bytes: None,
        buffer: BUFFER_BYTES,
        dataplane: CtlArgs { pid: None, control: Some(control.to_owned()) },
        filter: Vec::new(),
    })
}

fn open(started: &CaptureStarted) -> Result<CaptureMemory> {
    let path = started.path.as_deref().unwrap_or_default();
    let file = File::open(path).map_err(|e| {
        Problem::new("cannot open the capture", e)
            .mend("run it as root, or as the user of `ix run`")
    })?;
    CaptureMemory::open(file.as_fd()).map_err(|e| Problem::new("cannot read the capture", e))
}

fn catch_end() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // Both exist and can be caught.
        let _ = signal::catch_and_go_on(signal);
    }
}

fn has_ended() -> bool {
    signal::count(libc::SIGINT) + signal::count(libc::SIGTERM) > 0
}

/// One capture.
struct Session {
    readers: Vec<RingReader>,
    /// Read, and not old enough to be written: an earlier one may come from another thread.
    waiting: Vec<Captured>,
    remarks: Remarks,
    files: Files,
    /// From the monotonic clock to the time of day, µs.
    since_1970_us: u64,
    headers: bool,
    count: u64,
    until: Option<Instant>,
    taken: u64,
    lost: u64,
}

impl Session {
    fn new(memory: CaptureMemory, files: Files, args: &PcapArgs) -> Session {
        let memory = Arc::new(memory);
        let reader = |thread| RingReader::new(memory.clone(), thread);
        let seconds = args.seconds.and_then(|s| Duration::try_from_secs_f64(s).ok());
        Session {
            readers: (0..memory.threads()).map(reader).collect(),
            waiting: Vec::new(),
            remarks: Remarks::default(),
            files,
            since_1970_us: us(clock::since_1970()).saturating_sub(us(clock::monotonic())),
            headers: args.headers,
            count: args.count.unwrap_or(u64::MAX),
            until: seconds.and_then(|seconds| Instant::now().checked_add(seconds)),
            taken: 0,
            lost: 0,
        }
    }

    fn run(&mut self, client: &mut Client, request: &Request) -> Result<()> {
        let mut keep = Instant::now() + KEEP;
        while self.taken < self.count && !has_ended() {
            if self.until.is_some_and(|until| Instant::now() >= until) {
                break;
            }
            self.read();
            self.write(us(clock::monotonic()).saturating_sub(ORDER_US))?;
            if Instant::now() >= keep {
                self.files.flush()?;
                if client.ask(request).is_err() {
                    eprintln!("ix: the dataplane has ended");
                    break;
                }
                keep = Instant::now() + KEEP;
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    fn read(&mut self) {
        for reader in &mut self.readers {
            self.waiting.extend(reader);
        }
    }

    /// Writes what is older than `until_us`, in order.
    fn write(&mut self, until_us: u64) -> Result<()> {
        self.waiting.sort_by_key(|packet| packet.mark.time_us);
        let old = self.waiting.partition_point(|packet| packet.mark.time_us <= until_us);
        for packet in self.waiting.drain(..old) {
            if self.taken >= self.count {
                break;
            }
            let kept = match self.headers {
                true => header_bytes(&packet.bytes),
                false => packet.bytes.len(),
            };
            self.lost += packet.lost_before;
            self.taken += 1;
            self.files.write(&Entry {
                interface: packet.mark.port.into(),
                time_us: packet.mark.time_us + self.since_1970_us,
                len: packet.mark.len,
                bytes: &packet.bytes[..kept],
                sent: packet.mark.sent,
                queue: packet.thread as u32,
                comments: &self.remarks.of(&packet),
            })?;
        }
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        self.read();
        self.write(u64::MAX)?;
        let now_us = us(clock::monotonic()) + self.since_1970_us;
        self.files.end(now_us, self.taken, self.lost)
    }
}

fn us(since: Duration) -> u64 {
    since.as_micros() as u64
}
