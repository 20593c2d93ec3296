//! TCP, UDP, ICMP and ARP as pure state machines: packets, time and randomness in; packets and
//! events out. No I/O, no clock, no `unsafe`.
#![forbid(unsafe_code)]

pub mod arp;
mod config;
pub mod icmp;
mod listen;
mod output;
mod pmtu;
mod state;
mod stats;
mod tcb;
pub mod udp;

pub use config::{Config, CongestionControl, HEADER_BYTES, MSS_DEFAULT, MSS_MAX, MSS_MIN};
pub use listen::{Listener, PeerOptions, SynVerdict, cookie_syn_ack, reset_for};
pub use output::{DeadReason, Output, RxBuf, SegmentOut, TcpEvent};
pub use pmtu::PathError;
pub use state::State;
pub use stats::{TcpCounter, TcpStats};
pub use tcb::{Tcb, TcbInfo};
