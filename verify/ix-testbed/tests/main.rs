//! Bridges, used as tests use them.
mod bridge;
