//! Values of socket options.
use crate::family;
use crate::groups::Membership;
use ix_abi::{Congestion, FlowOption, MulticastOption};
use std::ffi::CString;
use std::net::IpAddr;
use std::time::Duration;

/// Most unacknowledged bytes of a connection that begins, unless the program sets `SO_SNDBUF`.
pub const SEND_BUFFER: usize = 256 << 10;
/// The same of one whose path needs more, as on Linux (`tcp_wmem`).
pub const SEND_BUFFER_MAX: usize = 4 << 20;
/// Most bytes of unread datagrams, unless the program sets `SO_RCVBUF`.
pub const RECEIVE_BUFFER: usize = 212_992;
/// Linux's numbers of `UDP_SEGMENT` and `UDP_GRO`, of the options and of the control messages.
pub const UDP_SEGMENT: i32 = 103;
pub const UDP_GRO: i32 = 104;
/// Linux's number of `TCP_INQ`, which the `libc` crate lacks; that of its control message too.
pub const TCP_INQ: i32 = 36;
/// Linux's number of `IPV6_AUTOFLOWLABEL`, which the `libc` crate lacks.
pub const IPV6_AUTOFLOWLABEL: i32 = 70;
/// The flow label's bits of what Linux calls flow information; those of the traffic class are above
/// them.
pub const FLOW_LABEL_BITS: u32 = 0x000f_ffff;
/// Longest idle time before keepalive that the dataplane accepts, seconds.
const KEEP_IDLE_MAX_S: u32 = 0x7fff;

/// Options that IX acts on. The Linux socket under the descriptor has all others.
#[derive(Clone, Debug)]
pub struct Options {
    /// `SO_RCVTIMEO`.
    pub receive_timeout: Option<Duration>,
    /// `SO_SNDTIMEO`.
    pub send_timeout: Option<Duration>,
    /// `SO_LINGER`.
    pub linger: Option<Duration>,
    /// `SO_REUSEADDR`.
    pub reuse_address: bool,
    /// `SO_REUSEPORT`.
    pub reuse_port: bool,
    /// `SO_KEEPALIVE`.
    pub keepalive: bool,
    /// `TCP_KEEPIDLE`, seconds.
    pub keep_idle_s: u32,
    /// `TCP_KEEPINTVL`, seconds.
    pub keep_interval_s: u32,
    /// `TCP_KEEPCNT`.
    pub keep_count: u32,
    /// `TCP_USER_TIMEOUT`, ms; 0: as configured.
    pub user_timeout_ms: u32,
    /// `TCP_CONGESTION`, if the program has set it.
    pub congestion: Option<Congestion>,
    /// Highest rate of sending, bytes per second; 0: none.
    pub pace: u32,
    /// `TCP_NODELAY`.
    pub no_delay: bool,
    /// `TCP_CORK`.
    pub cork: bool,
    /// `SO_SNDBUF` in force; that of a connection may have grown ([`Socket::send_buffer`]).
    ///
    /// [`Socket::send_buffer`]: crate::socket::Socket::send_buffer
    pub send_buffer: usize,
    /// The program has set `SO_SNDBUF`.
    pub send_buffer_set: bool,
    /// `SO_RCVBUF` in force.
    pub receive_buffer: usize,
    /// The program has set `SO_RCVBUF`.
    pub receive_buffer_set: bool,
    /// `SO_RCVLOWAT`.
    pub receive_low: usize,
    /// `IPV6_V6ONLY`.
    pub v6_only: bool,
    /// Those of level `IPPROTO_IP`: for packets of IPv4.
    pub v4: IpOptions,
    /// Those of level `IPPROTO_IPV6`: for packets of IPv6.
    pub v6: IpOptions,
    /// `TCP_DEFER_ACCEPT`, seconds.
    pub defer_accept_s: u32,
    /// `TCP_SYNCNT`; 0: as configured.
    pub syn_count: u8,
    /// `TCP_MAXSEG`; 0: as the path allows.
    pub segment_bytes: u16,
    /// `TCP_WINDOW_CLAMP`; 0: none.
    pub window_clamp: u32,
    /// `TCP_NOTSENT_LOWAT`; 0: none.
    pub unsent_low: u32,
    /// `TCP_INQ`.
    pub tells_unread: bool,
    /// When received datagrams came.
    pub stamps: Stamps,
    /// `SO_BINDTODEVICE`, if it names a device of the dataplane.
    pub device: Option<CString>,
    /// `UDP_SEGMENT`: a longer datagram is sent in several of this length, bytes; 0: in one.
    pub datagram_bytes: u16,
    /// `UDP_GRO`: datagrams of one length are received together.
    pub gathers: bool,
    /// `SO_BROADCAST`.
    pub broadcast: bool,
    /// The groups that it listens to, of both families.
    pub groups: Vec<Membership>,
}

/// Which control messages say when a datagram came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamps {
    /// `SO_TIMESTAMP`.
    pub micros: bool,
    /// `SO_TIMESTAMPNS`.
    pub nanos: bool,
    /// `SO_TIMESTAMPING`, with the software's times of received packets.
    pub software: bool,
}

impl Stamps {
    /// Whether there is any.
    pub fn any(self) -> bool {
        self != Stamps::default()
    }
}

/// Options that each address family has for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpOptions {
    /// `IP_TTL` and `IP_TOS`; `IPV6_UNICAST_HOPS` and `IPV6_TCLASS`.
    pub fields: IpFields,
    /// `IP_PKTINFO`; `IPV6_RECVPKTINFO`.
    pub packet_info: bool,
    /// `IP_RECVTTL`; `IPV6_RECVHOPLIMIT`.
    pub tells_hops: bool,
    /// `IP_RECVTOS`; `IPV6_RECVTCLASS`.
    pub tells_tos: bool,
    /// `IPV6_FLOWINFO`.
    pub tells_flow_info: bool,
    /// `IPV6_FLOWINFO_SEND`: the flow information of destinations counts.
    pub heeds_flow_info: bool,
    /// `IPV6_AUTOFLOWLABEL`: packets without a label get one of their flow.
    pub labels_flows: bool,
    /// The flow information of the peer of `connect`, in host byte order.
    pub peer_flow_info: u32,
    /// `IP_RECVERR`; `IPV6_RECVERR`.
    pub receive_errors: bool,
    /// `IP_MTU_DISCOVER`; `IPV6_MTU_DISCOVER`.
    pub mtu_discovery: MtuDiscovery,
    /// `IPV6_DONTFRAG`: no datagram may be fragmented.
    pub never_fragment: bool,
    /// `IP_MULTICAST_TTL`; `IPV6_MULTICAST_HOPS`.
    pub multicast_hops: u8,
    /// `IP_MULTICAST_LOOP`; `IPV6_MULTICAST_LOOP`.
    pub multicast_loops: bool,
    /// `IP_MULTICAST_ALL`; `IPV6_MULTICAST_ALL`.
    pub multicast_all: bool,
    /// `IP_MULTICAST_IF`; `IPV6_MULTICAST_IF`: an address of the dataplane there.
    pub sends_from: Option<IpAddr>,
    /// The same names an interface of Linux's.
    pub sends_by_linux: bool,
}

impl Default for IpOptions {
    fn default() -> Self {
        IpOptions {
            fields: IpFields::default(),
            packet_info: false,
            tells_hops: false,
            tells_tos: false,
            tells_flow_info: false,
            heeds_flow_info: false,
            labels_flows: true,
            peer_flow_info: 0,
            receive_errors: false,
            mtu_discovery: MtuDiscovery::default(),
            never_fragment: false,
            multicast_hops: 1,
            multicast_loops: true,
            multicast_all: true,
            sends_from: None,
            sends_by_linux: false,
        }
    }
}

impl IpOptions {
    /// The fields of a packet with this flow information, which may name a label.
    pub fn fields_of(&self, flow_info: u32) -> IpFields {
        let label = match flow_info & FLOW_LABEL_BITS {
            0 if self.labels_flows => None,
            label => Some(label),
        };
        IpFields { label, ..self.fields }
    }
}

/// Fields of the IP header that the program sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpFields {
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// Type of service, or traffic class. Its lower two bits are the dataplane's (RFC 3168).
    pub tos: u8,
    /// Label of IPv6 packets, which [`IpOptions::fields_of`] sets; `None`: one of the flow.
    pub label: Option<u32>,
}

impl Default for IpFields {
    fn default() -> Self {
        IpFields { ttl: 64, tos: 0, label: None }
    }
}

impl IpFields {
    /// These, or what the control messages of a datagram say.
    pub fn with(self, ttl: Option<u8>, tos: Option<u8>) -> IpFields {
        IpFields { ttl: ttl.unwrap_or(self.ttl), tos: tos.unwrap_or(self.tos), ..self }
    }

    /// Differentiated services code point (RFC 2474).
    pub fn dscp(self) -> u8 {
        self.tos >> 2
    }
}

/// How a datagram is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendOptions {
    /// Fields of its IP header.
    pub ip_fields: IpFields,
    /// 0: with DF. Otherwise without DF, in fragments of at most this size, bytes with the IP
    /// header.
    pub fragment_bytes: u16,
    /// To several hosts: how; `None`: to one host.
    pub to_group: Option<MulticastOption>,
}

/// `IP_MTU_DISCOVER`: whether datagrams may be fragmented, by this machine and by routers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MtuDiscovery {
    /// By both.
    Dont,
    /// By this machine if a datagram is too long for the path; never by routers.
    #[default]
    Want,
    /// Never: a datagram too long for the path is an error.
    Do,
    /// Never: a datagram too long for the device is an error.
    Probe,
    /// By routers only: a datagram too long for the device is an error. ICMP messages about the
    /// path's MTU are ignored.
    Interface,
    /// By this machine for the device's MTU, and by routers. ICMP messages about the path's MTU are
    /// ignored.
    Omit,
}

impl MtuDiscovery {
    /// The setting with this number of Linux's.
    pub fn numbered(number: i32) -> MtuDiscovery {
        use MtuDiscovery::*;
        let all = [Dont, Want, Do, Probe, Interface, Omit];
        usize::try_from(number).ok().and_then(|n| all.get(n)).copied().unwrap_or_default()
    }

    /// Whether ICMP messages about the path's MTU count.
    pub fn heeds_icmp(self) -> bool {
        !matches!(self, MtuDiscovery::Interface | MtuDiscovery::Omit)
    }

    /// Whether the path's MTU matters besides the device's.
    fn asks_path(self) -> bool {
        matches!(self, MtuDiscovery::Dont | MtuDiscovery::Want | MtuDiscovery::Do)
    }

    /// The [`SendOptions::fragment_bytes`] of a datagram of `bytes` bytes with its headers, for the
    /// MTUs of path and device. `Err` is the MTU that the datagram is too long for.
    pub fn fragment_bytes(self, bytes: usize, path: u16, device: u16) -> Result<u16, u16> {
        let fits = |mtu: u16, then| if bytes <= mtu.into() { Ok(then) } else { Err(mtu) };
        match self {
            // No IP packet is longer.
            _ if bytes > usize::from(u16::MAX) => Err(if self.asks_path() { path } else { device }),
            MtuDiscovery::Dont => Ok(path),
            MtuDiscovery::Want => Ok(if bytes <= path.into() { 0 } else { path }),
            MtuDiscovery::Do => fits(path, 0),
            MtuDiscovery::Probe => fits(device, 0),
            MtuDiscovery::Interface => fits(device, device),
            MtuDiscovery::Omit => Ok(device),
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            receive_timeout: None,
            send_timeout: None,
            linger: None,
            reuse_address: false,
            reuse_port: false,
            keepalive: false,
            keep_idle_s: 7200,
            keep_interval_s: 75,
            keep_count: 9,
            user_timeout_ms: 0,
            congestion: None,
            pace: 0,
            no_delay: false,
            cork: false,
            send_buffer: SEND_BUFFER,
            send_buffer_set: false,
            receive_buffer: RECEIVE_BUFFER,
            receive_buffer_set: false,
            receive_low: 1,
            v6_only: false,
            v4: IpOptions::default(),
            v6: IpOptions::default(),
            defer_accept_s: 0,
            syn_count: 0,
            segment_bytes: 0,
            window_clamp: 0,
            unsent_low: 0,
            tells_unread: false,
            stamps: Stamps::default(),
            device: None,
            datagram_bytes: 0,
            gathers: false,
            broadcast: false,
            groups: Vec::new(),
        }
    }
}

impl Options {
    /// How many unsent bytes a connection may have for the program to write more
    /// (`TCP_NOTSENT_LOWAT`).
    pub fn unsent_limit(&self) -> u64 {
        if self.unsent_low == 0 { u64::MAX } else { self.unsent_low.into() }
    }

    /// The options for packets to an address.
    pub fn towards(&self, to: IpAddr) -> IpOptions {
        if to.is_ipv6() { self.v6 } else { self.v4 }
    }

    /// The options of a family, to be changed.
    pub fn of_mut(&mut self, is_v6: bool) -> &mut IpOptions {
        if is_v6 { &mut self.v6 } else { &mut self.v4 }
    }

    /// The options of a flow to an address while it connects.
    pub fn of_attempt(&self, to: IpAddr) -> FlowOptions {
        let mut told = self.of_flow(to);
        if self.syn_count > 0 {
            // The first retransmission is after a second, and each wait is twice as long as the
            // one before.
            let span_ms = (2u64 << self.syn_count.min(31)).saturating_sub(1) * 1000;
            let span_ms = u32::try_from(span_ms).unwrap_or(u32::MAX);
            let limit_ms = told.user_timeout_ms;
            told.user_timeout_ms = if limit_ms == 0 { span_ms } else { limit_ms.min(span_ms) };
        }
        told
    }

    /// The options of an open flow to an address.
    pub fn of_flow(&self, to: IpAddr) -> FlowOptions {
        let idle_s = self.keep_idle_s.min(KEEP_IDLE_MAX_S);
        // Linux has doubled the program's value, for its own overhead.
        let receive_bytes = self.receive_buffer as u64 / 2;
        let receive_bytes = if self.receive_buffer_set { receive_bytes } else { 0 };
        let receive_bytes = match u64::from(self.window_clamp) {
            0 => receive_bytes,
            clamp if receive_bytes == 0 => clamp,
            clamp => receive_bytes.min(clamp),
        };
        let own = self.towards(to);
        FlowOptions {
            keepalive_s: if self.keepalive { idle_s } else { 0 },
            keep_interval_s: self.keep_interval_s,
            keep_count: self.keep_count,
            user_timeout_ms: self.user_timeout_ms,
            congestion: self.congestion,
            pace: self.pace,
            ip_fields: own.fields_of(own.peer_flow_info),
            receive_bytes,
            segment_bytes: self.segment_bytes,
        }
    }
}

/// Options of a flow, as the dataplane knows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowOptions {
    /// Idle time before keepalive probes, seconds; 0: no keepalive.
    pub keepalive_s: u32,
    /// Time between keepalive probes, seconds.
    pub keep_interval_s: u32,
    /// How many unanswered probes end the connection.
    pub keep_count: u32,
    /// How long data may stay unacknowledged, ms; 0: as configured.
    pub user_timeout_ms: u32,
    /// Congestion control; `None`: as configured.
    pub congestion: Option<Congestion>,
    /// Highest rate of sending, bytes per second; 0: none.
    pub pace: u32,
    /// IP header fields of all its packets.
    pub ip_fields: IpFields,
    /// Most received bytes that the program has not read; 0: as many as the dataplane allows.
    pub receive_bytes: u64,
    /// Longest segment, options not counted; 0: as the path allows.
    pub segment_bytes: u16,
}

impl FlowOptions {
    /// All options except congestion control, which may be unset. A value too large for its field
    /// becomes the largest one, which the dataplane refuses.
    pub fn each(self) -> [FlowOption; 10] {
        let short = |number: u32| u16::try_from(number).unwrap_or(u16::MAX);
        [
            FlowOption::KeepaliveS(short(self.keepalive_s)),
            FlowOption::KeepaliveIntervalS(short(self.keep_interval_s)),
            FlowOption::KeepaliveProbes(self.keep_count.try_into().unwrap_or(u8::MAX)),
            FlowOption::UserTimeoutMs(self.user_timeout_ms),
            FlowOption::HopLimit(self.ip_fields.ttl),
            FlowOption::Dscp(self.ip_fields.dscp()),
            FlowOption::FlowLabel(self.ip_fields.label),
            FlowOption::ReceiveBytes(self.receive_bytes.try_into().unwrap_or(u32::MAX)),
            FlowOption::SegmentBytes(self.segment_bytes),
            FlowOption::Pace(self.pace),
        ]
    }
}

impl Default for FlowOptions {
    /// The options of a new flow.
    fn default() -> Self {
        Options::default().of_flow(family::EVERY)
    }
}
