//! What keeps a program out of the memory of its dataplane.
use clap::ValueEnum;

/// What keeps the program out of its dataplane's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Domain {
    /// Nothing: the program can access the dataplane's memory
    #[default]
    None,
    /// A process boundary: the dataplane is a process of its own
    Process,
    /// Memory protection keys of the processor, and a filter for system calls
    Pku,
}
