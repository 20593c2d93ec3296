//! What the wall between application and dataplane refuses.
use super::Metric;

macro_rules! refusals {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)*) => {
        /// Something of the application's that the wall did not let through.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Refusal {
            $($(#[doc = $doc])+ $variant,)*
        }

        impl Refusal {
            /// All kinds, in the order of their counters.
            pub const ALL: &'static [Refusal] = &[$(Refusal::$variant,)*];
            /// How many there are.
            pub const COUNT: usize = Self::ALL.len();

            /// Name of the counter.
            pub const fn name(self) -> &'static str {
                match self { $(Refusal::$variant => $name,)* }
            }
        }
    };
}

refusals! {
    /// A system call that is not on the list, or not with these arguments.
    SystemCall = "system_call",
    /// A descriptor of the dataplane's in a system call.
    Descriptor = "descriptor",
    /// A change of the dataplane's mappings.
    Memory = "memory",
    /// Code that was not looked at, or that could change memory rights.
    Code = "code",
}

/// What the wall counts. Its writers are all threads of the application, when they are stopped.
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
    /// Notes a fault of the program's.
    pub fn note_fault(&self, signal: u64, address: u64, instruction: u64) {
        let [first, second, third] = &self.fault;
        second.set(address);
        third.set(instruction);
        first.set(signal);
    }

    /// Address and instruction of the program's last fault, if it was one of this signal.
    pub fn fault(&self, signal: i32) -> Option<(u64, u64)> {
        let [first, second, third] = &self.fault;
        (first.get() == signal as u64).then(|| (second.get(), third.get()))
    }

    /// Counts one.
    pub fn refuse(&self, what: Refusal) {
        self.refused[what as usize].add_shared(1);
    }

    /// How many there were, by name.
    pub fn refused(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Refusal::ALL.iter().map(|what| what.name()).zip(self.refused.iter().map(Metric::get))
    }
}
