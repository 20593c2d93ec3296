//! How many next hops are asked for. Who sends from addresses that do not exist makes us ask for
//! each of them (RFC 6583): answers to strangers leave questions to the host's own traffic.

/// For whom a next hop is wanted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Asker {
    /// An answer to a host that has sent something. The host may not exist.
    Stranger,
    /// What the application sends, or what goes to a peer that has finished its handshake.
    Own,
}

const SECOND_US: u64 = 1_000_000;

/// The bound on questions that all hosts of a network receive: at most N at once, and at most N in
/// a second. Answers to strangers may use half of it.
#[derive(Clone, Copy, Debug)]
pub struct Questions {
    /// Time that a question takes of the second that may be in advance.
    each_us: u64,
    /// The questions so far would have been sent one after the other until then.
    until_us: u64,
}

impl Questions {
    /// At most `per_s`, at least one.
    pub fn new(per_s: u32) -> Questions {
        Questions { each_us: SECOND_US / u64::from(per_s.max(1)), until_us: 0 }
    }

    /// Whether one may be sent now; counts it.
    pub fn may_ask(&mut self, asker: Asker, now_us: u64) -> bool {
        let ahead_us = match asker {
            Asker::Stranger => SECOND_US / 2,
            Asker::Own => SECOND_US,
        };
        let until_us = self.until_us.max(now_us) + self.each_us;
        let may = until_us <= now_us + ahead_us;
        if may {
            self.until_us = until_us;
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(questions: &mut Questions, asker: Asker, now_us: u64) -> usize {
        (0..10_000).filter(|_| questions.may_ask(asker, now_us)).count()
    }

    #[test]
    fn strangers_leave_half_to_others() {
        let mut questions = Questions::new(500);
        assert_eq!(count(&mut questions, Asker::Stranger, 0), 250);
        assert_eq!(count(&mut questions, Asker::Own, 0), 250);
        assert_eq!(count(&mut questions, Asker::Own, SECOND_US / 4), 125);
        assert_eq!(count(&mut questions, Asker::Stranger, SECOND_US / 2), 0);
        assert_eq!(count(&mut questions, Asker::Stranger, SECOND_US), 125);
    }

    /// However often it is asked, and in however small steps.
    #[test]
    fn no_question_of_a_second_is_lost() {
        let mut questions = Questions::new(500);
        count(&mut questions, Asker::Own, 0);
        let mut asked = 0;
        for now_us in (0..10 * SECOND_US).step_by(333) {
            asked += usize::from(questions.may_ask(Asker::Own, now_us));
        }
        assert!((4_998..=5_000).contains(&asked), "{asked}");
    }
}
