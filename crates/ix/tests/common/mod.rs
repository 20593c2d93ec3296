//! A Linux host and a service on IX, on a private link; for end-to-end tests.
#![allow(dead_code)] // Each test file uses a part of it.
use ix::args::Device;
use ix::bench::lab::{Host, Lab, Server};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output};
use std::time::Duration;

/// Longest that anything may take.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// Runs the `ix` command.
pub fn ix(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ix")).args(args).output().expect("the command starts")
}

/// What the command said on standard error.
pub fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Whether this process may make links; says so, loudly, when not.
pub fn may_make_links(test: &str) -> bool {
    match ix_testbed::Namespace::new() {
        Ok(_) => true,
        Err(e) => {
            eprintln!("SKIPPED {test}: {e}; run it as root (sudo -E cargo test)");
            false
        }
    }
}

/// A private link with a server behind it.
pub struct Service {
    /// The link; [`Lab::client_namespace`] is where Linux clients live.
    pub lab: Lab,
    /// The server.
    pub server: Server,
}

impl Service {
    /// Starts `ix echo` with `arguments` on `host` behind a link of kind `device`.
    pub fn start(device: Device, host: Host, arguments: &[&str]) -> Service {
        let lab =
            Lab::of(env!("CARGO_BIN_EXE_ix").into(), device).unwrap_or_else(|e| panic!("{e}"));
        let arguments: Vec<_> = arguments.iter().map(|a| (*a).to_owned()).collect();
        let server = lab.start_server(host, &arguments).unwrap_or_else(|e| panic!("{e}"));
        Service { lab, server }
    }

    /// A connection from the Linux end.
    pub fn connect(&self) -> TcpStream {
        let address = self.server.address();
        let connect = || TcpStream::connect_timeout(&address.into(), TIMEOUT);
        let stream = self.lab.client_namespace().run(connect).expect("connects");
        stream.set_read_timeout(Some(TIMEOUT)).expect("timeout");
        stream.set_nodelay(true).expect("no delay");
        stream
    }
}

/// One message there and back.
pub fn echo(stream: &mut TcpStream, byte: u8, size: usize) {
    stream.write_all(&vec![byte; size]).expect("write");
    let mut answer = vec![0; size];
    stream.read_exact(&mut answer).expect("read");
    assert!(answer.iter().all(|&b| b == byte));
}
