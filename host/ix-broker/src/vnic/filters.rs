//! Who holds which part of the header space, for `ix run` and `ix share` alike: a change is in
//! force before it is answered, or nothing of it has happened.
use ix_proto::control::Refusal;
use ix_vnic::{Capability, Direction, Filter, FilterId, Refusal as Why, Registry, VnicId};
use std::net::Ipv4Addr;

/// What puts granted filters into force: the kernel's programs.
pub trait Enforcer {
    /// Refuses what could not be held; touches nothing.
    fn check(&self, granted: &Granted) -> Result<(), Refusal>;

    /// Puts into force what is granted. After an error some of it may be in force; the caller then
    /// applies what was granted before.
    fn apply(&mut self, granted: &Granted) -> Result<(), Refusal>;
}

/// All filters that are granted.
#[derive(Clone, Debug)]
pub struct Granted {
    /// Who holds them, and where they are at work.
    pub registry: Registry,
    /// Directions that filters were granted for: what is not in one of them does not pass.
    pub filtered: Vec<Direction>,
}

/// Where a filter is at work.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    /// The vNIC; none: the filter is only held.
    pub vnic: Option<VnicId>,
    /// The queue that holds it alone; none: all do.
    pub queue: Option<usize>,
}

/// A filter that was granted or derived.
#[derive(Clone, Debug)]
pub struct Made {
    /// Its number.
    pub id: FilterId,
    /// As text, to hand on.
    pub capability: String,
}

impl Granted {
    /// Nothing but what this registry has.
    pub fn new(registry: Registry) -> Granted {
        Granted { registry, filtered: Vec::new() }
    }

    /// Makes a change and puts it into force. Where any part of it is refused, nothing of it is
    /// left, neither here nor in the kernel.
    pub fn attempt<T>(
        &mut self,
        enforcer: &mut impl Enforcer,
        change: impl FnOnce(&mut Granted) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let mut changed = self.clone();
        let answer = change(&mut changed)?;
        enforcer.check(&changed)?;
        if let Err(refusal) = enforcer.apply(&changed) {
            return Err(match enforcer.apply(self) {
                Ok(()) => refusal,
                Err(worse) => Refusal::Vnic(format!(
                    "{refusal}; and what was in force cannot be put back: {worse}"
                )),
            });
        }
        *self = changed;
        Ok(answer)
    }

    /// Grants filters to a holder, all or none. `linux`: the addresses that Linux has.
    pub fn create(
        &mut self,
        enforcer: &mut impl Enforcer,
        filters: &[Filter],
        holder: &str,
        place: Place,
        linux: Vec<Ipv4Addr>,
    ) -> Result<Vec<Made>, Refusal> {
        self.registry.set_linux(linux);
        self.attempt(enforcer, |granted| {
            filters.iter().map(|filter| granted.grant(holder, filter.clone(), place)).collect()
        })
    }

    /// Grants one filter, without putting it into force.
    pub fn grant(&mut self, holder: &str, filter: Filter, place: Place) -> Result<Made, Refusal> {
        let (key, direction) = (draw().map_err(Refusal::Dataplane)?, filter.direction());
        let id = self.registry.grant(holder, filter, key.clone()).map_err(refuse)?;
        self.registry.assign_by_id(id, place.vnic).map_err(refuse)?;
        // A filter that is only held has no queues.
        if place.queue.is_some() {
            self.registry.assign_queue(id, place.queue).map_err(refuse)?;
        }
        if !self.filtered.contains(&direction) {
            self.filtered.push(direction);
        }
        Ok(Made { id, capability: key.reveal() })
    }

    /// A narrower filter, or the same, with a capability to hand on. With a vNIC it is at work
    /// there at once, at the queue of the filter that it comes from.
    pub fn derive(
        &mut self,
        enforcer: &mut impl Enforcer,
        from: &str,
        filter: Option<Filter>,
        vnic: Option<VnicId>,
    ) -> Result<Made, Refusal> {
        let (from, key) = (capability(from)?, draw().map_err(Refusal::Dataplane)?);
        self.attempt(enforcer, |Granted { registry, .. }| {
            let parent = registry.filter_of(&from).map_err(refuse)?;
            let queue = registry.queue_of(parent);
            let id = registry.derive(&from, filter, key.clone()).map_err(refuse)?;
            if vnic.is_some() {
                registry.assign_by_id(id, vnic).map_err(refuse)?;
                registry.assign_queue(id, queue).map_err(refuse)?;
            }
            Ok(Made { id, capability: key.reveal() })
        })
    }

    /// Only this queue holds the filter from now on; none: all do.
    pub fn assign_queue(
        &mut self,
        enforcer: &mut impl Enforcer,
        filter: &str,
        queue: Option<usize>,
    ) -> Result<FilterId, Refusal> {
        let key = capability(filter)?;
        self.attempt(enforcer, |Granted { registry, .. }| {
            let id = registry.filter_of(&key).map_err(refuse)?;
            registry.assign_queue(id, queue).map_err(refuse)?;
            Ok(id)
        })
    }

    /// Assigns a filter to a vNIC, both by their capabilities.
    pub fn assign_vnic(
        &mut self,
        enforcer: &mut impl Enforcer,
        filter: &str,
        vnic: &str,
    ) -> Result<FilterId, Refusal> {
        let (filter, vnic) = (capability(filter)?, capability(vnic)?);
        self.attempt(enforcer, |Granted { registry, .. }| {
            let vnic = registry.vnic_of(&vnic).map_err(refuse)?;
            registry.assign(&filter, vnic).map_err(refuse)
        })
    }

    /// Ends what the capability stands for; returns how many filters ended.
    pub fn revoke(&mut self, enforcer: &mut impl Enforcer, what: &str) -> Result<usize, Refusal> {
        let key = capability(what)?;
        self.attempt(enforcer, |granted| granted.registry.revoke(&key).map_err(refuse))
    }

    /// The same by number; none: there are no filters any more, and everything passes.
    pub fn remove(
        &mut self,
        enforcer: &mut impl Enforcer,
        filter: Option<u32>,
    ) -> Result<usize, Refusal> {
        self.attempt(enforcer, |Granted { registry, filtered }| match filter {
            Some(id) => registry.revoke_by_id(FilterId(id)).map_err(refuse),
            None => {
                filtered.clear();
                let all = registry.filters();
                all.iter().for_each(|view| drop(registry.revoke_by_id(view.id)));
                Ok(all.len())
            }
        })
    }
}

/// The registry's refusal as the control socket's.
pub fn refuse(why: Why) -> Refusal {
    match why {
        Why::NoSuchCapability => Refusal::NoCapability,
        why => Refusal::Vnic(why.to_string()),
    }
}

/// From its text; one that is none is as good as a forged one.
pub fn capability(text: &str) -> Result<Capability, Refusal> {
    text.parse().map_err(|_| Refusal::NoCapability)
}

/// A capability that cannot be guessed.
pub fn draw() -> Result<Capability, String> {
    let mut bytes = [0u8; 16];
    ix_sys::random::fill(&mut bytes).map_err(|e| format!("cannot draw random bits: {e}"))?;
    Ok(Capability::new(bytes))
}
