//! Maps, programs and links through bpf(2), without a library.
use crate::{check, fd};
use std::ffi::CStr;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// Kinds of programs that can be loaded (`enum bpf_prog_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ProgramKind {
    /// Runs on a `__sk_buff`; for TUNSETSTEERINGEBPF.
    SocketFilter = 1,
    /// Runs on an `xdp_md`.
    Xdp = 6,
}

/// Kinds of maps that can be made (`enum bpf_map_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum MapKind {
    /// An array.
    Array = 2,
    /// Any keys; the one that was used least recently makes room.
    LruHash = 9,
    /// Interfaces by index.
    Dev = 14,
    /// AF_XDP sockets by index.
    Xsk = 17,
}

/// `bpf_map_lookup_elem(map, key)`.
pub const HELPER_MAP_LOOKUP: i32 = 1;
/// `bpf_map_update_elem(map, key, value, flags)`.
pub const HELPER_MAP_UPDATE: i32 = 2;
/// `bpf_map_delete_elem(map, key)`.
pub const HELPER_MAP_DELETE: i32 = 3;
/// `bpf_ktime_get_ns()`.
pub const HELPER_KTIME_NS: i32 = 5;
/// `bpf_redirect(ifindex, flags)`.
pub const HELPER_REDIRECT: i32 = 23;
/// `bpf_skb_load_bytes(skb, offset, to, len)`.
pub const HELPER_SKB_LOAD_BYTES: i32 = 26;
/// `bpf_redirect_map(map, key, flags)`.
pub const HELPER_REDIRECT_MAP: i32 = 51;
/// `bpf_xdp_get_buff_len(context)`.
pub const HELPER_XDP_LEN: i32 = 188;

/// The program accepts packets in several buffers (`BPF_F_XDP_HAS_FRAGS`).
pub const PROGRAM_XDP_FRAGS: u32 = 1 << 5;

/// `BPF_F_MMAPABLE`.
const MAP_MMAPABLE: u32 = 1 << 10;
/// Bytes from one entry of a mapped array to the next.
pub const MAPPED_STRIDE: usize = 8;

const COMMAND_MAP_CREATE: i64 = 0;
const COMMAND_MAP_LOOKUP: i64 = 1;
const COMMAND_MAP_UPDATE: i64 = 2;
const COMMAND_MAP_DELETE: i64 = 3;
const COMMAND_PROG_LOAD: i64 = 5;
const COMMAND_PROG_TEST_RUN: i64 = 10;
const COMMAND_MAP_LOOKUP_BATCH: i64 = 24;
const COMMAND_LINK_CREATE: i64 = 28;
const COMMAND_LINK_UPDATE: i64 = 29;
const COMMAND_LINK_DETACH: i64 = 34;
const ATTACH_XDP: u32 = 37;

/// One instruction in the kernel's format (RFC 9669 section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Insn {
    /// The opcode.
    pub code: u8,
    /// Destination in the low four bits, source in the high ones.
    pub regs: u8,
    /// An offset, of memory or of a jump.
    pub off: i16,
    /// A constant.
    pub imm: i32,
}

/// A map of `u32` keys and `u32` values.
#[derive(Debug)]
pub struct Map(OwnedFd);

impl Map {
    /// A map with keys `0..entries`.
    pub fn new(kind: MapKind, name: &CStr, entries: u32) -> io::Result<Map> {
        Map::with_flags(kind, name, entries, 0)
    }

    /// An array that a process with its descriptor can map: entry `i` is the word at
    /// [`MAPPED_STRIDE`]` * i`.
    pub fn mappable(name: &CStr, entries: u32) -> io::Result<Map> {
        Map::with_flags(MapKind::Array, name, entries, MAP_MMAPABLE)
    }

    fn with_flags(kind: MapKind, name: &CStr, entries: u32, map_flags: u32) -> io::Result<Map> {
        create_map(kind, name, entries, (4, 4), map_flags).map(Map)
    }

    /// The map of a descriptor that another process has sent: one of such keys and values.
    pub fn of(fd: OwnedFd) -> Map {
        Map(fd)
    }

    /// Reads `map[key]` of an array.
    pub fn get(&self, key: u32) -> io::Result<u32> {
        let mut value = 0u32;
        let at = (&raw mut value).expose_provenance() as u64;
        element(&self.0, COMMAND_MAP_LOOKUP, key, at)?;
        Ok(value)
    }

    /// Reads this many values of an array from this key on, by one system call.
    pub fn values(&self, first: u32, entries: u32) -> io::Result<Vec<u32>> {
        #[repr(C)]
        struct Attr {
            before: u64,
            after: u64,
            keys: u64,
            values: u64,
            count: u32,
            map_fd: u32,
            element_flags: u64,
            flags: u64,
        }
        let (mut keys, mut values) = (vec![0u32; entries as usize], vec![0u32; entries as usize]);
        // The kernel begins behind it.
        let before = first.wrapping_sub(1);
        let mut after = 0u32;
        let mut attr = Attr {
            before: if first == 0 { 0 } else { (&raw const before).expose_provenance() as u64 },
            after: (&raw mut after).expose_provenance() as u64,
            keys: keys.as_mut_ptr().expose_provenance() as u64,
            values: values.as_mut_ptr().expose_provenance() as u64,
            count: entries,
            map_fd: self.0.as_raw_fd() as u32,
            element_flags: 0,
            flags: 0,
        };
        match bpf(COMMAND_MAP_LOOKUP_BATCH, &mut attr) {
            // The kernel says so at the end of a map, too.
            Err(e) if e.raw_os_error() != Some(libc::ENOENT) => return Err(e),
            _ => {}
        }
        values.truncate(attr.count as usize);
        Ok(values)
    }

    /// Sets each value of an array with this many entries that is `value` to 0.
    pub fn clear_all(&self, entries: u32, value: u32) -> io::Result<()> {
        let all = self.values(0, entries)?;
        let mut keys = (0..).zip(all).filter(|(_, one)| *one == value);
        keys.try_for_each(|(key, _)| self.set(key, 0))
    }

    /// Sets `map[key]`. A program that runs meanwhile sees the old or the new value.
    pub fn set(&self, key: u32, value: u32) -> io::Result<()> {
        element(&self.0, COMMAND_MAP_UPDATE, key, (&raw const value).expose_provenance() as u64)
    }

    /// Removes `map[key]`.
    pub fn remove(&self, key: u32) -> io::Result<()> {
        element(&self.0, COMMAND_MAP_DELETE, key, 0)
    }

    /// Makes another descriptor of the map.
    pub fn copy(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }

    /// Number of its descriptor, for programs.
    pub fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// An array of rows of `N` words, all zero at the start.
#[derive(Debug)]
pub struct Rows<const N: usize>(OwnedFd);

impl<const N: usize> Rows<N> {
    /// An array with rows `0..entries`.
    pub fn new(name: &CStr, entries: u32) -> io::Result<Rows<N>> {
        create_map(MapKind::Array, name, entries, (4, 8 * N as u32), 0).map(Rows)
    }

    /// Reads a row. Each word is consistent, but programs may change other words meanwhile.
    pub fn get(&self, row: u32) -> io::Result<[u64; N]> {
        let mut words = [0u64; N];
        let at = words.as_mut_ptr().expose_provenance() as u64;
        element(&self.0, COMMAND_MAP_LOOKUP, row, at)?;
        Ok(words)
    }

    /// Replaces a row.
    pub fn set(&self, row: u32, words: &[u64; N]) -> io::Result<()> {
        element(&self.0, COMMAND_MAP_UPDATE, row, words.as_ptr().expose_provenance() as u64)
    }

    /// Number of its descriptor, for programs.
    pub fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// A map that programs alone read and write: what they have seen lately. The keys have `KEY` bytes,
/// the values are `u32`.
#[derive(Debug)]
pub struct Memory<const KEY: usize>(OwnedFd);

impl<const KEY: usize> Memory<KEY> {
    /// A map of at most so many entries.
    pub fn new(name: &CStr, entries: u32) -> io::Result<Memory<KEY>> {
        create_map(MapKind::LruHash, name, entries, (KEY as u32, 4), 0).map(Memory)
    }

    /// The map of a descriptor that another process has sent: one of such keys.
    pub fn of(fd: OwnedFd) -> Memory<KEY> {
        Memory(fd)
    }

    /// Makes another descriptor of the map.
    pub fn copy(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }

    /// Number of its descriptor, for programs.
    pub fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Makes a map of keys and values of this many bytes.
fn create_map(
    kind: MapKind,
    name: &CStr,
    entries: u32,
    (key_bytes, value_bytes): (u32, u32),
    map_flags: u32,
) -> io::Result<OwnedFd> {
    #[repr(C)]
    #[derive(Default)]
    struct Attr {
        map_type: u32,
        key_size: u32,
        value_size: u32,
        max_entries: u32,
        map_flags: u32,
        inner_map_fd: u32,
        numa_node: u32,
        map_name: [u8; 16],
    }
    let mut attr = Attr {
        map_type: kind as u32,
        key_size: key_bytes,
        value_size: value_bytes,
        max_entries: entries,
        map_flags,
        map_name: object_name(name),
        ..Attr::default()
    };
    bpf_fd(COMMAND_MAP_CREATE, &mut attr)
}

/// Runs one command on `map[key]`; `value` is the address of its value.
fn element(map: &OwnedFd, command: i64, key: u32, value: u64) -> io::Result<()> {
    #[repr(C)]
    struct Attr {
        map_fd: u32,
        pad: u32,
        key: u64,
        value: u64,
        flags: u64,
    }
    // The kernel reads the key at this address.
    let key = (&raw const key).expose_provenance() as u64;
    let mut attr = Attr { map_fd: map.as_raw_fd() as u32, pad: 0, key, value, flags: 0 };
    bpf(command, &mut attr).map(drop)
}

/// A loaded program.
#[derive(Debug)]
pub struct Program(OwnedFd);

impl Program {
    /// Loads a program. An error of the verifier carries the last line of its log.
    pub fn load(kind: ProgramKind, name: &CStr, insns: &[Insn], flags: u32) -> io::Result<Program> {
        match load(kind, name, insns, flags, &mut []) {
            // If the verifier has refused the program, a second try gets the reason.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EACCES | libc::EINVAL)) => {
                let mut log = vec![0u8; 64 << 10];
                load(kind, name, insns, flags, &mut log).map_err(|e| with_log(e, &log))
            }
            result => result,
        }
    }

    /// Attaches an XDP program. It is detached when the returned link is dropped and when this
    /// process ends.
    pub fn attach_xdp(&self, ifindex: u32, flags: u32) -> io::Result<OwnedFd> {
        #[repr(C)]
        #[derive(Default)]
        struct Attr {
            prog_fd: u32,
            target_ifindex: u32,
            attach_type: u32,
            flags: u32,
        }
        let mut attr = Attr {
            prog_fd: self.0.as_raw_fd() as u32,
            target_ifindex: ifindex,
            attach_type: ATTACH_XDP,
            flags,
        };
        bpf_fd(COMMAND_LINK_CREATE, &mut attr)
    }

    /// Replaces the program of a link. Each packet is processed by the old or by the new one.
    pub fn replace_in(&self, link: BorrowedFd<'_>) -> io::Result<()> {
        #[repr(C)]
        struct Attr {
            link_fd: u32,
            new_prog_fd: u32,
            flags: u32,
            old_prog_fd: u32,
        }
        let mut attr = Attr {
            link_fd: link.as_raw_fd() as u32,
            new_prog_fd: self.0.as_raw_fd() as u32,
            flags: 0,
            old_prog_fd: 0,
        };
        bpf(COMMAND_LINK_UPDATE, &mut attr).map(drop)
    }

    /// Runs the program on this frame; returns its result.
    pub fn test_run(&self, frame: &[u8]) -> io::Result<u32> {
        #[repr(C)]
        #[derive(Default)]
        struct Attr {
            prog_fd: u32,
            retval: u32,
            data_size_in: u32,
            data_size_out: u32,
            data_in: u64,
            data_out: u64,
            repeat: u32,
            duration: u32,
        }
        let mut attr = Attr {
            prog_fd: self.0.as_raw_fd() as u32,
            data_size_in: frame.len() as u32,
            data_in: frame.as_ptr().addr() as u64,
            repeat: 1,
            ..Attr::default()
        };
        bpf(COMMAND_PROG_TEST_RUN, &mut attr)?;
        Ok(attr.retval)
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Detaches the program of a link, even if other processes have descriptors of the link.
pub fn detach(link: BorrowedFd<'_>) -> io::Result<()> {
    bpf(COMMAND_LINK_DETACH, &mut (link.as_raw_fd() as u32)).map(drop)
}

fn load(
    kind: ProgramKind,
    name: &CStr,
    insns: &[Insn],
    flags: u32,
    log: &mut [u8],
) -> io::Result<Program> {
    #[repr(C)]
    #[derive(Default)]
    struct Attr {
        prog_type: u32,
        insn_cnt: u32,
        insns: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log_buf: u64,
        kern_version: u32,
        prog_flags: u32,
        prog_name: [u8; 16],
    }
    // No helper that is called needs the GPL.
    let license = c"MIT OR Apache-2.0";
    let mut attr = Attr {
        prog_type: kind as u32,
        insn_cnt: insns.len() as u32,
        insns: insns.as_ptr().addr() as u64,
        license: license.as_ptr().addr() as u64,
        prog_flags: flags,
        prog_name: object_name(name),
        ..Attr::default()
    };
    if !log.is_empty() {
        attr.log_level = 1;
        attr.log_size = log.len() as u32;
        attr.log_buf = log.as_mut_ptr().addr() as u64;
    }
    bpf_fd(COMMAND_PROG_LOAD, &mut attr).map(Program)
}

fn with_log(error: io::Error, log: &[u8]) -> io::Error {
    let text = CStr::from_bytes_until_nul(log).map(CStr::to_string_lossy).unwrap_or_default();
    let last = text.lines().rfind(|l| !l.is_empty() && !l.starts_with("processed")).unwrap_or("");
    if last.is_empty() { error } else { io::Error::new(error.kind(), format!("{error}: {last}")) }
}

fn object_name(name: &CStr) -> [u8; 16] {
    let mut to = [0; 16];
    let from = &name.to_bytes()[..name.to_bytes().len().min(15)];
    to[..from.len()].copy_from_slice(from);
    to
}

fn bpf<A>(command: i64, attr: &mut A) -> io::Result<libc::c_long> {
    // SAFETY: `attr` is the structure of this command or the beginning of it (the kernel takes the
    // rest as zero); the memory it points to outlives the call.
    let ret = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attr, size_of::<A>()) };
    check(ret)
}

fn bpf_fd<A>(command: i64, attr: &mut A) -> io::Result<OwnedFd> {
    let new = bpf(command, attr)?;
    // SAFETY: these commands make a new descriptor (close-on-exec), which no other value owns.
    Ok(unsafe { fd::own(new as RawFd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_cleared_wherever_they_stand() {
        const ENTRIES: u32 = 5000;
        let map = match Map::new(MapKind::Array, c"ix_test", ENTRIES) {
            Ok(map) => map,
            Err(e) => {
                let name = "bpf::tests::values_are_cleared_wherever_they_stand";
                return ix_skip::skip(name, ix_skip::Need::Root, e);
            }
        };
        [0, 4096, ENTRIES - 1].iter().for_each(|key| map.set(*key, 3).expect("set"));
        [1, 4095].iter().for_each(|key| map.set(*key, 4).expect("set"));
        map.clear_all(ENTRIES, 3).expect("cleared");
        let mut left = vec![0; ENTRIES as usize];
        (left[1], left[4095]) = (4, 4);
        assert_eq!(map.values(0, ENTRIES).expect("read"), left);
        for (first, count) in [(1, 2), (4000, 1000), (ENTRIES - 1, 1)] {
            let part = &left[first as usize..][..count as usize];
            assert_eq!(map.values(first, count).expect("read"), part);
        }
    }
}
