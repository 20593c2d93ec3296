//! io_uring, whose operations Linux makes by itself: what becomes of one that names a socket of IX.
//!
//! Linux would find the file that stands under the number of such a socket, which is not the
//! connection. So before Linux is told of new entries, those about descriptors of IX are looked at.
//! What needs no waiting is done at once, and the entry becomes one that does nothing and completes
//! with its result. What servers wait for is kept (`ffi/uring_waits.rs`). The others complete with
//! EOPNOTSUPP, at which programs go on with `epoll`.
use crate::fds::Entry as Number;
use core::ptr::with_exposed_provenance;
use core::sync::atomic::{AtomicU32, Ordering};
use libc::{POLLIN, POLLOUT, c_int};
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
const READV: u8 = 1;
const WRITEV: u8 = 2;
const POLL_ADD: u8 = 6;
const POLL_REMOVE: u8 = 7;
const SENDMSG: u8 = 9;
const RECVMSG: u8 = 10;
const ACCEPT: u8 = 13;
const ASYNC_CANCEL: u8 = 14;
const CONNECT: u8 = 16;
const CLOSE: u8 = 19;
const FILES_UPDATE: u8 = 20;
const READ: u8 = 22;
const WRITE: u8 = 23;
const SEND: u8 = 26;
const RECV: u8 = 27;
const EPOLL_CTL: u8 = 29;
const SPLICE: u8 = 30;
const TEE: u8 = 33;
const SHUTDOWN: u8 = 34;
const MSG_RING: u8 = 40;
const SOCKET: u8 = 45;
const SEND_ZC: u8 = 47;
const SENDMSG_ZC: u8 = 48;
const BIND: u8 = 56;
const LISTEN: u8 = 57;
const RECV_ZC: u8 = 58;
const EPOLL_WAIT: u8 = 59;

/// Operations whose descriptor is a file, beside those above.
const OF_FILES: [u8; 13] = [
    READV, WRITEV, 3, // FSYNC
    4, // READ_FIXED
    5, // WRITE_FIXED
    POLL_ADD, 17, // FALLOCATE
    READ, WRITE, 46, // URING_CMD
    49, // READ_MULTISHOT
    60, // READV_FIXED
    61, // WRITEV_FIXED
];

/// Operations that a program finds missing when it asks which there are.
const LACKING: [u8; 5] = [CONNECT, SEND_ZC, SENDMSG_ZC, RECV_ZC, EPOLL_WAIT];

/// The descriptor is the number of a registered file.
const FIXED_FILE: u8 = 1 << 0;
/// The next entry begins only when this one has ended, or when all before it have.
const ORDERED: u8 = 1 << 1 | LINKS;
/// The next entry depends on this one.
const LINKS: u8 = 1 << 2 | 1 << 3;
/// No completion tells of it, unless it fails.
const SKIP_SUCCESS: u8 = 1 << 6;
/// `ACCEPT` goes on after a connection.
const ACCEPT_MULTISHOT: u16 = 1 << 0;
/// `RECV` and `SEND` do not try before they wait.
const POLL_FIRST: u16 = 1 << 0;
/// `ASYNC_CANCEL` ends all that it finds; by their descriptor; whatever they are.
const CANCEL_ALL: u32 = 1 << 0;
const CANCEL_FD: u32 = 1 << 1;
const CANCEL_ANY: u32 = 1 << 2;
/// A message between rings has the completion's flags.
const PASSES_FLAGS: u32 = 1 << 1;
/// The operation goes on after this completion.
const COMPLETION_MORE: i32 = 1 << 1;
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

impl Ring {
    fn word(&self, offset: u32) -> u32 {
        let at = (self.memory[0] + u64::from(offset)) as usize;
        // SAFETY: the ring's memory is there as long as its number is open.
        unsafe { (*with_exposed_provenance::<AtomicU32>(at)).load(Ordering::Acquire) }
    }

    /// Completions that the program has not taken.
    pub fn ready(&self) -> u32 {
        let offsets = &self.params.completion;
        self.word(offsets.tail).wrapping_sub(self.word(offsets.head))
    }

    /// How many more there is room for, beside those that are on their way.
    pub fn room(&self, coming: usize) -> usize {
        (self.params.completions as usize).saturating_sub(self.ready() as usize + coming)
    }
}

/// How an operation waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waits {
    /// What `poll` is to report.
    pub events: i16,
    /// It takes bytes or connections (false), or gives bytes (true), which have an order.
    pub side: Option<bool>,
    /// It goes on when it has brought something.
    pub again: bool,
}

/// A completion for a ring of the program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    pub ring: RawFd,
    pub user_data: u64,
    pub result: c_int,
    /// More come of this operation.
    pub more: bool,
}

/// What an entry ends that waits here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancels {
    /// The operation with this number; whether all of them.
    Number(u64, bool),
    /// Those of this descriptor; whether all of them.
    Descriptor(c_int, bool),
    /// All.
    Any,
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
    /// It may have to wait.
    Waits(Waits),
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
    /// Operations that may wait for a socket of IX.
    pub const RECV: u8 = RECV;
    pub const READ: u8 = READ;
    pub const READV: u8 = READV;
    pub const RECVMSG: u8 = RECVMSG;
    pub const SEND: u8 = SEND;
    pub const WRITE: u8 = WRITE;
    pub const WRITEV: u8 = WRITEV;
    pub const SENDMSG: u8 = SENDMSG;
    pub const ACCEPT: u8 = ACCEPT;
    pub const POLL_ADD: u8 = POLL_ADD;

    /// Whether the entry behind this one depends on it.
    pub fn is_linked(&self) -> bool {
        self.flags & LINKS != 0
    }

    /// How it waits, if it is one that is kept until its socket is ready. Those in an order with
    /// others, with buffers of a group and with files in place of numbers are not.
    fn waits(&self) -> Option<Waits> {
        if self.flags & (ORDERED | FIXED_FILE | BUFFER_SELECT) != 0 {
            return None;
        }
        let plain = self.priority & !POLL_FIRST == 0;
        let (takes, gives) = (Some(false), Some(true));
        let (events, side, again) = match self.opcode {
            RECV | RECVMSG if plain => (POLLIN, takes, false),
            READ | READV => (POLLIN, takes, false),
            SEND | SENDMSG if plain => (POLLOUT, gives, false),
            WRITE | WRITEV => (POLLOUT, gives, false),
            ACCEPT if self.other_fd == 0 && self.priority & !ACCEPT_MULTISHOT == 0 => {
                (POLLIN, takes, self.priority != 0)
            }
            POLL_ADD if self.len == 0 => (self.op_flags as i16, None, false),
            _ => return None,
        };
        Some(Waits { events, side, again })
    }

    /// Which operations it ends, if that is what it does.
    pub fn cancels(&self) -> Option<Cancels> {
        let all = self.op_flags & CANCEL_ALL != 0;
        match self.opcode {
            POLL_REMOVE if self.len == 0 => Some(Cancels::Number(self.address, false)),
            ASYNC_CANCEL if self.op_flags & CANCEL_ANY != 0 => Some(Cancels::Any),
            ASYNC_CANCEL if self.op_flags & !(CANCEL_ALL | CANCEL_FD) != 0 => None,
            ASYNC_CANCEL if self.op_flags & CANCEL_FD != 0 => {
                Some(Cancels::Descriptor(self.fd, all))
            }
            ASYNC_CANCEL => Some(Cancels::Number(self.address, all)),
            _ => None,
        }
    }

    /// An entry that sends a completion to another ring, and has none itself.
    pub fn message(message: &Message) -> Entry {
        let Message { ring, user_data, result, more } = *message;
        let (op_flags, other_fd) = if more { (PASSES_FLAGS, COMPLETION_MORE) } else { (0, 0) };
        Entry {
            opcode: MSG_RING,
            flags: SKIP_SUCCESS,
            fd: ring,
            offset: user_data,
            len: result as u32,
            op_flags,
            other_fd,
            ..Entry::default()
        }
    }

    /// The same entry, which does nothing and of which no completion tells.
    pub fn unseen(&self) -> Entry {
        let entry = self.completed(0);
        Entry { flags: entry.flags | SKIP_SUCCESS, op_flags: 0, ..entry }
    }

    /// What becomes of it. `number` says what a descriptor is. `linked`: the entry before it has to
    /// end first.
    pub fn fate(&self, number: impl Fn(c_int) -> Number, linked: bool) -> Fate {
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
            || [SENDMSG, RECVMSG, ACCEPT, SEND, RECV].contains(&self.opcode)
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
        if let (Number::Socket(_), false, Some(waits)) = (own, linked, self.waits()) {
            return Fate::Waits(waits);
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
        Entry { opcode, fd, ..Entry::default() }.fate(number, false)
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
            let linked = Entry { opcode, fd: IX, ..Entry::default() }.fate(number, true);
            assert_eq!(linked, Fate::Refused(libc::EOPNOTSUPP), "{opcode}");
            let set = fate(opcode, SET);
            assert_eq!(set, Fate::Refused(libc::EOPNOTSUPP), "{opcode}");
            assert_eq!(fate(opcode, KEPT), Fate::Refused(libc::EBADF), "{opcode}");
            assert_eq!(fate(opcode, LINUX), Fate::Linux, "{opcode}");
            let fixed = Entry { opcode, fd: IX, flags: FIXED_FILE, ..Entry::default() };
            assert_eq!(fixed.fate(number, false), Fate::Linux, "{opcode}");
        }
        // A timeout's descriptor is no file.
        assert_eq!(fate(11, IX), Fate::Linux);
    }

    #[test]
    fn what_servers_wait_for_is_kept_unless_it_has_an_order() {
        let waits = |events, side, again| Fate::Waits(Waits { events, side, again });
        assert_eq!(fate(RECV, IX), waits(POLLIN, Some(false), false));
        assert_eq!(fate(WRITEV, IX), waits(POLLOUT, Some(true), false));
        let accept = Entry { opcode: ACCEPT, fd: IX, priority: 1, ..Entry::default() };
        assert_eq!(accept.fate(number, false), waits(POLLIN, Some(false), true));
        let poll = Entry { opcode: POLL_ADD, fd: IX, op_flags: 4, ..Entry::default() };
        assert_eq!(poll.fate(number, false), waits(POLLOUT, None, false));
        let refused = Fate::Refused(libc::EOPNOTSUPP);
        for wrong in [
            Entry { flags: 1 << 2, ..accept },
            Entry { flags: BUFFER_SELECT, ..accept },
            // A registered file, several polls, a buffer of a group for each message.
            Entry { other_fd: 1, ..accept },
            Entry { len: 1, ..poll },
            Entry { opcode: RECV, priority: 2, ..accept },
        ] {
            assert_eq!(wrong.fate(number, false), refused, "{wrong:?}");
        }
    }

    #[test]
    fn what_ends_others_says_which() {
        let end = Entry { opcode: ASYNC_CANCEL, fd: IX, address: 5, ..Entry::default() };
        assert_eq!(end.cancels(), Some(Cancels::Number(5, false)));
        let by_fd = Entry { op_flags: CANCEL_FD | CANCEL_ALL, ..end };
        assert_eq!(by_fd.cancels(), Some(Cancels::Descriptor(IX, true)));
        assert_eq!(Entry { op_flags: CANCEL_ANY, ..end }.cancels(), Some(Cancels::Any));
        assert_eq!(Entry { op_flags: 1 << 3, ..end }.cancels(), None, "a registered file");
        assert_eq!(Entry { opcode: RECV, ..end }.cancels(), None);
    }

    #[test]
    fn what_needs_no_waiting_is_done() {
        assert_eq!(fate(CLOSE, IX), Fate::Now(Call::Close(IX)));
        assert_eq!(fate(CLOSE, LINUX), Fate::LinuxCloses(LINUX));
        let add = Entry { opcode: EPOLL_CTL, fd: SET, offset: 3, len: 1, ..Entry::default() };
        assert_eq!(add.fate(number, false), Fate::Now(Call::EpollCtl(SET, 1, 3, 0)));
        // Linux's set, IX's socket; and both Linux's.
        let add = Entry { opcode: EPOLL_CTL, fd: 3, offset: IX as u64, ..Entry::default() };
        assert_eq!(add.fate(number, false), Fate::Now(Call::EpollCtl(3, 0, IX, 0)));
        assert_eq!(Entry { offset: 4, ..add }.fate(number, false), Fate::Linux);
        let socket = Entry { opcode: SOCKET, fd: libc::AF_INET, offset: 1, ..Entry::default() };
        assert_eq!(socket.fate(number, false), Fate::Now(Call::Socket(libc::AF_INET, 1, 0)));
        assert_eq!(Entry { fd: libc::AF_UNIX, ..socket }.fate(number, false), Fate::Linux);
        let direct = Entry { other_fd: 1, ..socket };
        assert_eq!(direct.fate(number, false), Fate::Refused(libc::EOPNOTSUPP));
        let splice = Entry { opcode: SPLICE, fd: 3, other_fd: IX, ..Entry::default() };
        assert_eq!(splice.fate(number, false), Fate::Refused(libc::EOPNOTSUPP));
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
