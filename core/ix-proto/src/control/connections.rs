//! TCP connections, as they are listed.
use super::text;
use super::{Sort, TcpState};
use crate::GroupSet;
use crate::survey::FlowFigures;
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
    /// What was measured of it.
    #[serde(flatten)]
    pub figures: FlowFigures,
    /// Payload a second, both ways; none: nobody asked for rates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_s: Option<f64>,
}
