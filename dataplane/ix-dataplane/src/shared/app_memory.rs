//! Structures that a process of the program leaves in its transmit memory: checked, then read once.
//!
//! All its processes have that memory at the same address. Here each is mapped elsewhere: `shift`
//! is what is added to an address of the process once it is checked (`Context::shift`).
use crate::shared::Shared;
use ix_abi::{CallError, SgArray, SgEntry};
use ix_proto::crossing::AttachmentId;

impl Shared {
    /// Entry `index` of a scatter-gather array; `None` if it is not in transmit memory.
    #[inline]
    pub(crate) fn read_sg(&self, shift: u64, sg: SgArray, index: u64) -> Option<SgEntry> {
        let size = size_of::<SgEntry>() as u64;
        let addr = sg.addr.checked_add(index * size)?;
        if !addr.is_multiple_of(8) || !self.memory.in_arena(addr, size) {
            return None;
        }
        // SAFETY: aligned and within transmit memory, which is mapped as long as `self.memory`; the
        // application may write it meanwhile, so it is read once, and only the copy is used.
        Some(unsafe { (addr.wrapping_add(shift) as *const SgEntry).read_volatile() })
    }

    /// Writes a structure into transmit memory; false if `addr` is not there.
    pub(crate) fn write_info<T: Copy>(&self, shift: u64, addr: u64, info: T) -> bool {
        const { assert!(align_of::<T>() <= 8) };
        if !addr.is_multiple_of(8) || !self.memory.in_arena(addr, size_of::<T>() as u64) {
            return false;
        }
        // SAFETY: aligned and within transmit memory, which the application owns and may use for
        // anything: nothing of ours lies there.
        unsafe { (addr.wrapping_add(shift) as *mut T).write_volatile(info) };
        true
    }

    /// Copies the bytes that a scatter-gather array names into `to`; returns their number.
    pub(crate) fn gather(
        &self,
        shift: u64,
        sg: SgArray,
        to: &mut [u8],
    ) -> Result<usize, CallError> {
        let mut len = 0;
        for index in 0..sg.entries {
            let entry = self.read_sg(shift, sg, index).ok_or(CallError::Fault)?;
            let end = (len as u64).saturating_add(entry.len);
            if end > to.len() as u64 {
                return Err(CallError::TooLong);
            }
            let base = self.sendable(shift, &entry).ok_or(CallError::Fault)?;
            if !self.memory.copy_from_app(base, &mut to[len..end as usize]) {
                return Err(CallError::Fault);
            }
            len = end as usize;
        }
        Ok(len)
    }

    /// Where the bytes are that an entry names; `None` if they are not what the process may send.
    #[inline]
    pub(crate) fn sendable(&self, shift: u64, entry: &SgEntry) -> Option<u64> {
        if !self.memory.app_may_send(entry.base, entry.len) {
            return None;
        }
        // Received frames are at the same address everywhere.
        let is_shifted = shift != 0 && self.memory.in_arena(entry.base, entry.len);
        Some(if is_shifted { entry.base.wrapping_add(shift) } else { entry.base })
    }

    /// Gives transmit memory to a process of the program; returns its address.
    pub(crate) fn tx_alloc(&self, of: AttachmentId, bytes: u64) -> Result<u64, CallError> {
        let mut lot = self.lots[usize::from(of)].lock().map_err(|_| CallError::NoResource)?;
        let address = lot.arena.allocate(bytes).ok_or(CallError::NoResource)?;
        if let Some(publish) = &lot.publish {
            // Before the process knows of it: the call returns later.
            publish(lot.arena.end());
        }
        Ok(address)
    }

    /// Takes transmit memory back.
    pub(crate) fn tx_free(
        &self,
        of: AttachmentId,
        addr: u64,
        bytes: u64,
    ) -> Result<u64, CallError> {
        let mut lot = self.lots[usize::from(of)].lock().map_err(|_| CallError::NoResource)?;
        if lot.arena.free(addr, bytes) { Ok(0) } else { Err(CallError::Invalid) }
    }
}
