//! `ix load agent`: makes load when a master asks for it.
use crate::args::{AgentArgs, LoadArgs, PlaceArgs};
use crate::plan::Plan;
use crate::run::{self, Happening};
use crate::wire::{self, FromAgent, ToAgent, VERSION};
use anyhow::{Context, Result, anyhow, bail};
use clap::Parser;
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

/// Serves masters, one at a time; prints the address that it listens at.
pub fn serve(args: &AgentArgs) -> Result<()> {
    let listener = TcpListener::bind(args.listen).with_context(|| {
        format!("cannot listen on {}; does another agent listen there?", args.listen)
    })?;
    ix_sys::outln!("agent: waiting for a master on {}", listener.local_addr()?);
    loop {
        let (stream, peer) = listener.accept().context("cannot accept a master")?;
        match session(args, stream) {
            Ok(()) => eprintln!("ix load agent: served {peer}"),
            // An error of one master must not keep others from being served.
            Err(error) => eprintln!("ix load agent: master {peer}: {error:#}"),
        }
        if args.once {
            return Ok(());
        }
    }
}

fn session(args: &AgentArgs, mut stream: TcpStream) -> Result<()> {
    let orders: Receiver<ToAgent> = wire::hear(&stream)?;
    // A client that connects and sends nothing must not hold up the agent.
    let first = orders.recv_timeout(Duration::from_secs(5)).context("it sent no order")?;
    let ended = match first {
        ToAgent::Run { version: VERSION, args: theirs, part, of } => {
            plan(args, &theirs, part, of).and_then(|plan| work(&plan, &mut stream, &orders))
        }
        ToAgent::Run { version, .. } => {
            Err(anyhow!("the master speaks version {version}, this agent {VERSION}"))
        }
        ToAgent::Go | ToAgent::Stop => bail!("its first message was not an order to run"),
    };
    let failed = ended.as_ref().err().map(|error| format!("{error:#}"));
    wire::say(&mut stream, &FromAgent::Done(failed))?;
    ended
}

/// The master's run, with this machine's threads and device.
fn plan(args: &AgentArgs, theirs: &[String], part: u32, of: u32) -> Result<Plan> {
    let mut load = LoadArgs::try_parse_from(theirs).map_err(|e| anyhow!("{e}"))?;
    load.agents.clear();
    let spin = load.place.spin || args.place.spin;
    load.place = PlaceArgs { nic: None, addr: None, spin, ..args.place.clone() };
    load.threads = args.threads.or(load.threads);
    Ok(Plan::new(load)?.part(part, of))
}

fn work(plan: &Plan, stream: &mut TcpStream, orders: &Receiver<ToAgent>) -> Result<()> {
    let mut to_barrier = stream.try_clone()?;
    let told = |happening: Happening| {
        let message = match happening {
            Happening::Stored(records) => FromAgent::Stored(records),
            // The barrier sends it, once.
            Happening::Alive | Happening::Ready => FromAgent::Alive,
            Happening::Interval(interval, threads) => {
                FromAgent::Interval(Box::new((&*interval).into()), threads)
            }
        };
        if wire::say(stream, &message).is_err() {
            return Some("the connection to the master ended".to_string());
        }
        match orders.try_recv() {
            Err(TryRecvError::Empty) => None,
            Ok(ToAgent::Stop) => Some("the master stopped it".to_string()),
            Ok(_) => None,
            Err(TryRecvError::Disconnected) => {
                Some("the connection to the master ended".to_string())
            }
        }
    };
    let outcome = run::local(plan, run::place()?, told, &mut || {
        wire::say(&mut to_barrier, &FromAgent::Ready)?;
        loop {
            match orders.recv_timeout(Duration::from_secs(1)) {
                Ok(ToAgent::Go) => return Ok(()),
                Ok(ToAgent::Stop) => bail!("the master cancelled the run"),
                Ok(ToAgent::Run { .. }) => {
                    bail!("the master sent a second order while the first is running")
                }
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                    wire::say(&mut to_barrier, &FromAgent::Alive)?;
                }
                Err(_) => bail!("the connection to the master ended"),
            }
        }
    })?;
    outcome.failed.map_or(Ok(()), Err)
}
