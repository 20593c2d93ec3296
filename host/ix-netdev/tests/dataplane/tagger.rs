//! An interface in a VLAN for kernels without such links: a tap of Linux whose frames get the tag
//! on their way to another interface. The bytes on that interface are those of a VLAN link.
use ix_testbed::{Namespace, PacketSocket};
use std::fs::File;
use std::io::{Read, Write};
use std::mem::{size_of, zeroed};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// Linux's numbers, which the `libc` crate lacks (linux/if_packet.h).
const PACKET_AUXDATA: i32 = 8;
const STATUS_VLAN: u32 = 1 << 4;
/// Longer than any test.
const END: Duration = Duration::from_secs(60);

/// `struct tpacket_auxdata`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Beside {
    status: u32,
    len: u32,
    snaplen: u32,
    mac: u16,
    net: u16,
    vlan: u16,
    kind: u16,
}

/// Makes `name`, an interface in this VLAN of `under`. It works for a minute.
pub fn start(namespace: &Namespace, under: &str, name: &str, number: u16) {
    let tap = namespace.open_tap(name).expect("a tap");
    let mac = namespace.link(under).expect("ask").expect("there").mac;
    namespace.set_mac(name, mac).expect("the address of the interface under it");
    namespace.set_up(name, true).expect("up");
    let wire = PacketSocket::open(namespace, under).expect("a packet socket");
    let on = 1i32;
    // SAFETY: the value lives across the call, and its size is given.
    let set = unsafe {
        let value = (&raw const on).cast();
        libc::setsockopt(wire.as_raw_fd(), libc::SOL_PACKET, PACKET_AUXDATA, value, 4)
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    std::thread::spawn(move || run(tap, &wire, number));
}

fn run(mut tap: File, wire: &PacketSocket, number: u16) {
    let end = Instant::now() + END;
    let mut frame = vec![0; 65_600];
    while Instant::now() < end {
        let fds = [tap.as_raw_fd(), wire.as_raw_fd()];
        let mut polls = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        // SAFETY: two that live across the call.
        unsafe { libc::poll(polls.as_mut_ptr(), 2, 100) };
        while let Ok(len @ 14..) = tap.read(&mut frame) {
            let tag = [[0x81, 0], number.to_be_bytes()].concat();
            let _ = wire.send(&[&frame[..12], &tag, &frame[12..len]].concat());
        }
        while let Some((len, vlan)) = receive(wire, &mut frame) {
            if vlan == Some(number) {
                let _ = tap.write(&frame[..len]);
            }
        }
    }
}

/// A frame, whose tag Linux has taken off, and the tag.
fn receive(wire: &PacketSocket, frame: &mut [u8]) -> Option<(usize, Option<u16>)> {
    let mut control = [0u64; 16];
    let mut part = libc::iovec { iov_base: frame.as_mut_ptr().cast(), iov_len: frame.len() };
    // SAFETY: all zeroes is a valid header.
    let mut message: libc::msghdr = unsafe { zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the header names room of ours, which lives across the call.
    let len = unsafe { libc::recvmsg(wire.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    let len = usize::try_from(len).ok()?;
    // SAFETY: the kernel has filled the header in.
    let first = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    if first.is_null() {
        return Some((len, None));
    }
    // SAFETY: the only control message is of the kind that was asked for, and is in our room.
    let beside = unsafe {
        assert!((*first).cmsg_len as usize >= size_of::<Beside>());
        libc::CMSG_DATA(first).cast::<Beside>().read_unaligned()
    };
    let vlan = (beside.status & STATUS_VLAN != 0).then_some(beside.vlan & 0x0fff);
    Some((len, vlan))
}
