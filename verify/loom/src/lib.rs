//! Models of concurrency: files of `ix-mem`, `ix-dataplane` and
//! `ix-proto`, with loom's atomics in place of the
//! processor's, and for each what must hold in every execution. CONTRIBUTING.md lists what is not
//! here.
#![cfg(test)]
#![allow(dead_code, unused_imports)] // Each file has more in it than its model uses.

#[path = "../../../dataplane/ix-dataplane/src/run/door.rs"]
mod door;
#[path = "../../../core/ix-proto/src/crossing/direction.rs"]
mod direction;
#[path = "../../../dataplane/ix-mem/src/spsc.rs"]
mod spsc;
#[path = "../../../dataplane/ix-dataplane/src/shared/waker.rs"]
mod waker;

mod capture {
    pub mod memory;
    #[path = "../../../../dataplane/ix-dataplane/src/observe/capture/ring.rs"]
    pub mod ring;
}
mod metrics;
mod models;
mod sync;
