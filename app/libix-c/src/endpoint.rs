//! Addresses.
use crate::types::ix_endpoint;
use core::ffi::{CStr, c_char, c_int};
use ix_abi::error;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

impl ix_endpoint {
    /// In the contract's form.
    pub(crate) fn new(at: SocketAddr) -> ix_endpoint {
        let addr = match at.ip() {
            IpAddr::V4(v4) => ix_abi::v4(v4.octets()),
            IpAddr::V6(v6) => v6.octets(),
        };
        ix_endpoint { addr, port: at.port(), reserved: [0; 3] }
    }

    /// In Rust's form.
    pub(crate) fn to_rust(self) -> SocketAddr {
        SocketAddr::new(Ipv6Addr::from(self.addr).to_canonical(), self.port)
    }
}

/// The endpoint behind a C program's pointer.
///
/// # Safety
/// `at` is null or points to an endpoint.
pub(crate) unsafe fn read(at: *const ix_endpoint) -> Option<SocketAddr> {
    // SAFETY: the caller's promise.
    (!at.is_null()).then(|| unsafe { *at }.to_rust())
}

/// Parses "10.0.0.2:7" or "[::1]:7" into to.
///
/// # Safety
/// Both are null or point to objects of their types.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_endpoint_parse(text: *const c_char, to: *mut ix_endpoint) -> c_int {
    if text.is_null() || to.is_null() {
        return -error::INVALID as c_int;
    }
    // SAFETY: a C string by the caller's promise.
    let parsed = unsafe { CStr::from_ptr(text) }.to_str().ok().and_then(|text| text.parse().ok());
    let Some(at) = parsed else { return -error::INVALID as c_int };
    // SAFETY: points to an endpoint by the caller's promise.
    unsafe { to.write(ix_endpoint::new(at)) };
    0
}

/// Writes an endpoint as text, ended by a zero byte and truncated if it does not fit. Returns the
/// length of the whole text without the zero.
///
/// # Safety
/// `at` is null or points to an endpoint. `to` is null or has room for `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ix_endpoint_text(
    at: *const ix_endpoint,
    to: *mut c_char,
    bytes: usize,
) -> usize {
    // SAFETY: the caller's promise.
    let Some(at) = (unsafe { read(at) }) else { return 0 };
    let text = at.to_string();
    if !to.is_null() && bytes > 0 {
        let n = text.len().min(bytes - 1);
        // SAFETY: `n` and the zero are within `bytes`, and text and buffer do not overlap.
        unsafe {
            to.copy_from_nonoverlapping(text.as_ptr().cast(), n);
            to.add(n).write(0);
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_there_and_back() {
        for (text, back) in [
            (c"10.0.0.2:7", "10.0.0.2:7"),
            (c"[fe80::1]:80", "[fe80::1]:80"),
            (c"0.0.0.0:1", "0.0.0.0:1"),
        ] {
            let (mut at, mut buffer) = (ix_endpoint::default(), [1 as c_char; 40]);
            // SAFETY: locals of these sizes.
            let n = unsafe {
                assert_eq!(ix_endpoint_parse(text.as_ptr(), &mut at), 0);
                ix_endpoint_text(&at, buffer.as_mut_ptr(), buffer.len())
            };
            // SAFETY: ended by a zero.
            assert_eq!(unsafe { CStr::from_ptr(buffer.as_ptr()) }.to_str(), Ok(back));
            assert_eq!(n, back.len());
            // SAFETY: four bytes of it.
            unsafe { ix_endpoint_text(&at, buffer.as_mut_ptr(), 4) };
            // SAFETY: as above.
            assert_eq!(unsafe { CStr::from_ptr(buffer.as_ptr()) }.to_str(), Ok(&back[..3]));
        }
        let mut at = ix_endpoint::default();
        // SAFETY: as above.
        assert!(unsafe { ix_endpoint_parse(c"nowhere".as_ptr(), &mut at) } < 0);
    }
}
