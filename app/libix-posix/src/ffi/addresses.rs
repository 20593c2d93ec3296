//! `getifaddrs(3)`: a server that listens at each address of the machine also finds the
//! dataplane's, after Linux's.
use crate::lock::lock;
use crate::route::Network;
use crate::{mem, real};
use libc::{c_char, c_int, c_uint, c_void, ifaddrs, sockaddr, sockaddr_in6, socklen_t};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The interface name of a device that Linux does not have.
const NO_NAME: &std::ffi::CStr = c"ix0";
/// Its address marks our entries.
static OURS: u8 = 0;

/// One entry with all that it points to.
#[repr(C)]
struct Entry {
    item: ifaddrs,
    name: [c_char; libc::IF_NAMESIZE],
    address: Room,
    mask: Room,
    broadcast: Room,
}

/// Room for an address of either family.
type Room = sockaddr_in6;

fn socket_address(address: IpAddr) -> Room {
    // SAFETY: integers, for which all zero is valid.
    let mut room: Room = unsafe { core::mem::zeroed() };
    let (at, mut len) = (SocketAddr::new(address, 0), size_of::<Room>() as socklen_t);
    // SAFETY: room of ours with its length.
    unsafe { mem::write_address(at, address.is_ipv6(), (&raw mut room).cast(), &mut len) };
    room
}

/// The mask of a network, and the address of all its hosts, which IPv6 does not have.
fn mask_and_broadcast(network: Network) -> (IpAddr, Option<IpAddr>) {
    let prefix = u32::from(network.prefix);
    match network.address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - prefix).unwrap_or(0);
            let all = Ipv4Addr::from_bits(address.to_bits() | !mask);
            (Ipv4Addr::from_bits(mask).into(), Some(all.into()))
        }
        IpAddr::V6(_) => {
            let mask = u128::MAX.checked_shl(128 - prefix).unwrap_or(0);
            (Ipv6Addr::from_bits(mask).into(), None)
        }
    }
}

fn is_ours(item: &ifaddrs) -> bool {
    item.ifa_data == (&raw const OURS).cast_mut().cast::<c_void>()
}

/// A new entry in memory of its own.
fn entry(network: Network, name: Option<&std::ffi::CStr>) -> *mut ifaddrs {
    let (mask, broadcast) = mask_and_broadcast(network);
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
        address: socket_address(network.address),
        mask: socket_address(mask),
        broadcast: socket_address(broadcast.unwrap_or(mask)),
    }));
    let at = |place: *mut Room| place.cast::<sockaddr>();
    // SAFETY: the box that was just made.
    unsafe {
        (*entry).item = ifaddrs {
            ifa_next: core::ptr::null_mut(),
            ifa_name: (&raw mut (*entry).name).cast::<c_char>(),
            ifa_flags: (libc::IFF_UP | libc::IFF_RUNNING | libc::IFF_BROADCAST) as c_uint,
            ifa_addr: at(&raw mut (*entry).address),
            ifa_netmask: at(&raw mut (*entry).mask),
            ifa_ifu: match broadcast {
                Some(_) => at(&raw mut (*entry).broadcast),
                None => core::ptr::null_mut(),
            },
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
        for (network, name) in core.interfaces.all() {
            *end = entry(network, name);
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
