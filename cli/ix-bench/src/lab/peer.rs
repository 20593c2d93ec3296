//! Somebody else's server at the server's end of the link.
use super::{
    Host, IX_CLIENT, IX_SERVER, LINUX_SERVER, Lab, PORT, PREFIX, SERVER_LINK, START, Server,
};
use crate::args::Device;
use crate::process::Process;
use ix_report::problem::{Problem, Result};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A server of which nothing is known but how it is started.
#[derive(Clone, Debug)]
pub struct PeerEnd {
    /// Its name in results.
    pub name: String,
    /// Command and arguments, with the words of `ix bench peer --help`.
    pub command: Vec<String>,
    /// It serves on Linux's sockets.
    pub sockets: bool,
}

impl PeerEnd {
    fn address(&self) -> Ipv4Addr {
        if self.sockets { LINUX_SERVER } else { IX_SERVER }
    }
}

impl Lab {
    /// Starts the peer, and waits until somebody can connect.
    pub(super) fn start_peer(&self) -> Result<Server> {
        let Some(peer) = &self.peer else {
            return Err(Problem::new("cannot start a peer", "none was named"));
        };
        // As many as the servers have that it is compared with.
        self.set_queues(1)?;
        let address = peer.address();
        let words = [
            ("interface", SERVER_LINK.to_owned()),
            ("memif", self.memif().display().to_string()),
            ("address", address.to_string()),
            ("prefix", PREFIX.to_string()),
            ("port", PORT.to_string()),
            ("cpu", self.cpus.0.to_string()),
        ];
        let filled = |text: &String| {
            words
                .iter()
                .fold(text.clone(), |text, (key, value)| text.replace(&format!("{{{key}}}"), value))
        };
        let command_line: Vec<String> = peer.command.iter().map(filled).collect();
        let mut command = self.server.command(&command_line[0], Some(self.cpus.0));
        command.args(&command_line[1..]);
        for (key, value) in &words {
            command.env(format!("IX_PEER_{}", key.to_uppercase()), value);
        }
        let process = Process::start_group(command, &format!("peer {}", peer.name))?;
        let (control, stop) = (PathBuf::new(), libc::SIGTERM);
        let host = Host::Peer;
        let mut server =
            Server { process, host, address: address.into(), port: PORT, control, stop };
        match self.device {
            Device::Memif => self.wait_for_echo(&mut server)?,
            Device::Afxdp | Device::Tap => {
                self.wait_for_listener(&mut server.process, (address.into(), PORT))?;
            }
        }
        Ok(server)
    }

    /// Waits until a client on IX has had an answer: on a memif there is no other.
    fn wait_for_echo(&self, server: &mut Server) -> Result<()> {
        let end = Instant::now() + START;
        let one = ["--connections", "1", "--seconds", "0.05"].map(str::to_owned);
        loop {
            let asked = self.run_client(Host::IX, server, &one, TRY);
            server.check()?;
            match asked {
                Ok(_) => return Ok(()),
                Err(_) if Instant::now() < end => {}
                Err(why) => {
                    let what = format!("nobody answers at {IX_SERVER}:{PORT} to {IX_CLIENT}");
                    return Err(Problem::new(what, why));
                }
            }
        }
    }
}

/// Longest time for a client that has one message to exchange.
const TRY: Duration = Duration::from_secs(5);
