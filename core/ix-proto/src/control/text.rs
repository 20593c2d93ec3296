//! Values that are texts in JSON, by their `Display` and `FromStr`.
use serde::{Deserialize, Deserializer, Serializer, de::Error};
use std::fmt::Display;
use std::str::FromStr;

/// One value.
pub mod one {
    use super::*;

    pub fn serialize<T: Display, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<T, D::Error> {
        String::deserialize(from)?.parse().map_err(Error::custom)
    }
}

/// A value, or `null`.
pub mod option {
    use super::*;

    pub fn serialize<T: Display, S: Serializer>(
        value: &Option<T>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => to.collect_str(value),
            None => to.serialize_none(),
        }
    }

    pub fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<T>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| text.parse().map_err(Error::custom)).transpose()
    }
}

/// Several values.
pub mod list {
    use super::*;

    pub fn serialize<T: Display, S: Serializer>(values: &[T], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(values.iter().map(T::to_string))
    }

    pub fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<T>, D::Error> {
        let texts = Vec::<String>::deserialize(from)?;
        texts.iter().map(|text| text.parse().map_err(Error::custom)).collect()
    }
}

/// Flow groups as their text, such as `0-15,32`; at least one.
pub mod some_groups {
    use super::*;
    use crate::GroupSet;

    pub use super::one::serialize;

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<GroupSet, D::Error> {
        let groups: GroupSet = super::one::deserialize(from)?;
        let none = || Error::custom("no flow groups; for example 0-15,32");
        if groups.is_empty() { Err(none()) } else { Ok(groups) }
    }
}

/// A key that may be absent, and may be `null`: reads one that is there.
pub fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}
