//! The one lock.
//!
//! All shared state of this library is in [`Core`], behind one mutex. Uncontended it costs two
//! atomic instructions a call, and no order of locks can be wrong. The handles of elastic threads
//! are not in it ([`crate::confined`]): a driver uses one without the lock, because it may sleep
//! inside.
use crate::kick::kick;
use crate::signals::{self, Hold};
use crate::state::Core;
use crate::wake::wake;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

static CORE: Mutex<Core> = Mutex::new(Core::new());

/// The lock, held. The program's signal handlers wait until it is released. Then the threads that
/// should look are woken.
pub struct Guard {
    core: Option<MutexGuard<'static, Core>>,
    _hold: Hold,
}

/// Takes the lock.
#[inline]
pub fn lock() -> Guard {
    let hold = signals::hold();
    let core = CORE.lock().unwrap_or_else(PoisonError::into_inner);
    Guard { core: Some(core), _hold: hold }
}

/// Takes the lock if no thread has it.
pub fn try_lock() -> Option<Guard> {
    let hold = signals::hold();
    let core = match CORE.try_lock() {
        Ok(core) => core,
        Err(TryLockError::Poisoned(error)) => error.into_inner(),
        Err(TryLockError::WouldBlock) => return None,
    };
    Some(Guard { core: Some(core), _hold: hold })
}

impl Deref for Guard {
    type Target = Core;
    #[inline]
    fn deref(&self) -> &Core {
        // Only `drop` takes it out.
        self.core.as_ref().unwrap_or_else(|| unreachable!())
    }
}

impl DerefMut for Guard {
    #[inline]
    fn deref_mut(&mut self) -> &mut Core {
        self.core.as_mut().unwrap_or_else(|| unreachable!())
    }
}

impl Drop for Guard {
    #[inline]
    fn drop(&mut self) {
        let Some(mut core) = self.core.take() else { return };
        let mut drivers = core.take_kicks();
        let wake_fds = core.wakeups.take_wake_fds();
        drop(core);
        while drivers != 0 {
            kick(drivers.trailing_zeros() as usize);
            drivers &= drivers - 1;
        }
        wake_fds.into_iter().for_each(wake);
        // The hold is dropped last, so handlers run after this.
    }
}
