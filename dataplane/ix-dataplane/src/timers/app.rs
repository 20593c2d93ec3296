//! Timers of the application: bounded in number, fired once, named by slot and generation.
use ix_proto::crossing::AttachmentId;

/// Application timers of one elastic thread.
pub struct AppTimers {
    slots: Vec<Slot>,
    free: Vec<u32>,
    max: usize,
    armed: usize,
}

struct Slot {
    generation: u32,
    armed: Option<Armed>,
}

/// A timer that is set.
#[derive(Clone, Copy)]
struct Armed {
    owner: AttachmentId,
    cookie: u64,
}

impl AppTimers {
    /// No timers yet, at most `max`.
    pub fn new(max: usize) -> AppTimers {
        AppTimers { slots: Vec::new(), free: Vec::new(), max, armed: 0 }
    }

    /// Number of set timers.
    pub fn armed(&self) -> usize {
        self.armed
    }

    /// Sets a timer of a process; returns its id, or `None` if there are too many.
    pub fn set(&mut self, owner: AttachmentId, cookie: u64) -> Option<u64> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < self.max => {
                self.slots.push(Slot { generation: 1, armed: None });
                self.slots.len() as u32 - 1
            }
            None => return None,
        };
        let slot = &mut self.slots[index as usize];
        slot.armed = Some(Armed { owner, cookie });
        self.armed += 1;
        Some((slot.generation as u64) << 24 | index as u64)
    }

    /// Stops a timer; false if the process has no such timer any more.
    pub fn cancel(&mut self, owner: AttachmentId, id: u64) -> bool {
        self.owner_of(id) == Some(owner) && self.take(id).is_some()
    }

    /// The process whose timer this is, if it is still set.
    pub fn owner_of(&self, id: u64) -> Option<AttachmentId> {
        let slot = self.slots.get((id & 0xff_ffff) as usize)?;
        let armed = slot.armed.filter(|_| slot.generation as u64 == id >> 24)?;
        Some(armed.owner)
    }

    /// To be called when the wheel has reached the timer: returns its process and its cookie, if it
    /// is still set.
    pub fn fire(&mut self, id: u64) -> Option<(AttachmentId, u64)> {
        self.take(id).map(|armed| (armed.owner, armed.cookie))
    }

    /// Stops all timers of a process.
    pub fn clear(&mut self, owner: AttachmentId) {
        for index in 0..self.slots.len() {
            let id = (self.slots[index].generation as u64) << 24 | index as u64;
            self.cancel(owner, id);
        }
    }

    fn take(&mut self, id: u64) -> Option<Armed> {
        let index = (id & 0xff_ffff) as usize;
        let slot = self.slots.get_mut(index)?;
        if slot.generation as u64 != id >> 24 {
            return None;
        }
        let armed = slot.armed.take()?;
        // 22 bits of generation, so that an id and a group number fit into a token of the wheel.
        slot.generation = (slot.generation % 0x3f_ffff) + 1;
        self.free.push(index as u32);
        self.armed -= 1;
        Some(armed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_go_stale_and_the_number_is_bounded() {
        let mut timers = AppTimers::new(2);
        let a = timers.set(0, 7).unwrap();
        let b = timers.set(1, 8).unwrap();
        assert_eq!(timers.set(0, 9), None);
        assert!(!timers.cancel(1, a), "of another process");
        assert!(timers.cancel(0, a) && !timers.cancel(0, a));
        let c = timers.set(0, 9).unwrap();
        assert_ne!(a, c);
        assert_eq!(
            (timers.owner_of(a), timers.owner_of(b), timers.owner_of(c)),
            (None, Some(1), Some(0))
        );
        assert_eq!((timers.fire(a), timers.fire(c), timers.fire(c)), (None, Some((0, 9)), None));
        assert_eq!(timers.fire(b), Some((1, 8)));
        for hostile in [0, 1, u64::MAX, 1 << 24, 0xff_ffff] {
            assert!(!timers.cancel(0, hostile));
        }
        assert_eq!(timers.armed(), 0);
        let d = timers.set(0, 7).unwrap();
        let e = timers.set(1, 7).unwrap();
        timers.clear(0);
        assert_eq!((timers.armed(), timers.fire(d)), (1, None));
        assert!(timers.set(0, 7).is_some() && timers.fire(e).is_some());
    }
}
