//! What a host learns from routers: its addresses (RFC 4862 section 5.5), the prefixes of its link,
//! its default routers, MTU and hop limit (RFC 4861 section 6.3); and how it asks for them (RFC
//! 7559).
//!
//! Whoever is on the link decides what is kept here, so all of it is bounded.
use super::identifier::Identifiers;
use super::temporary::{DESYNC_US_MAX, Temporaries};
use ix_wire::ra::{Advertisement, INFINITE_S, Preference, Prefix};
use ix_wire::{IpAddr, ipv6};

/// Most routers, prefixes of the link, and addresses made of prefixes.
const ROUTERS_MAX: usize = 8;
const PREFIXES_MAX: usize = 16;
const ADDRESSES_MAX: usize = 4;
const SECOND_US: u64 = 1_000_000;
/// Hosts that start together do not ask together (MAX_RTR_SOLICITATION_DELAY).
const FIRST_DELAY_US: u64 = SECOND_US;
/// Between the first two questions, and at most (RFC 7559 section 2).
const ASK_US: u64 = 4 * SECOND_US;
const ASK_US_MAX: u64 = 3600 * SECOND_US;
/// What is left of an address is shortened to no less than this by who is not known (RFC 4862
/// section 5.5.3 (e)).
const TWO_HOURS_US: u64 = 7200 * SECOND_US;
/// Addresses are made of prefixes that leave room for an identifier of 64 bits (RFC 2464, 4).
const PREFIX_BITS: u8 = 64;

/// A default router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Router {
    address: IpAddr,
    preference: Preference,
    until_us: u64,
    /// It did not answer when it was needed.
    is_silent: bool,
}

/// A prefix whose hosts are on the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OnLink {
    prefix: IpAddr,
    bits: u8,
    until_us: u64,
}

/// An address that was made of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Made {
    address: IpAddr,
    preferred_until_us: u64,
    until_us: u64,
    /// How many addresses of this prefix other hosts had.
    conflicts: u8,
    /// Another host has it, and there is no other one: it is not used.
    is_taken: bool,
    /// It was said that it is deprecated.
    is_deprecated: bool,
    /// When it is looked whether its prefix needs another temporary address.
    renew_us: u64,
}

/// What has become of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressChange {
    /// It is to be checked whether somebody has it, and then to be used.
    Begins(IpAddr),
    /// It may still be used, but should begin no connections any more.
    Deprecated(IpAddr),
    /// Its time is over.
    Ends(IpAddr),
}

/// What a host has learnt.
#[derive(Clone, Debug)]
pub struct Autoconf {
    identifiers: Identifiers,
    /// How many link-local addresses other hosts had.
    conflicts: u8,
    mtu_max: u32,
    routers: Vec<Router>,
    prefixes: Vec<OnLink>,
    made: Vec<Made>,
    /// Temporary addresses, if the host has such.
    temporary: Option<Temporaries>,
    mtu: Option<u32>,
    hop_limit: Option<u8>,
    /// When routers are asked again, and how long after that once more.
    ask_us: u64,
    pause_us: u64,
    random: u64,
}

impl Autoconf {
    /// For a device with this MTU, whose addresses have these identifiers. Routers are asked within
    /// a second; `seed` says when.
    pub fn new(identifiers: Identifiers, mtu_max: u32, now_us: u64, seed: u64) -> Self {
        let mut new = Self {
            identifiers,
            conflicts: 0,
            mtu_max,
            routers: Vec::new(),
            prefixes: Vec::new(),
            made: Vec::new(),
            temporary: None,
            mtu: None,
            hop_limit: None,
            ask_us: 0,
            pause_us: ASK_US,
            random: seed | 1,
        };
        new.ask_us = now_us + new.below(FIRST_DELAY_US);
        new
    }

    /// The same, with temporary addresses beside the others (RFC 8981), whose identifiers are made
    /// of this key: another one for each run.
    pub fn with_temporary(mut self, key: [u8; 16]) -> Self {
        self.temporary = Some(Temporaries::new(key));
        self
    }

    /// The host's link-local address (RFC 4862 section 5.3).
    pub fn link_local(&self) -> IpAddr {
        self.identifiers.address(LINK, self.conflicts)
    }

    /// Processes an advertisement.
    pub fn on_advertisement(
        &mut self,
        said: &Advertisement,
        now_us: u64,
        mut changed: impl FnMut(AddressChange),
    ) {
        if said.hop_limit != 0 {
            self.hop_limit = Some(said.hop_limit);
        }
        if let Some(mtu) =
            said.mtu.filter(|mtu| (ipv6::MTU_MIN.into()..=self.mtu_max).contains(mtu))
        {
            self.mtu = Some(mtu);
        }
        self.hear_router(said, now_us);
        for prefix in said.prefixes().iter().filter(|prefix| !prefix.prefix.is_link_local_v6()) {
            if prefix.on_link {
                self.hear_on_link(prefix, now_us);
            }
            if prefix.autonomous && prefix.bits == PREFIX_BITS {
                self.hear_autonomous(prefix, now_us, &mut changed);
            }
        }
        self.expire(now_us, &mut changed);
    }

    /// RFC 4861 section 6.3.4, RFC 4191 section 3.1.
    fn hear_router(&mut self, said: &Advertisement, now_us: u64) {
        if said.lifetime_s == 0 {
            self.is_no_router(said.router);
            return;
        }
        // Who serves is found: nobody has to be asked any more.
        self.ask_us = u64::MAX;
        let Advertisement { router: address, preference, .. } = *said;
        let until_us = end_us(now_us, said.lifetime_s.into());
        let heard = Router { address, preference, until_us, is_silent: false };
        if let Some(router) = self.routers.iter_mut().find(|router| router.address == address) {
            *router = heard;
            return;
        }
        if self.routers.len() == ROUTERS_MAX {
            let worst = (0..ROUTERS_MAX).min_by_key(|at| self.routers[*at].preference);
            match worst.filter(|at| self.routers[*at].preference < preference) {
                Some(at) => self.routers.remove(at),
                None => return,
            };
        }
        self.routers.push(heard);
    }

    fn hear_on_link(&mut self, said: &Prefix, now_us: u64) {
        let same = |held: &OnLink| held.prefix == said.prefix && held.bits == said.bits;
        self.prefixes.retain(|held| !same(held));
        if said.valid_s > 0 && self.prefixes.len() < PREFIXES_MAX {
            let until_us = end_us(now_us, said.valid_s);
            self.prefixes.push(OnLink { prefix: said.prefix, bits: said.bits, until_us });
        }
    }

    /// RFC 4862 section 5.5.3 (d) and (e).
    fn hear_autonomous(
        &mut self,
        said: &Prefix,
        now_us: u64,
        changed: &mut impl FnMut(AddressChange),
    ) {
        let until_us = end_us(now_us, said.valid_s);
        let preferred_until_us = end_us(now_us, said.preferred_s);
        let has_room = self.made.len() < ADDRESSES_MAX;
        let is_of = |made: &&mut Made| made.address.same_network(said.prefix, PREFIX_BITS);
        match self.made.iter_mut().find(is_of) {
            Some(made) => {
                made.preferred_until_us = preferred_until_us;
                let two_hours_us = now_us.saturating_add(TWO_HOURS_US);
                // (e) 1: longer than two hours, or than what is left; 2: at most two hours are
                // left; 3: shortened to two hours.
                if until_us > two_hours_us || until_us > made.until_us {
                    made.until_us = until_us;
                } else if made.until_us > two_hours_us {
                    made.until_us = two_hours_us;
                }
            }
            None if said.valid_s > 0 && has_room => {
                let address = self.identifiers.address(said.prefix, 0);
                self.made.push(Made {
                    address,
                    preferred_until_us,
                    until_us,
                    conflicts: 0,
                    is_taken: false,
                    is_deprecated: false,
                    renew_us: u64::MAX,
                });
                changed(AddressChange::Begins(address));
            }
            None => {}
        }
    }

    /// Another host has an address that was made: it is not used. Returns the one that is to be
    /// checked in its place, if there is another one (RFC 7217 section 6).
    pub fn taken(&mut self, address: IpAddr, now_us: u64) -> Option<IpAddr> {
        let Autoconf { identifiers, conflicts, made, temporary, .. } = self;
        if let Some(another) = temporary.as_mut().and_then(|all| all.taken(address, now_us)) {
            return another;
        }
        if identifiers.address(LINK, *conflicts) == address {
            return next(identifiers, conflicts, LINK);
        }
        let made = made.iter_mut().find(|made| made.address == address)?;
        let another = next(identifiers, &mut made.conflicts, address);
        match another {
            Some(another) => made.address = another,
            None => made.is_taken = true,
        }
        another
    }

    /// A neighbour says that it is no router any more (RFC 4861 section 7.2.5).
    /// True if it was one.
    pub fn is_no_router(&mut self, address: IpAddr) -> bool {
        let before = self.routers.len();
        self.routers.retain(|router| router.address != address);
        self.routers.len() < before
    }

    /// A neighbour did not answer: if it is a router, others are tried first (section 6.3.6). True
    /// if that was not known.
    pub fn is_silent(&mut self, address: IpAddr) -> bool {
        let mut its = self.routers.iter_mut().filter(|router| router.address == address);
        its.next().is_some_and(|router| !std::mem::replace(&mut router.is_silent, true))
    }

    /// The best default router. Of those that are equally good the one that was heard of first.
    pub fn router(&self) -> Option<IpAddr> {
        let better = |router: &&Router| (!router.is_silent, router.preference);
        let mut best: Option<&Router> = None;
        for router in &self.routers {
            if best.is_none_or(|best| better(&router) > better(&best)) {
                best = Some(router);
            }
        }
        best.map(|router| router.address)
    }

    /// The prefixes whose hosts are on the link, with their lengths.
    pub fn on_link(&self) -> impl Iterator<Item = (IpAddr, u8)> {
        self.prefixes.iter().map(|held| (held.prefix, held.bits))
    }

    /// All addresses that were made.
    pub fn made(&self) -> impl Iterator<Item = IpAddr> {
        let temporary = self.temporary.iter().flat_map(|all| &all.all).map(|one| one.address);
        self.made.iter().map(|made| made.address).chain(temporary)
    }

    /// The temporary addresses that may be used, the newest first, and whether each may begin
    /// connections.
    pub fn temporary(&self, now_us: u64) -> impl Iterator<Item = (IpAddr, bool)> {
        let newest_first = self.temporary.iter().flat_map(|all| all.all.iter().rev());
        newest_first.filter(|one| !one.is_taken).filter_map(move |one| {
            let made = made_beside(&self.made, one.address)?;
            let until_us = made.preferred_until_us.min(one.preferred_until_us());
            Some((one.address, now_us < until_us))
        })
    }

    /// The addresses that may be used for good, and whether each may begin connections (RFC 4862
    /// section 5.5.4).
    pub fn addresses(&self, now_us: u64) -> impl Iterator<Item = (IpAddr, bool)> {
        let usable = self.made.iter().filter(|made| !made.is_taken);
        usable.map(move |made| (made.address, now_us < made.preferred_until_us))
    }

    /// Longest packet of the link, bytes, if a router has told one.
    pub fn mtu(&self) -> Option<u32> {
        self.mtu
    }

    /// The hop limit for packets, if a router has told one.
    pub fn hop_limit(&self) -> Option<u8> {
        self.hop_limit
    }

    /// Ends what is over. True if routers are to be asked now.
    pub fn tick(&mut self, now_us: u64, mut changed: impl FnMut(AddressChange)) -> bool {
        let served = !self.routers.is_empty();
        self.expire(now_us, &mut changed);
        if served && self.routers.is_empty() {
            // The last one has gone without a word: perhaps there is another.
            (self.ask_us, self.pause_us) = (now_us, ASK_US);
        }
        if now_us < self.ask_us {
            return false;
        }
        // RFC 7559 section 2, as RFC 8415 section 15: twice as long each time, and a tenth more or
        // less, so that hosts do not ask in step.
        let tenth_us = self.pause_us / 10;
        self.ask_us = now_us + self.pause_us - tenth_us + self.below(2 * tenth_us);
        self.pause_us = (2 * self.pause_us).min(ASK_US_MAX);
        true
    }

    fn expire(&mut self, now_us: u64, changed: &mut impl FnMut(AddressChange)) {
        self.routers.retain(|router| now_us < router.until_us);
        self.prefixes.retain(|held| now_us < held.until_us);
        self.made.retain(|made| {
            let holds = now_us < made.until_us;
            if !holds {
                changed(AddressChange::Ends(made.address));
            }
            holds
        });
        for made in &mut self.made {
            let is_deprecated = now_us >= made.preferred_until_us;
            if is_deprecated && !made.is_deprecated {
                changed(AddressChange::Deprecated(made.address));
            }
            made.is_deprecated = is_deprecated;
        }
        self.expire_temporary(now_us, changed);
        self.renew_temporary(now_us, changed);
    }

    /// A temporary address ends with its own time, or with its prefix (RFC 8981 section 3.4, 1).
    fn expire_temporary(&mut self, now_us: u64, changed: &mut impl FnMut(AddressChange)) {
        let Autoconf { made, temporary: Some(temporary), .. } = self else { return };
        temporary.all.retain_mut(|one| {
            let made = made_beside(made, one.address).filter(|_| now_us < one.until_us());
            let Some(made) = made else {
                changed(AddressChange::Ends(one.address));
                return false;
            };
            let is_deprecated = now_us >= made.preferred_until_us.min(one.preferred_until_us());
            if is_deprecated && !one.is_deprecated {
                changed(AddressChange::Deprecated(one.address));
            }
            one.is_deprecated = is_deprecated;
            true
        });
    }

    /// Makes temporary addresses where there are none, or soon would be none (sections 3.4, 3.5).
    fn renew_temporary(&mut self, now_us: u64, changed: &mut impl FnMut(AddressChange)) {
        for at in 0..self.made.len() {
            let desync_us = self.below(DESYNC_US_MAX);
            let Autoconf { made, temporary: Some(temporary), .. } = self else { return };
            let made = &mut made[at];
            let prefix = (made.address, PREFIX_BITS, made.preferred_until_us);
            let (new, look_us) = temporary.renew(prefix, desync_us, now_us);
            made.renew_us = look_us;
            if let Some(address) = new {
                changed(AddressChange::Begins(address));
            }
        }
    }

    /// When [`Self::tick`] has something to do; `u64::MAX`: never.
    pub fn deadline(&self) -> u64 {
        let routers = self.routers.iter().map(|router| router.until_us);
        let prefixes = self.prefixes.iter().map(|held| held.until_us);
        let begins_to_end = |is_said: bool, at_us: u64| if is_said { u64::MAX } else { at_us };
        let made = self.made.iter().map(|made| {
            let deprecated_us = begins_to_end(made.is_deprecated, made.preferred_until_us);
            made.until_us.min(deprecated_us).min(made.renew_us)
        });
        let temporary = self.temporary.iter().flat_map(|all| &all.all).map(|one| {
            one.until_us().min(begins_to_end(one.is_deprecated, one.preferred_until_us()))
        });
        routers.chain(prefixes).chain(made).chain(temporary).fold(self.ask_us, u64::min)
    }

    /// A random number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        // Marsaglia's xorshift.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 8) % end.max(1)
    }
}

/// The prefix of addresses of the link.
const LINK: IpAddr = IpAddr([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);

/// The address for good in the network of a temporary one.
fn made_beside(made: &[Made], temporary: IpAddr) -> Option<&Made> {
    made.iter().find(|made| made.address.same_network(temporary, PREFIX_BITS))
}

/// The address of a prefix after one more conflict.
fn next(identifiers: &Identifiers, conflicts: &mut u8, prefix: IpAddr) -> Option<IpAddr> {
    let has_another = identifiers.has_another(*conflicts);
    has_another.then(|| {
        *conflicts += 1;
        identifiers.address(prefix, *conflicts)
    })
}

/// The end of a lifetime that begins now.
fn end_us(now_us: u64, lifetime_s: u32) -> u64 {
    if lifetime_s == INFINITE_S { u64::MAX } else { now_us + u64::from(lifetime_s) * SECOND_US }
}

#[cfg(test)]
mod tests;
