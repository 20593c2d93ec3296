//! TCP connections, as they are listed.
use super::text;
use super::{Sort, TcpState};
use crate::GroupSet;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// What [`Connections`](super::Request::Connections) returns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Connections {
    /// Connections that there are.
    pub total: u64,
    /// Those that the query takes.
    pub matched: usize,
    /// Their order.
    pub sort: Sort,
    /// How long it took to gather them, µs.
    pub took_us: u64,
    /// Flow groups whose thread did not come by in time.
    #[serde(with = "text::one")]
    pub missing_flow_groups: GroupSet,
    /// Connections that came too quickly to be told.
    pub left_out: u64,
    /// The first of them, at most as many as were asked for.
    pub connections: Vec<Connection>,
}

/// A connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Connection {
    /// Address and port of the peer.
    pub peer: SocketAddr,
    /// Our own.
    pub local: SocketAddr,
    /// Its state.
    #[serde(with = "text::one")]
    pub state: TcpState,
    /// Its elastic thread.
    pub thread: u16,
    /// Its flow group.
    pub flow_group: u16,
    /// Congestion window.
    pub cwnd_bytes: u32,
    /// Slow-start threshold; as large as can be: there is none yet.
    pub ssthresh_bytes: u32,
    /// Longest segment.
    pub mss_bytes: u32,
    /// Smoothed round-trip time; 0: not measured yet.
    pub srtt_us: u32,
    /// Its variation.
    pub rttvar_us: u32,
    /// Retransmission timeout.
    pub rto_us: u32,
    /// The peer's window.
    pub snd_wnd_bytes: u32,
    /// Our window.
    pub rcv_wnd_bytes: u32,
    /// Bytes sent and not acknowledged.
    pub in_flight_bytes: u32,
    /// Payload received.
    pub bytes_in: u64,
    /// Payload sent.
    pub bytes_out: u64,
    /// Segments sent again.
    pub retransmits: u32,
    /// Bytes that the application has given and the peer has not acknowledged.
    pub snd_queued_bytes: u32,
    /// Bytes received that the application has not given back.
    pub rcv_queued_bytes: u32,
    /// Its age.
    pub age_us: u64,
    /// Time without segments.
    pub idle_us: u64,
    /// Payload a second, both ways; none: nobody asked for rates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_s: Option<f64>,
}
