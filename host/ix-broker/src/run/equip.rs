//! A dataplane that begins: what it gets, and what follows if it dies while it starts.
use super::{DataplaneSetup, Running, channel};
use crate::apart::{Apart, BeginError, STARTING};
use crate::clients::Waited;
use crate::commands::Commands;
use crate::control::Captures;
use crate::devices::Devices;
use crate::vnic::{FilteredDevices, Granted, Vnic};
use ix_launch::{Conversation, ServeError};
use ix_problem::{Problem, Result};
use ix_proto::config::Place;
use ix_proto::{Config, FromImage, Start};
use ix_sys::say;
use ix_sys::socket::get_option;
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Longest that Linux may take to free the devices of a dataplane that has ended.
const REOPEN: Duration = Duration::from_secs(3);
/// How long a dataplane may take to end before it is ended.
const ENDING: Duration = Duration::from_secs(2);

impl Running {
    /// Waits for the image's hello, and gives it what it asks for.
    pub(super) fn begin(&mut self) -> Result<()> {
        let problem = |e| Problem::new(format!("cannot run {}", self.name), e);
        match self.child.next_message().map_err(problem)? {
            FromImage::Hello { asker, .. } => self.equip(asker),
            FromImage::Failed { why, .. } => {
                self.child.refused().map_err(problem)?;
                Err(problem(ServeError::Refused(why)))
            }
            _ => Err(problem(ServeError::Protocol)),
        }
    }

    /// Gives a dataplane that begins what it asks for. If it dies then, another one begins.
    pub(super) fn equip(&mut self, asker: u64) -> Result<()> {
        // No device has refused these filters.
        let mut accepted = self.vnic.granted();
        loop {
            let how = match self.equip_once(asker, &mut accepted) {
                Ok(()) => return Ok(()),
                Err(Unbegun::Never(problem)) => return Err(problem),
                Err(Unbegun::Unneeded) => return Ok(()),
                Err(Unbegun::Died(how)) => how,
            };
            let Some(apart) = &mut self.apart else { return Ok(()) };
            apart.has_died();
            if let Some(why) = apart.gives_up() {
                say!("{how}");
                self.refuse(asker, why.clone());
                return Err(Problem::new(format!("cannot go on with {}", self.name), why));
            }
            if !self.is_needed() {
                say!("{how}");
                return Ok(());
            }
            say!("{how}: another one is started");
        }
    }

    /// Whether the processes live without which no dataplane is needed.
    fn is_needed(&self) -> bool {
        !self.child.needed_by().any(|process| process.has_ended())
    }

    fn equip_once(
        &mut self,
        asker: u64,
        accepted: &mut Granted,
    ) -> std::result::Result<(), Unbegun> {
        if !self.is_needed() {
            return Err(Unbegun::Unneeded);
        }
        let (mut setup, given_bytes) = match self.setup.take() {
            Some(setup) => (setup, 0),
            None => self.setup_again()?,
        };
        self.renew_filters(&mut setup.devices, accepted)?;
        let place = if self.apart.is_some() { Place::Apart } else { Place::Within };
        let start = Start { given_bytes, ..start_of(&setup, &self.vnic, place) };
        // Filters may have been added since the configuration was checked.
        start.check().map_err(|e| Problem::new("cannot begin a dataplane", e))?;
        let mut devices = setup.devices;
        let queues: Vec<_> = devices.iter_mut().map(|d| d.take_fds()).collect();
        let queue_fds: Vec<_> = queues.iter().flatten().map(|fd| fd.as_fd()).collect();
        let mut attached = |device: usize, queue: usize| {
            let sockets = queues.get(device).ok_or("no such device")?;
            let device = devices.get_mut(device).ok_or("no such device")?;
            if let Some(mode) = sockets.get(queue).filter(|_| queue == 0).and_then(bound_mode) {
                device.info.mode.push_str(mode);
            }
            device.finish(queue).map_err(|e| e.to_string())
        };
        let name = self.name.clone();
        let problem =
            |e: &dyn std::fmt::Display| Problem::new(format!("cannot run {name}"), e.to_string());
        let rules = start.config.vnic_rules.clone();
        let (mut clients, child, apart) = self.parts();
        let page = clients.counters.fd();
        let begun = match (apart, &setup.memory) {
            (Some(apart), Some(memory)) => {
                let begun = apart.begin(
                    (child, asker),
                    start,
                    memory,
                    [&[page], &queue_fds],
                    (&mut attached, &mut clients),
                );
                let begun = begun.map_err(|e| match (how_it_died(&e), &e) {
                    (Some(how), _) => Unbegun::Died(how),
                    (None, BeginError::Unneeded) => Unbegun::Unneeded,
                    (None, _) => Unbegun::Never(problem(&e)),
                })?;
                Some((begun, memory))
            }
            (_, memory) => {
                // The control page comes first, then packet memory, then every device's queues.
                let mut fds = vec![page];
                fds.extend(memory.iter().flat_map(|memory| memory.fds.as_fds()));
                fds.extend(queue_fds);
                ix_launch::equip(child, start, &fds, &mut attached).map_err(|e| problem(&e))?;
                None
            }
        };
        for device in &devices {
            let info = &device.info;
            say!("device {}:{}: {}", info.kind, info.name, info.mode);
        }
        self.begin_share();
        let apart = self.apart.as_ref().and_then(Apart::pid);
        let process = apart.unwrap_or(self.child.heir().pid());
        say!("packet memory: {}", pages_of(process));
        // A queue exists as long as any copy of its descriptor: the dataplane must have the only
        // one.
        drop(queues);
        self.commands = Commands::default();
        if self.vnic.rules() != rules {
            // They were changed while it began.
            self.renew_filters(&mut devices, accepted)?;
            self.commands.submit_rules(self.vnic.rules(), Box::new(|_| {}));
        }
        self.devices = Devices::new(devices).sharing(setup.shared).watched(&self.watch);
        self.devices.begin(channel(&self.child, self.apart.as_ref()));
        self.vnic.set_in_hardware(self.devices.filters_in_hardware());
        self.commands.service(channel(&self.child, self.apart.as_ref()));
        // The program is told last: what operators have changed is on its way to the dataplane.
        if let (Some(apart), Some((begun, memory))) = (&mut self.apart, begun) {
            let told = apart.tell(&self.child, memory, begun);
            self.is_told(told)?;
        }
        Ok(())
    }

    /// What follows from an attempt to tell the process that has asked what it shares with the
    /// dataplane. If nobody listens it has no dataplane.
    pub(super) fn is_told(&mut self, told: std::io::Result<()>) -> Result<()> {
        let (Some(apart), Err(e)) = (&mut self.apart, told) else { return Ok(()) };
        match e.kind() {
            ErrorKind::WouldBlock => {
                say!(
                    "the process that has asked for a dataplane does not read what it is told: \
                     its dataplane is ended"
                );
            }
            // The program has ended, or has left IX: the channel's end says which, in a moment.
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {}
            _ => return Err(Problem::new("cannot share memory with the program", e)),
        }
        apart.give_up();
        Ok(())
    }

    /// Gives new devices the vNIC's receive filters. If one refuses them, those that were added
    /// since the `accepted` ones are taken back.
    fn renew_filters(
        &mut self,
        devices: &mut dyn FilteredDevices,
        accepted: &mut Granted,
    ) -> Result<()> {
        let renewed = self.vnic.renew(devices, accepted);
        let refused = renewed.map_err(|e| Problem::new("cannot start a dataplane", e))?;
        if let Some(why) = refused {
            say!(
                "a device refuses the filters that were added while the dataplane started \
                 ({why}); they are taken back"
            );
        }
        *accepted = self.vnic.granted();
        Ok(())
    }

    /// The setup of another dataplane, after the process of the last one has ended, and how much of
    /// its transmit memory belongs to the program already. Linux may take a moment to free its
    /// devices.
    fn setup_again(&mut self) -> std::result::Result<(DataplaneSetup, u64), Unbegun> {
        let name = self.name.clone();
        let problem = |e| Problem::new(format!("cannot wait for {name}"), e);
        let (mut clients, _, apart) = self.parts();
        if let Some(ending) = apart.as_ref().and_then(Apart::ending) {
            clients.until(Some(ending), Instant::now() + ENDING).map_err(problem)?;
        }
        if let Some(exit) = self.apart.as_mut().and_then(|apart| apart.end().transpose()) {
            let exit = exit.map_err(problem)?;
            self.apart_has_ended(Some(exit))?;
        }
        self.ask_again();
        let wait = self.pace.start(Instant::now());
        if !wait.is_zero() {
            let waited = self.parts().0.until(None, Instant::now() + wait).map_err(problem)?;
            Unbegun::unless_needed(waited)?;
        }
        let mut legacy = None;
        if let Some(apart) = &mut self.apart {
            legacy = apart.attached().legacy(self.child.heir()).map_err(problem)?;
        }
        let arena = legacy.as_ref().map(|legacy| legacy.arena.as_fd());
        let given_bytes = legacy.as_ref().map_or(0, |legacy| legacy.given_bytes);
        self.devices = Devices::new(Vec::new());
        // The next one knows nothing of a capture: its reader is told, and may begin another.
        self.captures = Captures::default();
        self.counters.clear().map_err(problem)?;
        let end = Instant::now() + REOPEN;
        loop {
            match (self.again)(arena) {
                Err(_) if Instant::now() < end => {
                    let (mut clients, ..) = self.parts();
                    let pause = Instant::now() + REOPEN / 100;
                    Unbegun::unless_needed(clients.until(None, pause).map_err(problem)?)?;
                }
                setup => return Ok((setup?, given_bytes)),
            }
        }
    }
}

/// What a dataplane is told. A later one starts with the vNIC's current rules, not with the
/// configured ones.
pub(super) fn start_of(setup: &DataplaneSetup, vnic: &Vnic, place: Place) -> Start {
    Start {
        config: Config { vnic_rules: vnic.rules(), ..setup.config.clone() },
        devices: setup.devices.iter().map(|device| device.info.clone()).collect(),
        without: setup.without.clone(),
        place,
        given_bytes: 0,
    }
}

/// How a dataplane has died while it started, if it has.
fn how_it_died(error: &BeginError) -> Option<String> {
    match error {
        BeginError::Serve(ServeError::Died(exit)) => {
            Some(format!("the dataplane ended while it started ({exit})"))
        }
        BeginError::Late => {
            Some(format!("the dataplane did not start within {} s", STARTING.as_secs()))
        }
        _ => None,
    }
}

/// The page size of a process's packet memory, in words. Packet memory is the first that gets large
/// pages.
fn pages_of(pid: u32) -> &'static str {
    pages_in(&std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default())
}

fn pages_in(smaps: &str) -> &'static str {
    let has = |key: &str, is: fn(u64) -> bool| {
        let mut values =
            smaps.lines().filter_map(|line| line.strip_prefix(key)?.strip_suffix(" kB"));
        values.any(|kb| kb.trim().parse().is_ok_and(is))
    };
    if has("KernelPageSize:", |kb| kb == 2048) {
        "2 MB pages"
    } else if has("ShmemPmdMapped:", |kb| kb > 0) || has("AnonHugePages:", |kb| kb > 0) {
        "2 MB pages, transparent (none are reserved; `ix doctor` says how to reserve them)"
    } else {
        "4 KB pages (no 2 MB pages are reserved; `ix doctor` says how to reserve them)"
    }
}

/// Whether a bound AF_XDP socket copies packets, in words; `None` for other descriptors.
fn bound_mode(socket: &OwnedFd) -> Option<&'static str> {
    let options = get_option::<libc::xdp_options>(socket.as_fd(), libc::SOL_XDP, libc::XDP_OPTIONS);
    match options.ok()?.flags & libc::XDP_OPTIONS_ZEROCOPY {
        0 => Some(", copy"),
        _ => Some(", zero-copy"),
    }
}

/// Why a dataplane does not begin.
enum Unbegun {
    /// It has died while it started, in these words. Another one may begin.
    Died(String),
    /// No other one would.
    Never(Problem),
    /// Who needed it has ended.
    Unneeded,
}

impl Unbegun {
    /// An error if a wait has ended because nobody needs a dataplane any more.
    fn unless_needed(waited: Waited) -> std::result::Result<(), Unbegun> {
        if waited == Waited::Unneeded { Err(Unbegun::Unneeded) } else { Ok(()) }
    }
}

impl From<Problem> for Unbegun {
    fn from(problem: Problem) -> Unbegun {
        Unbegun::Never(problem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_read_from_what_linux_says() {
        let lines = |size, shared, private| {
            format!(
                "7f00-7f10 rw-s 0 00:01 9 /memfd:ix-scripts (deleted)\nSize: 4096 kB\nKernelPageSize: {size:>8} kB\n\
                 AnonHugePages: {private:>8} kB\nShmemPmdMapped: {shared:>8} kB\nVmFlags: rd wr\n"
            )
        };
        assert_eq!(pages_in(&lines(2048, 0, 0)), "2 MB pages");
        let merged = pages_in(&lines(4, 2048, 0));
        assert!(
            merged.starts_with("2 MB pages, transparent") && merged == pages_in(&lines(4, 0, 4096))
        );
        assert!(pages_in(&lines(4, 0, 0)).starts_with("4 KB") && pages_in("").starts_with("4 KB"));
    }
}
