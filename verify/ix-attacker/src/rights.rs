//! Attacks on a dataplane in a process of its own by the rights that Linux gives its program: as
//! root of a user namespace, as the machine's root (whom nothing stops, which shows that the attack
//! is one), and as an unprivileged child of that one.
use crate::call;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::ops::RangeInclusive;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Where `ix attack` mounts a file system.
const MOUNT: &str = "/proc";
/// An unprivileged user.
const NOBODY: u64 = 65534;
/// Those that dataplanes have.
const USERS: RangeInclusive<u64> = 61184..=65519;
const CLONE_NEWUSER: u64 = libc::CLONE_NEWUSER as u64;
const CLONE_NEWNS: u64 = libc::CLONE_NEWNS as u64;

/// As whom the attacks are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whom {
    /// As the program itself.
    Program,
    /// As the program itself, which is the machine's root. Nothing stops it, so its attacks do no
    /// harm.
    Root,
    /// As an unprivileged child of that one.
    Child,
}

impl Whom {
    /// By the word on the command line.
    pub fn named(word: &str) -> Option<Whom> {
        [("program", Whom::Program), ("root", Whom::Root), ("child", Whom::Child)]
            .into_iter()
            .find_map(|(name, whom)| (name == word).then_some(whom))
    }
}

/// What is attacked.
#[derive(Clone, Debug)]
pub struct Aim {
    whom: Whom,
    /// The process of the dataplane, and of its broker.
    dataplane: u64,
    broker: u64,
    /// Its tap.
    link: String,
}

impl Aim {
    /// The dataplane of this program, whose tap is `link`.
    pub fn find(whom: Whom, link: &str) -> Result<Aim, String> {
        // SAFETY: no arguments.
        let broker = unsafe { libc::getppid() };
        let folder = fs::read_dir("/proc").map_err(|e| e.to_string())?;
        let mut pids = folder.flatten().filter_map(|e| e.file_name().to_str()?.parse::<u64>().ok());
        let has = |pid: u64, line: &str| {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            status.lines().any(|other| other == line)
        };
        let is_it =
            |pid: &u64| has(*pid, "Name:\tix-dataplane") && has(*pid, &format!("PPid:\t{broker}"));
        let dataplane = pids.find(is_it).ok_or("there is no process of a dataplane")?;
        Ok(Aim { whom, dataplane, broker: broker as u64, link: link.to_owned() })
    }

    /// Becomes whom the attack is made as.
    pub fn become_whom(&self) -> Result<(), String> {
        if self.whom == Whom::Child {
            call(libc::SYS_setgroups, [0; 6])?;
            call(libc::SYS_setresgid, [NOBODY, NOBODY, NOBODY, 0, 0, 0])?;
            call(libc::SYS_setresuid, [NOBODY, NOBODY, NOBODY, 0, 0, 0])?;
        }
        Ok(())
    }

    /// What would do harm, or for the machine's root what does none.
    fn harm(&self, harmful: u64, harmless: u64) -> u64 {
        if self.whom == Whom::Root { harmless } else { harmful }
    }

    fn pidfd(&self) -> Result<u64, String> {
        call(libc::SYS_pidfd_open, [self.dataplane, 0, 0, 0, 0, 0])
    }

    /// Reads a byte of a file of the dataplane in /proc.
    fn read(&self, name: &str) -> Result<(), String> {
        read_byte(&format!("/proc/{}/{name}", self.dataplane))
    }

    /// Opens a folder of the dataplane in /proc.
    fn list(&self, name: &str) -> Result<(), String> {
        let mut entries =
            fs::read_dir(format!("/proc/{}/{name}", self.dataplane)).map_err(|e| e.to_string())?;
        entries.next().ok_or("it is empty")?.map(drop).map_err(|e| e.to_string())
    }
}

/// `Ok` if it succeeded.
type Attack = fn(&Aim) -> Result<(), String>;

/// All attacks: name, and what is tried.
pub const ATTACKS: &[(&str, Attack)] = &[
    ("/proc/PID/mem", |aim| {
        let path = format!("/proc/{}/mem", aim.dataplane);
        let file = OpenOptions::new().read(true).write(true).open(path);
        file.map(drop).map_err(|e| e.to_string())
    }),
    ("/proc/PID/maps", |aim| aim.read("maps")),
    ("/proc/PID/environ", |aim| aim.read("environ")),
    ("/proc/PID/auxv", |aim| aim.read("auxv")),
    ("/proc/PID/syscall", |aim| aim.read("syscall")),
    ("/proc/PID/pagemap", |aim| {
        File::open(format!("/proc/{}/pagemap", aim.dataplane)).map(drop).map_err(|e| e.to_string())
    }),
    ("/proc/PID/exe", |aim| aim.read("exe")),
    ("/proc/PID/fd/0", |aim| {
        File::open(format!("/proc/{}/fd/0", aim.dataplane)).map(drop).map_err(|e| e.to_string())
    }),
    ("/proc/PID/root", |aim| aim.list("root")),
    ("/proc/PID/cwd", |aim| aim.list("cwd")),
    ("/proc/PID/map_files", |aim| aim.list("map_files")),
    ("ptrace: attach", |aim| {
        trace(libc::PTRACE_ATTACH, aim.dataplane)?;
        let mut status = 0i32;
        let status = &raw mut status as u64;
        call(libc::SYS_wait4, [aim.dataplane, status, libc::__WALL as u64, 0, 0, 0])?;
        trace(libc::PTRACE_DETACH, aim.dataplane)
    }),
    ("ptrace: seize", |aim| trace(libc::PTRACE_SEIZE, aim.dataplane)),
    ("process_vm_readv", |aim| {
        let (mut word, address) = (0u64, ix_proto::crossing::READ_AT);
        let [local, remote] = [&raw mut word as u64, address as u64].map(|base| libc::iovec {
            iov_base: base as *mut libc::c_void,
            iov_len: size_of::<u64>(),
        });
        let (local, remote) = (&raw const local as u64, &raw const remote as u64);
        call(libc::SYS_process_vm_readv, [aim.dataplane, local, 1, remote, 1, 0]).map(drop)
    }),
    ("pidfd_getfd", |aim| call(libc::SYS_pidfd_getfd, [aim.pidfd()?, 0, 0, 0, 0, 0]).map(drop)),
    ("process_madvise", |aim| {
        let base = ix_proto::crossing::READ_AT as *mut libc::c_void;
        let part = libc::iovec { iov_base: base, iov_len: 4096 };
        let (part, advice) = (&raw const part as u64, libc::MADV_COLD as u64);
        call(libc::SYS_process_madvise, [aim.pidfd()?, part, 1, advice, 0, 0]).map(drop)
    }),
    ("kill: SIGKILL", |aim| kill(aim, libc::SIGKILL)),
    ("kill: SIGSTOP", |aim| kill(aim, libc::SIGSTOP)),
    ("pidfd_send_signal", |aim| {
        let signal = aim.harm(libc::SIGKILL as u64, 0);
        call(libc::SYS_pidfd_send_signal, [aim.pidfd()?, signal, 0, 0, 0, 0]).map(drop)
    }),
    ("setpriority", |aim| {
        let to = aim.harm(19, 0);
        call(libc::SYS_setpriority, [libc::PRIO_PROCESS as u64, aim.dataplane, to, 0, 0, 0])
            .map(drop)
    }),
    ("ioprio_set", |aim| {
        // The class idle, or the usual one.
        let to = aim.harm(3 << 13, 2 << 13 | 4);
        let whose = 1;
        call(libc::SYS_ioprio_set, [whose, aim.dataplane, to, 0, 0, 0]).map(drop)
    }),
    ("sched_setaffinity", |aim| {
        let mut set = [0u8; 128];
        let (bytes, at) = (set.len() as u64, set.as_mut_ptr() as u64);
        let n = call(libc::SYS_sched_getaffinity, [aim.dataplane, bytes, at, 0, 0, 0])?;
        call(libc::SYS_sched_setaffinity, [aim.dataplane, n, at, 0, 0, 0]).map(drop)
    }),
    ("sched_setscheduler", |aim| {
        let (priority, policy) = (0i32, aim.harm(libc::SCHED_IDLE as u64, 0));
        let priority = &raw const priority as u64;
        call(libc::SYS_sched_setscheduler, [aim.dataplane, policy, priority, 0, 0, 0]).map(drop)
    }),
    ("prlimit", |aim| {
        let mut limit = [0u64; 2];
        let (what, to) = (u64::from(libc::RLIMIT_NOFILE), limit.as_mut_ptr() as u64);
        call(libc::SYS_prlimit64, [aim.dataplane, what, 0, to, 0, 0]).map(drop)
    }),
    ("setresuid to its user", |_| {
        some_user(|user| call(libc::SYS_setresuid, [user, user, user, 0, 0, 0]))
    }),
    ("setresgid to its group", |_| {
        some_user(|group| call(libc::SYS_setresgid, [group, group, group, 0, 0, 0]))
    }),
    ("chown to its user", |_| {
        let file = call(libc::SYS_memfd_create, [c"ix".as_ptr() as u64, 0, 0, 0, 0, 0])?;
        some_user(|user| call(libc::SYS_fchown, [file, user, user, 0, 0, 0]))
    }),
    ("setns to its network", |aim| {
        call(libc::SYS_setns, [aim.pidfd()?, libc::CLONE_NEWNET as u64, 0, 0, 0, 0]).map(drop)
    }),
    ("a user namespace that has its user", namespace_with_its_user),
    ("a procfs of its own", procfs),
    ("kcmp", |aim| {
        const KCMP_VM: u64 = 1;
        // SAFETY: no arguments.
        let own = unsafe { libc::getpid() } as u64;
        call(libc::SYS_kcmp, [own, aim.dataplane, KCMP_VM, 0, 0, 0]).map(drop)
    }),
    ("perf_event_open", |aim| {
        // A counter of page faults, by software: type, size, and which.
        let mut event = [0u64; 16];
        (event[0], event[1]) = (1 | 128 << 32, 2);
        let (at, any, none) = (event.as_ptr() as u64, u64::MAX, u64::MAX);
        call(libc::SYS_perf_event_open, [at, aim.dataplane, any, none, 0, 0]).map(drop)
    }),
    ("a queue of its tap", |aim| {
        let queue = OpenOptions::new().read(true).write(true).open("/dev/net/tun");
        let queue = queue.map_err(|e| e.to_string())?;
        let mut request = [0u8; 40];
        let name = aim.link.as_bytes();
        request.get_mut(..name.len()).ok_or("a long name")?.copy_from_slice(name);
        let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_MULTI_QUEUE | libc::IFF_VNET_HDR;
        request[16..18].copy_from_slice(&(flags as u16).to_ne_bytes());
        let to = request.as_mut_ptr() as u64;
        call(libc::SYS_ioctl, [queue.as_raw_fd() as u64, libc::TUNSETIFF, to, 0, 0, 0]).map(drop)
    }),
    ("its packets, by a packet socket", |_| {
        let (family, kind) = (libc::AF_PACKET as u64, libc::SOCK_RAW as u64);
        call(libc::SYS_socket, [family, kind, u64::from(0x0003u16.to_be()), 0, 0, 0]).map(drop)
    }),
    ("the broker's memory", |aim| {
        let path = format!("/proc/{}/mem", aim.broker);
        File::open(path).map(drop).map_err(|e| e.to_string())
    }),
    ("ptrace of the broker", |aim| trace(libc::PTRACE_SEIZE, aim.broker)),
];

/// Tries all users that dataplanes can have: a program need not see which one it is.
fn some_user(attack: impl Fn(u64) -> Result<u64, String>) -> Result<(), String> {
    let mut outcome = Err(String::new());
    for user in USERS {
        outcome = attack(user);
        if outcome.is_ok() {
            break;
        }
    }
    outcome.map(drop)
}

fn read_byte(path: &str) -> Result<(), String> {
    let mut byte = [0];
    let file = File::open(path).and_then(|mut file| file.read_exact(&mut byte));
    file.map_err(|e| e.to_string())
}

fn trace(request: libc::c_uint, pid: u64) -> Result<(), String> {
    call(libc::SYS_ptrace, [u64::from(request), pid, 0, 0, 0, 0]).map(drop)
}

fn kill(aim: &Aim, signal: i32) -> Result<(), String> {
    call(libc::SYS_kill, [aim.dataplane, aim.harm(signal as u64, 0), 0, 0, 0, 0]).map(drop)
}

/// A namespace below this one that has the dataplane's user.
fn namespace_with_its_user(_: &Aim) -> Result<(), String> {
    let mut ends = [0i32; 2];
    let to = ends.as_mut_ptr() as u64;
    call(libc::SYS_pipe2, [to, 0, 0, 0, 0, 0])?;
    // SAFETY: the child makes system calls and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let made = call(libc::SYS_unshare, [CLONE_NEWUSER, 0, 0, 0, 0, 0]);
        // SAFETY: a byte of a literal; then waits for its end, which its alarm brings at last.
        unsafe {
            libc::write(ends[1], if made.is_ok() { c"+" } else { c"-" }.as_ptr().cast(), 1);
            libc::alarm(10);
            libc::pause();
            libc::_exit(0);
        }
    }
    let mut word = [0u8];
    let from = word.as_mut_ptr() as u64;
    let came = call(libc::SYS_read, [ends[0] as u64, from, 1, 0, 0, 0]);
    let all = format!("0 {} {}", USERS.start(), USERS.end() - USERS.start() + 1);
    let map = fs::write(format!("/proc/{child}/uid_map"), all);
    // SAFETY: a child that was not waited for.
    unsafe { libc::kill(child, libc::SIGKILL) };
    came?;
    if word != *b"+" {
        return Err("no namespace can be made".to_owned());
    }
    map.map_err(|e| e.to_string())
}

/// Mounts another /proc, and looks for the dataplane there.
fn procfs(aim: &Aim) -> Result<(), String> {
    let flags = if aim.whom == Whom::Root { CLONE_NEWNS } else { CLONE_NEWUSER | CLONE_NEWNS };
    call(libc::SYS_unshare, [flags, 0, 0, 0, 0, 0])?;
    let root = c"/".as_ptr() as u64;
    let private = libc::MS_REC | libc::MS_PRIVATE;
    call(libc::SYS_mount, [0, root, 0, private, 0, 0])?;
    let target = CString::new(MOUNT).map_err(|_| "a zero")?;
    let (kind, target) = (c"proc".as_ptr() as u64, target.as_ptr() as u64);
    call(libc::SYS_mount, [kind, target, kind, 0, 0, 0])?;
    let path = Path::new(MOUNT).join(aim.dataplane.to_string()).join("mem");
    File::open(path).map(drop).map_err(|e| e.to_string())
}
