//! A port as the dataplane knows it: one that is listened at, or one that is bound for UDP.
use crate::groups::Wanted;
use crate::options::{IpFields, Options, SendOptions};
use crate::slab::Id;
use ix_abi::FlowOption;
use libix::Error;
use libix::raw::TxBuf;
use std::net::SocketAddr;

/// The handle of a port on one elastic thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortHandle {
    /// Not requested yet.
    Unasked,
    /// Requested.
    Asked,
    /// The outcome of the request.
    Is(Result<u64, Error>),
}

/// The handles of a port: every elastic thread opens it for its own flow groups.
pub struct PortHandles(Vec<PortHandle>);

impl PortHandles {
    /// Not requested yet, on this many elastic threads.
    pub fn unasked(count: usize) -> PortHandles {
        PortHandles(vec![PortHandle::Unasked; count])
    }

    /// The handle on one elastic thread, if it has one.
    pub fn get(&self, elastic: usize) -> Option<u64> {
        match self.0.get(elastic) {
            Some(PortHandle::Is(answer)) => answer.ok(),
            _ => None,
        }
    }

    /// Sets what is known of one.
    pub fn set(&mut self, elastic: usize, handle: PortHandle) {
        if self.0.len() <= elastic {
            self.0.resize(elastic + 1, PortHandle::Unasked);
        }
        self.0[elastic] = handle;
    }

    /// Whether one was requested.
    pub fn is_asked(&self, elastic: usize) -> bool {
        self.0.get(elastic).is_some_and(|handle| *handle != PortHandle::Unasked)
    }

    /// Whether the outcome of a request is outstanding.
    pub fn is_awaited(&self) -> bool {
        self.0.contains(&PortHandle::Asked)
    }

    /// The first error, or success, once every elastic thread has answered.
    pub fn outcome(&self) -> Option<Result<(), Error>> {
        let mut outcome = Ok(());
        for handle in &self.0 {
            let PortHandle::Is(answer) = handle else { return None };
            outcome = outcome.and(answer.map(drop));
        }
        Some(outcome)
    }

    /// All handles, each with the index of its elastic thread.
    pub fn all(&self) -> impl Iterator<Item = (usize, u64)> {
        (0..self.0.len()).filter_map(|elastic| self.get(elastic).map(|handle| (elastic, handle)))
    }
}

/// A port that the dataplane listens at, for all sockets of this process that listen there.
pub struct Port {
    /// Its handles.
    pub handles: PortHandles,
    /// Its listening sockets.
    pub members: Vec<Id>,
    /// Index of the member whose turn it is.
    pub next: usize,
    /// The address of the `LISTEN` call.
    pub at: SocketAddr,
    /// Connections that may wait at its listeners, all together.
    pub backlog: u32,
    /// What each elastic thread was not told yet of its backlog.
    news: Vec<BacklogNews>,
    /// The IP header fields, of IPv4 and IPv6, and the longest segment that each elastic thread was
    /// told last.
    told_fields: Vec<([IpFields; 2], u16)>,
}

/// What an elastic thread is to be told of the backlog of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BacklogNews {
    /// Connections that wait no more.
    pub freed: u32,
    /// It has another length now.
    pub resized: bool,
    /// Its IP header fields, or its longest segment, are others now.
    pub ip_fields: bool,
    /// New connections come in turn, or not ([`ix_abi::IN_TURN`]).
    pub turn: Option<u32>,
}

impl Port {
    /// A port with one listening socket, which no elastic thread was asked for yet.
    pub fn new(at: SocketAddr, member: Id, elastic_count: usize) -> Port {
        let handles = PortHandles::unasked(elastic_count);
        Port {
            handles,
            members: vec![member],
            next: 0,
            at,
            backlog: 1,
            news: Vec::new(),
            told_fields: Vec::new(),
        }
    }

    /// The dataplane starts with this many elastic threads.
    pub fn restart(&mut self, elastic_count: usize) {
        self.handles = PortHandles::unasked(elastic_count);
        self.news.clear();
        self.told_fields.clear();
    }

    /// What an elastic thread must be told so that connections begin as a listener's options say,
    /// and over which version: true for IPv6.
    pub fn fields_to_tell(
        &mut self,
        elastic: usize,
        options: &Options,
    ) -> impl Iterator<Item = (FlowOption, bool)> {
        if self.told_fields.len() <= elastic {
            self.told_fields.resize_with(elastic + 1, Default::default);
        }
        let wanted = ([options.v4.fields, options.v6.fields], options.segment_bytes);
        let told = core::mem::replace(&mut self.told_fields[elastic], wanted);
        let segment = (told.1 != wanted.1).then_some(FlowOption::SegmentBytes(wanted.1));
        [false, true].into_iter().flat_map(move |is_v6| {
            let (before, now) = (told.0[usize::from(is_v6)], wanted.0[usize::from(is_v6)]);
            let hops = (before.ttl != now.ttl).then_some(FlowOption::HopLimit(now.ttl));
            let point = (before.dscp() != now.dscp()).then_some(FlowOption::Dscp(now.dscp()));
            [hops, point, segment].into_iter().flatten().map(move |option| (option, is_v6))
        })
    }

    /// What an elastic thread is to be told.
    pub fn news(&mut self, elastic: usize) -> &mut BacklogNews {
        if self.news.len() <= elastic {
            self.news.resize(elastic + 1, BacklogNews::default());
        }
        &mut self.news[elastic]
    }
}

/// A bound UDP port, for all sockets of this process that are bound to the same address. As Linux
/// allows (`SO_REUSEADDR`), a server has one socket for new peers and one connected to each peer.
pub struct UdpPort {
    /// Its handles.
    pub handles: PortHandles,
    /// Its sockets, oldest first.
    pub members: Vec<Id>,
    /// The address of the `UDP_BIND` call.
    pub at: SocketAddr,
    /// The parent of this process has bound it as well.
    pub inherited: bool,
    /// Threads of this process have waited for what arrives, and other processes have it as well.
    pub takes: bool,
    /// The options that each elastic thread was last told.
    told: Vec<SendOptions>,
    /// The groups that the dataplane was told.
    pub told_groups: Wanted,
    /// The memory of the calls that told them.
    pub source_memory: Vec<TxBuf>,
}

impl UdpPort {
    /// A port without members, which no elastic thread was asked for yet.
    pub fn new(at: SocketAddr, elastic_count: usize) -> UdpPort {
        let handles = PortHandles::unasked(elastic_count);
        UdpPort {
            handles,
            members: Vec::new(),
            at,
            inherited: false,
            takes: false,
            told: Vec::new(),
            told_groups: Wanted::new(),
            source_memory: Vec::new(),
        }
    }

    /// The dataplane starts with this many elastic threads, none of which was told anything.
    pub fn restart(&mut self, elastic_count: usize) {
        self.handles = PortHandles::unasked(elastic_count);
        self.told.clear();
        self.told_groups.clear();
    }

    /// The options that an elastic thread was last told for this port.
    pub fn told(&mut self, elastic: usize) -> &mut SendOptions {
        if self.told.len() <= elastic {
            self.told.resize(elastic + 1, SendOptions::default());
        }
        &mut self.told[elastic]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_open_when_all_have_answered() {
        let mut handles = PortHandles::unasked(2);
        assert_eq!((handles.outcome(), handles.is_awaited()), (None, false));
        handles.set(1, PortHandle::Asked);
        assert!(handles.is_awaited());
        handles.set(1, PortHandle::Is(Ok(7)));
        assert_eq!((handles.outcome(), handles.get(1), handles.get(0)), (None, Some(7), None));
        handles.set(0, PortHandle::Is(Err(Error::InUse)));
        assert_eq!(handles.outcome(), Some(Err(Error::InUse)));
        assert_eq!(handles.all().collect::<Vec<_>>(), [(1, 7)]);
        handles.set(0, PortHandle::Is(Ok(3)));
        assert_eq!(handles.outcome(), Some(Ok(())));
    }
}
