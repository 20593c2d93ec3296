//! A service with its own protocol, below TCP and UDP: an example of packet queues.
#![forbid(unsafe_code)]

mod protocol;

use anyhow::{Context, Result};
use clap::Parser;
use ix_programs::{exit_code, threads};
use libix::Error;
use libix::event::{Claim, Conn, EventLoop, Frame, Handler, Io, Piece, Priority};
use libix::raw::{Process, Thread};
use protocol::{ANSWER_MAX, Carrier, ETHER_TYPE, IP_PROTOCOL, answer};
use std::process::ExitCode;

/// Adds numbers that clients send in a protocol of its own, under `ix run`, on all elastic threads.
#[derive(Parser)]
#[command(
    version,
    after_help = "\
Examples:
  ix run --nic tap:ix0 --addr 192.0.2.2/24 ix-frames ip
  ix run --nic tap:ix0 --addr 192.0.2.2/24 ix-frames ether"
)]
struct Args {
    /// What carries the protocol: IPv4 (protocol 253) or Ethernet itself (type 0x88b5).
    carrier: Carrier,
}

/// Replies to requests.
struct Adder {
    carrier: Carrier,
    own_mac: [u8; 6],
}

impl Handler for Adder {
    type State = ();

    fn on_readable(&mut self, _: &mut Conn<'_, ()>) {}

    fn on_packets(&mut self, io: &mut Io<()>, queue: u64) {
        let mut bytes = [0; ANSWER_MAX];
        while let Some(packet) = io.packet_receive(queue) {
            let Some(len) = answer(self.carrier, self.own_mac, &packet, &mut bytes) else {
                continue;
            };
            // Out of transmit memory: the client asks again.
            let Some(mut buf) = io.tx().alloc(len) else { continue };
            buf.extend(&bytes[..len]);
            io.packet_send(queue, Frame::new([Piece::from(buf)]), 0);
        }
    }

    fn on_packet_sent(&mut self, _: &mut Io<()>, _: u64, _: u64, outcome: Result<(), Error>) {
        if let Err(why) = outcome {
            eprintln!("ix-frames: a reply was not sent: {why}");
        }
    }
}

fn serve(
    carrier: Carrier,
    process: &Process,
    index: u32,
    listening: &threads::Listening,
) -> Result<()> {
    let thread = Thread::enter(process, index)?;
    let adder = Adder { carrier, own_mac: [0; 6] };
    let mut service = EventLoop::new(thread, adder);
    let claim = match carrier {
        Carrier::Ether => Claim::EtherType(ETHER_TYPE),
        Carrier::Ip => Claim::IpProtocol(IP_PROTOCOL),
    };
    let queue = service.packet_bind(0, claim, Priority::Usual).with_context(|| match carrier {
        Carrier::Ether => "cannot have these frames (Linux keeps them on an interface of its own)",
        Carrier::Ip => "cannot have these packets",
    })?;
    service.handler().own_mac = service.packet_info(queue)?.mac;
    listening.say();
    service.run()?;
    Ok(())
}

fn run(args: &Args) -> Result<()> {
    let (process, carrier) = (Process::find()?, args.carrier);
    let serve = |index, listening: &_| serve(carrier, &process, index, listening);
    let ready = || ix_sys::outln!("ready: sums over {carrier:?}");
    threads::serve("ix-frames", process.threads(), serve, ready);
    Ok(())
}

fn main() -> ExitCode {
    exit_code("ix-frames", run(&Args::parse()))
}
