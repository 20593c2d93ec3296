//! Clients at the client's end of the link.
use super::{Host, IX_CLIENT, Lab, Server, TAP_IX};
use crate::args::Device;
use crate::process::Process;
use crate::serve::linux_flags;
use ix_load::row::LoadResult;
use ix_report::problem::{Problem, Result};
use serde_json::Value;
use std::ffi::OsString;
use std::process::{Child, Stdio};
use std::time::Duration;

/// A running load.
pub struct Load {
    process: Process,
}

impl Lab {
    /// Runs `ix-echo --client` with `arguments` against a server to its end; returns the object
    /// that it prints.
    pub fn run_client(
        &self,
        host: Host,
        server: &mut Server,
        arguments: &[String],
        timeout: Duration,
    ) -> Result<Value> {
        let args = self.echo_client(host, server, arguments);
        self.start_load(host, &args)?.finish(server, timeout)
    }

    /// Runs `ix load` with `args` at the client's end, to its end, on Linux or under `ix run`;
    /// returns its result.
    pub fn run_load(
        &self,
        host: Host,
        server: &mut Server,
        args: &[OsString],
        timeout: Duration,
    ) -> Result<LoadResult> {
        self.start_load(host, args)?.finish_load(server, timeout)
    }

    /// Starts the `ix` command with `args` at the client's end, on Linux or under `ix run`.
    pub fn start_load(&self, host: Host, args: &[OsString]) -> Result<Load> {
        let cpu = self.cpus.1;
        let command = match host {
            Host::Linux { .. } | Host::Peer => {
                let mut command = self.client.command(&self.ix, Some(cpu));
                command.args(args);
                command
            }
            Host::Ix(_) => {
                let args = [&[self.ix.clone().into_os_string()], args].concat();
                self.ix_command(
                    &self.client,
                    &self.nic(false),
                    self.at(IX_CLIENT),
                    &[cpu],
                    &[],
                    &args,
                )
            }
        };
        Ok(Load { process: Process::start(command, &format!("{} client", host.system()))? })
    }

    /// Runs a command of the shell at the client's end on Linux, to its end; returns the first line
    /// of its output that begins with `start`.
    pub fn run_shell(
        &self,
        line: &str,
        start: &str,
        server: &mut Server,
        timeout: Duration,
    ) -> Result<String> {
        let mut command = self.client.command("sh", Some(self.cpus.1));
        command.args(["-c", line]);
        let mut process = Process::start_group(command, "load")?;
        let said = process.wait_for_line(start, timeout);
        let said = said.and_then(|said| process.wait_for_end().map(|()| said));
        server.process.check().and(said)
    }

    /// Runs a program under `ix run` at the client's end, to its end; returns its output. A tap has
    /// one end of IX only, which the program has then: see [`Lab::start_for_client`].
    pub fn run_at_client(&self, flags: &[&str], args: &[OsString]) -> Result<String> {
        let flags: Vec<OsString> = flags.iter().map(Into::into).collect();
        let (nic, cpu) = (self.nic(false), self.cpus.1);
        let is_tap = self.device == Device::Tap;
        let own = self.at(if is_tap { TAP_IX } else { IX_CLIENT });
        let mut command = self.ix_command(&self.client, &nic, own, &[cpu], &flags, args);
        let what = || format!("cannot run {} at the client's end", args[0].display());
        let failed = |e| Problem::new(what(), e);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let has_ended = |child: &mut Child| child.try_wait().is_ok_and(|status| status.is_some());
        let raised = match is_tap {
            true => self.raise_tap(|| match has_ended(&mut child) {
                true => Err(Problem::new(what(), "it has ended before it had its device")),
                false => Ok(()),
            }),
            false => Ok(()),
        };
        if raised.is_err() {
            // It may have ended by itself; what it has said tells more.
            let _ = child.kill();
        }
        let output = child.wait_with_output().map_err(failed)?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let last = said.lines().last().unwrap_or("it printed nothing").to_owned();
            return Err(Problem::new(what(), last));
        }
        raised.map(|()| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Arguments of an `ix echo` client against a server.
    pub fn echo_client(&self, host: Host, server: &Server, arguments: &[String]) -> Vec<OsString> {
        let mut args: Vec<OsString> = vec!["echo".into(), "--client".into()];
        args.push(server.address().to_string().into());
        args.extend(arguments.iter().map(OsString::from));
        args.push("--json".into());
        if let Host::Linux { spin } = host {
            args.extend(linux_flags(spin).iter().map(OsString::from));
        }
        args
    }
}

impl Load {
    /// Process ID.
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// Whether its standard error contains `part`.
    pub fn has_said(&self, part: &str) -> bool {
        self.process.has_said(part)
    }

    /// Fails if it has ended.
    pub fn check(&mut self) -> Result<()> {
        self.process.check()
    }

    /// Waits for a line of its output that starts with `start`, and for its end.
    pub fn wait_for(mut self, start: &str, server: &mut Server, timeout: Duration) -> Result<()> {
        let result = self.process.wait_for_line(start, timeout).map(drop);
        let result = result.and_then(|()| self.process.wait_for_end());
        server.process.check().and(result)
    }

    /// Waits for its end and returns the object that it printed.
    pub fn finish(self, server: &mut Server, timeout: Duration) -> Result<Value> {
        let result = self.process.result(timeout);
        server.process.check().and(result)
    }

    /// The same for `ix load`.
    pub fn finish_load(self, server: &mut Server, timeout: Duration) -> Result<LoadResult> {
        LoadResult::read(self.finish(server, timeout)?)
            .map_err(|why| Problem::new("cannot read the result of the load generator", why))
    }
}

/// The load's summary over its whole time.
pub(crate) fn figures(result: &LoadResult) -> Vec<(&'static str, f64)> {
    let summary = result.summary();
    [
        ("msgs_per_s", Some(summary.msgs_per_s)),
        ("p50_us", summary.latency.p50_us),
        ("p99_us", summary.latency.p99_us),
        ("errors", Some(summary.errors as f64)),
    ]
    .into_iter()
    .filter_map(|(key, value)| Some((key, value?)))
    .collect()
}
