//! Parts of the wall that can be left out, so that `ix attack` can show what each of them stops.
//! Only the broker can request this, before the program runs.
use core::sync::atomic::{AtomicU32, Ordering};
pub use ix_proto::config::WallPart as Part;

static LEFT_OUT: AtomicU32 = AtomicU32::new(0);

fn bit(part: Part) -> u32 {
    1 << part as u32
}

/// Whether this part is in force.
pub fn stands(part: Part) -> bool {
    LEFT_OUT.load(Ordering::Relaxed) & bit(part) == 0
}

/// Leaves these parts out from now on.
pub fn leave_out(parts: &[Part]) {
    let bits = parts.iter().fold(0, |bits, part| bits | bit(*part));
    LEFT_OUT.fetch_or(bits, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_left_out_is_not_there() {
        leave_out(&[]);
        assert!(Part::ALL.into_iter().all(stands));
        leave_out(&[Part::Code]);
        assert!(!stands(Part::Code) && stands(Part::Keys) && stands(Part::Calls));
    }
}
