//! A switch with one cable to each port.
use crate::wire::{Faults, Wire, WireStats};
use ix_random::Rng;
use ix_rig::SimDevice;

struct Cable {
    port: SimDevice,
    /// From the port to the switch. All faults happen here.
    wire: Wire,
}

/// A frame on its way to a port.
#[derive(Debug, PartialEq, Eq)]
pub struct InFlight {
    /// The port at which it arrives.
    pub port: usize,
    /// Its bytes.
    pub frame: Vec<u8>,
}

/// Ports, joined by a switch that knows their addresses.
pub struct Network {
    cables: Vec<Cable>,
    rng: Rng,
}

impl Network {
    /// An empty network with faults from this seed.
    pub fn new(seed: u64) -> Network {
        Network { cables: Vec::new(), rng: Rng::new(seed) }
    }

    /// Connects a device. Its frames meet these faults. Returns the port's number.
    pub fn attach(&mut self, port: SimDevice, faults: Faults) -> usize {
        let wire = Wire::new(faults, self.rng.fork());
        self.cables.push(Cable { port, wire });
        self.cables.len() - 1
    }

    /// Number of ports.
    pub fn ports(&self) -> usize {
        self.cables.len()
    }

    /// The device at a port.
    pub fn port(&self, port: usize) -> &SimDevice {
        &self.cables[port].port
    }

    /// Changes the faults of frames from this port.
    pub fn set_faults(&mut self, port: usize, faults: Faults) {
        self.cables[port].wire.set_faults(faults);
    }

    /// The faults of frames from this port.
    pub fn faults(&self, port: usize) -> &Faults {
        self.cables[port].wire.faults()
    }

    /// Statistics of the frames from this port.
    pub fn stats(&self, port: usize) -> WireStats {
        self.cables[port].wire.stats()
    }

    /// Takes the frames that a device has sent. Calls `sent` for each with its number of faults,
    /// and `arrive` for each frame that comes out, with its time and port.
    pub fn collect(
        &mut self,
        port: usize,
        now_us: u64,
        mut sent: impl FnMut(&[u8], u64),
        mut arrive: impl FnMut(u64, InFlight),
    ) {
        while let Some(frame) = self.cables[port].port.next_sent() {
            let targets = self.targets(port, &frame);
            let wire = &mut self.cables[port].wire;
            let before = wire.stats().faults();
            let whole = frame.clone();
            wire.send(now_us, frame, |at_us, frame| {
                for &port in &targets {
                    arrive(at_us, InFlight { port, frame: frame.clone() });
                }
            });
            sent(&whole, wire.stats().faults() - before);
        }
    }

    fn targets(&self, from: usize, frame: &[u8]) -> Vec<usize> {
        let Some(destination) = frame.first_chunk::<6>() else { return Vec::new() };
        let is_group = destination[0] & 1 != 0;
        let wanted = |port: usize| {
            port != from && (is_group || self.port(port).options().mac == *destination)
        };
        (0..self.ports()).filter(|&port| wanted(port)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ix_rig::{SimOptions, Spread, VirtualClock};

    fn send(port: &SimDevice, to: [u8; 6]) {
        let mut frame = vec![0; 60];
        frame[..6].copy_from_slice(&to);
        port.send(0, frame);
    }

    #[test]
    fn frames_go_where_their_address_says() {
        let mut network = Network::new(1);
        let mac = |i| [2, 0, 0, 0, 0, i];
        for i in 0..3 {
            let spread = Spread::Random(Rng::new(0));
            let options = SimOptions { mac: mac(i), ring: 8, spread, ..SimOptions::default() };
            let device = SimDevice::new(options, &VirtualClock::default());
            network.attach(device, Faults::none(10 + i as u64));
        }
        for (from, to, expected) in [
            (0, mac(2), vec![(110, 2)]),
            (1, mac(0), vec![(111, 0)]),
            (2, [0xff; 6], vec![(112, 0), (112, 1)]),
            (0, mac(9), vec![]),
            (0, mac(0), vec![]),
        ] {
            send(network.port(from), to);
            let mut got = Vec::new();
            network.collect(from, 100, |_, _| {}, |at, frame| got.push((at, frame.port)));
            assert_eq!(got, expected);
        }
    }
}
