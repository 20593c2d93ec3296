//! Parts of the wall that can be left out, so that `ix attack` can show what each of them stops.
//! Only the broker can say so, before there is a program.
use core::sync::atomic::{AtomicU32, Ordering};

/// A part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Protection keys on the dataplane's memory.
    Keys = 1,
    /// What may be asked of Linux: the list, seals and the filter behind it.
    Calls = 2,
    /// The look at code before it runs.
    Code = 4,
    /// The process's files in `/proc` are root's.
    Files = 8,
}

const NAMES: [(&str, Part); 4] =
    [("keys", Part::Keys), ("calls", Part::Calls), ("code", Part::Code), ("files", Part::Files)];

static LEFT_OUT: AtomicU32 = AtomicU32::new(0);

/// Whether this part is there.
pub fn stands(part: Part) -> bool {
    LEFT_OUT.load(Ordering::Relaxed) & part as u32 == 0
}

/// Takes the line `without=PART` out of a configuration, and does what it says.
pub fn leave_out(config: &str) -> Result<String, String> {
    let mut rest = String::new();
    for line in config.lines() {
        let Some(name) = line.strip_prefix("without=") else {
            rest.push_str(line);
            rest.push('\n');
            continue;
        };
        let part = NAMES.iter().find(|(known, _)| *known == name);
        let (_, part) = part.ok_or_else(|| format!("the wall has no part `{name}`"))?;
        LEFT_OUT.fetch_or(*part as u32, Ordering::Relaxed);
    }
    Ok(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_parts_can_be_left_out() {
        assert_eq!(leave_out("a=1\nb=2\n"), Ok("a=1\nb=2\n".to_owned()));
        assert!(stands(Part::Code) && stands(Part::Keys));
        assert!(leave_out("without=everything").is_err());
        assert_eq!(leave_out("a=1\nwithout=code"), Ok("a=1\n".to_owned()));
        assert!(!stands(Part::Code) && stands(Part::Keys) && stands(Part::Calls));
    }
}
