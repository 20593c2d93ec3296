//! Servers at the link's end.
use super::{
    Host, IX_CLIENT, IX_SERVER, LINUX_CLIENT, LINUX_SERVER, Lab, PORT, START, TAP, TAP_IX,
    TAP_LINUX,
};
use crate::args::Device;
use crate::process::Process;
use crate::serve::{Program, Serve};
use ix_report::domain::Domain;
use ix_report::problem::{Problem, Result};
use ix_testbed::Namespace;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Start of a line of the socket library, see `IX_POSIX_CALLS` in docs/posix.md.
const CALLS: &str = "ix: calls forwarded to Linux: ";

/// How long a server has for the handshake by which it shows that it listens.
const LISTENS: Duration = Duration::from_millis(500);

/// Place of a server that is not alone on the link.
#[derive(Clone, Debug)]
pub struct Spot {
    /// Its hardware thread.
    pub cpu: usize,
    /// Its port.
    pub port: u16,
    /// The device of its vNIC, and its address there; Linux servers have the link's.
    pub vnic: Option<(String, Ipv4Addr)>,
}

/// A running server.
pub struct Server {
    pub(super) process: Process,
    pub(super) host: Host,
    pub(super) address: IpAddr,
    pub(super) port: u16,
    pub(super) control: PathBuf,
    /// The signal that ends it.
    pub(super) stop: i32,
}

impl Lab {
    /// Starts `ix-echo` with `arguments` as a server, and waits until it listens.
    pub fn start_server(&self, host: Host, arguments: &[String]) -> Result<Server> {
        self.start(host, &Serve::echo(arguments))
    }

    /// Starts a server, and waits until it listens.
    pub fn start(&self, host: Host, serve: &Serve) -> Result<Server> {
        self.start_at(host, serve, None)
    }

    /// Starts one of several servers, each with its spot.
    pub fn start_at(&self, host: Host, serve: &Serve, spot: Option<&Spot>) -> Result<Server> {
        let cpus = spot.map_or_else(|| self.cpus_for(serve.threads()), |spot| vec![spot.cpu]);
        let port = spot.map_or(PORT, |spot| spot.port);
        self.set_queues(cpus.len())?;
        let (command, address, on_tap) = match (host, self.device) {
            (Host::Linux { .. }, _) if serve.program.is_unmodified() => {
                let words = serve.of_unmodified_on_linux(self.at(LINUX_SERVER), port);
                let mut command = self.server.command(&words[0], Some(cpus[0]));
                command.args(&words[1..]);
                (command, self.at(LINUX_SERVER), false)
            }
            (Host::Linux { spin }, _) => {
                let mut command = self.server.command(&self.ix, Some(cpus[0]));
                command.args(serve.of_linux(port, spin, &cpus));
                command.args(self.every_address(serve));
                (command, self.at(LINUX_SERVER), false)
            }
            (Host::Peer, _) => return self.start_peer(),
            (Host::Ix(_), _) if serve.program == Program::Driver => {
                let mut command = self.server.command(&self.ix, Some(cpus[0]));
                command.args(["bench", "device-echo", "--nic", &self.nic(true), "--addr"]);
                command.args([IX_SERVER.to_string(), "--port".into(), port.to_string()]);
                (command, IX_SERVER.into(), false)
            }
            (Host::Ix(domain), device) => {
                let on_tap = device == Device::Tap;
                let (namespace, address) = match on_tap {
                    true => (&self.client, self.at(TAP_IX)),
                    false => (&self.server, self.at(IX_SERVER)),
                };
                let vnic = spot.and_then(|spot| spot.vnic.clone());
                let vnic = vnic.map(|(nic, address)| (nic, address.into()));
                let (nic, address) = vnic.unwrap_or_else(|| (self.nic(true), address));
                let at = (address, port);
                (self.serve_ix(namespace, &nic, at, (&cpus, domain), serve), address, on_tap)
            }
        };
        let mut command = command;
        if serve.program.is_unmodified() {
            let back = match (serve.behind_on_ix, on_tap) {
                (true, _) => IX_CLIENT,
                (false, true) => TAP_LINUX,
                (false, false) => LINUX_CLIENT,
            };
            command
                .env("IX_FRONT", SocketAddr::new(address, port).to_string())
                .env("IX_BACK", back.to_string());
            command.env("IX_POSIX_CALLS", "1");
        }
        let mut process = Process::start(command, &format!("{} server", host.system()))?;
        if on_tap {
            self.raise_tap(|| process.check())?;
        }
        match serve.program {
            program if !program.is_unmodified() => {
                drop(process.wait_for_line("ready", START)?);
            }
            _ if host.is_ix() => wait_for_dataplane(&mut process, port)?,
            _ => self.wait_for_listener(&mut process, (address, port))?,
        }
        // On SIGTERM haproxy ends without closing its connections.
        let gently = serve.program == Program::Haproxy;
        let stop = if gently { libc::SIGUSR1 } else { libc::SIGTERM };
        Ok(Server { process, host, address, port, control: self.control_of(address), stop })
    }

    /// Starts a server for a program of [`Lab::run_at_client`]: on IX, or on Linux where the link
    /// has one end of IX only.
    pub fn start_for_client(&self, serve: &Serve) -> Result<Server> {
        if self.has_ix_client() {
            return self.start(Host::IX, serve);
        }
        let mut command = self.client.command(&self.ix, Some(self.cpus.0));
        command.args(serve.of_linux(PORT, false, &[self.cpus.0]));
        let mut process = Process::start(command, "linux server")?;
        process.wait_for_line("ready", START)?;
        let (host, address, control) = (Host::BLOCKING, self.at(TAP_LINUX), PathBuf::new());
        Ok(Server { process, host, address, port: PORT, control, stop: libc::SIGTERM })
    }

    /// Starts `ix-httpd` on Linux sockets at the client's end.
    pub fn start_back_end(&self, folder: &Path, port: u16) -> Result<Server> {
        let cpu = self.client_cpus.last().copied().unwrap_or(self.cpus.1);
        let mut command = self.client.command(&self.ix, Some(cpu));
        command.args(["httpd", "--linux", "--port", &port.to_string()]).arg(folder);
        let mut process = Process::start(command, "web server")?;
        process.wait_for_line("ready", START)?;
        let (host, control, stop) = (Host::BLOCKING, PathBuf::new(), libc::SIGTERM);
        Ok(Server { process, host, address: LINUX_CLIENT.into(), port, control, stop })
    }

    /// Waits for a server that does not report when it is ready.
    pub(super) fn wait_for_listener(&self, server: &mut Process, at: (IpAddr, u16)) -> Result<()> {
        let end = Instant::now() + START;
        let listens = || TcpStream::connect_timeout(&SocketAddr::from(at), LISTENS).is_ok();
        while !self.client.run(listens) {
            server.check()?;
            if Instant::now() > end {
                let why = format!("nobody answers at {}", SocketAddr::from(at));
                return Err(
                    server.explain(Problem::new(format!("the {} hangs", server.name()), why))
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// The tap exists once `ix run` has opened it; the benchmark sets up its Linux side. `check`
    /// fails once `ix run` has ended.
    pub(super) fn raise_tap(&self, mut check: impl FnMut() -> Result<()>) -> Result<()> {
        let problem = |e: ix_testbed::Error| Problem::new("cannot set up the TAP device", e);
        let end = Instant::now() + START;
        while self.client.link(TAP).map_err(problem)?.is_none() {
            check()?;
            if Instant::now() > end {
                return Err(Problem::new("ix run hangs", "it has not opened its device in time"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let raised = self
            .client
            .add_address(TAP, self.at(TAP_LINUX), self.prefix())
            .and_then(|()| match self.offloads.load(Ordering::Relaxed) {
                true => Ok(()),
                false => self.client.set_offloads(TAP, false),
            })
            .and_then(|()| self.client.set_up(TAP, true));
        raised.map_err(problem)
    }

    /// Flags by which a server of ours listens at addresses of the family that is spoken.
    fn every_address(&self, serve: &Serve) -> Vec<OsString> {
        let echo = self.is_v6() && serve.program == Program::Echo;
        if echo { ["--addr", "::"].map(Into::into).to_vec() } else { Vec::new() }
    }

    /// `ix run` with a server under it.
    fn serve_ix(
        &self,
        namespace: &Namespace,
        nic: &str,
        (address, port): (IpAddr, u16),
        (cpus, domain): (&[usize], Domain),
        serve: &Serve,
    ) -> Command {
        let batch = serve.batch.map(|b| vec!["--batch".into(), b.to_string().into()]);
        let args = match serve.program {
            program if program.is_unmodified() => serve.of_unmodified(address, port),
            _ => [serve.of_ix(&self.ix, port), self.every_address(serve)].concat(),
        };
        let mut flags = batch.unwrap_or_default();
        flags.extend(serve.run_flags.iter().map(std::ffi::OsString::from));
        flags.extend(serve.user.iter().flat_map(|user| ["--user".into(), user.into()]));
        if !flags.iter().any(|flag| flag == "--domain") {
            flags.extend(["--domain", domain.name()].map(Into::into));
        }
        self.ix_command(namespace, nic, address, cpus, &flags, &args)
    }
}

/// Waits until an unmodified program listens on IX, as libix-posix says in a line.
fn wait_for_dataplane(server: &mut Process, port: u16) -> Result<()> {
    let (end, listens) = (Instant::now() + START, format!(":{port}: IX"));
    while !server.has_said(&listens) {
        server.check()?;
        if Instant::now() > end {
            return Err(Problem::new(
                "the ix server hangs",
                "it does not accept connections in time",
            ));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

impl Server {
    /// Address that it listens at.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }

    /// The dataplane's control socket; `None` on Linux.
    pub fn control(&self) -> Option<PathBuf> {
        (self.host.is_ix()).then(|| self.control.clone())
    }

    /// Mode of the device, as `ix run` printed it.
    pub fn mode(&self) -> Option<String> {
        self.process.said("ix: device ")
    }

    /// Whether its standard error has a line that starts with `start`.
    pub fn has_said(&self, start: &str) -> bool {
        self.process.said(start).is_some()
    }

    /// Waits for a line of its output that starts with `start`, and returns it.
    pub fn wait_for(&mut self, start: &str, timeout: Duration) -> Result<String> {
        self.process.wait_for_line(start, timeout)
    }

    /// Fails, with its last line, if it has ended by itself.
    pub fn check(&mut self) -> Result<()> {
        self.process.check()
    }

    /// Process ID of `ix run`, or of `ix-echo` on Linux.
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// Stops it and waits for its end; returns how many calls of an unmodified program on IX were
    /// forwarded to Linux.
    pub fn stop(self) -> Option<u64> {
        let said = match self.host {
            Host::Ix(_) => {
                let said = self.process.stop_and_hear(self.stop, CALLS);
                if let Some(said) = &said {
                    eprintln!("{CALLS}{said}");
                }
                said
            }
            Host::Linux { .. } | Host::Peer => {
                self.process.stop();
                None
            }
        };
        said.and_then(|said| said.split(' ').next()?.parse().ok())
    }
}
