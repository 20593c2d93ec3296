//! Timers and transmit memory of the application: the calls that touch no flow.
pub mod app;
pub mod wheel;

use crate::calls::Answer;
use crate::cycle::ElasticThread;
use ix_abi::CallError;

/// Wheel tokens with this bit name application timers, all others are handles.
pub(crate) const APP_TIMER: u64 = 1 << 63;

impl ElasticThread {
    pub(crate) fn call_timer_set(&mut self, cookie: u64, delay_us: u64) -> Answer {
        let deadline_us = self.io.cx.now_us.saturating_add(delay_us);
        let id = self.app_timers.set(cookie, deadline_us).ok_or(CallError::NoResource)?;
        self.flows.wheel.insert(deadline_us, id | APP_TIMER);
        Ok(id)
    }

    pub(crate) fn call_timer_cancel(&mut self, id: u64) -> Answer {
        if self.app_timers.cancel(id) { Ok(0) } else { Err(CallError::BadHandle) }
    }

    /// The application is gone: nobody waits for its timers.
    pub(crate) fn clear_app_timers(&mut self) {
        self.app_timers.clear();
    }

    pub(crate) fn call_tx_alloc(&mut self, bytes: u64) -> Answer {
        let mut arena = self.shared.arena.lock().map_err(|_| CallError::NoResource)?;
        arena.allocate(bytes).ok_or(CallError::NoResource)
    }

    pub(crate) fn call_tx_free(&mut self, addr: u64, bytes: u64) -> Answer {
        let mut arena = self.shared.arena.lock().map_err(|_| CallError::NoResource)?;
        if arena.free(addr, bytes) { Ok(0) } else { Err(CallError::Invalid) }
    }
}
