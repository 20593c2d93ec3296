//! Two `ix run` that share memory. Needs no privilege.
use super::process::Process;
use super::turn::Turn;
use super::{Folder, PATIENCE, Service};
use ix_skip::{Need, skip};
use ix_testbed::cpu;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The two hosts on the link. Which of them listens is another question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// 10.99.0.1, the service.
    Service,
    /// 10.99.0.2, who asks.
    Asker,
}

/// Addresses of service and asker, and where the service listens.
type Addresses = ([&'static str; 2], &'static str);
const V4: Addresses = (["10.99.0.1/24", "10.99.0.2/24"], "10.99.0.1:7");
const V6: Addresses = (["2001:db8:99::1/64", "2001:db8:99::2/64"], "[2001:db8:99::1]:7");

/// A place for a memif and what belongs to it.
pub struct MemifNet {
    folder: Folder,
    /// Elastic threads of each host.
    threads: usize,
    addresses: Addresses,
    _turn: Turn,
}

impl MemifNet {
    /// A place of its own; `None`, said loudly, where there are too few CPUs. Other
    /// tests run beside it.
    pub fn new(test: &str, threads: usize) -> Option<MemifNet> {
        let turn = Turn::part(2 * threads);
        if cpu::allowed().len() < threads.max(2) {
            skip(test, Need::Cpus(threads.max(2)), "too few CPUs");
            return None;
        }
        Some(MemifNet { folder: Folder::new(), threads, addresses: V4, _turn: turn })
    }

    /// The same with IPv6 addresses, and one elastic thread at each end.
    pub fn v6(test: &str) -> Option<MemifNet> {
        MemifNet::new(test, 1).map(|net| MemifNet { addresses: V6, ..net })
    }

    /// The memif's socket.
    pub fn path(&self) -> PathBuf {
        self.folder.0.join("link.memif")
    }

    /// Starts a program at one end, with these options of the device.
    pub fn start(&self, host: Host, options: &str, program: &[&str]) -> Service {
        self.start_by(Command::new(env!("CARGO_BIN_EXE_ix")), host, options, program)
    }

    /// The same by a command that executes `ix` with the arguments that follow.
    fn start_by(
        &self,
        mut command: Command,
        host: Host,
        options: &str,
        program: &[&str],
    ) -> Service {
        let control = self.folder.0.join(format!("{host:?}.sock"));
        let config = self.folder.0.join(format!("{host:?}.toml"));
        std::fs::write(&config, self.config(host, options)).expect("write the configuration");
        command
            .args(["run", "--domain", &super::domain()])
            .arg("-c")
            .arg(&config)
            .arg("--control")
            .arg(&control);
        command.arg("--").args(program);
        Service { process: Process::start(command), control }
    }

    /// The echo service, and that it serves.
    pub fn serve(&self, options: &str, arguments: &[&str]) -> Service {
        let echo = super::build_echo();
        let program: Vec<_> =
            [echo.to_str().expect("text")].into_iter().chain(arguments.iter().copied()).collect();
        let service = self.start(Host::Service, options, &program);
        service.process.wait_for("ready", PATIENCE);
        service
    }

    /// The echo service, whose `ix` a shell starts that is in this control group.
    pub fn serve_in(&self, group: &Path) -> Service {
        let echo = super::build_echo();
        let join = "echo $$ > \"$1/cgroup.procs\" && shift && exec \"$@\"";
        let mut shell = Command::new("sh");
        shell.args(["-c", join, "sh"]).arg(group).arg(env!("CARGO_BIN_EXE_ix"));
        let program = [echo.to_str().expect("text"), "64"];
        let service = self.start_by(shell, Host::Service, "", &program);
        service.process.wait_for("ready", PATIENCE);
        service
    }

    /// The load for it.
    pub fn ask(&self, options: &str, arguments: &[&str]) -> Service {
        let echo = super::build_echo();
        let mut program =
            vec![echo.to_str().expect("text"), "--client", self.addresses.1, "--json"];
        program.extend(arguments);
        self.start(Host::Asker, options, &program)
    }

    fn config(&self, host: Host, options: &str) -> String {
        let mut cpus = cpu::allowed();
        if host == Host::Asker {
            cpus.reverse();
        }
        cpus.truncate(self.threads);
        let [service, asker] = self.addresses.0;
        let address = if host == Host::Service { service } else { asker };
        let path = self.path();
        let device = memif(&path, options);
        format!(
            "host_addr = \"{address}\"\ncpu = {cpus:?}\ndevices = [\"{device}\"]\n[tcp]\n\
             time_wait_us = 300000\n"
        )
    }
}

/// A device specification.
pub fn memif(path: &Path, options: &str) -> String {
    let comma = if options.is_empty() { "" } else { "," };
    format!("memif:{}{comma}{options}", path.display())
}

/// Waits for the asker's end, which must be a success; returns its object.
#[track_caller]
pub fn answer(asker: Service, timeout: Duration) -> serde_json::Value {
    let (status, said) = asker.process.wait(timeout);
    assert!(status.success(), "{said:#?}");
    let line = said.iter().find(|line| line.starts_with('{')).expect("an object");
    serde_json::from_str(line).expect("JSON")
}
