//! Incidents of the service: migrations, kills, link failures, a killed controller.
use super::clients::SIZE;
use super::weather::Weather;
use crate::lab::{Host, Lab, Server};
use crate::process::Process;
use crate::serve::Serve;
use ix_broker::control::Client;
use ix_dataplane::GroupSet;
use ix_proto::control::Request;
use ix_random::Rng;
use ix_report::problem::{Problem, Result};
use ix_wire::FLOW_GROUPS;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Threads of the server.
const THREADS: usize = 2;
/// Time between two migrations.
const MIGRATE_EVERY: Duration = Duration::from_millis(100);
/// Most flow groups of one migration.
const GROUPS_MAX: u64 = 8;
/// Time that the link is down.
const DOWN: Duration = Duration::from_millis(300);
/// Longest time for a program to serve again, and to be removed with all that belongs to it.
const RESTART: Duration = Duration::from_secs(30);
/// The last part of a soak has no kills, so that counts can settle.
const CALM: Duration = Duration::from_secs(3);

/// Numbers of incidents.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Flow groups that were moved.
    pub migrations: u64,
    /// Commands that were refused: the thread was parked, or the program dead.
    pub refused: u64,
    /// Programs that were killed.
    pub programs: u64,
    /// `ix run`s that were killed.
    pub brokers: u64,
    /// Times that the link went down and up.
    pub flaps: u64,
    /// Controllers that were killed.
    pub controllers: u64,
    /// Processes that outlived their parents, in words.
    pub orphans: Vec<String>,
}

impl Tally {
    /// Figures for the summary row.
    pub fn figures(&self) -> Vec<(&'static str, f64)> {
        [
            ("migrations", self.migrations),
            ("refused", self.refused),
            ("program_kills", self.programs),
            ("broker_kills", self.brokers),
            ("link_flaps", self.flaps),
            ("controller_kills", self.controllers),
            ("orphans", self.orphans.len() as u64),
        ]
        .map(|(name, count)| (name, count as f64))
        .to_vec()
    }
}

/// An incident that repeats.
struct Again {
    every: Duration,
    next: Instant,
}

impl Again {
    fn new(every: Duration) -> Again {
        Again { every, next: Instant::now() + every }
    }

    /// `times` times, but at least and at most this often, s.
    fn times(times: u32, time: Duration, least: u64, most: u64) -> Again {
        let bounds = [least, most].map(Duration::from_secs);
        Again::new((time / (times + 1)).clamp(bounds[0], bounds[1]))
    }

    /// Whether it is due. Missed times are not made up for.
    fn is_due(&mut self) -> bool {
        let now = Instant::now();
        let due = now >= self.next;
        if due {
            self.next = now + self.every;
        }
        due
    }
}

/// Causes the incidents.
pub struct Chaos<'a> {
    lab: &'a Lab,
    weather: &'a Weather,
    server: Option<Server>,
    address: SocketAddr,
    control: PathBuf,
    mode: String,
    client: Option<Client>,
    controller: Option<Process>,
    random: Rng,
    until: Instant,
    migrate: Again,
    kill: Again,
    flap: Again,
    restart: Again,
    tally: Tally,
}

impl<'a> Chaos<'a> {
    /// Starts server and controller. Even a short soak has a few incidents of each kind.
    pub fn begin(
        lab: &'a Lab,
        seed: u64,
        time: Duration,
        weather: &'a Weather,
    ) -> Result<Chaos<'a>> {
        let server = start(lab)?;
        let control = server.control().ok_or_else(|| Problem::line("no control socket"))?;
        let mut chaos = Chaos {
            lab,
            weather,
            address: server.address(),
            mode: server.mode().unwrap_or_default(),
            control,
            server: Some(server),
            client: None,
            controller: None,
            random: Rng::new(seed),
            until: Instant::now() + time,
            migrate: Again::new(MIGRATE_EVERY),
            kill: Again::times(3, time, 4, 600),
            flap: Again::times(6, time, 2, 120),
            restart: Again::times(4, time, 3, 300),
            tally: Tally::default(),
        };
        chaos.start_controller()?;
        Ok(chaos)
    }

    /// Address of the service.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Control socket of the dataplane, whichever runs.
    pub fn control(&self) -> PathBuf {
        self.control.clone()
    }

    /// Mode of the device.
    pub fn mode(&self) -> String {
        self.mode.clone()
    }

    /// Process ID of `ix run`; `None`: it does not run.
    pub fn broker(&self) -> Option<i32> {
        self.server.as_ref().map(Server::pid)
    }

    /// Causes incidents that are due, and rests shortly.
    pub fn turn(&mut self) -> Result<()> {
        if let Some(server) = &mut self.server {
            server.check()?;
        }
        let calm = Instant::now() + CALM > self.until;
        if self.migrate.is_due() {
            self.migrate();
        }
        if self.flap.is_due() {
            self.flap()?;
        }
        if self.restart.is_due() {
            self.restart_controller()?;
        }
        if !calm && self.kill.is_due() {
            self.kill()?;
        }
        std::thread::sleep(Duration::from_millis(10));
        Ok(())
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random.below(below)
    }

    /// Moves some flow groups of a random thread to one of the threads.
    fn migrate(&mut self) {
        let some = 1 + self.random(GROUPS_MAX);
        let groups: GroupSet =
            (0..some).map(|_| self.random(FLOW_GROUPS as u64) as usize).collect();
        let to = self.random(THREADS as u64) as usize;
        let client = match self.client.take() {
            Some(client) => Ok(client),
            None => Client::connect(&self.control),
        };
        let asked = client.and_then(|mut c| c.ask(&Request::Migrate { groups, to }).map(|_| c));
        match asked {
            Ok(client) => {
                self.tally.migrations += groups.len() as u64;
                self.client = Some(client);
            }
            Err(_) => self.tally.refused += 1,
        }
    }

    /// Takes the link down and up: no connection may break.
    fn flap(&mut self) -> Result<()> {
        self.weather.rough();
        self.lab.set_server_link(false)?;
        std::thread::sleep(DOWN);
        self.lab.set_server_link(true)?;
        self.weather.rough();
        self.tally.flaps += 1;
        Ok(())
    }

    fn start_controller(&mut self) -> Result<()> {
        let mut command = Command::new(self.lab.ix_file());
        command.args(["cp", "--policy", "consolidation", "--control"]).arg(&self.control);
        self.controller = Some(Process::start(command, "controller")?);
        Ok(())
    }

    /// Kills the controller; another one continues from the state that it finds.
    fn restart_controller(&mut self) -> Result<()> {
        // Dropping it kills it.
        drop(self.controller.take());
        self.tally.controllers += 1;
        self.start_controller()
    }

    /// Kills the program or `ix run` above it, in turn, and starts it again.
    fn kill(&mut self) -> Result<()> {
        let Some(mut server) = self.server.take() else { return Ok(()) };
        let (mut program, control) = (0, self.control.clone());
        self.expect("a dataplane sent no status", || {
            let status = Client::connect(&control).and_then(|mut client| client.status());
            program = status.map_or(0, |status| status.pid as i32);
            program > 0
        });
        let broker = server.pid();
        self.weather.turn_of_death();
        if program > 0 && self.tally.programs <= self.tally.brokers {
            kill(program);
            self.tally.programs += 1;
            self.expect("ix run outlived its program", || server.check().is_err());
        } else {
            kill(broker);
            self.tally.brokers += 1;
        }
        // Dropping it waits for its end.
        drop(server);
        self.expect("a program outlived its ix run", || program == 0 || !is_alive(program));
        self.client = None;
        let begin = Instant::now();
        self.server = loop {
            match start(self.lab) {
                Ok(server) => break Some(server),
                Err(problem) if begin.elapsed() > RESTART => return Err(problem),
                Err(_) => std::thread::sleep(Duration::from_millis(200)),
            }
        };
        self.weather.turn_of_death();
        // A controller that ended with its dataplane is started again, too.
        if self.controller.as_mut().is_none_or(|controller| controller.check().is_err()) {
            self.start_controller()?;
        }
        Ok(())
    }

    /// Waits for a condition; records it if it never holds.
    fn expect(&mut self, or: &str, mut what: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !what() {
            if begin.elapsed() > RESTART {
                return self.tally.orphans.push(or.to_owned());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends the incidents.
    pub fn calm_down(&mut self) {
        drop(self.controller.take());
        self.weather.rough();
    }

    /// Ends the server.
    pub fn end(self) -> Tally {
        if let Some(server) = self.server {
            server.stop();
        }
        self.tally
    }
}

fn start(lab: &Lab) -> Result<Server> {
    lab.start(Host::IX, &Serve { threads: THREADS, ..Serve::echo(&[SIZE.to_string()]) })
}

fn kill(pid: i32) {
    // A child of ours, or the program under it, which the control socket has just reported. No
    // thread has waited for either, so the number is still theirs.
    let _ = ix_sys::process::kill(pid, libc::SIGKILL);
}

/// Whether a process runs; a zombie does not.
fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state follows the name, which is in brackets and may contain brackets.
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}
