//! A set of flow groups, and its text.
use crate::codec::{Codec, DecodeError, Reader, Sink};
use core::fmt;
use core::str::FromStr;
use ix_wire::FLOW_GROUPS;

/// Words of a set as bits.
pub const WORDS: usize = FLOW_GROUPS.div_ceil(64);

/// Some of the flow groups. As text: numbers and ranges, `0-3,7`; the empty set is `-`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupSet([u64; WORDS]);

impl GroupSet {
    /// None.
    pub const EMPTY: GroupSet = GroupSet([0; WORDS]);

    /// All of them.
    pub fn all() -> GroupSet {
        (0..FLOW_GROUPS).collect()
    }

    /// From bits, group 0 lowest.
    pub const fn from_words(words: [u64; WORDS]) -> GroupSet {
        GroupSet(words)
    }

    /// As bits, group 0 lowest.
    pub const fn words(&self) -> [u64; WORDS] {
        self.0
    }

    /// Adds a group; false when there is no such group.
    pub fn insert(&mut self, group: usize) -> bool {
        let known = group < FLOW_GROUPS;
        if known {
            self.0[group / 64] |= 1 << (group % 64);
        }
        known
    }

    /// Takes a group out.
    pub fn remove(&mut self, group: usize) {
        if group < FLOW_GROUPS {
            self.0[group / 64] &= !(1 << (group % 64));
        }
    }

    /// Whether a group is in it.
    pub fn contains(&self, group: usize) -> bool {
        group < FLOW_GROUPS && self.0[group / 64] & 1 << (group % 64) != 0
    }

    /// How many are in it.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether none is in it.
    pub fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    /// Those in it, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..FLOW_GROUPS).filter(|&group| self.contains(group))
    }
}

impl FromIterator<usize> for GroupSet {
    /// Numbers that are no group's are left out.
    fn from_iter<I: IntoIterator<Item = usize>>(groups: I) -> GroupSet {
        let mut set = GroupSet::EMPTY;
        for group in groups {
            set.insert(group);
        }
        set
    }
}

impl fmt::Display for GroupSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("-");
        }
        let mut group = 0;
        let mut comma = "";
        while group < FLOW_GROUPS {
            let first = group;
            while self.contains(group) {
                group += 1;
            }
            match group - first {
                0 => group += 1,
                n => {
                    write!(f, "{comma}{first}")?;
                    if n > 1 {
                        write!(f, "-{}", group - 1)?;
                    }
                    comma = ",";
                }
            }
        }
        Ok(())
    }
}

/// What is no set of flow groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSetError(String);

impl fmt::Display for GroupSetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = FLOW_GROUPS - 1;
        write!(
            f,
            "`{}` is not a set of flow groups: numbers and ranges from 0 to {last}, for example \
             `0-3,7`",
            self.0
        )
    }
}

impl std::error::Error for GroupSetError {}

impl FromStr for GroupSet {
    type Err = GroupSetError;

    fn from_str(text: &str) -> Result<GroupSet, GroupSetError> {
        let wrong = || GroupSetError(text.chars().take(64).collect());
        let mut set = GroupSet::EMPTY;
        if text == "-" {
            return Ok(set);
        }
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| text.parse::<usize>().ok().filter(|n| *n < FLOW_GROUPS);
            let (Some(first), Some(last)) = (number(first), number(last)) else {
                return Err(wrong());
            };
            if first > last {
                return Err(wrong());
            }
            for group in first..=last {
                set.insert(group);
            }
        }
        Ok(set)
    }
}

impl Codec for GroupSet {
    fn write(&self, to: &mut impl Sink) {
        self.0.write(to);
    }

    fn read(from: &mut Reader<'_>) -> Result<GroupSet, DecodeError> {
        let set = GroupSet(Codec::read(from)?);
        // No bit beyond the last group.
        if set.iter().collect::<GroupSet>() == set { Ok(set) } else { Err(DecodeError::Value) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::tests::survives;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn text_is_numbers_and_ranges() {
        let set: GroupSet = "7,0-3,5-5".parse().unwrap();
        assert_eq!(set.to_string(), "0-3,5,7");
        assert_eq!((set.len(), GroupSet::EMPTY.to_string().as_str()), (6, "-"));
        assert_eq!(GroupSet::all().to_string(), format!("0-{}", FLOW_GROUPS - 1));
        for wrong in ["", ",", "1,", "3-1", "-1", "1-", "128", "0-128", "x", "1 2", "99999999999"] {
            let e = wrong.parse::<GroupSet>().expect_err(wrong).to_string();
            assert!(e.contains(wrong), "{e}");
        }
    }

    proptest! {
        #[test]
        fn it_is_a_set(groups in prop::collection::vec((0..FLOW_GROUPS + 5, any::<bool>()), 0..300)) {
            let (mut set, mut model) = (GroupSet::EMPTY, BTreeSet::new());
            for (group, add) in groups {
                if add {
                    prop_assert_eq!(set.insert(group), group < FLOW_GROUPS);
                    if group < FLOW_GROUPS { model.insert(group); }
                } else {
                    set.remove(group);
                    model.remove(&group);
                }
                prop_assert_eq!(set.contains(group), model.contains(&group));
            }
            prop_assert!(set.iter().eq(model.iter().copied()));
            prop_assert_eq!((set.len(), set.is_empty()), (model.len(), model.is_empty()));
            prop_assert_eq!(set.to_string().parse::<GroupSet>().unwrap(), set);
            survives(&set);
        }
    }
}
