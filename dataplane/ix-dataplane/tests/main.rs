//! Elastic threads from outside: calls, life and death, and peers.
mod backlog;
mod hostile_calls;
mod life;
mod linux_peer;
mod memif_peer;
mod peer;
mod sendv_bounds;
mod support;
