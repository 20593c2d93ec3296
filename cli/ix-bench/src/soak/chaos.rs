//! What happens to the service: migrations, deaths, a link that goes down, a controller that dies.
use super::clients::SIZE;
use super::weather::Weather;
use crate::lab::{Host, Lab, Server};
use crate::process::Process;
use crate::serve::Serve;
use ix_broker::control::{Client, Request, View};
use ix_dataplane::GroupSet;
use ix_random::Rng;
use ix_report::problem::{Problem, Result};
use ix_wire::FLOW_GROUPS;
use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Threads of the server.
const THREADS: usize = 2;
/// Between two migrations.
const MIGRATE_EVERY: Duration = Duration::from_millis(100);
/// Flow groups of one migration at most.
const GROUPS_MAX: u64 = 8;
/// How long the link is down.
const DOWN: Duration = Duration::from_millis(300);
/// How long a program may take to serve again, and to be gone with all that is its.
const RESTART: Duration = Duration::from_secs(30);
/// The last part of a soak is without deaths, so that there is something to settle.
const CALM: Duration = Duration::from_secs(3);

/// How often what happened.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Flow groups that were moved.
    pub migrations: u64,
    /// Commands that were refused: the thread was parked, the program dead.
    pub refused: u64,
    /// Programs that were killed.
    pub programs: u64,
    /// `ix run`s that were killed.
    pub brokers: u64,
    /// Times that the link went down and up.
    pub flaps: u64,
    /// Controllers that were killed.
    pub controllers: u64,
    /// Processes that outlived what they belong to, in words.
    pub orphans: Vec<String>,
}

impl Tally {
    /// Figures for the row of the whole.
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

/// Something that happens again and again.
struct Again {
    every: Duration,
    next: Instant,
}

impl Again {
    fn new(every: Duration) -> Again {
        Again { every, next: Instant::now() + every }
    }

    /// So many times, but neither more often nor more seldom than this, s.
    fn times(times: u32, time: Duration, least: u64, most: u64) -> Again {
        let bounds = [least, most].map(Duration::from_secs);
        Again::new((time / (times + 1)).clamp(bounds[0], bounds[1]))
    }

    /// Whether it is time. What was missed is not made up for.
    fn is_due(&mut self) -> bool {
        let now = Instant::now();
        let due = now >= self.next;
        if due {
            self.next = now + self.every;
        }
        due
    }
}

/// Who makes it happen.
pub struct Chaos<'a> {
    lab: &'a Lab,
    weather: &'a Weather,
    server: Option<Server>,
    address: SocketAddrV4,
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
    /// Starts server and controller. Of each kind of incident there are some in however short a time.
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

    /// Where the service is.
    pub fn address(&self) -> SocketAddrV4 {
        self.address
    }

    /// Where to ask the dataplane, whichever runs.
    pub fn control(&self) -> PathBuf {
        self.control.clone()
    }

    /// What the dataplane runs on.
    pub fn mode(&self) -> String {
        self.mode.clone()
    }

    /// The process of `ix run`; `None`: there is none.
    pub fn broker(&self) -> Option<i32> {
        self.server.as_ref().map(Server::pid)
    }

    /// Whatever is due, and a short rest.
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

    /// Some flow groups, of whichever thread, to one of the threads.
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

    /// The link goes down and up: nothing breaks by that.
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

    /// The controller dies, and another one goes on from what it finds.
    fn restart_controller(&mut self) -> Result<()> {
        // Kills it.
        drop(self.controller.take());
        self.tally.controllers += 1;
        self.start_controller()
    }

    /// The program dies, or `ix run` above it, in turns, and is started anew.
    fn kill(&mut self) -> Result<()> {
        let Some(mut server) = self.server.take() else { return Ok(()) };
        let (mut program, control) = (0, self.control.clone());
        self.expect("a dataplane said nothing", || {
            let view = Client::connect(&control)
                .and_then(|mut client| client.ask(&Request::Status))
                .and_then(|value| View::read(&value));
            program = view.map_or(0, |view| view.pid as i32);
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
        // Waits for it.
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
        // One that ended with its dataplane comes back too.
        if self.controller.as_mut().is_none_or(|controller| controller.check().is_err()) {
            self.start_controller()?;
        }
        Ok(())
    }

    /// Waits until it is so; what never comes is noted.
    fn expect(&mut self, or: &str, mut what: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !what() {
            if begin.elapsed() > RESTART {
                return self.tally.orphans.push(or.to_owned());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Nothing more happens.
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
    lab.start(Host::Ix, &Serve { threads: THREADS, ..Serve::echo(&[SIZE.to_string()]) })
}

fn kill(pid: i32) {
    // A process of ours, or the program under it, of which the control socket has just spoken: no
    // thread has waited for either, so the number is still theirs.
    let _ = ix_sys::process::kill(pid, libc::SIGKILL);
}

/// Whether a process runs; one that only waits to be waited for does not.
fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state stands behind the name, which is in brackets and may have brackets in it.
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}
