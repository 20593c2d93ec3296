//! Flows: what the dataplane keeps of each connection, by flow group.
pub mod flow;
pub mod group;
pub mod handle;
pub mod sendq;
pub mod table;
