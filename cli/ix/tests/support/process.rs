//! A child process whose words are kept.
use super::PATIENCE;
use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A running command; killed when dropped.
pub struct Process {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    readers: Vec<std::thread::JoinHandle<()>>,
}

impl Process {
    /// Starts it.
    pub fn start(mut command: Command) -> Process {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the command starts");
        let lines = Arc::default();
        let (out, err) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
        let readers = vec![read(out, &lines), read(err, &lines)];
        Process { child, lines, readers }
    }

    /// Waits for a line, of output or errors, that starts so.
    #[track_caller]
    pub fn wait_for(&self, start: &str, timeout: Duration) -> String {
        let end = Instant::now() + timeout;
        loop {
            if let Some(line) = self.said().into_iter().find(|line| line.starts_with(start)) {
                return line;
            }
            assert!(Instant::now() < end, "it does not say `{start}`: {self}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until so many lines start so.
    #[track_caller]
    pub fn wait_for_nth(&self, start: &str, count: usize, timeout: Duration) {
        let end = Instant::now() + timeout;
        while self.said().iter().filter(|line| line.starts_with(start)).count() < count {
            assert!(Instant::now() < end, "it does not say `{start}` {count} times: {self}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// All lines so far.
    pub fn said(&self) -> Vec<String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// It must still run.
    #[track_caller]
    pub fn check(&mut self) {
        let status = self.child.try_wait().expect("wait");
        assert_eq!(status, None, "it ended: {self}");
    }

    /// Its number.
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Sends a signal.
    pub fn signal(&self, signal: i32) {
        self::signal(self.pid(), signal);
    }

    /// Waits for its end; returns its status and all that it said.
    #[track_caller]
    pub fn wait(mut self, timeout: Duration) -> (ExitStatus, Vec<String>) {
        let end = Instant::now() + timeout;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                break status;
            }
            assert!(Instant::now() < end, "it does not end: {self}");
            std::thread::sleep(Duration::from_millis(5));
        };
        self.readers.drain(..).for_each(|reader| reader.join().expect("reader"));
        (status, self.said())
    }

    /// SIGTERM must end it, and be its end.
    #[track_caller]
    pub fn terminate(self) {
        self.signal(libc::SIGTERM);
        let (status, said) = self.wait(PATIENCE);
        assert_eq!(status.code(), Some(128 + libc::SIGTERM), "{said:?}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Errors mean that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it said {:#?}", self.said())
    }
}

fn read(
    from: impl Read + Send + 'static,
    lines: &Arc<Mutex<Vec<String>>>,
) -> std::thread::JoinHandle<()> {
    let lines = Arc::clone(lines);
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        }
    })
}

/// Number of descriptors of a process with numbers below this one.
pub fn descriptors_below(pid: i32, number: u64) -> u64 {
    let all = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").flatten();
    let numbers = all.filter_map(|fd| fd.file_name().to_str()?.parse::<u64>().ok());
    numbers.filter(|fd| *fd < number).count() as u64
}

/// Processor time that a process has used, all its threads together.
pub fn cpu_time(pid: i32) -> Duration {
    let mut clock = 0;
    // SAFETY: all zeroes is a valid timespec; both calls write to locals.
    let time = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        assert_eq!(libc::clock_getcpuclockid(pid, &mut clock), 0, "process {pid} has a clock");
        assert_eq!(libc::clock_gettime(clock, &mut time), 0, "process {pid} runs");
        time
    };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Processor time of the Linux thread of a process that is pinned to this hardware thread, and only
/// that one is.
pub fn cpu_time_on(pid: i32, cpu: usize) -> Duration {
    let read = |task: &std::path::Path, name| {
        std::fs::read_to_string(task.join(name)).expect("the thread runs")
    };
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the process runs");
    let pinned = tasks.map(|task| task.expect("a task").path()).filter(|task| {
        let wanted = format!("Cpus_allowed_list:\t{cpu}");
        read(task, "status").lines().any(|line| line == wanted)
    });
    let pinned: Vec<_> = pinned.collect();
    assert_eq!(pinned.len(), 1, "threads on {cpu}");
    let stat = read(&pinned[0], "stat");
    // utime and stime, the 14th and 15th word; the second may have blanks, but ends with a bracket.
    let words = stat.rsplit_once(')').expect("a command").1.split_ascii_whitespace();
    let ticks: u64 = words.skip(11).take(2).map(|word| word.parse::<u64>().expect("ticks")).sum();
    // SAFETY: a plain query.
    let a_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as u64;
    Duration::from_millis(ticks * 1000 / a_second)
}

/// How many descriptors a process has open.
pub fn open_files(pid: i32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("the process runs").count()
}

/// Bytes of memory that a process has in use.
pub fn resident_bytes(pid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).expect("a size");
    let kib = line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok());
    kib.expect("a number") << 10
}

/// Whether a process is there, and not only waits for its parent to hear of its end.
pub fn is_alive(pid: i32) -> bool {
    state_and_parent(pid).is_some_and(|(state, _)| !matches!(state, 'Z' | 'X'))
}

/// A process's state, as proc(5) names it, and its parent; `None`: there is no such process.
pub fn state_and_parent(pid: i32) -> Option<(char, i32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before them may hold anything but comes to an end.
    let mut facts = stat.rsplit_once(") ")?.1.split(' ');
    Some((facts.next()?.chars().next()?, facts.next()?.parse().ok()?))
}

/// Signals a process that a test has started, and that runs.
pub fn signal(pid: i32, signal: i32) {
    // SAFETY: a plain system call.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}
