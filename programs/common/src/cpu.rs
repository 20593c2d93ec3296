//! Placement on hardware threads.
use std::str::FromStr;

/// Hardware threads of a command line: a list such as `0,2-3`, never empty.
#[derive(Clone, Debug)]
pub struct Cpus(pub Vec<usize>);

impl FromStr for Cpus {
    type Err = String;
    fn from_str(text: &str) -> Result<Cpus, String> {
        parse_list(text).map(Cpus)
    }
}

/// Parses a list such as `0,2-3`.
pub fn parse_list(list: &str) -> Result<Vec<usize>, String> {
    let cpus = ix_sys::cpu::parse_list(list).filter(|cpus| !cpus.is_empty());
    cpus.ok_or_else(|| format!("`{list}` is not a list of hardware threads such as 0,2-3"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        assert_eq!(parse_list("0,2-4").unwrap(), [0, 2, 3, 4]);
        assert!(parse_list("a").is_err() && parse_list("").is_err() && parse_list("1-").is_err());
    }
}
