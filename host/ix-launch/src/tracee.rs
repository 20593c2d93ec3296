//! A process stopped at its first instruction, and what ptrace can do with it there.
use crate::error::{LaunchError, system};
use crate::exit::Exit;
use ix_entry::Auxv;
use ix_entry::elf::PAGE;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

/// `syscall`, as the low bytes of a word of code.
const SYSCALL_CODE: u64 = 0x050f;
/// User code segment of a 64-bit process.
const USER_CS_64: u64 = 0x33;

/// A stopped process that we trace. It must be used by the thread that started it: to Linux, that
/// thread is the tracer.
pub struct Tracee {
    pid: libc::pid_t,
    /// Registers at the entry point, as the kernel left them.
    entry: libc::user_regs_struct,
    /// The word of code at the entry point.
    code: u64,
    /// Its memory, for when tracing no longer gives the right to write it
    /// ([`Tracee::forbid_tracing`]); `None`: only tracing ever did.
    memory: Option<File>,
    /// Signals that came in between; they are sent again when the process goes on.
    deferred: Vec<i32>,
    /// The user and the group that it has become since its exec.
    user: Option<(u32, u32)>,
}

impl Tracee {
    /// Waits until the child that asked to be traced stops after its `execve`.
    pub fn at_exec(pid: libc::pid_t) -> Result<Tracee, LaunchError> {
        let mut deferred = Vec::new();
        while let Some(signal) = next_stop(pid)? {
            deferred.push(signal);
            ptrace(libc::PTRACE_CONT, pid, 0, 0).map_err(system("PTRACE_CONT"))?;
        }
        // From here on a broker that dies takes the half-planted process with it.
        let options = libc::PTRACE_O_EXITKILL as usize;
        ptrace(libc::PTRACE_SETOPTIONS, pid, 0, options).map_err(system("PTRACE_SETOPTIONS"))?;
        let entry = registers(pid).map_err(system("PTRACE_GETREGS"))?;
        let code = peek(pid, entry.rip).map_err(system("PTRACE_PEEKTEXT"))?;
        let memory = OpenOptions::new().write(true).open(format!("/proc/{pid}/mem")).ok();
        Ok(Tracee { pid, entry, code, memory, deferred, user: None })
    }

    /// From now on no other process of its user can trace it, open its memory or take its
    /// descriptors. Only root can continue to plant.
    pub fn forbid_tracing(&mut self) -> Result<(), LaunchError> {
        let args = [libc::PR_SET_DUMPABLE as u64, 0, 0, 0, 0, 0];
        self.syscall("prctl", libc::SYS_prctl, args).map(drop)
    }

    /// Whether it runs 64-bit code.
    pub fn is_64_bit(&self) -> bool {
        self.entry.cs == USER_CS_64
    }

    /// Address of the first instruction (of the dynamic loader, or of a static program).
    pub fn entry_rip(&self) -> u64 {
        self.entry.rip
    }

    /// The stack pointer there; it points to the argument count.
    pub fn entry_rsp(&self) -> u64 {
        self.entry.rsp
    }

    /// Auxiliary vector.
    pub fn auxv(&self) -> io::Result<Auxv> {
        let mut auxv = Auxv::from_bytes(&std::fs::read(format!("/proc/{}/auxv", self.pid))?);
        for kind in [libc::AT_UID, libc::AT_EUID, libc::AT_GID, libc::AT_EGID] {
            self.number_of(kind).into_iter().for_each(|number| auxv.set(kind, number));
        }
        Ok(auxv)
    }

    /// What an entry of the auxiliary vector says that depends on the user, if another one was
    /// that before.
    fn number_of(&self, kind: u64) -> Option<u64> {
        let (user, group) = self.user?;
        match kind {
            libc::AT_UID | libc::AT_EUID => Some(user.into()),
            libc::AT_GID | libc::AT_EGID => Some(group.into()),
            _ => None,
        }
    }

    /// Becomes this user: nobody can trace it any more ([`Tracee::forbid_tracing`]).
    pub fn become_user(&mut self, user: u32, group: u32) -> Result<(), LaunchError> {
        let [own, of_group] = [user, group].map(u64::from);
        let groups = [of_group, of_group, of_group, 0, 0, 0];
        self.syscall("setresgid", libc::SYS_setresgid, groups)?;
        self.syscall("setresuid", libc::SYS_setresuid, [own, own, own, 0, 0, 0])?;
        // Linux has taken both back. Whether it can be traced then is the system's to say
        // (`fs.suid_dumpable`).
        let dies = [libc::PR_SET_PDEATHSIG as u64, libc::SIGKILL as u64, 0, 0, 0, 0];
        self.syscall("prctl", libc::SYS_prctl, dies)?;
        self.forbid_tracing()?;
        self.has_no_rights().map_err(system("setresuid"))?;
        self.user = Some((user, group));
        self.tell_user().map_err(system("/proc/PID/mem"))
    }

    /// An error if it has kept rights of root, as under `SECBIT_NO_SETUID_FIXUP`.
    fn has_no_rights(&self) -> io::Result<()> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid))?;
        let kept = |line: &str| {
            let (name, rights) = line.split_once(':')?;
            let is_of_them = matches!(name, "CapPrm" | "CapEff" | "CapAmb");
            (is_of_them && u64::from_str_radix(rights.trim(), 16) != Ok(0)).then_some(())
        };
        match status.lines().find_map(kept) {
            None => Ok(()),
            Some(()) => Err(io::Error::from_raw_os_error(libc::EPERM)),
        }
    }

    /// Writes who it is into the auxiliary vector on its stack.
    fn tell_user(&self) -> io::Result<()> {
        let memory = File::open(format!("/proc/{}/mem", self.pid))?;
        let word = |at: u64| {
            let mut bytes = [0; 8];
            memory.read_exact_at(&mut bytes, at).map(|()| u64::from_ne_bytes(bytes))
        };
        // Behind the arguments and the environment, each with a null at its end.
        let arguments = word(self.entry.rsp)?;
        let mut at = self.entry.rsp + 8 * (arguments + 2);
        while word(at)? != 0 {
            at += 8;
        }
        at += 8;
        loop {
            let kind = word(at)?;
            if kind == libc::AT_NULL {
                return Ok(());
            }
            if let Some(number) = self.number_of(kind) {
                self.write(at + 8, &number.to_ne_bytes())?;
            }
            at += 16;
        }
    }

    /// Its mappings, as Linux lists them.
    pub fn maps(&self) -> io::Result<String> {
        std::fs::read_to_string(format!("/proc/{}/maps", self.pid))
    }

    /// Lets the process make system calls: for that the code at its entry point is replaced until
    /// [`Tracee::restore_code`].
    pub fn borrow_code(&mut self) -> Result<(), LaunchError> {
        self.write_code((self.code & !0xffff) | SYSCALL_CODE)
    }

    /// Puts back what [`Tracee::borrow_code`] replaced.
    pub fn restore_code(&mut self) -> Result<(), LaunchError> {
        self.write_code(self.code)
    }

    fn write_code(&self, word: u64) -> Result<(), LaunchError> {
        let (poked, rip) = (poke(self.pid, self.entry.rip, word), self.entry.rip);
        let written = match (poked, &self.memory) {
            (Err(_), Some(memory)) => memory.write_all_at(&word.to_ne_bytes(), rip),
            (poked, _) => poked,
        };
        written.map_err(system("PTRACE_POKETEXT"))
    }

    /// Has the process make one system call. `what` names it in the error.
    pub fn syscall(
        &mut self,
        what: &'static str,
        number: libc::c_long,
        args: [u64; 6],
    ) -> Result<u64, LaunchError> {
        let mut regs = self.entry;
        regs.rax = number as u64;
        // No system call is being restarted.
        regs.orig_rax = u64::MAX;
        [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9] = args;
        set_registers(self.pid, &regs).map_err(system("PTRACE_SETREGS"))?;
        loop {
            ptrace(libc::PTRACE_SINGLESTEP, self.pid, 0, 0).map_err(system("PTRACE_SINGLESTEP"))?;
            match next_stop(self.pid)? {
                None => break,
                // The step was not made yet: the signal came first.
                Some(signal) => self.deferred.push(signal),
            }
        }
        let result = registers(self.pid).map_err(system("PTRACE_GETREGS"))?.rax as i64;
        if (-4095..0).contains(&result) {
            let error = io::Error::from_raw_os_error(-result as i32);
            return Err(LaunchError::System { what, error });
        }
        Ok(result as u64)
    }

    /// Writes to memory that is mapped writable.
    pub fn write(&self, addr: u64, bytes: &[u8]) -> io::Result<()> {
        let local =
            libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let remote = libc::iovec { iov_base: addr as *mut libc::c_void, iov_len: bytes.len() };
        // SAFETY: the local side is a slice that is only read; the kernel checks the remote side.
        let n = unsafe { libc::process_vm_writev(self.pid, &local, 1, &remote, 1, 0) };
        match n {
            n if n == bytes.len() as isize => Ok(()),
            n if n < 0 => Err(io::Error::last_os_error()),
            _ => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        }
    }

    /// Zeroes memory from `addr` to the end of its page.
    pub fn zero_to_page_end(&self, addr: u64) -> io::Result<()> {
        let bytes = (PAGE - addr % PAGE) % PAGE;
        if bytes == 0 { Ok(()) } else { self.write(addr, &[0; PAGE as usize][..bytes as usize]) }
    }

    /// Lets the process go, untraced, at `rip` with stack pointer `rsp` and all else as the kernel
    /// leaves it to a new program.
    pub fn detach(self, rip: u64, rsp: u64) -> Result<(), LaunchError> {
        let mut regs = self.entry;
        regs.rip = rip;
        regs.rsp = rsp;
        regs.orig_rax = u64::MAX;
        set_registers(self.pid, &regs).map_err(system("PTRACE_SETREGS"))?;
        for &signal in &self.deferred {
            // Our child is not waited for yet, so the number is its own.
            let _ = ix_sys::process::kill(self.pid, signal);
        }
        ptrace(libc::PTRACE_DETACH, self.pid, 0, 0).map_err(system("PTRACE_DETACH"))
    }
}

/// Waits for the next stop: `None` for the trap we wait for, else the signal that wants delivery.
fn next_stop(pid: libc::pid_t) -> Result<Option<i32>, LaunchError> {
    let mut status = 0;
    loop {
        // SAFETY: fills a local.
        let answer = unsafe { libc::waitpid(pid, &mut status, libc::__WALL) };
        if answer == pid {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(LaunchError::System { what: "waitpid", error });
        }
    }
    if let Some(exit) = Exit::from_wait_status(status) {
        return Err(LaunchError::Died(exit));
    }
    match libc::WSTOPSIG(status) {
        libc::SIGTRAP => Ok(None),
        signal => Ok(Some(signal)),
    }
}

fn registers(pid: libc::pid_t) -> io::Result<libc::user_regs_struct> {
    // SAFETY: all-zero bytes are a valid value of this struct of numbers.
    let mut regs: libc::user_regs_struct = unsafe { core::mem::zeroed() };
    ptrace(libc::PTRACE_GETREGS, pid, 0, (&raw mut regs) as usize)?;
    Ok(regs)
}

fn set_registers(pid: libc::pid_t, regs: &libc::user_regs_struct) -> io::Result<()> {
    ptrace(libc::PTRACE_SETREGS, pid, 0, (&raw const *regs) as usize)
}

/// A request without an answer. `data` is a number, or the address of a struct that fits `request`.
fn ptrace(request: libc::c_uint, pid: libc::pid_t, addr: usize, data: usize) -> io::Result<()> {
    // SAFETY: the callers in this file pass, where the request has one, the address of a live
    // struct of the right type.
    let rc = unsafe { libc::ptrace(request, pid, addr, data) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The C library's wrapper answers the word itself, so errors must be told by errno.
fn peek(pid: libc::pid_t, addr: u64) -> io::Result<u64> {
    // SAFETY: errno is this thread's own; PEEKTEXT takes no pointer of ours.
    unsafe {
        *libc::__errno_location() = 0;
        let word = libc::ptrace(libc::PTRACE_PEEKTEXT, pid, addr as usize, 0usize);
        match *libc::__errno_location() {
            0 => Ok(word as u64),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

fn poke(pid: libc::pid_t, addr: u64, word: u64) -> io::Result<()> {
    ptrace(libc::PTRACE_POKETEXT, pid, addr as usize, word as usize)
}
