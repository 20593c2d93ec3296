//! What the control plane asks of a running dataplane, and what came of it.
use crate::group_set::GroupSet;
use core::fmt;

/// The broker gives a dataplane so long to begin a command, µs: what it must not be begun after is so
/// much later than it was sent.
pub const BEGIN_US: u64 = 1_000_000;

/// One request. As text: a verb and its operands.
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

    /// From text; `None` when it is not one of these.
    pub fn parse(text: &str) -> Option<Command> {
        let mut words = text.split(' ');
        let verb = words.next()?;
        let mut word = || words.next();
        let command = match verb {
            "migrate" => {
                let groups = word()?.parse().ok()?;
                Command::Migrate { groups, to: word()?.parse().ok()? }
            }
            "park" => Command::Park { thread: word()?.parse().ok()? },
            "resume" => Command::Resume { thread: word()?.parse().ok()? },
            "drain" => Command::Drain { thread: word()?.parse().ok()? },
            _ => return None,
        };
        words.next().is_none().then_some(command)
    }
}

/// What became of a [`Command`]. As text: `done`, or a verb and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was carried out.
    Done,
    /// Nothing was changed, and why.
    Refused(String),
    /// It could not be finished in time, and what was begun was undone or has ended by itself.
    TimedOut(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Done => f.write_str("done"),
            Outcome::Refused(why) => write!(f, "refused {why}"),
            Outcome::TimedOut(why) => write!(f, "timed-out {why}"),
        }
    }
}

impl Outcome {
    /// From text; `None` when it is not one of these.
    pub fn parse(text: &str) -> Option<Outcome> {
        match text.split_once(' ') {
            None if text == "done" => Some(Outcome::Done),
            Some(("refused", why)) => Some(Outcome::Refused(why.to_owned())),
            Some(("timed-out", why)) => Some(Outcome::TimedOut(why.to_owned())),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn everything_survives_its_text() {
        let groups = [0, 1, 2, 64, 127].into_iter().collect();
        for command in [
            Command::Migrate { groups, to: 1 },
            Command::Migrate { groups: GroupSet::EMPTY, to: 0 },
            Command::Park { thread: 3 },
            Command::Resume { thread: 0 },
            Command::Drain { thread: 255 },
        ] {
            assert_eq!(Command::parse(&command.to_string()), Some(command));
        }
        for outcome in [
            Outcome::Done,
            Outcome::Refused("it is the last one".to_owned()),
            Outcome::TimedOut(String::new()),
        ] {
            assert_eq!(Outcome::parse(&outcome.to_string()), Some(outcome));
        }
    }

    #[test]
    fn rubbish_is_none() {
        for junk in [
            "",
            "park",
            "park ",
            "park x",
            "park -1",
            "park 1 2",
            "park 1 ",
            "migrate 1",
            "migrate 128 1",
            "migrate 1 1 1",
            "migrate  1 1",
            "explode 1",
            "park 99999999999999999999",
        ] {
            assert_eq!(Command::parse(junk), None, "{junk:?}");
            assert_eq!(Outcome::parse(junk), None, "{junk:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_harms(text in ".*") {
            let _ = (Command::parse(&text), Outcome::parse(&text));
        }
    }
}
