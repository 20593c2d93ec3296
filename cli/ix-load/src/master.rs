//! The master of a run on several machines: agents make the load, this machine measures latency.
use crate::plan::Plan;
use crate::report::{self, Collected, Second};
use crate::run::{self, Happening};
use crate::wire::{self, FromAgent, ToAgent, VERSION};
use anyhow::{Context, Result, anyhow};
use serde_json::Value;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

/// An agent that is silent for this long is lost.
const SILENCE: Duration = Duration::from_secs(5);
const CONNECT: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(20);

struct Agent {
    name: String,
    stream: TcpStream,
    messages: Receiver<FromAgent>,
    heard: Instant,
    ready: bool,
    stored: u64,
    /// It has ended normally, or is lost.
    over: bool,
    /// It is over, and no longer counted among the sources.
    gone: bool,
    threads: usize,
}

struct Master {
    agents: Vec<Agent>,
    collected: Collected,
    local_threads: usize,
    stop: Option<String>,
    failed: Option<anyhow::Error>,
    quiet: bool,
}

/// Runs a plan with its agents; returns the exit status.
pub fn run(plan: Plan, machine: &dyn Fn() -> Value) -> Result<u8> {
    let place = run::place()?;
    let mut agents = Vec::new();
    for name in &plan.args.agents {
        agents.push(Agent::reach(name)?);
    }
    let of = agents.len() as u32;
    for (part, agent) in (0..).zip(&mut agents) {
        let args = plan.args.command_line.clone();
        agent.say(&ToAgent::Run { version: VERSION, args, part, of })?;
    }
    let master = std::cell::RefCell::new(Master {
        agents,
        collected: Collected::new(plan.clone(), place.name()),
        local_threads: 1,
        stop: None,
        failed: None,
        quiet: plan.args.quiet,
    });
    if plan.args.preload_only {
        master.borrow_mut().finish();
    } else {
        let happened = |happening| master.borrow_mut().happened(happening);
        let outcome = run::local(&plan, place, happened, &mut || master.borrow_mut().barrier())?;
        let mut master = master.borrow_mut();
        master.finish();
        master.collected.stopped = outcome.stopped;
        master.failed = outcome.failed.or(master.failed.take());
    }
    let Master { collected, failed, .. } = master.into_inner();
    run::conclude(&plan, collected, failed, machine)
}

impl Agent {
    fn reach(name: &str) -> Result<Agent> {
        let why = || format!("cannot reach the agent {name}; start `ix load agent` there");
        let mut addresses = name.to_socket_addrs().with_context(why)?;
        let address = addresses.next().with_context(why)?;
        let stream = TcpStream::connect_timeout(&address, CONNECT).with_context(why)?;
        let messages = wire::hear(&stream)?;
        let name = name.to_owned();
        Ok(Agent {
            name,
            stream,
            messages,
            heard: Instant::now(),
            ready: false,
            stored: 0,
            over: false,
            gone: false,
            threads: 1,
        })
    }

    fn say(&mut self, order: &ToAgent) -> Result<()> {
        let name = &self.name;
        wire::say(&mut self.stream, order)
            .with_context(|| format!("lost the connection to the agent {name}"))
    }
}

impl Master {
    /// Handles an event of this machine's threads, then the agents' messages.
    fn happened(&mut self, happening: Happening) -> Option<String> {
        if let Happening::Interval(interval, threads) = happening {
            self.local_threads = threads;
            let sources = self.sources();
            let second = self.collected.add(*interval, sources);
            self.show(second);
        }
        self.look();
        let stop = self.stop.clone();
        if stop.is_some() {
            self.stop_agents();
        }
        stop
    }

    /// Number of threads that report each second.
    fn sources(&self) -> usize {
        let live = self.agents.iter().filter(|agent| !agent.gone);
        self.local_threads + live.map(|agent| agent.threads).sum::<usize>()
    }

    /// Waits until all agents are ready, and starts them.
    fn barrier(&mut self) -> Result<()> {
        while let Some(waiting) = self.agents.iter().find(|agent| !agent.ready) {
            if self.failed.is_some() || waiting.over {
                let lost = anyhow!("lost the agent {} before the start", waiting.name);
                self.stop_agents();
                return Err(self.failed.take().unwrap_or(lost));
            }
            std::thread::sleep(LOOK);
            self.look();
        }
        self.agents.iter_mut().try_for_each(|agent| agent.say(&ToAgent::Go))
    }

    /// Handles the agents' messages.
    fn look(&mut self) {
        for index in 0..self.agents.len() {
            while let Some(message) = self.next(index) {
                self.heard(index, message);
            }
        }
    }

    fn next(&mut self, index: usize) -> Option<FromAgent> {
        let agent = &mut self.agents[index];
        if agent.over {
            return None;
        }
        match agent.messages.try_recv() {
            Ok(message) => {
                agent.heard = Instant::now();
                Some(message)
            }
            Err(TryRecvError::Empty) if agent.heard.elapsed() < SILENCE => None,
            Err(why) => {
                let why = match why {
                    TryRecvError::Empty => "is silent",
                    TryRecvError::Disconnected => "disappeared",
                };
                self.lost(index, why);
                None
            }
        }
    }

    fn heard(&mut self, index: usize, message: FromAgent) {
        let agent = &mut self.agents[index];
        match message {
            FromAgent::Alive => {}
            FromAgent::Ready => agent.ready = true,
            FromAgent::Stored(records) => {
                agent.stored = records;
                let all: u64 = self.agents.iter().map(|agent| agent.stored).sum();
                if !self.quiet {
                    eprintln!("stored {all} records");
                }
            }
            FromAgent::Interval(interval, threads) => {
                agent.threads = threads;
                let sources = self.sources();
                let second = self.collected.add((*interval).into(), sources);
                self.show(second);
            }
            FromAgent::Done(failed) => {
                agent.over = true;
                if let Some(why) = failed {
                    let name = agent.name.clone();
                    self.failed.get_or_insert(anyhow!("the agent {name} failed: {why}"));
                    self.collected.partial = true;
                }
            }
        }
    }

    /// The run continues without the agent.
    fn lost(&mut self, index: usize, why: &str) {
        let agent = &mut self.agents[index];
        (agent.over, agent.gone) = (true, true);
        eprintln!("ix load: the agent {} {why}: the result will be partial", agent.name);
        self.collected.partial = true;
        let sources = self.sources();
        for second in self.collected.settle(sources) {
            self.show(Some(second));
        }
    }

    fn show(&mut self, second: Option<Second>) {
        let Some(second) = second else { return };
        if !self.quiet {
            eprintln!("{}", report::progress(&second.row));
        }
        if second.stop.is_some() && self.stop.is_none() {
            self.stop = second.stop;
        }
    }

    fn stop_agents(&mut self) {
        for agent in self.agents.iter_mut().filter(|agent| !agent.over) {
            // An agent that is lost needs no order.
            let _ = agent.say(&ToAgent::Stop);
        }
    }

    /// Waits for the agents' last messages, at most until they are silent.
    fn finish(&mut self) {
        while self.agents.iter().any(|agent| !agent.over) {
            std::thread::sleep(LOOK);
            self.look();
        }
    }
}
