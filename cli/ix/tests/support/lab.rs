//! The benchmarks' private link with a server behind it.
use super::{connect_to, stats::Stats};
use ix_bench::args::Device;
use ix_bench::lab::{Host, Lab, Server};
use std::net::TcpStream;

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
        self.lab.client_namespace().run(|| connect_to(address))
    }

    /// The counters of a server on IX.
    pub fn stats(&self) -> Stats {
        Stats::ask(&self.server.control().expect("runs on IX"))
    }
}
