//! libix on the model of a dataplane within the process.
mod event_loop;
mod migration;
mod packets;
mod udp;
