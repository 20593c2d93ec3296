//! Child processes of a benchmark; every wait for their output has an end.
use ix_report::problem::{Problem, Result};
use ix_sys::process::kill;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time that a process gets to end by itself.
const GRACE: Duration = Duration::from_secs(3);

/// A running process whose output is read as it comes.
pub(super) struct Process {
    child: Child,
    name: String,
    lines: Receiver<String>,
    errors: Arc<Mutex<Vec<String>>>,
    /// Reads standard error to its end.
    reader: Option<std::thread::JoinHandle<()>>,
    /// It has a process group of its own, which ends with it.
    group: bool,
}

impl Process {
    pub(super) fn start(mut command: Command, name: &str) -> Result<Process> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|e| {
            let program = command.get_program().to_string_lossy().into_owned();
            Problem::new(format!("cannot start the {name} {program}"), e)
        })?;
        let (sender, lines) = channel();
        if let Some(stdout) = child.stdout.take() {
            std::thread::spawn(move || read_lines(stdout, |line| drop(sender.send(line))));
        }
        let errors = Arc::new(Mutex::new(Vec::new()));
        let reader = child.stderr.take().map(|stderr| {
            let errors = Arc::clone(&errors);
            std::thread::spawn(move || {
                read_lines(stderr, |line| {
                    errors.lock().unwrap_or_else(PoisonError::into_inner).push(line);
                });
            })
        });
        Ok(Process { child, name: name.to_owned(), lines, errors, reader, group: false })
    }

    /// The same, with whatever the process starts: a peer may be a script.
    pub(super) fn start_group(mut command: Command, name: &str) -> Result<Process> {
        command.process_group(0);
        let mut process = Process::start(command, name)?;
        process.group = true;
        Ok(process)
    }

    /// What it is called in messages.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Waits for a line of output that starts with `start`.
    pub(super) fn wait_for_line(&mut self, start: &str, timeout: Duration) -> Result<String> {
        let end = Instant::now() + timeout;
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) if line.trim_start().starts_with(start) => return Ok(line),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    let why = format!("it did not print `{start}` within {} s", timeout.as_secs());
                    return Err(self.explain(Problem::new(format!("the {} hangs", self.name), why)));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended()),
            }
        }
    }

    /// Fails if the process has ended by itself.
    pub(super) fn check(&mut self) -> Result<()> {
        match self.child.try_wait() {
            Ok(Some(_)) => Err(self.ended()),
            _ => Ok(()),
        }
    }

    /// The process ended early: its last line is the reason.
    fn ended(&mut self) -> Problem {
        let status = self.child.wait();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        let status = status.map_or_else(|e| e.to_string(), |status| status.to_string());
        self.explain(Problem::new(format!("the {} ended too early", self.name), status))
    }

    /// Adds the last error of the process to a problem, or else its last line.
    pub(super) fn explain(&self, problem: Problem) -> Problem {
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        let error = errors.iter().rev().find(|line| line.starts_with("error"));
        match error.or(errors.last()) {
            Some(line) => Problem::new(problem.to_string(), format!("its last line: {line}")),
            None => problem,
        }
    }

    /// Returns the rest of the first line of standard error that starts with `start`.
    pub(super) fn said(&self, start: &str) -> Option<String> {
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        errors.iter().find_map(|line| line.strip_prefix(start)).map(str::to_owned)
    }

    /// Whether a line of standard error contains `part`.
    pub(super) fn has_said(&self, part: &str) -> bool {
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        errors.iter().any(|line| line.contains(part))
    }

    /// Returns a line of output that was not taken yet.
    pub(super) fn next_line(&mut self) -> Option<String> {
        self.lines.try_recv().ok()
    }

    pub(super) fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Sends this signal, and kills the process if it does not end; returns the rest of the line of
    /// standard error that starts with `start`.
    pub(super) fn stop_and_hear(mut self, signal: i32, start: &str) -> Option<String> {
        self.end(signal);
        if let Some(reader) = self.reader.take() {
            let end = Instant::now() + GRACE;
            // Another holder of the pipe keeps it open.
            while !reader.is_finished() && self.said(start).is_none() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        self.said(start)
    }

    /// Asks the process to end, and kills it if it does not.
    pub(super) fn stop(mut self) {
        self.end(libc::SIGTERM);
    }

    fn end(&mut self, signal: i32) {
        // Our own child, which was not waited for yet.
        let _ = kill(self.target(), signal);
        let end = Instant::now() + GRACE;
        while Instant::now() < end {
            // The next one may be started when nobody has its port any more.
            if let Ok(Some(_)) = self.child.try_wait()
                && !(self.group && kill(self.target(), 0).is_ok())
            {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.kill();
    }

    /// Whom signals go to: the process, or its group.
    fn target(&self) -> i32 {
        if self.group { -self.pid() } else { self.pid() }
    }

    fn kill(&mut self) {
        // An error means that it has already ended.
        let _ = if self.group { kill(self.target(), libc::SIGKILL) } else { self.child.kill() };
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn read_lines(from: impl Read, mut take: impl FnMut(String)) {
    for line in BufReader::new(from).lines() {
        match line {
            Ok(line) => take(line),
            Err(_) => return,
        }
    }
}

impl Process {
    /// Waits for the end and returns the JSON object that was printed on a line of its own.
    pub(super) fn result(mut self, timeout: Duration) -> Result<Value> {
        let line = self.wait_for_line("{", timeout)?;
        self.wait_for_end()?;
        serde_json::from_str(&line)
            .map_err(|e| Problem::new(format!("cannot read the result of the {}", self.name), e))
    }

    /// Waits for an end that is expected soon; a failure of the process is an error.
    pub(super) fn wait_for_end(&mut self) -> Result<()> {
        let name = &self.name;
        let end = Instant::now() + GRACE;
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                _ if Instant::now() > end => {
                    let problem =
                        Problem::new(format!("the {name} hangs"), "it does not end in time");
                    return Err(self.explain(problem));
                }
                _ => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        if !status.success() {
            return Err(self.explain(Problem::new(format!("the {name} failed"), status)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finish(command: Command, name: &str, timeout: Duration) -> Result<Value> {
        Process::start(command, name)?.result(timeout)
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_result_is_the_object_that_was_printed() {
        let value = finish(shell("echo hello; echo '{\"n\": 7}'"), "client", GRACE).expect("ok");
        assert_eq!(value["n"], 7);
    }

    #[test]
    fn failures_carry_the_last_words() {
        let e = finish(shell("echo no such peer >&2; exit 3"), "client", GRACE).expect_err("fails");
        assert!(e.to_string().contains("no such peer"), "{e}");
        let help = "echo 'error: no SIZE' >&2; echo 'see --help' >&2; exit 2";
        let e = finish(shell(help), "client", GRACE).expect_err("fails");
        assert!(e.to_string().contains("error: no SIZE"), "{e}");
        let e = finish(shell("echo '{}'; exit 3"), "client", GRACE).expect_err("fails");
        assert!(e.to_string().contains("exit status: 3"), "{e}");
        let e = finish(shell("echo '{'"), "client", GRACE).expect_err("fails");
        assert!(e.to_string().contains("cannot read the result"), "{e}");
        let e = finish(shell("exec sleep 20"), "client", Duration::from_millis(50));
        assert!(e.expect_err("fails").to_string().contains("hangs"));
    }

    #[test]
    fn a_server_is_ready_when_it_says_so_and_gone_when_stopped() {
        let script = "echo 'ix: device tap' >&2; echo ready; exec sleep 20";
        let mut server = Process::start(shell(script), "server").expect("start");
        server.wait_for_line("ready", GRACE).expect("ready");
        server.check().expect("runs");
        let pid = server.child.id() as i32;
        server.stop();
        // Signal 0 only asks whether the process is there.
        assert!(kill(pid, 0).is_err());
    }
}
