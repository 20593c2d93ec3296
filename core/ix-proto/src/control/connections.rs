//! The list of TCP connections.
use super::text;
use super::{Sort, TcpState};
use crate::GroupSet;
use crate::survey::FlowFigures;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// What [`Connections`](super::Request::Connections) returns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Connections {
    /// Number of all connections.
    pub total: u64,
    /// Number of connections that the query selects.
    pub matched: usize,
    /// Their order.
    pub sort: Sort,
    /// Duration of the survey, µs.
    pub took_us: u64,
    /// Flow groups that were not surveyed in time.
    #[serde(with = "text::one")]
    pub missing_flow_groups: GroupSet,
    /// Connections for which the survey had no room, because they arrived during it.
    pub left_out: u64,
    /// The first of the selected connections, at most as many as were asked for.
    pub connections: Vec<Connection>,
}

/// A connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Connection {
    /// Address and port of the peer.
    pub peer: SocketAddr,
    /// Local address and port.
    pub local: SocketAddr,
    /// Its state.
    #[serde(with = "text::one")]
    pub state: TcpState,
    /// Its elastic thread.
    pub thread: u16,
    /// Its flow group.
    pub flow_group: u16,
    /// The process of the program that it belongs to: its number in the state's `sharing`.
    #[serde(default)]
    pub process: u32,
    /// What was measured of it.
    #[serde(flatten)]
    pub figures: FlowFigures,
    /// Payload per second in both directions; none: the query asks for no rates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_s: Option<f64>,
}
