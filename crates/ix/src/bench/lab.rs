//! The private link that benchmarks run over: two ends, each a network namespace and a hardware
//! thread, and processes at them on Linux sockets or on IX.
//!
//! On `afxdp` the link is a virtual Ethernet pair, and every server and client has the same one,
//! on Linux or on IX. On `tap` IX's server stands behind a TAP device of the client's namespace;
//! Linux's server stays behind the pair, for Linux has no other end of a TAP. On `memif` the two
//! ends of IX share memory, and Linux is measured over the pair.
use super::process::Process;
use super::serve::{Program, Serve, linux_flags, list};
use crate::args::Device;
use crate::machine::split_cpus;
use crate::problem::{Problem, Result};
use ix_testbed::{Namespace, VethEnd};
use serde_json::Value;
use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const LINUX_SERVER: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 1);
const IX_SERVER: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 2);
const LINUX_CLIENT: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 3);
const IX_CLIENT: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 4);
const TAP_LINUX: Ipv4Addr = Ipv4Addr::new(10, 67, 0, 3);
const TAP_IX: Ipv4Addr = Ipv4Addr::new(10, 67, 0, 2);
const PREFIX: u8 = 24;
const SERVER_LINK: &str = "ix-server";
const CLIENT_LINK: &str = "ix-client";
const TAP: &str = "ix-tap";
const PORT: u16 = 7;
/// Time for a process to come up.
const START: Duration = Duration::from_secs(15);

/// What one end of a measurement runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// IX.
    Ix,
    /// Linux sockets; waiting in epoll or spinning.
    Linux {
        /// Whether it spins.
        spin: bool,
    },
}

impl Host {
    /// Linux sockets, waiting in epoll.
    pub const BLOCKING: Host = Host::Linux { spin: false };
    /// Linux sockets, spinning.
    pub const SPINNING: Host = Host::Linux { spin: true };

    /// `ix` or `linux`.
    pub fn system(self) -> &'static str {
        if self == Host::Ix { "ix" } else { "linux" }
    }
}

/// The link with its two ends.
pub struct Lab {
    server: Namespace,
    client: Namespace,
    device: Device,
    /// First hardware threads of server and client.
    pub cpus: (usize, usize),
    /// All hardware threads of the server's end.
    pub server_cpus: Vec<usize>,
    /// All hardware threads of the client's end.
    pub client_cpus: Vec<usize>,
    ix: PathBuf,
    control: PathBuf,
}

/// A load that runs.
pub struct Load {
    process: Process,
}

/// A running server.
pub struct Server {
    process: Process,
    host: Host,
    address: Ipv4Addr,
    control: PathBuf,
}

impl Lab {
    /// Makes the link. Everything goes when the lab is dropped or the process dies.
    pub fn new(device: Device) -> Result<Lab> {
        let ix = std::env::current_exe();
        Lab::of(ix.map_err(|e| Problem::new("cannot find this command's own file", e))?, device)
    }

    /// The same with the command in the file `ix`.
    pub fn of(ix: PathBuf, device: Device) -> Result<Lab> {
        if device == Device::Tap {
            can_open_tap()?;
        }
        let what = || format!("cannot make a private link for {}", device.name());
        let made = || {
            let (server, client) = (Namespace::new()?, Namespace::new()?);
            let queues = (split_cpus().0.len() + split_cpus().1.len()) as u32;
            let (here, there) = (VethEnd::new(SERVER_LINK), VethEnd::new(CLIENT_LINK));
            server.add_veth(&here.queues(queues), &client, &there.queues(queues))?;
            prepare(&server, &client)?;
            server.add_address(SERVER_LINK, LINUX_SERVER, PREFIX)?;
            client.add_address(CLIENT_LINK, LINUX_CLIENT, PREFIX)?;
            server.set_up(SERVER_LINK, true)?;
            client.set_up(CLIENT_LINK, true)?;
            server.wait_running(SERVER_LINK, START)?;
            client.wait_running(CLIENT_LINK, START)?;
            Ok((server, client))
        };
        let (server, client) = made().map_err(|e: ix_testbed::Error| {
            Problem::new(what(), e).mend("`ix doctor` says what is missing")
        })?;
        static LABS: AtomicUsize = AtomicUsize::new(0);
        let number = LABS.fetch_add(1, Ordering::Relaxed);
        let name = format!("lab-{}-{number}", std::process::id());
        let control = crate::control::folder()?.join(name);
        let (server_cpus, client_cpus) = split_cpus();
        let cpus = (server_cpus[0], client_cpus[0]);
        Ok(Lab { server, client, device, cpus, server_cpus, client_cpus, ix, control })
    }

    /// Name of the link under a host: Linux's is always the pair.
    pub fn device_of(&self, host: Host) -> &'static str {
        match host {
            Host::Ix => self.device.name(),
            Host::Linux { .. } => "veth",
        }
    }

    /// Whether IX can run at the client's end as well.
    pub fn has_ix_client(&self) -> bool {
        self.device != Device::Tap
    }

    /// Whether Linux can be the client of a server on IX.
    pub fn has_linux_client(&self) -> bool {
        self.device != Device::Memif
    }

    /// The device of IX's server or client.
    fn nic(&self, server: bool) -> String {
        match (self.device, server) {
            (Device::Memif, true) => format!("memif:{},role=server", self.memif().display()),
            (Device::Memif, false) => format!("memif:{},role=client", self.memif().display()),
            (Device::Tap, _) => format!("tap:{TAP}"),
            (Device::Afxdp, true) => format!("afxdp:{SERVER_LINK}"),
            (Device::Afxdp, false) => format!("afxdp:{CLIENT_LINK}"),
        }
    }

    /// Where the two ends of the shared-memory link meet: a file, for the ends are in different
    /// network namespaces, and sockets without one belong to theirs.
    fn memif(&self) -> PathBuf {
        self.control.with_extension("memif")
    }

    /// The end that Linux's client is at.
    pub fn client_namespace(&self) -> &Namespace {
        &self.client
    }

    /// Sets the server's end of the pair up or down.
    pub fn set_server_link(&self, up: bool) -> Result<()> {
        self.server.set_up(SERVER_LINK, up).map_err(|e| Problem::new("cannot switch the link", e))
    }

    /// Switches checksum and segmentation offloads of both ends on or off.
    pub fn set_offloads(&self, on: bool) -> Result<()> {
        self.server
            .set_offloads(SERVER_LINK, on)
            .and_then(|()| self.client.set_offloads(CLIENT_LINK, on))
            .map_err(|e| Problem::new("cannot switch the offloads of the link", e))
    }

    /// Switches the pair to so many queues in each direction: a server's threads need one each.
    fn set_queues(&self, queues: usize) -> Result<()> {
        let queues = queues as u32;
        self.server
            .set_channels(SERVER_LINK, queues, queues)
            .and_then(|()| self.client.set_channels(CLIENT_LINK, queues, queues))
            .map_err(|e| Problem::new("cannot set the queues of the link", e))
    }

    /// Congestion control that Linux uses on the link.
    pub fn congestion_control(&self) -> String {
        self.client.sysctl("net/ipv4/tcp_congestion_control").unwrap_or_default()
    }

    /// Hardware threads for so many threads of a server: its own end's first, then the client's,
    /// and around again where the machine has fewer.
    pub fn cpus_for(&self, threads: usize) -> Vec<usize> {
        let all = self.server_cpus.iter().chain(self.client_cpus.iter().rev()).copied();
        all.cycle().take(threads.max(1)).collect()
    }

    /// Starts `ix-echo` with `arguments` as a server, and waits until it listens.
    pub fn start_server(&self, host: Host, arguments: &[String]) -> Result<Server> {
        self.start(host, &Serve::echo(arguments))
    }

    /// Starts a server, and waits until it listens.
    pub fn start(&self, host: Host, serve: &Serve) -> Result<Server> {
        let cpus = self.cpus_for(serve.threads());
        self.set_queues(cpus.len())?;
        let (command, address, on_tap) = match (host, self.device) {
            (Host::Linux { .. }, _) if serve.program == Program::Memcached => {
                let mut command = self.server.command("memcached", Some(cpus[0]));
                command.args(serve.of_memcached(LINUX_SERVER, PORT));
                (command, LINUX_SERVER, false)
            }
            (Host::Linux { spin }, _) => {
                let mut command = self.server.command(&self.ix, Some(cpus[0]));
                command.args(serve.of_linux(PORT, spin, &cpus));
                (command, LINUX_SERVER, false)
            }
            (Host::Ix, Device::Tap) => {
                (self.serve_ix(&self.client, TAP_IX, &cpus, serve), TAP_IX, true)
            }
            (Host::Ix, _) => {
                (self.serve_ix(&self.server, IX_SERVER, &cpus, serve), IX_SERVER, false)
            }
        };
        let mut process = Process::start(command, &format!("{} server", host.system()))?;
        if on_tap {
            self.raise_tap(&mut process)?;
        }
        match serve.program {
            Program::Memcached => self.wait_for_listener(&mut process, address)?,
            _ => drop(process.wait_for_line("ready", START)?),
        }
        Ok(Server { process, host, address, control: self.control_of(address) })
    }

    /// Waits for a server that does not say when it is ready.
    fn wait_for_listener(&self, server: &mut Process, address: Ipv4Addr) -> Result<()> {
        let end = Instant::now() + START;
        let listens = || TcpStream::connect((address, PORT)).is_ok();
        while !self.client.run(listens) {
            server.check()?;
            if Instant::now() > end {
                return Err(Problem::new("the linux server hangs", "it does not listen"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// The tap exists once `ix run` has opened it; its Linux side is ours to set up.
    fn raise_tap(&self, server: &mut Process) -> Result<()> {
        let problem = |e: ix_testbed::Error| Problem::new("cannot set up the TAP device", e);
        let end = Instant::now() + START;
        while self.client.link(TAP).map_err(problem)?.is_none() {
            server.check()?;
            if Instant::now() > end {
                return Err(Problem::new("the ix server hangs", "it has not opened its device"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let raised = self
            .client
            .add_address(TAP, TAP_LINUX, PREFIX)
            .and_then(|()| self.client.set_up(TAP, true));
        raised.map_err(problem)
    }

    /// Runs `ix-echo --client` with `arguments` against a server to its end; answers the object
    /// that it prints.
    pub fn run_client(
        &self,
        host: Host,
        server: &mut Server,
        arguments: &[String],
        timeout: Duration,
    ) -> Result<Value> {
        let args = self.echo_client(host, server, arguments);
        self.run_load(host, server, &args, timeout)
    }

    /// Runs the `ix` command with `args` at the client's end, to its end, on Linux or under
    /// `ix run`; answers the object that it prints.
    pub fn run_load(
        &self,
        host: Host,
        server: &mut Server,
        args: &[OsString],
        timeout: Duration,
    ) -> Result<Value> {
        let load = self.start_load(host, args)?;
        load.finish(server, timeout)
    }

    /// Starts the same.
    pub fn start_load(&self, host: Host, args: &[OsString]) -> Result<Load> {
        let cpu = self.cpus.1;
        let command = match host {
            Host::Linux { .. } => {
                let mut command = self.client.command(&self.ix, Some(cpu));
                command.args(args);
                command
            }
            Host::Ix => {
                self.ix_command(&self.client, &self.nic(false), IX_CLIENT, &[cpu], &[], args)
            }
        };
        Ok(Load { process: Process::start(command, &format!("{} client", host.system()))? })
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

    /// `ix run` with a server under it.
    fn serve_ix(
        &self,
        namespace: &Namespace,
        address: Ipv4Addr,
        cpus: &[usize],
        serve: &Serve,
    ) -> Command {
        let batch = serve.batch.map(|b| vec!["--batch".into(), b.to_string().into()]);
        let args = serve.of_ix(PORT);
        let flags = batch.unwrap_or_default();
        self.ix_command(namespace, &self.nic(true), address, cpus, &flags, &args)
    }

    /// `ix run` with `flags`, and under it the `ix` command with `args`.
    fn ix_command(
        &self,
        namespace: &Namespace,
        nic: &str,
        address: Ipv4Addr,
        cpus: &[usize],
        flags: &[OsString],
        args: &[OsString],
    ) -> Command {
        let mut command = namespace.command(&self.ix, Some(cpus[0]));
        command.args(["run", "--domain", "none", "--nic", nic, "--addr"]);
        command.arg(format!("{address}/{PREFIX}")).args(["--cpus", &list(cpus)]);
        command.arg("--control").arg(self.control_of(address)).args(flags);
        command.arg("--").arg(&self.ix).args(args);
        command
    }

    fn control_of(&self, address: Ipv4Addr) -> PathBuf {
        let mut path = self.control.clone().into_os_string();
        path.push(format!("-{address}.sock"));
        path.into()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // A server that was killed leaves the file behind; most labs have none.
        let _ = std::fs::remove_file(self.memif());
    }
}

impl Load {
    /// Whether it has said this on standard error.
    pub fn has_said(&self, part: &str) -> bool {
        self.process.has_said(part)
    }

    /// An error when it has ended.
    pub fn check(&mut self) -> Result<()> {
        self.process.check()
    }

    /// Waits for a line of its output that starts so, and for its end.
    pub fn wait_for(mut self, start: &str, server: &mut Server, timeout: Duration) -> Result<()> {
        let result = self.process.wait_for_line(start, timeout).map(drop);
        let result = result.and_then(|()| self.process.wait_for_end());
        server.process.check().and(result)
    }

    /// Waits for its end and answers the object that it printed.
    pub fn finish(self, server: &mut Server, timeout: Duration) -> Result<Value> {
        let result = self.process.result(timeout);
        server.process.check().and(result)
    }
}

impl Server {
    /// Where it listens.
    pub fn address(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.address, PORT)
    }

    /// Where to ask the dataplane for its counters; `None` on Linux.
    pub fn control(&self) -> Option<PathBuf> {
        (self.host == Host::Ix).then(|| self.control.clone())
    }

    /// What the dataplane runs on, as `ix run` said it.
    pub fn mode(&self) -> Option<String> {
        self.process.said("ix: device ")
    }

    /// Whether its standard error has a line that starts so.
    pub fn has_said(&self, start: &str) -> bool {
        self.process.said(start).is_some()
    }

    /// Its process: `ix run`, or `ix-echo` on Linux.
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// Stops it, and waits until it is gone.
    pub fn stop(self) {
        self.process.stop();
    }
}

/// Refuses, with what mends it, where TAP devices cannot be had.
pub fn can_open_tap() -> Result<()> {
    let device = "/dev/net/tun";
    let opened = std::fs::OpenOptions::new().read(true).write(true).open(device);
    opened.map(drop).map_err(|e| {
        let mend = match e.kind() {
            std::io::ErrorKind::NotFound => "modprobe tun",
            _ => "chmod 666 /dev/net/tun, or run it as root",
        };
        Problem::new(format!("cannot open {device}"), e).mend(mend)
    })
}

/// Settings of Linux's own stack that very many connections need, at both ends: all ports to choose
/// from, room for their handshakes, and a port in TIME-WAIT for a second only.
fn prepare(server: &Namespace, client: &Namespace) -> std::result::Result<(), ix_testbed::Error> {
    for end in [server, client] {
        for (path, value) in [
            ("net/ipv4/ip_local_port_range", "1024 65535"),
            ("net/core/somaxconn", "65535"),
            ("net/ipv4/tcp_max_syn_backlog", "65535"),
            ("net/ipv4/tcp_tw_reuse", "1"),
            ("net/ipv4/tcp_max_tw_buckets", "16384"),
        ] {
            end.set_sysctl(path, value)?;
        }
    }
    Ok(())
}
