//! The key-value server: its store, its protocols, and real clients.
mod memcached;
mod protocol;
mod store;
mod store_model;
mod support;
