//! TCP, UDP, ICMP, ARP, Neighbour Discovery and MLD as pure state machines: packets, time and
//! randomness in; packets and events out. No I/O, no clock, no `unsafe`.
//!
//! A connection is a [`Tcb`]. [`Tcb::segment`] processes an arriving segment. [`Tcb::output`] sends
//! what there is to send after the application has made its calls. [`Tcb::timer`] does what is due
//! at [`Tcb::deadline`]. All three use [`Output`] to send, to deliver data and to report events.
#![forbid(unsafe_code)]

mod accurate;
mod ack;
pub mod ack_limit;
mod ack_pace;
mod admit;
pub mod arp;
mod arrive;
pub mod cc;
mod close;
mod config;
mod connect;
pub mod ecn;
mod figures;
pub mod fragments;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod groups;
pub mod icmp;
pub mod idents;
pub mod isn;
mod listen;
mod loss;
mod message_end;
mod messages;
mod model;
pub mod nd;
mod output;
mod pace;
mod path_search;
#[cfg(feature = "planted")]
pub mod planted;
mod pmtu;
pub mod ports;
mod questions;
mod rack;
mod rcv;
mod reassembly;
mod receive_buffer;
mod records;
mod recovery;
mod right_size;
mod room;
pub mod rtt;
mod runs;
mod send_rate;
mod snd;
mod state;
mod stats;
pub mod syn_cookie;
mod tcb;
mod time_wait;
mod timer;
pub mod udp;
mod window;
mod window_limit;
mod window_use;

pub use config::{Config, CongestionControl, EcnMode, HEADER_BYTES, MSS_DEFAULT, MSS_MAX, MSS_MIN};
pub use listen::{Listener, PeerOptions, SynVerdict, cookie_syn_ack, reset_for};
pub use output::{DeadReason, Output, RxBuf, SegmentOut, TcpEvent};
pub use pmtu::PathError;
pub use questions::{Asker, Questions};
pub use receive_buffer::FURTHER_BUFFER_BYTES;
pub use room::{Standing, first_to_leave};
pub use state::State;
pub use stats::{TcpCounter, TcpStats};
pub use tcb::{LossInfo, Recovery, Tcb, TcbInfo};
pub use time_wait::TimeWait;
