//! Errors.
//!
//! Functions that can fail return minus an IX_ERROR_ number, or NULL. After NULL, and after an
//! error of a function of ix_control, ix_last_error describes the failure in one line.
use core::ffi::{CStr, c_char};
use ix_abi::error;
use libix::Error;
use std::cell::RefCell;
use std::ffi::CString;

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Remembers why a function failed.
pub(crate) fn remember(why: &dyn core::fmt::Display) {
    let text = CString::new(why.to_string()).unwrap_or_default();
    LAST.with(|last| *last.borrow_mut() = text);
}

/// What a function returns for an error.
pub(crate) fn code(why: Error) -> i64 {
    Error::encode(Err(why))
}

/// Returns one line that says why the last function failed that returned NULL on this thread, or an
/// error if it was a function of ix_control. The text is valid until the next failure.
#[unsafe(no_mangle)]
pub extern "C" fn ix_last_error() -> *const c_char {
    LAST.with(|last| last.borrow().as_ptr())
}

/// Returns what a negative result means, in a few words. The text is a constant.
#[unsafe(no_mangle)]
pub extern "C" fn ix_strerror(answer: i64) -> *const c_char {
    text(answer).as_ptr()
}

fn text(answer: i64) -> &'static CStr {
    match answer.wrapping_neg() {
        error::NO_SYS => c"the dataplane has no such call",
        error::INVALID => c"invalid argument",
        error::BAD_HANDLE => c"no such connection, listener, socket, packet queue or timer",
        error::FAULT => c"address outside the memory that the call may use",
        error::NO_RESOURCE => {
            c"the dataplane has no flow, buffer, timer or memory left; try again later"
        }
        error::IN_USE => c"already in use",
        error::NOT_LOCAL => c"not an address of this dataplane",
        error::UNREACHABLE => c"the peer cannot be reached",
        error::REFUSED => c"the peer refused the connection",
        error::TIMED_OUT => c"the peer did not reply in time",
        error::RESET => c"the connection was reset",
        error::STATE => c"not possible in this state",
        error::TOO_LONG => c"the datagram is longer than the path allows",
        error::MOVED => c"the flow group belongs to another elastic thread",
        error::FILTERED => c"the vNIC's rules forbid sending this",
        error::LOST => c"the dataplane has ended, and all connections with it",
        error::AGAIN => c"not known yet; make the call again in a later cycle",
        _ if answer >= 0 => c"no error",
        _ => c"an unknown error code",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_texts_are_those_of_the_contract() {
        for number in 1..=17 {
            assert_eq!(code(Error::from_code(number)), -number);
            assert_ne!(text(-number), c"an unknown error code");
        }
        assert_eq!(text(0), c"no error");
        assert_eq!(text(i64::MIN), c"an unknown error code");
    }
}
