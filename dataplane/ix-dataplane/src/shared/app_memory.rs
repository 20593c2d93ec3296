//! Structures that the application leaves in transmit memory: checked, then read once.
use crate::shared::Shared;
use ix_abi::{CallError, SgArray, SgEntry};
use std::sync::atomic::Ordering;

impl Shared {
    /// Entry `index` of a scatter-gather array; `None` if it is not in transmit memory.
    #[inline]
    pub(crate) fn read_sg(&self, sg: SgArray, index: u64) -> Option<SgEntry> {
        let size = size_of::<SgEntry>() as u64;
        let addr = sg.addr.checked_add(index * size)?;
        if !addr.is_multiple_of(8) || !self.memory.in_arena(addr, size) {
            return None;
        }
        // SAFETY: aligned and within transmit memory, which is mapped as long as `self.memory`; the
        // application may write it meanwhile, so it is read once, and only the copy is used.
        Some(unsafe { (addr as *const SgEntry).read_volatile() })
    }

    /// Writes a structure into transmit memory; false if `addr` is not there.
    pub(crate) fn write_info<T: Copy>(&self, addr: u64, info: T) -> bool {
        const { assert!(align_of::<T>() <= 8) };
        if !addr.is_multiple_of(8) || !self.memory.in_arena(addr, size_of::<T>() as u64) {
            return false;
        }
        // SAFETY: aligned and within transmit memory, which the application owns and may use for
        // anything: nothing of ours lies there.
        unsafe { (addr as *mut T).write_volatile(info) };
        true
    }

    /// Copies the bytes that a scatter-gather array names into `to`; returns their number.
    pub(crate) fn gather(&self, sg: SgArray, to: &mut [u8]) -> Result<usize, CallError> {
        let mut len = 0;
        for index in 0..sg.entries {
            let entry = self.read_sg(sg, index).ok_or(CallError::Fault)?;
            let end = (len as u64).saturating_add(entry.len);
            if end > to.len() as u64 {
                return Err(CallError::TooLong);
            }
            if !self.memory.copy_from_app(entry.base, &mut to[len..end as usize]) {
                return Err(CallError::Fault);
            }
            len = end as usize;
        }
        Ok(len)
    }

    /// Gives transmit memory to the application; returns its address.
    pub(crate) fn tx_alloc(&self, bytes: u64) -> Result<u64, CallError> {
        let mut arena = self.arena.lock().map_err(|_| CallError::NoResource)?;
        let address = arena.allocate(bytes).ok_or(CallError::NoResource)?;
        if let Some(legacy) = self.legacy {
            // Before the program knows of it: the call returns later.
            legacy.given_bytes.fetch_max(arena.end(), Ordering::Relaxed);
        }
        Ok(address)
    }

    /// Takes transmit memory back.
    pub(crate) fn tx_free(&self, addr: u64, bytes: u64) -> Result<u64, CallError> {
        let mut arena = self.arena.lock().map_err(|_| CallError::NoResource)?;
        if arena.free(addr, bytes) { Ok(0) } else { Err(CallError::Invalid) }
    }
}
