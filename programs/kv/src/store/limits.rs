//! Limits of the cache and of its items.

/// The limits.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Memory for items, bytes.
    pub memory_bytes: u64,
    /// One item with its key and header, bytes.
    pub item_bytes: u64,
    /// Evict old items for new ones; otherwise refuse new ones.
    pub evict: bool,
    /// Growth of chunk sizes.
    pub factor: f64,
    /// Server threads.
    pub threads: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            memory_bytes: 64 << 20,
            item_bytes: 1 << 20,
            evict: true,
            factor: 1.25,
            threads: 1,
        }
    }
}

impl Limits {
    /// Bytes of a page, which holds the largest item.
    pub fn page_bytes(&self) -> u64 {
        self.item_bytes.max(1 << 20).next_multiple_of(1 << 20)
    }

    /// Bytes of item memory for [`Store::new`]: whole pages, and the words before them.
    pub fn region_bytes(&self) -> u64 {
        self.memory_bytes.max(self.page_bytes()) / self.page_bytes() * self.page_bytes() + 4096
    }
}
