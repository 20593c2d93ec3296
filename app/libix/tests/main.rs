//! libix on the model of a dataplane within the process.
mod engine;
mod event_loop;
mod migration;
mod packets;
mod udp;
