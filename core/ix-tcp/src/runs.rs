//! Ranges of sequence numbers that do not touch each other: what has arrived behind gaps, as it is
//! reported to the peer. A range is found by bisection however many buffers it has.
use ix_wire::Seq;
use std::collections::VecDeque;

/// Sorted ranges `[left, right)` with a gap between any two.
#[derive(Debug, Default)]
pub(crate) struct Runs(VecDeque<(Seq, Seq)>);

impl Runs {
    /// The first range that ends after `seq`.
    pub fn ending_after(&self, seq: Seq) -> Option<(Seq, Seq)> {
        self.0.get(self.0.partition_point(|(_, right)| right.le(seq))).copied()
    }

    /// The range that contains `seq`.
    pub fn of(&self, seq: Seq) -> Option<(Seq, Seq)> {
        self.ending_after(seq).filter(|(left, _)| left.le(seq))
    }

    /// Adds a range, which is not empty.
    pub fn add(&mut self, left: Seq, right: Seq) {
        // Those that it touches become one with it.
        let first = self.0.partition_point(|(_, end)| end.lt(left));
        let touched = self.0.range(first..).take_while(|(begin, _)| begin.le(right)).count();
        match touched {
            0 => self.0.insert(first, (left, right)),
            _ => {
                let last = self.0[first + touched - 1].1;
                self.0[first] = (self.0[first].0.min(left), last.max(right));
                self.0.drain(first + 1..first + touched);
            }
        }
    }

    /// Removes what is before `seq`.
    pub fn cut_before(&mut self, seq: Seq) {
        while let Some(first) = self.0.front_mut() {
            if first.1.gt(seq) {
                first.0 = first.0.max(seq);
                return;
            }
            self.0.pop_front();
        }
    }

    /// Removes `seq` and what is after it.
    pub fn cut_from(&mut self, seq: Seq) {
        while let Some(last) = self.0.back_mut() {
            if last.0.lt(seq) {
                last.1 = last.1.min(seq);
                return;
            }
            self.0.pop_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Add(u32, u32),
        CutBefore(u32),
        CutFrom(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (0u32..200, 1u32..12).prop_map(|(from, len)| Step::Add(from, len)),
            1 => (0u32..60).prop_map(Step::CutBefore),
            1 => (140u32..212).prop_map(Step::CutFrom),
        ]
    }

    proptest! {
        #[test]
        fn agrees_with_a_map_of_octets(
            base: u32,
            steps in prop::collection::vec(step(), 1..80),
        ) {
            let at = |offset: u32| Seq(base) + offset;
            let (mut runs, mut have) = (Runs::default(), [false; 212]);
            for step in steps {
                match step {
                    Step::Add(from, len) => {
                        runs.add(at(from), at(from + len));
                        have[from as usize..(from + len) as usize].fill(true);
                    }
                    Step::CutBefore(seq) => {
                        runs.cut_before(at(seq));
                        have[..seq as usize].fill(false);
                    }
                    Step::CutFrom(seq) => {
                        runs.cut_from(at(seq));
                        have[seq as usize..].fill(false);
                    }
                }
                // As few ranges as possible, and each octet's is the run that it is in.
                let begins = (0..212).filter(|&n| have[n] && (n == 0 || !have[n - 1]));
                prop_assert_eq!(runs.0.len(), begins.count());
                for (n, it) in have.iter().enumerate() {
                    let left = have[..n].iter().rposition(|it| !it).map_or(0, |gap| gap + 1);
                    let right = have[n..].iter().position(|it| !it).map_or(212, |gap| n + gap);
                    let expected = it.then(|| (at(left as u32), at(right as u32)));
                    prop_assert_eq!(runs.of(at(n as u32)), expected);
                }
            }
        }
    }
}
