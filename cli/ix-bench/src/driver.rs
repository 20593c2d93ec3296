//! A server inside the driver, as in the Arrakis paper: it sends datagrams from the frames in which
//! the device received them, below any stack. This is the most that a device and its interface
//! allow.
use clap::Args;
use ix_mem::{Mbuf, PacketMemory, Sizes};
use ix_netdev::{DeviceSpec, OpenOptions, open};
use ix_nic::{RingSizes, attach};
use ix_report::problem::{Problem, Result};
use ix_wire::IpAddr;
use std::collections::VecDeque;
use std::net::Ipv4Addr;

/// Packets of a burst, as in the dataplane.
const BURST: usize = 64;
/// Frames to receive into: the dataplane's default for one thread.
const FRAMES: usize = 8192;

/// Flags of `ix bench device-echo`.
#[derive(Args, Debug, Clone)]
pub struct DriverArgs {
    /// The device
    #[arg(long, value_name = "SPEC")]
    pub nic: DeviceSpec,
    /// The address to answer for
    #[arg(long, value_name = "IP")]
    pub addr: Ipv4Addr,
    /// The UDP port to answer at
    #[arg(long)]
    pub port: u16,
}

/// Echoes without end, on the processor where it was started.
pub fn main(args: &DriverArgs) -> Result<()> {
    let cannot = |e: &dyn std::fmt::Display| {
        Problem::new(format!("cannot use the device {}", args.nic), e.to_string())
    };
    let addresses = vec![IpAddr::v4(args.addr.octets())];
    let options = OpenOptions { addresses, ..OpenOptions::default() };
    let mut device = open(&args.nic, &options).map_err(|e| cannot(&e))?;
    let sizes = Sizes { rx_frames: FRAMES, tx_frames: 1, arena_bytes: 0 };
    let memory = PacketMemory::new(sizes).map_err(|e| cannot(&e))?;
    let (mut rx, mut tx) = memory.take_pools().expect("the first that takes them");
    let own = tx.free();
    let fds = std::mem::take(&mut device.queue_fds);
    let nic = attach(&device.info, 0, fds, &memory, &mut rx, RingSizes::default());
    let mut nic = nic.map_err(|e| cannot(&e))?;
    device.finish(0).map_err(|e| cannot(&e))?;
    eprintln!("ix: device {}: {}", args.nic, nic.info().mode);
    ix_sys::outln!("ready: echo inside the driver at {}:{}", args.addr, args.port);
    let echo = Echo { mac: device.info.mac, ip: args.addr.octets(), port: args.port };
    let (mut burst, mut queued) = (Vec::with_capacity(BURST), VecDeque::<Mbuf>::new());
    loop {
        if nic.receive(&memory, &mut rx, BURST, &mut burst) == 0 && nic.frames_held().1 > 0 {
            // The kernel holds packets of ours. Its threads may have to send them, and get no turn
            // on a hardware thread whose program never waits.
            std::thread::yield_now();
        }
        for mut packet in burst.drain(..) {
            let whole = !packet.more;
            if whole && echo.turn(packet.mbuf.bytes_mut(&memory)) {
                rx.disown(&packet.mbuf);
                tx.adopt(&packet.mbuf);
                queued.push_back(packet.mbuf);
            } else {
                rx.put(packet.mbuf);
            }
        }
        nic.transmit(&memory, &mut tx, &mut queued);
        nic.kick(&memory, &mut tx);
        // Frames that were sent are received into again.
        while tx.free() > own
            && let Some(mbuf) = tx.take()
        {
            tx.disown(&mbuf);
            rx.adopt(&mbuf);
            rx.put(mbuf);
        }
    }
}

/// Addresses that the server echoes for.
struct Echo {
    mac: [u8; 6],
    ip: [u8; 4],
    port: u16,
}

impl Echo {
    /// Turns a frame into its reply, in place; `false`: there is no reply.
    fn turn(&self, frame: &mut [u8]) -> bool {
        match frame.get(12..14) {
            Some([8, 6]) => self.turn_arp(frame),
            Some([8, 0]) => self.turn_datagram(frame),
            _ => false,
        }
    }

    /// Handles an ARP request for our address (RFC 826).
    fn turn_arp(&self, frame: &mut [u8]) -> bool {
        let Some(arp) = frame.get(14..42) else { return false };
        if arp[6..8] != [0, 1] || arp[24..28] != self.ip {
            return false;
        }
        frame.copy_within(22..32, 32);
        frame[20..22].copy_from_slice(&[0, 2]);
        frame[22..28].copy_from_slice(&self.mac);
        frame[28..32].copy_from_slice(&self.ip);
        self.send_back(frame);
        true
    }

    /// Swapped addresses and ports change neither checksum, because sums have no order. A checksum
    /// that a Linux on this machine only began is sent as none, which IPv4 allows (RFC 768).
    fn turn_datagram(&self, frame: &mut [u8]) -> bool {
        let Some(&[first, ..]) = frame.get(14..) else { return false };
        let udp = 14 + usize::from(first & 0x0f) * 4;
        let to_us = frame.get(23) == Some(&17)
            && frame.get(udp + 2..udp + 4) == Some(&self.port.to_be_bytes());
        if !to_us || frame.len() < udp + 8 {
            return false;
        }
        // Reads each packet whole, as the paper's driver does.
        let sum = frame[udp..].chunks(8).fold(0u64, |sum, chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            sum.wrapping_add(u64::from_ne_bytes(word))
        });
        std::hint::black_box(sum);
        frame[26..34].rotate_left(4);
        frame[udp..udp + 4].rotate_left(2);
        frame[udp + 6..udp + 8].fill(0);
        self.send_back(frame);
        true
    }

    fn send_back(&self, frame: &mut [u8]) {
        frame.copy_within(6..12, 0);
        frame[6..12].copy_from_slice(&self.mac);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ECHO: Echo = Echo { mac: [2, 0, 0, 0, 0, 1], ip: [10, 0, 0, 1], port: 7 };
    const PEER: [u8; 6] = [2, 0, 0, 0, 0, 9];

    #[test]
    fn datagrams_to_the_port_go_back_in_their_frames() {
        let mut frame = [&ECHO.mac[..], &PEER, &[8, 0]].concat();
        frame.extend([0x45, 0, 0, 33, 0, 1, 0, 0, 64, 17, 1, 2, 10, 0, 0, 9, 10, 0, 0, 1]);
        frame.extend([0x10, 0x20, 0, 7, 0, 13, 9, 8]);
        frame.extend(b"hello");
        let asked = frame.clone();
        assert!(ECHO.turn(&mut frame));
        assert_eq!(frame[..14], [&PEER[..], &ECHO.mac, &[8, 0]].concat());
        assert_eq!(frame[26..34], [10, 0, 0, 1, 10, 0, 0, 9]);
        assert_eq!(frame[34..], [&[0, 7, 0x10, 0x20, 0, 13, 0, 0][..], b"hello"].concat());
        assert!((0..42).all(|n| !ECHO.turn(&mut asked.clone()[..n])));
        let mut other = asked;
        other[37] = 8;
        assert!(!ECHO.turn(&mut other), "another port");
    }

    #[test]
    fn our_address_is_told() {
        let mut frame = [&[0xff; 6][..], &PEER, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
        frame.extend([&PEER[..], &[10, 0, 0, 9], &[0; 6], &[10, 0, 0, 1]].concat());
        let mut other = frame.clone();
        other[41] = 2;
        assert!(!ECHO.turn(&mut other), "another address");
        assert!(ECHO.turn(&mut frame));
        assert_eq!(frame[..6], PEER);
        assert_eq!(frame[20..22], [0, 2]);
        assert_eq!(frame[22..42], [&ECHO.mac[..], &[10, 0, 0, 1], &PEER, &[10, 0, 0, 9]].concat());
    }
}
