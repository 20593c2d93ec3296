//! `getifaddrs(3)`: a server that listens at each address of the machine also finds the
//! dataplane's, after Linux's.
use crate::lock::lock;
use crate::real;
use libc::{c_char, c_int, c_uint, c_void, ifaddrs, sockaddr, sockaddr_in};
use std::net::Ipv4Addr;

/// The interface name of a device that Linux does not have.
const NO_NAME: &std::ffi::CStr = c"ix0";
/// Its address marks our entries.
static OURS: u8 = 0;

/// One entry with all that it points to.
#[repr(C)]
struct Entry {
    item: ifaddrs,
    name: [c_char; libc::IF_NAMESIZE],
    address: sockaddr_in,
    mask: sockaddr_in,
    broadcast: sockaddr_in,
}

fn socket_address(address: Ipv4Addr) -> sockaddr_in {
    sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: 0,
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.octets()) },
        sin_zero: [0; 8],
    }
}

fn is_ours(item: &ifaddrs) -> bool {
    item.ifa_data == (&raw const OURS).cast_mut().cast::<c_void>()
}

/// A new entry in memory of its own.
fn entry(address: Ipv4Addr, prefix: u8, name: Option<&std::ffi::CStr>) -> *mut ifaddrs {
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
    let mut text = [0; libc::IF_NAMESIZE];
    let bytes = name.unwrap_or(NO_NAME).to_bytes();
    for (to, from) in text.iter_mut().zip(bytes.iter().take(libc::IF_NAMESIZE - 1)) {
        *to = *from as c_char;
    }
    // SAFETY: integers and pointers, for which all zero is valid.
    let item: ifaddrs = unsafe { core::mem::zeroed() };
    let entry = Box::into_raw(Box::new(Entry {
        item,
        name: text,
        address: socket_address(address),
        mask: socket_address(Ipv4Addr::from_bits(mask)),
        broadcast: socket_address(Ipv4Addr::from_bits(address.to_bits() | !mask)),
    }));
    let at = |place: *mut sockaddr_in| place.cast::<sockaddr>();
    // SAFETY: the box that was just made.
    unsafe {
        (*entry).item = ifaddrs {
            ifa_next: core::ptr::null_mut(),
            ifa_name: (&raw mut (*entry).name).cast::<c_char>(),
            ifa_flags: (libc::IFF_UP | libc::IFF_RUNNING | libc::IFF_BROADCAST) as c_uint,
            ifa_addr: at(&raw mut (*entry).address),
            ifa_netmask: at(&raw mut (*entry).mask),
            ifa_ifu: at(&raw mut (*entry).broadcast),
            ifa_data: (&raw const OURS).cast_mut().cast::<c_void>(),
        };
    }
    entry.cast::<ifaddrs>()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn getifaddrs(list: *mut *mut ifaddrs) -> c_int {
    // SAFETY: the program's own argument.
    let result = unsafe { real::getifaddrs(list) };
    if result != 0 || !crate::serving::is_offered() {
        return result;
    }
    let core = lock();
    // SAFETY: a list that the C library has made.
    unsafe {
        let mut end = list;
        while !(*end).is_null() {
            end = &raw mut (**end).ifa_next;
        }
        for (address, prefix, name) in core.interfaces.all() {
            *end = entry(address, prefix, name);
            end = &raw mut (**end).ifa_next;
        }
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn freeifaddrs(list: *mut ifaddrs) {
    let mut first = list;
    let mut end = &raw mut first;
    // SAFETY: a list that `getifaddrs` has made: our entries follow the C library's.
    unsafe {
        while !(*end).is_null() && !is_ours(&**end) {
            end = &raw mut (**end).ifa_next;
        }
        let mut own = core::mem::replace(&mut *end, core::ptr::null_mut());
        while !own.is_null() {
            let next = (*own).ifa_next;
            drop(Box::from_raw(own.cast::<Entry>()));
            own = next;
        }
        if !first.is_null() {
            real::freeifaddrs(first);
        }
    }
}
