//! Elastic threads from outside: calls, life and death, and peers.
mod hostile_calls;
mod life;
mod linux_peer;
mod memif_peer;
mod support;
