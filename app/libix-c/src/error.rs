//! Errors.
//!
//! Functions that can fail answer minus an IX_ERROR_ number, or NULL. ix_last_error says in a line
//! what failed last where it was NULL, or in a function of ix_control.
use core::ffi::{CStr, c_char};
use ix_abi::error;
use libix::Error;
use std::cell::RefCell;
use std::ffi::CString;

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Remembers why something was NULL.
pub(crate) fn remember(why: &dyn core::fmt::Display) {
    let text = CString::new(why.to_string()).unwrap_or_default();
    LAST.with(|last| *last.borrow_mut() = text);
}

/// What a function returns for an error.
pub(crate) fn code(why: Error) -> i64 {
    Error::encode(Err(why))
}

/// Why the last function of this thread that answered NULL, or one of ix_control that answered an
/// error, did so, in one line. Valid until the
/// next one does.
#[unsafe(no_mangle)]
pub extern "C" fn ix_last_error() -> *const c_char {
    LAST.with(|last| last.borrow().as_ptr())
}

/// What a negative answer means, in a few words; a constant.
#[unsafe(no_mangle)]
pub extern "C" fn ix_strerror(answer: i64) -> *const c_char {
    text(answer).as_ptr()
}

fn text(answer: i64) -> &'static CStr {
    match answer.wrapping_neg() {
        error::NO_SYS => c"the dataplane has no such call",
        error::INVALID => c"an argument makes no sense",
        error::BAD_HANDLE => c"no such connection, listener, socket or timer",
        error::FAULT => c"memory that the call may not name",
        error::NO_RESOURCE => c"the dataplane is out of flows, buffers or memory",
        error::IN_USE => c"already in use",
        error::NOT_LOCAL => c"not an address of this dataplane",
        error::UNREACHABLE => c"the peer cannot be reached",
        error::REFUSED => c"the peer refused the connection",
        error::TIMED_OUT => c"the peer did not answer in time",
        error::RESET => c"the connection was reset",
        error::STATE => c"not possible in this state",
        error::TOO_LONG => c"the datagram is longer than the path allows",
        error::MOVED => c"its flow group went to another elastic thread",
        error::FILTERED => c"the vNIC may not send this",
        _ if answer >= 0 => c"no error",
        _ => c"an unknown error code",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_texts_are_those_of_the_contract() {
        for number in 1..=15 {
            assert_eq!(code(Error::from_code(number)), -number);
            assert_ne!(text(-number), c"an unknown error code");
        }
        assert_eq!(text(0), c"no error");
        assert_eq!(text(i64::MIN), c"an unknown error code");
    }
}
