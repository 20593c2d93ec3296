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

impl Domain {
    /// As in `--domain`.
    pub fn name(self) -> &'static str {
        match self {
            Domain::None => "none",
            Domain::Process => "process",
            Domain::Pku => "pku",
        }
    }

    /// What the user must know of it.
    pub fn note(self) -> &'static str {
        match self {
            Domain::None => "domain none: the program can access the dataplane's memory",
            Domain::Process => {
                "domain process: the server's dataplane is a process of its own, which shares the \
                 hardware thread with the program"
            }
            Domain::Pku => "domain pku: protection keys keep the program out of the dataplane",
        }
    }
}
