//! The devices of a running dataplane, as its broker keeps them: peers that come and go, interfaces
//! that are removed and made again. What changes is said to the user and sent to the dataplane.
use crate::vnic::FilteredDevices;
use ix_entry::Channel;
use ix_netdev::LinkChange;
use ix_netdev::{DeviceEvent, DeviceUpdate, OpenedDevice};
use ix_proto::device::NicKind;
use ix_proto::{Codec, FromImage, ToImage};
use ix_vnic::Filter;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// Between tries to hand an update over while the channel is full.
const RETRY_MS: u64 = 10;

/// All devices, in the order of the configuration.
pub struct Devices(Vec<Device>);

struct Device {
    opened: OpenedDevice,
    /// What its link does, for people.
    state: String,
    /// The interface was removed.
    gone: bool,
    /// Queues of the interface that is back, that the dataplane has not attached yet.
    missing: usize,
    /// Number of the last update that was sent.
    serial: u64,
    /// The last update that was sent is not read yet. The dataplane gets one at a time, so that
    /// one that nobody enters for long does not fill the channel.
    unread: bool,
    /// The newest change that is still to be sent. It stands for all before it.
    next: Option<DeviceUpdate>,
}

impl Devices {
    /// Devices that the dataplane has just attached.
    pub fn new(opened: Vec<OpenedDevice>) -> Devices {
        let device = |opened| Device {
            opened,
            state: "up".to_owned(),
            gone: false,
            missing: 0,
            serial: 0,
            unread: false,
            next: None,
        };
        Devices(opened.into_iter().map(device).collect())
    }

    /// What polls readable when [`Devices::service`] has something to do.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().flat_map(|device| device.opened.watch_fds())
    }

    /// When to call [`Devices::service`] even if nothing is readable, ms; negative: never.
    pub fn service_in_ms(&self) -> i32 {
        let due = self.0.iter().filter_map(|device| {
            let stuck = device.next.is_some() && !device.unread;
            let retry = stuck.then_some(RETRY_MS);
            device.opened.service_in_ms().into_iter().chain(retry).min()
        });
        due.min().map_or(-1, |ms| ms.min(i32::MAX as u64) as i32)
    }

    /// Serves the devices' control channels; answers the lines for the user.
    pub fn service(&mut self, channel: Option<&Channel>) -> Vec<String> {
        let mut lines = Vec::new();
        for (number, device) in self.0.iter_mut().enumerate() {
            for event in device.opened.service() {
                match event {
                    DeviceEvent::Update(update) => device.next = Some(update),
                    DeviceEvent::Say(line) => {
                        device.state = device.without_name(&line).to_owned();
                        lines.push(line);
                    }
                }
            }
            device.send_next(number, channel);
        }
        lines
    }

    /// A link of the host changed; answers the line for the user if it is one of ours.
    pub fn link_changed(
        &mut self,
        change: &LinkChange,
        channel: Option<&Channel>,
    ) -> Option<String> {
        let (LinkChange::Up(name)
        | LinkChange::Down(name)
        | LinkChange::Removed(name)
        | LinkChange::Moved(name)
        | LinkChange::Alias { name, .. }
        | LinkChange::Renamed { from: name, .. }) = change;
        let number = self.0.iter().position(|device| device.is_called(name))?;
        let device = &mut self.0[number];
        let line = device.follow(change);
        device.send_next(number, channel);
        line
    }

    /// Whether a link is the only way by which packets leave.
    pub fn is_only_link(&self, name: &str) -> bool {
        matches!(&self.0[..], [device] if device.is_called(name))
    }

    /// Gives the interfaces back to Linux: the dataplane has ended.
    pub fn close(&mut self) {
        self.0.iter_mut().for_each(|device| device.opened.close());
    }

    /// The dataplane says something about its devices; answers the line for the user.
    pub fn heard(&mut self, message: &FromImage, channel: Option<&Channel>) -> Option<String> {
        match message {
            FromImage::Taken { device: number, serial } => {
                let device = self.0.get_mut(*number)?;
                device.unread &= device.serial != *serial;
                device.send_next(*number, channel);
                None
            }
            FromImage::Updated { device, queue, serial } => {
                let device = self.0.get_mut(*device)?;
                // A later update is on its way: this one's descriptors are of no use any more.
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
            FromImage::UpdateFailed { device, why } => {
                let device = self.0.get_mut(*device)?;
                device.state = why.clone();
                Some(format!("device {}: {why}", device.name()))
            }
            _ => None,
        }
    }

    /// `kind:name` of each.
    pub fn names(&self) -> Vec<String> {
        self.0.iter().map(Device::name).collect()
    }

    /// What each one's link does.
    pub fn states(&self) -> Vec<String> {
        self.0.iter().map(|device| device.state.clone()).collect()
    }
}

impl FilteredDevices for Devices {
    /// What a network card refuses is said to the user: its program asks all filters in any case.
    fn set_receive_filters(&mut self, filters: Option<&[Filter]>) -> Result<(), String> {
        for device in &mut self.0 {
            let set = device.opened.set_filters(filters.map(<[Filter]>::to_vec));
            let line = set.map_err(|e| e.to_string())?;
            line.iter().for_each(|line| eprintln!("ix: {line}"));
        }
        Ok(())
    }

    fn filters_in_hardware(&self) -> Vec<Filter> {
        self.0.iter().flat_map(|device| device.opened.filters_in_hardware()).collect()
    }
}

impl Device {
    fn name(&self) -> String {
        format!("{}:{}", self.opened.info.kind, self.opened.info.name)
    }

    /// Lines begin with the device's name.
    fn without_name<'a>(&self, line: &'a str) -> &'a str {
        line.strip_prefix(&self.name()).map_or(line, |rest| rest.trim_start_matches([':', ' ']))
    }

    /// It is the link of the host that has this name.
    fn is_called(&self, name: &str) -> bool {
        matches!(self.opened.info.kind, NicKind::Afxdp(_) | NicKind::Tap)
            && self.opened.info.name == *name
    }

    /// Its interface changed: answers the line about it.
    fn follow(&mut self, change: &LinkChange) -> Option<String> {
        Some(match change {
            LinkChange::Alias { .. } => return None,
            LinkChange::Down(_) => self.now("down", ": packets are lost until it is up again"),
            LinkChange::Renamed { to, .. } => {
                // The queues are the interface's, whatever its name.
                let from = &self.opened.info.name;
                let line = format!("link {from} is called {to} now, and goes on");
                self.opened.info.name = to.clone();
                line
            }
            LinkChange::Removed(_) if self.opened.info.kind == NicKind::Tap => {
                self.now("gone", ": start `ix run` anew")
            }
            // Its queues are the dataplane's, wherever the other end is.
            LinkChange::Moved(_) if self.opened.info.kind == NicKind::Tap => {
                self.now("elsewhere", ": it goes on in another namespace, where nobody watches it")
            }
            LinkChange::Removed(_) | LinkChange::Moved(_) => {
                (self.gone, self.missing) = (true, 0);
                self.now("gone", ": packets are lost until there is one of this name again")
            }
            LinkChange::Up(_) if !self.gone => self.now("up", ""),
            LinkChange::Up(_) => match self.opened.reopen() {
                // Told when the dataplane has attached all queues.
                Ok(update) => {
                    (self.gone, self.missing) = (false, self.opened.info.queues);
                    self.next = update;
                    return None;
                }
                Err(e) => self.now("back", &format!(", but cannot be used: {e}")),
            },
        })
    }

    /// The line about a new state of the interface.
    fn now(&mut self, state: &str, more: &str) -> String {
        self.state = state.to_owned();
        format!("link {} is {state}{more}", self.opened.info.name)
    }

    /// Hands the newest change to the dataplane, unless it has one to read.
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
            // The process ends; that is told elsewhere.
            Err(_) => {}
        }
    }
}
