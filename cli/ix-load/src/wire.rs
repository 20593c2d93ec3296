//! Messages between master and agents: one JSON object per line, over TCP.
use crate::engine::Portable;
use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

/// Changes when the messages change.
pub const VERSION: u32 = 1;
/// Longest line: an interval has a few thousand pairs of numbers.
const LINE_MOST: u64 = 16 << 20;
/// A peer that reads nothing for this long is lost.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// Master to agent.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToAgent {
    /// Prepare a part of a run.
    Run {
        /// [`VERSION`] of the master.
        version: u32,
        /// The master's command line, its name first.
        args: Vec<String>,
        /// Number of the part.
        part: u32,
        /// Number of parts.
        of: u32,
    },
    /// All are ready: begin.
    Go,
    /// End early.
    Stop,
}

/// Agent to master. An agent sends a message at least each second.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromAgent {
    /// Nothing new.
    Alive,
    /// This many records are stored in all.
    Stored(u64),
    /// All connections are open.
    Ready,
    /// A second of one thread, and the number of threads.
    Interval(Box<Portable>, usize),
    /// The run has ended; the error if it failed.
    Done(Option<String>),
}

/// Sends a message.
pub fn say(stream: &mut TcpStream, message: &impl Serialize) -> Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line).context("the connection is broken")
}

/// Prepares a connection and receives its messages; the channel ends with the connection.
pub fn hear<T>(stream: &TcpStream) -> Result<Receiver<T>>
where
    T: DeserializeOwned + Send + 'static,
{
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    let mut from = BufReader::new(stream.try_clone()?);
    let (sender, receiver) = channel();
    thread::spawn(move || {
        while let Ok(message) = next(&mut from) {
            if sender.send(message).is_err() {
                break;
            }
        }
    });
    Ok(receiver)
}

fn next<T: DeserializeOwned>(from: &mut impl BufRead) -> Result<T> {
    let mut line = Vec::new();
    from.take(LINE_MOST).read_until(b'\n', &mut line)?;
    if line.last() != Some(&b'\n') {
        bail!("the connection ended");
    }
    Ok(serde_json::from_slice(&line)?)
}
