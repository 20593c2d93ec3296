//! TCP: segments in, connections, listeners, segments out.
pub mod connections;
pub mod inbound;
pub mod listeners;
pub mod output;
pub mod secrets;
