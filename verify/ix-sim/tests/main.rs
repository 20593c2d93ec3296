//! The simulator: what it must find, and seeds that must find nothing.
mod detects;
mod life;
mod lifetimes;
mod migration;
mod seeds;
mod support {
    pub mod outcomes;
    pub mod wrap;
}
