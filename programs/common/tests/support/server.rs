//! A program that serves on loopback, for tests of the programs from the outside.
#![allow(dead_code)] // Each uses a part of it.
#[path = "ports.rs"]
mod ports;

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};

/// A server process; killed when dropped.
pub struct Server {
    child: Child,
    /// Where it listens.
    pub at: SocketAddr,
}

impl Server {
    /// Starts a command that listens there, and waits until it says `ready`.
    pub fn start(mut command: Command, at: SocketAddr) -> Server {
        let child = command.stdout(Stdio::piped()).spawn().expect("the program starts");
        let mut server = Server { child, at };
        let mut line = String::new();
        let output = server.child.stdout.as_mut().expect("piped");
        BufReader::new(output).read_line(&mut line).expect("a line");
        assert!(line.starts_with("ready"), "{line:?}");
        server
    }

    /// A server that says nothing.
    pub fn of(child: Child, at: SocketAddr) -> Server {
        Server { child, at }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Errors mean that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An address that nobody listens on.
pub fn free_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, ports::free_port()).into()
}
