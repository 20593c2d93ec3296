//! What is asked of `ix share`, and done: vNICs with their links, filters in the registry and in the
//! kernel.
use super::{has_ended, process_fd};
use ix_ctl::control::{Answer, Backend, Refusal, Request, Ticket, Topic};
use ix_ctl::vnic::{capability, draw, linux_addresses, refuse};
use ix_nic::Exchange;
use ix_testbed::{Namespace, VethEnd};
use ix_vnic::{Direction, Filter, FilterId, Policy, Registry, VnicId};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// The registry of one interface, and what carries it out.
pub struct Desk {
    here: Namespace,
    exchange: Exchange,
    registry: Registry,
    links: BTreeMap<VnicId, Link>,
}

/// A vNIC's link: its tenant's end, ours, and whose end it shares.
struct Link {
    name: String,
    far: String,
    near: String,
    owner: Option<(u32, OwnedFd)>,
}

impl Desk {
    /// Nobody has a vNIC yet.
    pub fn new(here: Namespace, exchange: Exchange, policy: Policy) -> Desk {
        Desk { here, exchange, registry: Registry::new(policy), links: BTreeMap::new() }
    }

    /// What polls readable when an owner has ended.
    pub fn owner_fds(&self) -> Vec<RawFd> {
        let owners = self.links.values().filter_map(|link| link.owner.as_ref());
        owners.map(|(_, fd)| fd.as_raw_fd()).collect()
    }

    /// Deletes the vNICs whose owners have ended; answers a line about each.
    pub fn bury_orphans(&mut self) -> Vec<String> {
        let orphan = |(id, link): (&VnicId, &Link)| {
            let (pid, fd) = link.owner.as_ref()?;
            has_ended(fd).then(|| (*id, format!("vNIC {} is gone: process {pid} ended", link.name)))
        };
        let orphans: Vec<_> = self.links.iter().filter_map(orphan).collect();
        orphans
            .into_iter()
            .flat_map(|(id, line)| [Some(line), self.delete(id).err()])
            .flatten()
            .collect()
    }

    /// Somebody removed a link of the host; answers a line if it was one of ours.
    pub fn link_gone(&mut self, name: &str) -> Vec<String> {
        let ours = self.links.iter().find(|(_, link)| link.near == name || link.far == name);
        let Some((id, link)) = ours else { return Vec::new() };
        // An end that was moved to another namespace is a tenant's right; ours is always here.
        if link.far == name && matches!(self.here.link(&link.near), Ok(Some(_))) {
            return Vec::new();
        }
        let (id, line) = (*id, format!("vNIC {} is gone: its link was removed", link.name));
        [Some(line), self.delete(id).err()].into_iter().flatten().collect()
    }

    fn create(&mut self, name: &str, queues: usize, owner: Option<u32>) -> Answer {
        let owner = owner.map(|pid| match process_fd(pid) {
            Ok(fd) => Ok((pid, fd)),
            Err(e) => Err(Refusal::Vnic(format!("cannot watch process {pid}: {e}"))),
        });
        let owner = owner.transpose()?;
        let key = draw().map_err(Refusal::Vnic)?;
        let id = self.registry.create_vnic(name, queues, key.clone()).map_err(refuse)?;
        let (near, far) = (format!("ixn-{name}"), format!("ixv-{name}"));
        if let Err(why) = self.make_link(&near, &far, queues) {
            self.registry.delete_vnic(id);
            return Err(Refusal::Vnic(why));
        }
        let answer = json!({ "vnic": name, "link": far, "capability": key.reveal() });
        self.links.insert(id, Link { name: name.to_owned(), far, near, owner });
        Ok(answer)
    }

    /// A veth pair with the interface's Ethernet address at the tenant's end, joined to the exchange.
    fn make_link(&mut self, near: &str, far: &str, queues: usize) -> Result<(), String> {
        let Desk { here, exchange, .. } = self;
        let there = |name: &str| matches!(here.link(name), Ok(Some(_)));
        if there(near) || there(far) {
            return Err(format!("there is a link {near} or {far} already: `ip link del {near}`"));
        }
        let queues = queues as u32;
        let ends = (
            VethEnd::new(near).queues(queues),
            VethEnd::new(far).queues(queues).mac(exchange.mac()),
        );
        here.add_veth(&ends.0, here, &ends.1).map_err(|e| e.to_string())?;
        let mut join = || {
            for end in [near, far] {
                // Linux is to say nothing of its own there. Refused where there is no IPv6 at all.
                let _ = here.set_sysctl(&format!("net/ipv6/conf/{end}/disable_ipv6"), "1");
                here.set_up(end, true).map_err(|e| e.to_string())?;
            }
            exchange.add_port(near).map_err(|e| e.to_string())
        };
        join().inspect_err(|_| drop(here.delete_link(near)))
    }

    /// First its traffic is Linux's, then its link goes.
    fn delete(&mut self, id: VnicId) -> Result<(), String> {
        self.registry.delete_vnic(id);
        let applied = self.apply();
        if let Some(link) = self.links.remove(&id) {
            self.exchange.remove_port(&link.near);
            // It may be gone already.
            let _ = self.here.delete_link(&link.near);
        }
        applied.map_err(|e| e.to_string())
    }

    /// Grants filters, to a vNIC at once if one is named; all or none.
    fn grant(&mut self, filters: &[Filter], holder: &str, vnic: Option<&str>) -> Answer {
        self.registry.set_linux(linux_addresses());
        let vnic = vnic.map(|name| self.registry.vnic_named(name).map_err(refuse)).transpose()?;
        let mut made: Vec<(FilterId, Value)> = Vec::new();
        let mut outcome = Ok(());
        for filter in filters {
            match self.grant_one(filter, holder, vnic) {
                Ok(one) => made.push(one),
                Err(refusal) => {
                    outcome = Err(refusal);
                    break;
                }
            }
        }
        if let Err(refusal) = outcome.and_then(|()| self.apply()) {
            made.iter().for_each(|(id, _)| drop(self.registry.revoke_by_id(*id)));
            self.apply()?;
            return Err(refusal);
        }
        Ok(json!({ "filters": made.into_iter().map(|(_, value)| value).collect::<Vec<_>>() }))
    }

    fn grant_one(
        &mut self,
        filter: &Filter,
        holder: &str,
        vnic: Option<VnicId>,
    ) -> Result<(FilterId, Value), Refusal> {
        let key = draw().map_err(Refusal::Vnic)?;
        let id = self.registry.grant(holder, filter.clone(), key.clone()).map_err(refuse)?;
        self.registry.assign_by_id(id, vnic).map_err(refuse)?;
        let text = filter.to_string();
        Ok((id, json!({ "filter": id.0, "text": text, "capability": key.reveal() })))
    }

    /// Puts what the registry says into the kernel.
    fn apply(&mut self) -> Result<(), Refusal> {
        let near = |id: &VnicId| self.links.get(id).map(|link| link.near.clone());
        let known = |rule: ix_vnic::Assigned| Some((rule.filter, near(&rule.vnic)?));
        let rules = self.registry.rules(Direction::Receive).into_iter().filter_map(known);
        let rules: Vec<_> = rules.collect();
        let told = |e: ix_nic::OpenError| Refusal::Vnic(e.to_string());
        self.exchange.set_receive(&rules).map_err(told)?;
        let sends = self.registry.rules(Direction::Transmit);
        for (id, link) in &self.links {
            let own = sends.iter().filter(|rule| rule.vnic == *id);
            let filters: Vec<_> = own.map(|rule| rule.filter.clone()).collect();
            self.exchange.set_transmit(&link.near, &filters).map_err(told)?;
        }
        Ok(())
    }

    /// Everything but the capabilities.
    fn view(&self) -> Value {
        let link = |id: VnicId| self.links.get(&id);
        let vnic = |view: ix_vnic::VnicView| {
            let counts = link(view.id).map(|link| self.exchange.counts(&link.near));
            let counts = counts.unwrap_or_default();
            json!({
                "vnic": view.name,
                "queues": view.queues,
                "link": link(view.id).map(|link| &link.far),
                "owner": link(view.id).and_then(|link| Some(link.owner.as_ref()?.0)),
                "sent": counts.sent,
                "foreign_mac": counts.foreign_mac,
                "foreign": counts.foreign,
            })
        };
        let filter = |view: ix_vnic::FilterView| {
            json!({
                "filter": view.id.0,
                "text": view.filter.to_string(),
                "holder": view.holder,
                "derived_from": view.parent.map(|id| id.0),
                "vnic": view.assigned.and_then(link).map(|link| &link.name),
            })
        };
        let policy = self.registry.policy();
        json!({
            "vnics": self.registry.vnics().into_iter().map(vnic).collect::<Vec<_>>(),
            "filters": self.registry.filters().into_iter().map(filter).collect::<Vec<_>>(),
            "limits": {
                "vnics": policy.vnics_max,
                "queues": policy.queues_max,
                "filters": policy.filters_max,
                "overlap": policy.may_overlap,
            },
            "linux": linux_addresses(),
            "in_hardware": [],
            "in_software": ["filters"],
        })
    }

    fn answer(&mut self, request: &Request) -> Answer {
        match request {
            Request::Vnic => Ok(self.view()),
            Request::VnicCreate { name, queues, owner } => self.create(name, *queues, *owner),
            Request::VnicDelete { name } => {
                let id = self.registry.vnic_named(name).map_err(refuse)?;
                self.delete(id).map_err(Refusal::Vnic)?;
                Ok(json!({ "deleted": name }))
            }
            Request::FilterCreate { filters, holder, vnic } => {
                let holder = holder.as_deref().or(vnic.as_deref()).unwrap_or("operator");
                self.grant(filters, holder, vnic.as_deref())
            }
            Request::FilterDerive { capability: from, filter } => {
                let key = draw().map_err(Refusal::Vnic)?;
                let derived = self.registry.derive(&capability(from)?, filter.clone(), key.clone());
                let id = derived.map_err(refuse)?;
                Ok(json!({ "filter": id.0, "capability": key.reveal() }))
            }
            Request::FilterAssign { capability: filter, vnic } => {
                let vnic = self.registry.vnic_of(&capability(vnic)?).map_err(refuse)?;
                let id = self.registry.assign(&capability(filter)?, vnic).map_err(refuse)?;
                self.apply()?;
                Ok(json!({ "filter": id.0 }))
            }
            Request::FilterRevoke { capability: what } => {
                let gone = self.registry.revoke(&capability(what)?).map_err(refuse)?;
                self.apply()?;
                Ok(json!({ "revoked": gone }))
            }
            Request::FilterRemove { filter: Some(id) } => {
                let gone = self.registry.revoke_by_id(FilterId(*id)).map_err(refuse)?;
                self.apply()?;
                Ok(json!({ "revoked": gone }))
            }
            Request::FilterRemove { filter: None } => {
                let all = self.registry.filters();
                all.iter().for_each(|f| drop(self.registry.revoke_by_id(f.id)));
                self.apply()?;
                Ok(json!({ "revoked": all.len() }))
            }
            _ => Err(Refusal::Unsupported("do that: it shares an interface, and runs no program")),
        }
    }
}

impl Backend for Desk {
    fn name(&self) -> Value {
        json!({ "program": "ix share", "pid": std::process::id() })
    }

    fn look(&mut self, _topic: Topic) -> Answer {
        Err(Refusal::Unsupported("tell that: `ix ctl vnic` says what it does"))
    }

    fn begin(&mut self, request: &Request, _ticket: Ticket) -> Option<Answer> {
        Some(self.answer(request))
    }
}

/// The links go with the vNICs.
impl Drop for Desk {
    fn drop(&mut self) {
        for link in self.links.values() {
            let _ = self.here.delete_link(&link.near);
        }
    }
}
