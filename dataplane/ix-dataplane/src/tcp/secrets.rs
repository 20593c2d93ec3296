//! What peers must not guess: sequence numbers, timestamps, cookies, local ports. One key for the
//! dataplane, so that each of its threads accepts the others' cookies.
use crate::config::Config as DataplaneConfig;
use crate::flows::flow::Payload;
use crate::shared::key_of;
use crate::shared::outgoing::Outgoing;
use ix_tcp::isn::{Key, isn, timestamp_offset};
use ix_tcp::ports::{Looks, PortSelector};
use ix_tcp::syn_cookie;
use ix_tcp::{Config, PeerOptions, SegmentOut, Tcb};
use ix_wire::{FlowTuple, Seq, TcpHeader};

/// Keys and randomness of one elastic thread.
pub struct Secrets {
    key: Key,
    isn_key: Key,
    ports: PortSelector,
    /// Of the ranges that these ports are of.
    ports_version: u64,
    state: u64,
}

impl Secrets {
    /// Made of the dataplane's secrets; `thread` only varies the choice of ports.
    pub fn new(config: &DataplaneConfig, thread: usize) -> Secrets {
        let (key, isn_key) = (key_of(&config.secret), key_of(&config.isn_secret));
        let state = (key.0[0] ^ key.0[1].rotate_left(32) ^ ((thread as u64 + 1) << 17)) | 1;
        let (low, high) = config.local_ports;
        let ports = PortSelector::new(key, low, high);
        Secrets { key, isn_key, ports, ports_version: 0, state }
    }

    /// A random number that is not secret.
    pub fn random(&mut self) -> u32 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 32) as u32
    }

    /// Initial sequence number and timestamp offset of a connection.
    pub fn start_of(&self, tuple: &FlowTuple, now_us: u64) -> (Seq, u32) {
        (isn(&self.isn_key, tuple, now_us), timestamp_offset(&self.isn_key, tuple))
    }

    /// Local ports are of these ranges from now on.
    pub fn follow(&mut self, outgoing: &Outgoing) {
        let version = outgoing.version();
        if std::mem::replace(&mut self.ports_version, version) != version {
            self.ports.set_ranges(&outgoing.all());
        }
    }

    /// Whether there are too few local ports for what the last one was for.
    pub fn lacks_ports(&self) -> bool {
        self.ports.is_crowded()
    }

    /// A local port for the rest of the tuple that `fits` accepts, as far as `looks` allow.
    pub fn local_port(
        &mut self,
        tuple: &FlowTuple,
        looks: &mut Looks,
        fits: impl FnMut(u16) -> bool,
    ) -> Option<u16> {
        let random = self.random();
        self.ports.select(tuple.local, tuple.remote, tuple.remote_port, random, looks, fits)
    }

    /// The stateless reply to a SYN.
    pub fn cookie_for(
        &self,
        cfg: &Config,
        syn: &TcpHeader,
        tuple: &FlowTuple,
        now_us: u64,
    ) -> SegmentOut {
        let agreed = PeerOptions::of_syn(syn, tuple.remote).agreed(cfg);
        let ts_now = ((now_us / 1000) as u32).wrapping_add(timestamp_offset(&self.isn_key, tuple));
        let cookie = syn_cookie::make(&self.key, tuple, syn.seq, agreed, ts_now, now_us);
        ix_tcp::cookie_syn_ack(cfg, tuple.remote, syn, cookie.iss, cookie.ts_val)
    }

    /// The connection that an ACK opens, if it has a valid SYN cookie.
    pub fn open_cookie(
        &self,
        cfg: &Config,
        ack: &TcpHeader,
        tuple: &FlowTuple,
        now_us: u64,
    ) -> Option<Tcb<Payload>> {
        let ts_ecr = ack.options.timestamp.map(|(_, ecr)| ecr);
        let peer = syn_cookie::check(&self.key, tuple, ack.seq, ack.ack, ts_ecr, now_us)?;
        let ts_offset = timestamp_offset(&self.isn_key, tuple);
        Some(Tcb::accept_cookie(cfg, *tuple, ack, &peer, ts_offset, now_us))
    }
}
