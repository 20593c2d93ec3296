//! What runs the cycle on Linux: `run_io`, the guard, the start and the end of a dataplane.
pub mod apart;
pub mod assembly;
pub mod attend;
pub mod boot;
pub mod crossing;
pub mod door;
pub mod ended_process;
pub mod guard;
pub mod hosted;
pub mod roster;
pub mod runner;
pub mod turns;
pub mod unentered;
pub mod updates;
mod will;
pub mod winding_up;
