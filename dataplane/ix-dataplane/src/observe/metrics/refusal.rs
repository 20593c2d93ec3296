//! What the wall between application and dataplane refuses.
use super::Metric;

macro_rules! refusals {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)*) => {
        /// Something that the wall did not let the application do.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Refusal {
            $($(#[doc = $doc])+ $variant,)*
        }

        impl Refusal {
            /// All kinds, in the order of their counters.
            pub const ALL: &'static [Refusal] = &[$(Refusal::$variant,)*];
            /// Number of kinds.
            pub const COUNT: usize = Self::ALL.len();

            /// Name of the counter.
            pub const fn name(self) -> &'static str {
                match self { $(Refusal::$variant => $name,)* }
            }
        }
    };
}

refusals! {
    /// A system call that is not allowed, or not with these arguments.
    SystemCall = "system_call",
    /// A system call on a descriptor of the dataplane.
    Descriptor = "descriptor",
    /// A change of the dataplane's memory mappings.
    Memory = "memory",
    /// Code that was not inspected, or that could change memory rights.
    Code = "code",
}

/// The wall's counters. All threads of the application write them, while they are stopped.
#[derive(Debug, Default)]
#[repr(C)]
pub struct WallBlock {
    /// 1: there is a wall.
    pub stands: Metric,
    refused: [Metric; Refusal::COUNT],
    /// The program's last fault: signal, address, instruction.
    fault: [Metric; 3],
}

impl WallBlock {
    /// Records a fault of the program.
    pub fn note_fault(&self, signal: u64, address: u64, instruction: u64) {
        let [first, second, third] = &self.fault;
        second.set(address);
        third.set(instruction);
        first.set(signal);
    }

    /// Address and instruction of the program's last fault, if it was this signal.
    pub fn fault(&self, signal: i32) -> Option<(u64, u64)> {
        let [first, second, third] = &self.fault;
        (first.get() == signal as u64).then(|| (second.get(), third.get()))
    }

    /// Counts a refusal.
    pub fn refuse(&self, what: Refusal) {
        self.refused[what as usize].add_shared(1);
    }

    /// Number of refusals by name.
    pub fn refused(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Refusal::ALL.iter().map(|what| what.name()).zip(self.refused.iter().map(Metric::get))
    }
}
