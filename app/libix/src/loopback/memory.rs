//! Memory of the model that both sides of the gate refer to by address.
use core::ptr::with_exposed_provenance_mut;

/// A cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line {
    _bytes: [u8; 64],
}

/// Memory with a fixed address, which both sides write through raw pointers.
pub(super) struct Memory {
    base: *mut Line,
    lines: usize,
}

impl Memory {
    pub(super) fn new(bytes: usize) -> Memory {
        let lines = bytes.div_ceil(size_of::<Line>());
        let base =
            Box::into_raw(vec![Line { _bytes: [0; 64] }; lines].into_boxed_slice()).cast::<Line>();
        base.expose_provenance();
        Memory { base, lines }
    }

    pub(super) fn base(&self) -> u64 {
        self.base.addr() as u64
    }

    pub(super) fn contains(&self, base: u64, len: u64) -> bool {
        let offset = base.wrapping_sub(self.base());
        let bytes = (self.lines * size_of::<Line>()) as u64;
        offset <= bytes && len <= bytes - offset
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let slice = core::ptr::slice_from_raw_parts_mut(self.base, self.lines);
        // SAFETY: from `Box::into_raw` in `new`, once.
        drop(unsafe { Box::from_raw(slice) });
    }
}

pub(super) fn copy_out(base: u64, len: u64) -> Vec<u8> {
    let from = with_exposed_provenance_mut::<u8>(base as usize);
    // SAFETY: callers name memory of the model, which is mapped for its whole life.
    unsafe { core::slice::from_raw_parts(from, len as usize) }.to_vec()
}
