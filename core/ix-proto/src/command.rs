//! What the control plane asks of a running dataplane, and what came of it.
use crate::capture::CaptureOrder;
use crate::codec::codec_enum;
use crate::groups::GroupSet;
use core::fmt;
use ix_vnic::VnicRules;

/// The broker gives a dataplane so long to begin a command, µs: what it must not be begun after is
/// so much later than it was sent.
pub const BEGIN_US: u64 = 1_000_000;

/// What changes flow groups and the elastic threads that own them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// These flow groups go to elastic thread `to`, from whichever threads own them.
    Migrate {
        /// The groups.
        groups: GroupSet,
        /// The thread.
        to: usize,
    },
    /// The thread's application hears `REVOKE`, its flow groups go to the active threads, and it
    /// sleeps: its hardware thread is Linux's.
    Park {
        /// The thread.
        thread: usize,
    },
    /// The thread wakes and gets its share of the flow groups.
    Resume {
        /// The thread.
        thread: usize,
    },
    /// The thread's flow groups go to the other active threads; it stays active.
    Drain {
        /// The thread.
        thread: usize,
    },
}

codec_enum!(Command {
    0 = Migrate { groups, to },
    1 = Park { thread },
    2 = Resume { thread },
    3 = Drain { thread },
});

/// For people: a verb and its operands.
impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Command::Migrate { groups, to } => write!(f, "migrate {groups} {to}"),
            Command::Park { thread } => write!(f, "park {thread}"),
            Command::Resume { thread } => write!(f, "resume {thread}"),
            Command::Drain { thread } => write!(f, "drain {thread}"),
        }
    }
}

impl Command {
    /// The elastic thread that it is about.
    pub fn thread(&self) -> usize {
        match *self {
            Command::Migrate { to: thread, .. }
            | Command::Park { thread }
            | Command::Resume { thread }
            | Command::Drain { thread } => thread,
        }
    }
}

/// One request to the dataplane, answered by one [`Outcome`].
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// Changes threads and flow groups.
    Command(Command),
    /// What the vNIC may send and receive from the next cycle on.
    VnicRules(VnicRules),
    /// A capture begins or ends.
    Capture(CaptureOrder),
}

codec_enum!(Order { 0 = Command(command), 1 = VnicRules(rules), 2 = Capture(order) });

/// What became of an [`Order`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was carried out.
    Done,
    /// Nothing was changed, and why.
    Refused(String),
    /// It could not be finished in time, and what was begun was undone or has ended by itself.
    TimedOut(String),
}

codec_enum!(Outcome { 0 = Done, 1 = Refused(why), 2 = TimedOut(why) });

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::tests::{harmless, survives};
    use proptest::prelude::*;

    fn any_command() -> impl Strategy<Value = Command> {
        let groups = prop::collection::vec(0..ix_wire::FLOW_GROUPS, 0..9);
        (0..4, groups, any::<usize>()).prop_map(|(kind, groups, thread)| match kind {
            0 => Command::Migrate { groups: groups.into_iter().collect(), to: thread },
            1 => Command::Park { thread },
            2 => Command::Resume { thread },
            _ => Command::Drain { thread },
        })
    }

    proptest! {
        #[test]
        fn everything_survives(command in any_command(), why in ".*") {
            survives(&Order::Command(command));
            let rules = "rx tcp service 10.0.0.5:80; rate tx 1Mbit".parse().expect("rules");
            survives(&Order::VnicRules(rules));
            let filter = "tcp and not (port 80 or host 10.0.0.9)".parse().expect("a filter");
            survives(&Order::Capture(CaptureOrder::Start { snaplen: 96, filter }));
            survives(&Order::Capture(CaptureOrder::Stop));
            for outcome in [Outcome::Done, Outcome::Refused(why.clone()), Outcome::TimedOut(why)] {
                survives(&outcome);
            }
        }

        #[test]
        fn no_bytes_harm(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            harmless::<Order>(&bytes);
            harmless::<Outcome>(&bytes);
        }
    }
}
