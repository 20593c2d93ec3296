//! Web servers beside the load, on the same elastic thread: they are behind a proxy under test.
//! Their replies come from ix-httpd; their connections are here.
use super::{Net, Peer};
use anyhow::{Result, bail};
use ix_httpd::answers::Answers;
use ix_httpd::session::{Answer, Session};
use ix_httpd::site::Site;
use libix::engine::Connection;
use libix::raw::TxArena;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

/// Longest wait for transmit memory while pages are loaded.
const LOAD_NS: u64 = 500_000_000;

/// One connection of the proxy.
#[derive(Default)]
pub struct Served {
    session: Session,
    /// Replies that were not given to send yet.
    owed: VecDeque<Answer>,
    /// The peer has closed its direction.
    pub(super) eof: bool,
}

/// The servers.
pub(super) struct BackEnds {
    answers: Answers<TxArena>,
    /// Where they listen, and whether they do.
    at: Vec<SocketAddr>,
    is_listening: bool,
    /// When the pages must be in memory.
    late_ns: Option<u64>,
    listeners: Vec<u64>,
    /// Listeners that are being opened.
    opening: Vec<(SocketAddr, u64)>,
}

impl BackEnds {
    /// Servers that do not listen yet.
    pub(super) fn new(tx: TxArena, site: Arc<Site>, at: Vec<SocketAddr>) -> BackEnds {
        BackEnds {
            answers: Answers::new(tx, site),
            at,
            is_listening: false,
            late_ns: None,
            listeners: Vec::new(),
            opening: Vec::new(),
        }
    }

    /// Puts the pages into memory, and opens the listeners once they are there.
    pub(super) fn begin(&mut self, net: &mut Net, now_ns: u64) -> Result<()> {
        let late_ns = *self.late_ns.get_or_insert(now_ns + LOAD_NS);
        if !self.answers.load() {
            if now_ns > late_ns {
                bail!(
                    "the pages do not fit into the dataplane's transmit memory; serve fewer pages"
                );
            }
            return Ok(());
        }
        self.is_listening = true;
        for at in &self.at {
            let listener = net.listen(*at, 0);
            self.listeners.push(listener);
            self.opening.push((*at, listener));
        }
        Ok(())
    }

    /// Fails if a listener could not be opened.
    pub(super) fn check(&mut self, net: &mut Net) -> Result<()> {
        while let Some(&(at, listener)) = self.opening.last()
            && let Some(outcome) = net.listener_outcome(listener)
        {
            self.opening.pop();
            if let Err(error) = outcome {
                bail!("cannot serve pages at {at}: {error}");
            }
        }
        Ok(())
    }

    /// Whether they listen, or are about to.
    pub(super) fn is_listening(&self) -> bool {
        self.is_listening
    }

    /// Ends the listeners.
    pub(super) fn end(&mut self, net: &mut Net) {
        self.listeners.drain(..).for_each(|listener| net.unlisten(listener));
    }

    /// Tells the servers the time.
    pub(super) fn set_time(&mut self, now_us: u64) {
        self.answers.set_time(now_us, SystemTime::now);
    }

    /// Reads requests. The caller consumes the bytes.
    pub(super) fn read(&mut self, connection: &mut Connection<Peer>) {
        let site = self.answers.site();
        let (Peer::Served(served), pieces) = connection.state_and_received() else { return };
        for mut rest in pieces {
            while !rest.is_empty() {
                let (used, answer) = served.session.read(rest, site);
                served.owed.extend(answer);
                rest = &rest[used..];
            }
        }
    }

    /// Gives a connection the replies that it owes, and ends it after the last one. Returns whether
    /// it waits for transmit memory.
    pub(super) fn fill(&mut self, connection: &mut Connection<Peer>) -> bool {
        while let Peer::Served(served) = &mut connection.state
            && let Some(answer) = served.owed.front().copied()
        {
            if !self.answers.give(answer, |block, range| connection.send_shared(block, range)) {
                // No event announces free memory.
                return true;
            }
            if let Peer::Served(served) = &mut connection.state {
                served.owed.pop_front();
            }
        }
        if let Peer::Served(served) = &connection.state {
            if served.eof {
                connection.close();
            } else if served.session.is_over() {
                connection.shutdown();
            }
        }
        false
    }
}
