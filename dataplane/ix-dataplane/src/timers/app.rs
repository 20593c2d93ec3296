//! Timers of the application: bounded in number, fired once, named by slot and generation.

/// Application timers of one elastic thread.
pub struct AppTimers {
    slots: Vec<Slot>,
    free: Vec<u32>,
    max: usize,
    armed: usize,
}

struct Slot {
    generation: u32,
    armed: Option<(u64, u64)>,
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

    /// Sets a timer for `deadline_us`; returns its id, or `None` if there are too many.
    pub fn set(&mut self, cookie: u64, deadline_us: u64) -> Option<u64> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < self.max => {
                self.slots.push(Slot { generation: 1, armed: None });
                self.slots.len() as u32 - 1
            }
            None => return None,
        };
        let slot = &mut self.slots[index as usize];
        slot.armed = Some((cookie, deadline_us));
        self.armed += 1;
        Some((slot.generation as u64) << 24 | index as u64)
    }

    /// Stops a timer; false if there is no such timer any more.
    pub fn cancel(&mut self, id: u64) -> bool {
        self.take(id).is_some()
    }

    /// To be called when the wheel has reached the timer: returns its cookie, if it is still set.
    pub fn fire(&mut self, id: u64) -> Option<u64> {
        self.take(id).map(|(cookie, _)| cookie)
    }

    /// Stops all timers.
    pub fn clear(&mut self) {
        for index in 0..self.slots.len() {
            let id = (self.slots[index].generation as u64) << 24 | index as u64;
            self.cancel(id);
        }
    }

    fn take(&mut self, id: u64) -> Option<(u64, u64)> {
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
        let a = timers.set(7, 100).unwrap();
        let b = timers.set(8, 100).unwrap();
        assert_eq!(timers.set(9, 100), None);
        assert!(timers.cancel(a) && !timers.cancel(a));
        let c = timers.set(9, 100).unwrap();
        assert_ne!(a, c);
        assert_eq!((timers.fire(a), timers.fire(c), timers.fire(c)), (None, Some(9), None));
        assert_eq!(timers.fire(b), Some(8));
        for hostile in [0, 1, u64::MAX, 1 << 24, 0xff_ffff] {
            assert!(!timers.cancel(hostile));
        }
        assert_eq!(timers.armed(), 0);
        let d = timers.set(7, 100).unwrap();
        timers.clear();
        assert_eq!((timers.armed(), timers.fire(d)), (0, None));
        assert!(timers.set(7, 100).is_some() && timers.set(8, 100).is_some());
    }
}
