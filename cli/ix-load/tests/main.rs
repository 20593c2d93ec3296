//! The load generator against servers of every kind.
mod agents;
mod memcached;
mod misbehaving;
mod on_ix;
mod support;
