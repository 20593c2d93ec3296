//! Messages of the library to the program or the user.
use core::ffi::{c_char, c_int};
use std::ffi::CString;
use std::sync::Mutex;

/// A program's function for messages.
pub type Logger = unsafe extern "C" fn(severity: c_int, message: *const c_char);

static LOGGER: Mutex<Option<Logger>> = Mutex::new(None);

const WARN: c_int = 2;

/// Writes a warning for the program's author.
pub fn warn(text: &str) {
    let logger = *LOGGER.lock().unwrap_or_else(|e| e.into_inner());
    match (logger, CString::new(text)) {
        // SAFETY: a function of this type (`event_set_log_callback`), and a C string.
        (Some(logger), Ok(text)) => unsafe { logger(WARN, text.as_ptr()) },
        _ => eprintln!("[warn] {text}"),
    }
}

/// Sets the function for messages.
pub fn set(logger: Option<Logger>) {
    *LOGGER.lock().unwrap_or_else(|e| e.into_inner()) = logger;
}
