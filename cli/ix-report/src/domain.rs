//! What keeps a program out of the memory of its dataplane.
use crate::wall::has_keys;
use clap::ValueEnum;

/// What keeps the program out of its dataplane's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Domain {
    /// Nothing: the program can access the dataplane's memory
    #[default]
    None,
    /// A process boundary: the dataplane is a process of its own
    Process,
    /// Memory protection keys of the processor, and a filter for system calls
    Pku,
}

impl Domain {
    /// Those of `wanted`, or if it names none, all that this machine has.
    pub fn or_all(wanted: &[Domain]) -> Vec<Domain> {
        let all = || {
            let keys = has_keys().is_ok();
            let domains = [Domain::None, Domain::Process, Domain::Pku];
            domains.into_iter().filter(move |domain| keys || *domain != Domain::Pku)
        };
        if wanted.is_empty() { all().collect() } else { wanted.to_vec() }
    }

    /// As in `--domain`.
    pub fn name(self) -> &'static str {
        match self {
            Domain::None => "none",
            Domain::Process => "process",
            Domain::Pku => "pku",
        }
    }

    /// What the user must know of it.
    pub fn note(self) -> &'static str {
        match self {
            Domain::None => "domain none: the program can access the dataplane's memory",
            Domain::Process => {
                "domain process: the server's dataplane is a process of its own, which shares the \
                 hardware thread with the program"
            }
            Domain::Pku => "domain pku: protection keys keep the program out of the dataplane",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_word_all_domains_of_the_machine_are_meant() {
        assert_eq!(Domain::or_all(&[Domain::Process]), [Domain::Process]);
        let all = Domain::or_all(&[]);
        assert_eq!(all[..2], [Domain::None, Domain::Process]);
        assert_eq!(all.contains(&Domain::Pku), has_keys().is_ok());
    }
}
