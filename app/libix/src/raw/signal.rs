//! Signals of an elastic thread. The dataplane blocks them while it runs and says when one waits;
//! then they are let in here, in the application's context.
use core::mem::MaybeUninit;
use core::ptr::null;

/// The application's own signal mask of a thread.
pub(super) struct SignalMask {
    application: libc::sigset_t,
}

impl SignalMask {
    /// The mask of the calling thread, to be taken before it becomes an elastic thread.
    pub(super) fn of_this_thread() -> SignalMask {
        SignalMask { application: exchange(None) }
    }

    /// Opens a window in which waiting signals are handled as the application wants them to be.
    #[cold]
    pub(super) fn open_window(&self) {
        let blocked = exchange(Some(&self.application));
        exchange(Some(&blocked));
    }
}

/// Sets the thread's mask (`None`: leaves it) and answers the one before.
fn exchange(new: Option<&libc::sigset_t>) -> libc::sigset_t {
    let mut old = MaybeUninit::<libc::sigset_t>::zeroed();
    let new = new.map_or(null(), |set| set as *const _);
    // SAFETY: both pointers are valid or null; the call cannot fail with SIG_SETMASK, and all-zero
    // is a valid set besides.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, new, old.as_mut_ptr());
        old.assume_init()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    static CAUGHT: AtomicU32 = AtomicU32::new(0);

    extern "C" fn on_signal(_: libc::c_int) {
        CAUGHT.fetch_add(1, Ordering::SeqCst);
    }

    #[test]
    fn window_lets_a_waiting_signal_in_and_blocks_again() {
        let handler = on_signal as extern "C" fn(libc::c_int);
        let mask = SignalMask::of_this_thread();
        // SAFETY: a handler that only counts, for a signal nobody else here uses; the set is made
        // by sigfillset before it is used.
        unsafe {
            libc::signal(libc::SIGUSR2, handler as libc::sighandler_t);
            let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
            libc::sigfillset(all.as_mut_ptr());
            exchange(Some(&all.assume_init()));
            libc::pthread_kill(libc::pthread_self(), libc::SIGUSR2);
        }
        assert_eq!(CAUGHT.load(Ordering::SeqCst), 0);
        mask.open_window();
        assert_eq!(CAUGHT.load(Ordering::SeqCst), 1);
        // SAFETY: as above.
        unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR2) };
        assert_eq!(CAUGHT.load(Ordering::SeqCst), 1, "blocked again after the window");
        mask.open_window();
        assert_eq!(CAUGHT.load(Ordering::SeqCst), 2);
    }
}
