//! What is carried out for a process that has ended. This is between the dataplane and
//! `libix-posix`, so it is not in the C header; its address is in [`crate::ThreadArea`].
use crate::CALLS_MAX;

/// Most entries of a [`Will`] at a time.
pub const WILL_MAX: usize = 256;

/// Something that a process has done with a connection, and that no call says yet.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WillEntry {
    /// The connection. One that has knocked counts as accepted.
    pub handle: u64,
    /// What `GIVE` to `GIVE_AT_END` is to say of it.
    pub at_end: u64,
    /// Where the bytes are that are to be sent, as in a scatter-gather array; 0: received bytes are
    /// given back.
    pub base: u64,
    /// How many bytes.
    pub len: u64,
}

/// What the dataplane carries out for a process that has ended before it could say it in a batch,
/// because it was killed for example. Bytes are sent whatever the window is.
#[repr(C, align(64))]
pub struct Will {
    /// A [`WillState`] as a word: each change is one store.
    pub state: u64,
    /// The number of the last batch, from 1 on: of `RUN_IO`, since the process has had its arrays.
    /// Written before [`Will::state`] names its calls. A batch whose request has not come is
    /// carried out first.
    pub batch: u64,
    /// Always 0.
    pub reserved: [u64; 6],
    /// The entries, in the order in which they are carried out. One of the two lists holds; the
    /// other one is where the next list is written.
    pub entries: [[WillEntry; WILL_MAX]; 2],
}

/// What of a [`Will`] holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WillState {
    /// Which of the two lists.
    pub list: usize,
    /// The number of its entries.
    pub count: usize,
    /// How many calls of the last batch come before them: what was not taken of their bytes.
    pub calls: usize,
}

impl WillState {
    /// As a word.
    pub const fn encode(self) -> u64 {
        self.count as u64 | (self.list as u64) << 16 | (self.calls as u64) << 32
    }

    /// From any word.
    pub const fn decode(word: u64) -> WillState {
        let count = (word & 0xffff) as usize;
        let count = if count < WILL_MAX { count } else { WILL_MAX };
        let calls = (word >> 32) as usize;
        let calls = if calls < CALLS_MAX { calls } else { CALLS_MAX };
        WillState { list: (word >> 16 & 1) as usize, count, calls }
    }
}

const _: () = assert!(size_of::<Will>() == 64 + 2 * 32 * WILL_MAX);
