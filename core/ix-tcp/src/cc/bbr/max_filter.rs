//! The maximum of the last rounds: three candidates, each the largest since the one before it
//! (Kathleen Nichols' algorithm).

/// A windowed maximum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MaxFilter {
    /// Values and their rounds, largest first.
    best: [(u32, u32); 3],
}

impl MaxFilter {
    /// The maximum.
    pub fn get(&self) -> u32 {
        self.best[0].0
    }

    /// Adds a value of `round`; what is older than `window` rounds does not count any more.
    pub fn update(&mut self, value: u32, round: u32, window: u32) {
        let new = (value, round);
        let age = |of: (u32, u32)| round.wrapping_sub(of.1);
        if value >= self.best[0].0 || age(self.best[2]) > window {
            self.best = [new; 3];
            return;
        }
        if value >= self.best[1].0 {
            (self.best[1], self.best[2]) = (new, new);
        } else if value >= self.best[2].0 {
            self.best[2] = new;
        }
        while age(self.best[0]) > window {
            self.best = [self.best[1], self.best[2], new];
        }
        // The second and third candidates are refreshed within the window, so that one is there
        // when the first grows old.
        if self.best[1].1 == self.best[0].1 && age(self.best[1]) > window / 4 {
            (self.best[1], self.best[2]) = (new, new);
        } else if self.best[2].1 == self.best[1].1 && age(self.best[2]) > window / 2 {
            self.best[2] = new;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_maximum_lasts_for_its_window() {
        let mut filter = MaxFilter::default();
        filter.update(500, 0, 10);
        for round in 1..=10 {
            filter.update(100 + round, round, 10);
            assert_eq!(filter.get(), 500, "round {round}");
        }
        filter.update(90, 11, 10);
        assert!((101..=110).contains(&filter.get()), "{}", filter.get());
        filter.update(700, 12, 10);
        assert_eq!(filter.get(), 700);
    }
}
