//! The auxiliary vector: what the kernel tells a new program about the process and the machine.

/// Pairs of type (`AT_…`) and value, without the closing `AT_NULL`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Auxv {
    entries: Vec<(u64, u64)>,
}

impl Auxv {
    /// Parses the form of `/proc/PID/auxv`; stops at `AT_NULL` or at a truncated end.
    pub fn from_bytes(bytes: &[u8]) -> Auxv {
        let word =
            |pair: &[u8], at: usize| u64::from_le_bytes(core::array::from_fn(|i| pair[at + i]));
        let entries = bytes
            .chunks_exact(16)
            .map(|pair| (word(pair, 0), word(pair, 8)))
            .take_while(|&(kind, _)| kind != libc::AT_NULL)
            .collect();
        Auxv { entries }
    }

    /// Value of an entry.
    pub fn get(&self, kind: u64) -> Option<u64> {
        self.entries.iter().find(|&&(k, _)| k == kind).map(|&(_, value)| value)
    }

    /// Replaces an entry, or appends it.
    pub fn set(&mut self, kind: u64, value: u64) {
        match self.entries.iter_mut().find(|(k, _)| *k == kind) {
            Some(entry) => entry.1 = value,
            None => self.entries.push((kind, value)),
        }
    }

    /// All entries in order.
    pub fn entries(&self) -> &[(u64, u64)] {
        &self.entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_gave_to_this_process() {
        let auxv = Auxv::from_bytes(&std::fs::read("/proc/self/auxv").unwrap());
        assert_eq!(auxv.get(libc::AT_PAGESZ), Some(4096));
        assert_eq!(auxv.get(libc::AT_EUID), Some(ix_sys::process::user_id().into()));
        assert_eq!(auxv.get(libc::AT_NULL), None);
    }

    #[test]
    fn set_replaces_or_appends() {
        let mut auxv = Auxv::from_bytes(&[0; 0]);
        auxv.set(libc::AT_BASE, 7);
        auxv.set(libc::AT_ENTRY, 8);
        auxv.set(libc::AT_BASE, 9);
        assert_eq!(auxv.entries(), &[(libc::AT_BASE, 9), (libc::AT_ENTRY, 8)]);
    }
}
