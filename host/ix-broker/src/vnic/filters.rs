//! Who holds which part of the header space, for both `ix run` and `ix share`. A change is applied
//! completely before it is answered, or not at all.
use ix_proto::control::Refusal;
use ix_vnic::{Capability, Direction, Filter, FilterId, Refusal as Why, Registry, VnicId};
use std::net::IpAddr;

/// What applies granted filters: the kernel's programs.
pub trait Enforcer {
    /// Refuses filters that cannot be applied. Changes nothing.
    fn check(&self, granted: &Granted) -> Result<(), Refusal>;

    /// Applies the granted filters. After an error some of them may be applied; the caller then
    /// applies those that were granted before.
    fn apply(&mut self, granted: &Granted) -> Result<(), Refusal>;
}

/// All filters that are granted.
#[derive(Clone, Debug)]
pub struct Granted {
    /// Their holders, and the vNICs and queues that they are assigned to.
    pub registry: Registry,
    /// Directions that filters were granted for. There only packets that a filter takes may pass.
    pub filtered: Vec<Direction>,
}

/// What a filter is assigned to.
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
    /// Its capability, as text.
    pub capability: String,
}

impl Granted {
    /// The filters of this registry.
    pub fn new(registry: Registry) -> Granted {
        Granted { registry, filtered: Vec::new() }
    }

    /// Without the filters that were added since `before` was a copy of this. A direction that was
    /// open then is open again.
    pub fn without_added_since(&self, before: &Granted) -> Granted {
        let mut rest = self.clone();
        rest.registry.forget_added_since(&before.registry);
        rest.filtered.retain(|direction| before.filtered.contains(direction));
        rest
    }

    /// Makes a change and applies it. If any part of it is refused, nothing changes, neither here
    /// nor in the kernel.
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
                    "{refusal}; the filters before cannot be restored either: {worse}"
                )),
            });
        }
        *self = changed;
        Ok(answer)
    }

    /// Grants all of these filters to a holder, or none. `linux`: Linux' own addresses.
    pub fn create(
        &mut self,
        enforcer: &mut impl Enforcer,
        filters: &[Filter],
        holder: &str,
        place: Place,
        linux: Vec<IpAddr>,
    ) -> Result<Vec<Made>, Refusal> {
        self.registry.set_linux(linux);
        self.attempt(enforcer, |granted| {
            filters.iter().map(|filter| granted.grant(holder, filter.clone(), place)).collect()
        })
    }

    /// Grants one filter, without applying it.
    pub fn grant(&mut self, holder: &str, filter: Filter, place: Place) -> Result<Made, Refusal> {
        let (key, direction) = (draw().map_err(Refusal::Dataplane)?, filter.direction());
        let id = self.registry.grant(holder, filter, key.clone()).map_err(refuse)?;
        self.registry.assign_by_id(id, place.vnic).map_err(refuse)?;
        // A filter that is not assigned has no queues.
        if place.queue.is_some() {
            self.registry.assign_queue(id, place.queue).map_err(refuse)?;
        }
        if !self.filtered.contains(&direction) {
            self.filtered.push(direction);
        }
        Ok(Made { id, capability: key.reveal() })
    }

    /// Derives a narrower filter, or the same one, with another capability. With a vNIC the new
    /// filter is assigned to it at once, to the same queue as the filter that it is derived from.
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

    /// Assigns the filter to this queue alone; none: to all queues.
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

    /// Assigns a filter to a vNIC. Needs the capabilities of both.
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

    /// Revokes the capability's filter with all that were derived from it; returns how many filters
    /// ended.
    pub fn revoke(&mut self, enforcer: &mut impl Enforcer, what: &str) -> Result<usize, Refusal> {
        let key = capability(what)?;
        self.attempt(enforcer, |granted| granted.registry.revoke(&key).map_err(refuse))
    }

    /// Removes a filter by its number; none: removes all filters, and everything passes.
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

/// Parses a capability. An invalid text is refused as a forged capability is.
pub fn capability(text: &str) -> Result<Capability, Refusal> {
    text.parse().map_err(|_| Refusal::NoCapability)
}

/// A capability that cannot be guessed.
pub fn draw() -> Result<Capability, String> {
    let mut bytes = [0u8; 16];
    ix_sys::random::fill(&mut bytes).map_err(|e| format!("cannot draw random bits: {e}"))?;
    Ok(Capability::new(bytes))
}
