//! The broker's part of a running dataplane's devices: peers come and go, interfaces are removed
//! and created again. The broker tells the user and sends each change to the dataplane.
use crate::shared_address::{RETRY_MS, SharedAddress};
use crate::vnic::FilteredDevices;
use ix_entry::Channel;
use ix_netdev::{DeviceEvent, DeviceUpdate, LinkChange, LinkWatch, OpenedDevice};
use ix_proto::device::NicKind;
use ix_proto::{Codec, FromImage, ToImage};
use ix_sys::say;
use ix_vnic::Filter;
use ix_wire::IpAddr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// All devices.
pub struct Devices {
    /// In the order of the configuration.
    all: Vec<Device>,
    /// The address, where it is Linux's.
    shared: Option<SharedAddress>,
    groups: Groups,
}

/// The groups that the dataplane's sockets listen to, which the devices have to hear.
struct Groups {
    /// Those that the dataplane has named last.
    named: Vec<IpAddr>,
    /// The devices do not hear them yet.
    are_new: bool,
    /// The devices hear no others before this time.
    not_before: Instant,
    /// When to look again whether programs of Linux listen to some of them.
    look_at: Instant,
    /// Those of which the user knows that they stay Linux's.
    left: Vec<IpAddr>,
    /// Lines about such ones.
    left_told: u32,
    /// What the user was told last of devices that refuse them.
    refused: Option<String>,
}

/// Others are heard not before so many times the time that the last ones took: a program may change
/// them without a pause, and whoever else waits for the broker is served too.
const REST: u32 = 4;
/// Time between two looks at which groups programs of Linux listen to.
const LOOK: Duration = Duration::from_secs(1);
/// Most lines about groups that stay Linux's: a program may name them without end.
const LEFT_TOLD_MAX: u32 = 16;

struct Device {
    opened: OpenedDevice,
    /// State of its link, in words.
    state: String,
    /// The interface behind it, where another run has the queues of that one.
    uplink: Option<String>,
    /// Its MTU and the queues of its interface when the dataplane began.
    at_first: (usize, usize),
    /// The interface was removed.
    removed: bool,
    /// Number of queues of a new interface that the dataplane has not attached yet.
    missing: usize,
    /// Number of the last update that was sent.
    serial: u64,
    /// The dataplane has not read the last update. It gets one at a time: otherwise a dataplane
    /// that no thread enters for a long time would fill the channel.
    unread: bool,
    /// The newest change that was not sent yet. It replaces all earlier ones.
    next: Option<DeviceUpdate>,
}

impl Devices {
    /// Devices that the dataplane has just attached.
    pub fn new(opened: Vec<OpenedDevice>) -> Devices {
        let device = |opened: OpenedDevice| Device {
            state: "up".to_owned(),
            uplink: opened.uplink().map(str::to_owned),
            at_first: (opened.info.mtu, opened.info.sockets()),
            opened,
            removed: false,
            missing: 0,
            serial: 0,
            unread: false,
            next: None,
        };
        let now = Instant::now();
        let groups = Groups {
            named: Vec::new(),
            are_new: false,
            not_before: now,
            look_at: now,
            left: Vec::new(),
            left_told: 0,
            refused: None,
        };
        Devices { all: opened.into_iter().map(device).collect(), shared: None, groups }
    }

    /// The same, at an address of Linux.
    pub fn sharing(self, shared: Option<SharedAddress>) -> Devices {
        Devices { shared, ..self }
    }

    /// The same, with interfaces that may be down already.
    pub fn watched(mut self, watch: &LinkWatch) -> Devices {
        for device in &mut self.all {
            let name = device.uplink.as_ref().unwrap_or(&device.opened.info.name);
            let is_afxdp = matches!(device.opened.info.kind, NicKind::Afxdp(_));
            if is_afxdp && watch.is_running(name) == Some(false) {
                device.state = DOWN_STATE.to_owned();
            }
        }
        self
    }

    /// Descriptors that poll readable when [`Devices::service`] has something to do.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let shared = self.shared.iter().flat_map(SharedAddress::fds);
        self.all.iter().flat_map(|device| device.opened.watch_fds()).chain(shared)
    }

    /// The interface whose addresses are shared, if its keeper has ended.
    pub fn without_keeper(&self) -> Option<&str> {
        self.shared.as_ref()?.without_keeper()
    }

    /// When to call [`Devices::service`] even if nothing is readable, ms; negative: never.
    pub fn service_in_ms(&self) -> i32 {
        let due = self.all.iter().filter_map(|device| {
            let stuck = device.next.is_some() && !device.unread;
            let retry = stuck.then_some(RETRY_MS);
            device.opened.service_in_ms().into_iter().chain(retry).min()
        });
        let shared = self.shared.as_ref().and_then(SharedAddress::service_in_ms);
        due.chain(shared)
            .chain(self.groups.due_in_ms())
            .min()
            .map_or(-1, |ms| ms.min(i32::MAX as u64) as i32)
    }

    /// Serves the devices' control channels; returns lines for the user.
    pub fn service(&mut self, channel: Option<&Channel>) -> Vec<String> {
        let mut lines = Vec::new();
        for (number, device) in self.all.iter_mut().enumerate() {
            for event in device.opened.service() {
                match event {
                    DeviceEvent::Update(update) => device.next = Some(update),
                    DeviceEvent::Tell(line) => {
                        // What did not succeed before has succeeded.
                        if device.state != DOWN_STATE && !device.removed {
                            device.state = "up".to_owned();
                        }
                        lines.push(line);
                    }
                    DeviceEvent::OtherMac => {
                        self.shared.iter_mut().for_each(SharedAddress::has_other_mac);
                    }
                    DeviceEvent::Say(line) => {
                        device.state = device.without_name(&line).to_owned();
                        lines.push(line);
                    }
                }
            }
            device.send_next(number, channel);
        }
        lines.extend(self.serve_address(channel));
        lines.extend(self.hear_groups());
        lines
    }

    /// Lets the devices hear the groups that the dataplane has named last, if it is time. Returns
    /// lines for the user: if a device cannot, and that was not said last, and which groups stay
    /// Linux's.
    fn hear_groups(&mut self) -> Vec<String> {
        let (began, groups) = (Instant::now(), &mut self.groups);
        let is_due = groups.due().is_some_and(|due| due <= began);
        if !is_due {
            return Vec::new();
        }
        let (mut refused, mut left, mut lines) = (None, Vec::new(), Vec::new());
        for device in &mut self.all {
            match device.opened.set_groups(groups.named.clone()) {
                Ok(all) => {
                    for group in &all {
                        lines.extend(groups.tell_left(*group, &device.name()));
                    }
                    left.extend(all);
                }
                Err(e) => refused = Some(e.to_string()),
            }
        }
        let now = Instant::now();
        groups.are_new = false;
        (groups.not_before, groups.look_at) = (now + (now - began) * REST, now + LOOK);
        groups.left = left;
        if refused.is_some() && groups.refused != refused {
            lines.extend(refused.clone());
        }
        groups.refused = refused;
        lines
    }

    /// Tells a dataplane that has begun what Linux knows of the network, before the program is told
    /// of the dataplane.
    pub fn begin(&mut self, channel: Option<&Channel>) {
        self.serve_address(channel).iter().for_each(|line| say!("{line}"));
    }

    fn serve_address(&mut self, channel: Option<&Channel>) -> Option<String> {
        let shared = self.shared.as_mut()?;
        serve_address(shared, self.all.iter_mut().map(|device| &mut device.opened), channel)
    }

    /// Handles a change of a link of the host; returns a line for the user if the link is one of
    /// these devices.
    pub fn link_changed(
        &mut self,
        change: &LinkChange,
        channel: Option<&Channel>,
    ) -> Option<String> {
        let (LinkChange::Up(name)
        | LinkChange::Down(name)
        | LinkChange::Removed(name)
        | LinkChange::Moved(name)
        | LinkChange::Altered(name)
        | LinkChange::Alias { name, .. }
        | LinkChange::Renamed { from: name, .. }) = change;
        let is_of = |device: &Device| device.is_called(name) || device.is_before(name);
        let number = self.all.iter().position(is_of)?;
        let device = &mut self.all[number];
        if device.is_before(name) {
            return device.follow_uplink(change);
        }
        let was_away = device.removed;
        let line = device.follow(change);
        device.send_next(number, channel);
        if let (true, false, Some(shared)) = (was_away, device.removed, &mut self.shared)
            && let NicKind::Afxdp(bind) = &device.opened.info.kind
        {
            shared.moved(bind.ifindex);
        }
        line
    }

    /// Whether the link of this name is the only device.
    pub fn is_only_link(&self, name: &str) -> bool {
        matches!(&self.all[..], [device] if device.is_called(name))
    }

    /// Gives the interfaces back to Linux, when the dataplane has ended.
    pub fn close(&mut self) {
        self.all.iter_mut().for_each(|device| device.opened.close());
    }

    /// Handles a message of the dataplane about its devices; returns a line for the user.
    pub fn handle(&mut self, message: &FromImage, channel: Option<&Channel>) -> Option<String> {
        match message {
            FromImage::Taken { device: number, serial } => {
                let device = self.all.get_mut(*number)?;
                device.unread &= device.serial != *serial;
                device.send_next(*number, channel);
                None
            }
            FromImage::Updated { device, queue, serial } => {
                let device = self.all.get_mut(*device)?;
                // A newer update was sent, which replaces this one.
                if device.serial != *serial {
                    return None;
                }
                if let Err(e) = device.opened.finish(*queue) {
                    return Some(e.to_string());
                }
                let last = device.missing == 1;
                device.missing = device.missing.saturating_sub(1);
                last.then(|| device.now("up", " again"))
            }
            FromImage::UpdateFailed { device, serial, why } => {
                let device = self.all.get_mut(*device)?;
                if device.serial != *serial {
                    return None;
                }
                device.state = why.clone();
                Some(format!("device {}: {why}", device.name()))
            }
            FromImage::Groups { groups } => {
                (self.groups.named, self.groups.are_new) = (groups.clone(), true);
                self.hear_groups().iter().for_each(|line| say!("{line}"));
                None
            }
            message => {
                if let Some(shared) = &mut self.shared {
                    shared.handle(message, channel);
                }
                None
            }
        }
    }

    /// The devices' names, as `kind:name`.
    pub fn names(&self) -> Vec<String> {
        self.all.iter().map(Device::name).collect()
    }

    /// States of the devices' links, in words.
    pub fn states(&self) -> Vec<String> {
        self.all.iter().map(Device::told_state).collect()
    }
}

impl Groups {
    /// When the devices are to hear them, or to be asked again.
    fn due(&self) -> Option<Instant> {
        match self.are_new {
            true => Some(self.not_before),
            false => (!self.named.is_empty()).then_some(self.look_at),
        }
    }

    /// The same, ms.
    fn due_in_ms(&self) -> Option<u64> {
        let left = self.due()?.saturating_duration_since(Instant::now());
        Some(left.as_millis() as u64 + 1)
    }

    /// A line about a group that stays Linux's on this device, if it has not been told last.
    fn tell_left(&mut self, group: IpAddr, device: &str) -> Option<String> {
        if self.left.contains(&group) || self.left_told >= LEFT_TOLD_MAX {
            return None;
        }
        self.left_told += 1;
        let rest =
            if self.left_told == LEFT_TOLD_MAX { "; further ones are not named" } else { "" };
        Some(format!(
            "device {device}: group {group} stays Linux's alone, because a program of Linux \
             listens to it there; end that one, or use an interface of IX's own{rest}"
        ))
    }
}

/// Follows the addresses that these devices share with Linux. Returns a line for the user if a
/// device cannot. Without a channel the dataplane, which has not begun, is told when it begins.
pub fn serve_address<'a>(
    shared: &mut SharedAddress,
    mut devices: impl Iterator<Item = &'a mut OpenedDevice>,
    channel: Option<&Channel>,
) -> Option<String> {
    if !shared.service(channel) {
        return None;
    }
    let device = devices.find(|device| matches!(device.info.kind, NicKind::Afxdp(_)))?;
    let set = device.set_addresses(shared.addresses());
    shared.say_new();
    set.err().map(|e| e.to_string())
}

/// Tells the user which filters a network card refuses. The XDP program checks all filters in any
/// case.
fn set_filters(device: &mut OpenedDevice, filters: Option<&[Filter]>) -> Result<(), String> {
    let line = device.set_filters(filters.map(<[Filter]>::to_vec)).map_err(|e| e.to_string())?;
    line.iter().for_each(|line| say!("{line}"));
    Ok(())
}

/// Devices of a dataplane that has not begun.
impl FilteredDevices for Vec<OpenedDevice> {
    fn set_receive_filters(&mut self, filters: Option<&[Filter]>) -> Result<(), String> {
        self.iter_mut().try_for_each(|device| set_filters(device, filters))
    }

    fn filters_in_hardware(&self) -> Vec<Filter> {
        self.iter().flat_map(OpenedDevice::filters_in_hardware).collect()
    }
}

impl FilteredDevices for Devices {
    fn set_receive_filters(&mut self, filters: Option<&[Filter]>) -> Result<(), String> {
        self.all.iter_mut().try_for_each(|device| set_filters(&mut device.opened, filters))
    }

    fn filters_in_hardware(&self) -> Vec<Filter> {
        self.all.iter().flat_map(|device| device.opened.filters_in_hardware()).collect()
    }
}

/// The state of an interface that is down, and what follows from it.
const DOWN_STATE: &str = "down";
const DOWN: &str = ": packets are lost until it is up again";

fn renamed(from: &str, to: &str) -> String {
    format!("link {from} is called {to} now; the dataplane uses it as before")
}

impl Device {
    fn name(&self) -> String {
        format!("{}:{}", self.opened.info.kind, self.opened.info.name)
    }

    /// A line without the device's name at its beginning.
    fn without_name<'a>(&self, line: &'a str) -> &'a str {
        line.strip_prefix(&self.name()).map_or(line, |rest| rest.trim_start_matches([':', ' ']))
    }

    /// Whether this device is the link of the host with this name.
    fn is_called(&self, name: &str) -> bool {
        matches!(self.opened.info.kind, NicKind::Afxdp(_) | NicKind::Tap)
            && self.opened.info.name == *name
    }

    /// Whether this device is a link to the interface of this name, which another run has.
    fn is_before(&self, name: &str) -> bool {
        self.uplink.as_deref() == Some(name)
    }

    /// The state of its link, with what is other than at first.
    fn told_state(&self) -> String {
        let now = (self.opened.info.mtu, self.opened.info.sockets());
        let (mtu, queues) = self.at_first;
        let mut news = Vec::new();
        if now.0 != mtu {
            news.push(format!("MTU {} instead of {mtu}", now.0));
        }
        if now.1 != queues {
            news.push(format!("{} queues instead of {queues}", now.1));
        }
        match news.is_empty() || self.state != "up" {
            true => self.state.clone(),
            false => format!("up, with {}", news.join(", ")),
        }
    }

    /// Handles a change of the interface behind its link; returns a line for the user.
    fn follow_uplink(&mut self, change: &LinkChange) -> Option<String> {
        let (state, more) = match change {
            // The keeper gives the link what the interface has.
            LinkChange::Alias { .. } | LinkChange::Altered(_) => return None,
            LinkChange::Renamed { from, to } => {
                self.uplink = Some(to.clone());
                return Some(renamed(from, to));
            }
            // Another one of that name may have come.
            LinkChange::Up(_) | LinkChange::Down(_) if self.removed => return None,
            LinkChange::Up(_) => ("up", ""),
            LinkChange::Down(_) => (DOWN_STATE, DOWN),
            LinkChange::Removed(_) | LinkChange::Moved(_) => {
                self.removed = true;
                ("gone", ": start `ix run` again when an interface of this name exists")
            }
        };
        self.state = state.to_owned();
        let uplink = self.uplink.as_deref().unwrap_or_default();
        Some(format!("link {uplink} is {state}{more}"))
    }

    /// Handles a change of its interface; returns a line for the user.
    fn follow(&mut self, change: &LinkChange) -> Option<String> {
        Some(match change {
            LinkChange::Alias { .. } => return None,
            LinkChange::Altered(_) => {
                self.opened.look_soon();
                return None;
            }
            LinkChange::Down(_) => self.now(DOWN_STATE, DOWN),
            LinkChange::Renamed { from, to } => {
                // The queues stay with the interface.
                self.opened.info.name = to.clone();
                renamed(from, to)
            }
            LinkChange::Removed(_) if self.opened.info.kind == NicKind::Tap => {
                self.now("gone", ": another process removed it; start `ix run` again")
            }
            // The dataplane keeps the tap's queues in any namespace.
            LinkChange::Moved(_) if self.opened.info.kind == NicKind::Tap => {
                let more = ": it was moved to another namespace; the dataplane still uses it, but \
                            does not notice there whether it is up";
                self.now("elsewhere", more)
            }
            LinkChange::Removed(_) | LinkChange::Moved(_) => {
                (self.removed, self.missing) = (true, 0);
                self.now("gone", ": packets are lost until a link of this name exists again")
            }
            LinkChange::Up(_) if !self.removed => self.now("up", ""),
            LinkChange::Up(_) => match self.opened.reopen() {
                // The user gets the line when the dataplane has attached all queues.
                Ok(update) => {
                    (self.removed, self.missing) = (false, self.opened.info.queues);
                    self.next = update;
                    return None;
                }
                Err(e) => self.now("back", &format!(", but cannot be used: {e}")),
            },
        })
    }

    /// Sets the state of the interface; returns the line about it.
    fn now(&mut self, state: &str, more: &str) -> String {
        self.state = state.to_owned();
        format!("link {} is {state}{more}", self.opened.info.name)
    }

    /// Sends the newest change to the dataplane, unless it has one to read.
    fn send_next(&mut self, number: usize, channel: Option<&Channel>) {
        if self.unread {
            return;
        }
        let (Some(update), Some(channel)) = (self.next.take(), channel) else { return };
        let serial = self.serial + 1;
        let message = ToImage::Update { device: number, serial, change: update.change.clone() };
        let fds: Vec<_> = update.fds.iter().map(AsFd::as_fd).collect();
        match channel.try_send(&message.encode(), &fds) {
            Ok(()) => (self.serial, self.unread) = (serial, true),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.next = Some(update),
            // The process has ended; the broker notices that by itself.
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ix_netdev::{OpenOptions, open};

    #[test]
    fn an_old_failure_changes_nothing() {
        let spec = format!("memif:@ix-devices-{}", std::process::id());
        let opened = open(&spec.parse().expect("a device"), &OpenOptions::default());
        let mut devices = Devices::new(vec![opened.expect("no privilege is needed")]);
        let failed = |serial| FromImage::UpdateFailed { device: 0, serial, why: "no".to_owned() };
        // A newer update, number 2, was sent.
        devices.all[0].serial = 2;
        assert_eq!(devices.handle(&failed(1), None), None);
        assert_eq!(devices.states(), ["up"]);
        let line = devices.handle(&failed(2), None).expect("a line");
        assert!(line.starts_with("device memif:@ix-devices") && line.ends_with(": no"), "{line}");
        assert_eq!(devices.states(), ["no"]);
    }
}
