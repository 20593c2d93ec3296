//! What a dataplane is to begin with follows Linux until it begins: a program may run for hours
//! before it uses its dataplane, or never do.
use super::DataplaneSetup;
use crate::devices::serve_address;
use crate::shared_address::SharedAddress;
use std::os::fd::BorrowedFd;

impl DataplaneSetup {
    /// They poll readable when [`DataplaneSetup::service`] has something to do, or the keeper of
    /// the interface has ended.
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.shared.iter().flat_map(SharedAddress::fds)
    }

    /// When to call [`DataplaneSetup::service`] though nothing is readable, ms.
    pub(super) fn service_in_ms(&self) -> Option<u64> {
        self.shared.as_ref()?.follow_in_ms()
    }

    /// Follows the addresses that are shared with Linux. Returns a line for the user if the device
    /// cannot.
    pub(super) fn service(&mut self) -> Option<String> {
        serve_address(self.shared.as_mut()?, self.devices.iter_mut(), None)
    }

    /// The interface whose addresses are shared, if its keeper has ended.
    pub(super) fn without_keeper(&self) -> Option<&str> {
        self.shared.as_ref()?.without_keeper()
    }
}
