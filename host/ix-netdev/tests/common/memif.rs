//! Both ends of a memif in one process: a device, its broker's work, and a host behind it.
#![allow(dead_code)] // Each test file uses a part.

use crate::common::{Host, KEY};
use ix_mem::{MemoryFds, PacketMemory, Sizes};
use ix_netdev::{
    DeviceEvent, DeviceSpec, OpenError, OpenOptions, OpenedDevice, SharedMemory, open,
};
use ix_nic::{RingSizes, attach, deal, read_update};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SIZES: Sizes = Sizes { rx_frames: 8192, tx_frames: 4096, arena_bytes: 0 };

/// An end of a memif.
pub struct End {
    pub device: OpenedDevice,
    pub host: Host,
    /// What the user was told.
    pub said: Vec<String>,
}

/// A path that no other test has; the file goes with its server.
pub fn path(test: &str) -> String {
    format!("{}/ix-memif-{}-{test}", std::env::temp_dir().display(), std::process::id())
}

impl End {
    pub fn open(spec: &str) -> End {
        End::try_open(spec).unwrap_or_else(|e| panic!("{spec}: {e}"))
    }

    pub fn try_open(spec: &str) -> Result<End, OpenError> {
        End::with(spec, RingSizes { rx: 512, fill: 8192, tx: 512 }, KEY)
    }

    pub fn with(spec: &str, rings: RingSizes, key: [u64; 2]) -> Result<End, OpenError> {
        let spec: DeviceSpec = spec.parse().expect("a spec");
        let fds = Arc::new(MemoryFds::new(SIZES).expect("memory"));
        let shared = SharedMemory { fds: fds.clone(), sizes: SIZES };
        let options =
            OpenOptions { flow_hash_key: key, memory: Some(shared), ..OpenOptions::default() };
        let mut device = open(&spec, &options)?;
        let memory = match device.shares_memory() {
            true => PacketMemory::map(fds.as_fds(), SIZES),
            false => PacketMemory::new(SIZES),
        };
        let mut host = Host::over(memory.expect("maps"));
        let queues: Vec<OwnedFd> = std::mem::take(&mut device.queue_fds);
        for (queue, fds) in deal(&device.info, 0, queues).into_iter().enumerate() {
            let nic = attach(&device.info, queue, fds, &host.memory, &mut host.rx, rings);
            host.add(nic.expect("attaches"));
            device.finish(queue).expect("finishes");
        }
        Ok(End { device, host, said: Vec::new() })
    }

    /// The broker's work. Answers whether something happened.
    pub fn service(&mut self) -> bool {
        let events = self.device.service();
        let any = !events.is_empty();
        for event in events {
            match event {
                DeviceEvent::Tell(_) | DeviceEvent::OtherMac => panic!("of an interface"),
                DeviceEvent::Say(line) => {
                    assert!(line.starts_with("memif:") && !line.contains('\n'), "{line}");
                    self.said.push(line);
                }
                DeviceEvent::Update(update) => {
                    let Host { memory, rx, tx, nics, .. } = &mut self.host;
                    let parts = read_update(&self.device.info, update.change, update.fds, memory);
                    for (nic, part) in nics.iter_mut().zip(parts.expect("readable")) {
                        nic.update(part, memory, rx, tx).expect("a link");
                    }
                }
            }
        }
        any
    }

    /// Whether there is a peer, as the dataplane sees it.
    pub fn is_up(&self) -> bool {
        self.host.nics[0].info().mode.contains("peer ")
            && !self.said_last("peer gone")
            && !self.host.nics[0].info().mode.contains("no peer")
    }

    /// Whether the last line says so.
    pub fn said_last(&self, what: &str) -> bool {
        self.said.last().is_some_and(|line| line.contains(what))
    }

    /// Serves until it is so.
    pub fn until(&mut self, what: &str, happened: impl Fn(&End) -> bool) {
        let end = Instant::now() + Duration::from_secs(10);
        while !happened(self) {
            assert!(Instant::now() < end, "never happened: {what}; said {:?}", self.said);
            self.service();
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Takes up to 64 frames of a queue.
    pub fn receive(&mut self, queue: usize) -> Vec<Vec<u8>> {
        self.host.receive(queue)
    }

    /// Sends a frame now.
    pub fn send(&mut self, queue: usize, frame: &[u8]) -> bool {
        let sent = self.host.send(queue, frame);
        self.host.kick(queue);
        sent
    }
}

/// Serves both ends until both are up.
pub fn connect(a: &mut End, b: &mut End) {
    let end = Instant::now() + Duration::from_secs(10);
    while !(a.is_up() && b.is_up()) {
        assert!(Instant::now() < end, "no link; {:?}; {:?}", a.said, b.said);
        a.service();
        b.service();
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// A frame of this length, recognisable.
pub fn frame(number: u64, len: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..len).map(|i| (number as usize * 31 + i * 7) as u8).collect();
    frame[..8].copy_from_slice(&number.to_be_bytes());
    frame
}
