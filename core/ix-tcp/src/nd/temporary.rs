//! Temporary addresses (RFC 8981): of a random identifier, for a day, beside the address that a
//! host has for good in a network. An observer of the connections that it opens cannot tell that
//! those of different days are one host's.
use super::identifier::{RETRIES_MAX, temporary};
use ix_wire::IpAddr;

const SECOND_US: u64 = 1_000_000;
/// TEMP_PREFERRED_LIFETIME and TEMP_VALID_LIFETIME (section 3.8).
pub(super) const PREFERRED_US: u64 = 86_400 * SECOND_US;
pub(super) const VALID_US: u64 = 2 * PREFERRED_US;
/// REGEN_ADVANCE: so long before an address is deprecated the next one is made. Its check takes a
/// second, and so does each further try.
pub(super) const ADVANCE_US: u64 = (2 + RETRIES_MAX as u64) * SECOND_US;
/// MAX_DESYNC_FACTOR: hosts that start together do not change their addresses together.
pub(super) const DESYNC_US_MAX: u64 = PREFERRED_US / 5 * 2;
/// Most addresses, those among them that are deprecated and still valid.
const ADDRESSES_MAX: usize = 16;

/// One of them. Its lifetimes are the shorter ones of its own and its prefix's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Temporary {
    pub address: IpAddr,
    made_us: u64,
    desync_us: u64,
    /// How many addresses in its place other hosts had.
    conflicts: u8,
    /// Another host has it: it is not used.
    pub is_taken: bool,
    /// It was said that it is deprecated.
    pub is_deprecated: bool,
}

impl Temporary {
    /// When it is deprecated at the latest.
    pub fn preferred_until_us(&self) -> u64 {
        self.made_us + PREFERRED_US - self.desync_us
    }

    /// When it ends at the latest.
    pub fn until_us(&self) -> u64 {
        self.made_us + VALID_US
    }
}

/// All of a host.
#[derive(Clone, Debug)]
pub(super) struct Temporaries {
    /// Of which identifiers are made.
    key: [u8; 16],
    /// How many were made.
    count: u64,
    /// Oldest first.
    pub all: Vec<Temporary>,
    /// Other hosts had several in a row: none is made any more (section 3.4, 7).
    gave_up: bool,
}

impl Temporaries {
    pub fn new(key: [u8; 16]) -> Self {
        Temporaries { key, count: 0, all: Vec::new(), gave_up: false }
    }

    fn next(&mut self, prefix: IpAddr, now_us: u64) -> IpAddr {
        self.count += 1;
        temporary(&self.key, prefix, now_us, self.count)
    }

    /// Those of a prefix.
    pub fn of(&self, prefix: IpAddr, bits: u8) -> impl Iterator<Item = &Temporary> {
        self.all.iter().filter(move |one| one.address.same_network(prefix, bits))
    }

    /// Makes a temporary address for a prefix of `bits` bits that is preferred until
    /// `preferred_until_us`, if the prefix has none or its newest one is soon deprecated.
    ///
    /// Returns the new address, if one was made, and the time at which the caller looks again;
    /// `u64::MAX`: not before the prefix has other lifetimes.
    pub fn renew(
        &mut self,
        (prefix, bits, preferred_until_us): (IpAddr, u8, u64),
        desync_us: u64,
        now_us: u64,
    ) -> (Option<IpAddr>, u64) {
        let soon_us = now_us.saturating_add(ADVANCE_US);
        // Section 3.4, 5: none that would be deprecated before the next one is made.
        if self.gave_up || preferred_until_us <= soon_us {
            return (None, u64::MAX);
        }
        let newest_us = self.of(prefix, bits).map(Temporary::preferred_until_us).max();
        if let Some(newest_us) = newest_us.filter(|newest_us| *newest_us > soon_us) {
            return (None, newest_us - ADVANCE_US);
        }
        if self.all.len() == ADDRESSES_MAX {
            return (None, self.all.iter().map(Temporary::until_us).min().unwrap_or(u64::MAX));
        }
        let one = Temporary {
            address: self.next(prefix, now_us),
            made_us: now_us,
            desync_us: desync_us.min(DESYNC_US_MAX),
            conflicts: 0,
            is_taken: false,
            is_deprecated: false,
        };
        self.all.push(one);
        (Some(one.address), one.preferred_until_us() - ADVANCE_US)
    }

    /// Another host has an address. `None`: it is none of these; otherwise the one that is to be
    /// checked in its place, if another one is tried.
    pub fn taken(&mut self, address: IpAddr, now_us: u64) -> Option<Option<IpAddr>> {
        let at = self.all.iter().position(|one| one.address == address)?;
        if self.all[at].conflicts == RETRIES_MAX {
            (self.all[at].is_taken, self.gave_up) = (true, true);
            return Some(None);
        }
        let another = self.next(address, now_us);
        let one = &mut self.all[at];
        (one.address, one.conflicts) = (another, one.conflicts + 1);
        Some(Some(another))
    }
}
