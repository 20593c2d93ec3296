//! io_uring, whose operations Linux makes by itself: what becomes of one that names a socket of IX.
//!
//! Linux would find the file that stands under the number of such a socket, which is not the
//! connection. So before Linux is told of new entries, those about descriptors of IX are looked at.
//! What needs no waiting is done at once, and the entry becomes one that does nothing and completes
//! with its result. The others complete with EOPNOTSUPP, at which programs go on with `epoll`.
use crate::fds::Entry as Number;
use libc::c_int;
use std::os::fd::RawFd;

/// Flags of `io_uring_setup`.
pub const SETUP_SQPOLL: u32 = 1 << 1;
/// Entries are twice as long.
pub const SETUP_SQE128: u32 = 1 << 10;
/// The program has made the memory.
pub const SETUP_NO_MMAP: u32 = 1 << 14;
/// The ring is no descriptor.
pub const SETUP_REGISTERED_FD_ONLY: u32 = 1 << 15;
/// There is no array of the entries' numbers.
pub const SETUP_NO_SQARRAY: u32 = 1 << 16;

/// Operations of `io_uring_register`.
pub const REGISTER_FILES: u32 = 2;
/// The same.
pub const REGISTER_FILES_UPDATE: u32 = 6;
/// The same.
pub const REGISTER_PROBE: u32 = 8;
/// The same.
pub const REGISTER_FILES2: u32 = 13;
/// The same.
pub const REGISTER_FILES_UPDATE2: u32 = 14;
/// The same.
pub const REGISTER_RING_FDS: u32 = 20;

/// Numbers of operations.
const NOP: u8 = 0;
const SENDMSG: u8 = 9;
const RECVMSG: u8 = 10;
const ACCEPT: u8 = 13;
const CONNECT: u8 = 16;
const CLOSE: u8 = 19;
const FILES_UPDATE: u8 = 20;
const SEND: u8 = 26;
const RECV: u8 = 27;
const EPOLL_CTL: u8 = 29;
const SPLICE: u8 = 30;
const TEE: u8 = 33;
const SHUTDOWN: u8 = 34;
const SOCKET: u8 = 45;
const SEND_ZC: u8 = 47;
const SENDMSG_ZC: u8 = 48;
const BIND: u8 = 56;
const LISTEN: u8 = 57;
const RECV_ZC: u8 = 58;
const EPOLL_WAIT: u8 = 59;

/// Operations whose descriptor is a file, beside those above.
const OF_FILES: [u8; 13] = [
    1,  // READV
    2,  // WRITEV
    3,  // FSYNC
    4,  // READ_FIXED
    5,  // WRITE_FIXED
    6,  // POLL_ADD
    17, // FALLOCATE
    22, // READ
    23, // WRITE
    46, // URING_CMD
    49, // READ_MULTISHOT
    60, // READV_FIXED
    61, // WRITEV_FIXED
];

/// Operations that a program finds missing when it asks which there are.
const LACKING: [u8; 10] =
    [SENDMSG, RECVMSG, ACCEPT, CONNECT, SEND, RECV, SEND_ZC, SENDMSG_ZC, RECV_ZC, EPOLL_WAIT];

/// The descriptor is the number of a registered file.
const FIXED_FILE: u8 = 1 << 0;
/// The operation takes a buffer from a group.
const BUFFER_SELECT: u8 = 1 << 5;
/// The descriptor that `SPLICE` reads is a registered file's number.
const SPLICE_FIXED: u32 = 1 << 31;
/// `NOP` completes with the result in its length, since Linux 6.10.
const INJECT_RESULT: u32 = 1 << 0;

/// An entry of the submission queue, as Linux has it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    pub opcode: u8,
    pub flags: u8,
    pub priority: u16,
    pub fd: i32,
    pub offset: u64,
    pub address: u64,
    pub len: u32,
    pub op_flags: u32,
    pub user_data: u64,
    pub buffer: u16,
    pub personality: u16,
    pub other_fd: i32,
    pub more: [u64; 2],
}

/// What `io_uring_setup` returns of one side of a ring: places of words, as offsets.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Offsets {
    pub head: u32,
    pub tail: u32,
    pub mask: u32,
    pub entries: u32,
    pub flags: u32,
    pub dropped: u32,
    pub array: u32,
    _reserved: u32,
    pub user_address: u64,
}

/// What `io_uring_setup` is told, and returns.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Params {
    pub entries: u32,
    pub completions: u32,
    pub flags: u32,
    _thread: [u32; 2],
    _features: u32,
    _other: u32,
    _reserved: [u32; 3],
    pub submission: Offsets,
    pub completion: Offsets,
}

/// A ring of the program's.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    /// Its number.
    pub fd: RawFd,
    /// The rings and the entries, in this process; 0: not known.
    pub memory: [u64; 2],
    /// Their lengths if they are mapped here a second time, else 0.
    pub mapped: [usize; 2],
    /// What Linux has said of it.
    pub params: Params,
}

/// What becomes of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is Linux's.
    Linux,
    /// Linux closes a descriptor of its own.
    LinuxCloses(c_int),
    /// It completes with this error.
    Refused(c_int),
    /// A call that is made at once.
    Now(Call),
}

/// Calls that need no waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `close`.
    Close(c_int),
    /// `epoll_ctl`: the set, the operation, the descriptor, and where the event is.
    EpollCtl(c_int, c_int, c_int, u64),
    /// `shutdown`: the descriptor, and which way.
    Shutdown(c_int, c_int),
    /// `socket`: domain, kind, protocol.
    Socket(c_int, c_int, c_int),
    /// `bind`: the descriptor, the address and its length.
    Bind(c_int, u64, u32),
    /// `listen`: the descriptor and the backlog.
    Listen(c_int, c_int),
}

impl Entry {
    /// What becomes of it. `number` says what a descriptor is.
    pub fn fate(&self, number: impl Fn(c_int) -> Number) -> Fate {
        let is_fixed = self.flags & FIXED_FILE != 0;
        let own = if is_fixed { Number::Linux } else { number(self.fd) };
        if self.opcode == SOCKET {
            let is_internet = self.fd == libc::AF_INET || self.fd == libc::AF_INET6;
            return match (is_internet, self.other_fd) {
                (false, _) => Fate::Linux,
                (true, 0) => {
                    Fate::Now(Call::Socket(self.fd, self.offset as c_int, self.len as c_int))
                }
                // A registered file, which could not be IX's.
                (true, _) => Fate::Refused(libc::EOPNOTSUPP),
            };
        }
        let other = match self.opcode {
            EPOLL_CTL => number(self.offset as c_int),
            SPLICE | TEE if self.op_flags & SPLICE_FIXED == 0 => number(self.other_fd),
            _ => Number::Linux,
        };
        let names_file = OF_FILES.contains(&self.opcode)
            || LACKING.contains(&self.opcode)
            || [CLOSE, EPOLL_CTL, SPLICE, TEE, SHUTDOWN, BIND, LISTEN].contains(&self.opcode);
        if !names_file {
            return Fate::Linux;
        }
        match (own, other) {
            (Number::Linux, Number::Linux) if self.opcode == CLOSE && !is_fixed => {
                return Fate::LinuxCloses(self.fd);
            }
            (Number::Linux, Number::Linux) => return Fate::Linux,
            (Number::Kept | Number::Private, _) | (_, Number::Kept | Number::Private) => {
                return Fate::Refused(libc::EBADF);
            }
            _ => {}
        }
        match self.opcode {
            CLOSE => Fate::Now(Call::Close(self.fd)),
            EPOLL_CTL => {
                let (op, fd) = (self.len as c_int, self.offset as c_int);
                Fate::Now(Call::EpollCtl(self.fd, op, fd, self.address))
            }
            SHUTDOWN => Fate::Now(Call::Shutdown(self.fd, self.len as c_int)),
            BIND => Fate::Now(Call::Bind(self.fd, self.address, self.offset as u32)),
            LISTEN => Fate::Now(Call::Listen(self.fd, self.len as c_int)),
            _ => Fate::Refused(libc::EOPNOTSUPP),
        }
    }

    /// Whether it names files to be registered: where their descriptors are, and how many.
    pub fn registers(&self) -> Option<(u64, u32)> {
        (self.opcode == FILES_UPDATE).then_some((self.address, self.len))
    }

    /// The same entry, which does nothing and completes with this result.
    pub fn completed(&self, result: i32) -> Entry {
        Entry {
            opcode: NOP,
            flags: self.flags & !(FIXED_FILE | BUFFER_SELECT),
            fd: -1,
            len: result as u32,
            op_flags: INJECT_RESULT,
            user_data: self.user_data,
            personality: self.personality,
            ..Entry::default()
        }
    }
}

/// Whether a program is told that there is no such operation.
pub fn is_lacking(opcode: u8) -> bool {
    LACKING.contains(&opcode)
}

#[cfg(test)]
mod tests {
    use super::*;

    const IX: c_int = 7;
    const SET: c_int = 8;
    const KEPT: c_int = 9;
    const LINUX: c_int = 10;

    fn number(fd: c_int) -> Number {
        match fd {
            IX => Number::Socket(0),
            SET => Number::Epoll(0),
            KEPT => Number::Kept,
            _ => Number::Linux,
        }
    }

    fn fate(opcode: u8, fd: c_int) -> Fate {
        Entry { opcode, fd, ..Entry::default() }.fate(number)
    }

    #[test]
    fn an_entry_has_linuxs_layout() {
        assert_eq!((size_of::<Entry>(), size_of::<Params>()), (64, 120));
        assert_eq!(core::mem::offset_of!(Entry, user_data), 32);
        assert_eq!(core::mem::offset_of!(Entry, other_fd), 44);
    }

    #[test]
    fn what_waits_for_a_socket_of_ix_is_refused_and_linuxs_is_left_alone() {
        for opcode in OF_FILES.into_iter().chain(LACKING) {
            assert_eq!(fate(opcode, IX), Fate::Refused(libc::EOPNOTSUPP), "{opcode}");
            assert_eq!(fate(opcode, KEPT), Fate::Refused(libc::EBADF), "{opcode}");
            assert_eq!(fate(opcode, LINUX), Fate::Linux, "{opcode}");
            let fixed = Entry { opcode, fd: IX, flags: FIXED_FILE, ..Entry::default() };
            assert_eq!(fixed.fate(number), Fate::Linux, "{opcode}");
        }
        // A timeout's descriptor is no file.
        assert_eq!(fate(11, IX), Fate::Linux);
    }

    #[test]
    fn what_needs_no_waiting_is_done() {
        assert_eq!(fate(CLOSE, IX), Fate::Now(Call::Close(IX)));
        assert_eq!(fate(CLOSE, LINUX), Fate::LinuxCloses(LINUX));
        let add = Entry { opcode: EPOLL_CTL, fd: SET, offset: 3, len: 1, ..Entry::default() };
        assert_eq!(add.fate(number), Fate::Now(Call::EpollCtl(SET, 1, 3, 0)));
        // Linux's set, IX's socket; and both Linux's.
        let add = Entry { opcode: EPOLL_CTL, fd: 3, offset: IX as u64, ..Entry::default() };
        assert_eq!(add.fate(number), Fate::Now(Call::EpollCtl(3, 0, IX, 0)));
        assert_eq!(Entry { offset: 4, ..add }.fate(number), Fate::Linux);
        let socket = Entry { opcode: SOCKET, fd: libc::AF_INET, offset: 1, ..Entry::default() };
        assert_eq!(socket.fate(number), Fate::Now(Call::Socket(libc::AF_INET, 1, 0)));
        assert_eq!(Entry { fd: libc::AF_UNIX, ..socket }.fate(number), Fate::Linux);
        let direct = Entry { other_fd: 1, ..socket };
        assert_eq!(direct.fate(number), Fate::Refused(libc::EOPNOTSUPP));
        let splice = Entry { opcode: SPLICE, fd: 3, other_fd: IX, ..Entry::default() };
        assert_eq!(splice.fate(number), Fate::Refused(libc::EOPNOTSUPP));
    }

    #[test]
    fn a_completed_entry_keeps_what_its_completion_needs() {
        let before = Entry {
            opcode: RECV,
            flags: 0xff,
            fd: IX,
            user_data: 77,
            personality: 3,
            buffer: 5,
            address: 9,
            ..Entry::default()
        };
        let after = before.completed(-libc::EOPNOTSUPP);
        assert_eq!((after.opcode, after.flags, after.user_data), (NOP, !0x21, 77));
        assert_eq!((after.len as i32, after.op_flags), (-libc::EOPNOTSUPP, INJECT_RESULT));
        assert_eq!((after.personality, after.buffer, after.address), (3, 0, 0));
    }
}
