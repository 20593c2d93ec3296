//! The second line behind Syscall User Dispatch: the kernel refuses system calls that neither side
//! ever needs, in this process and all that it starts.
use super::policy::TERMINAL_INPUT;
use crate::seccomp::{
    self, ARCH, ARCH_I386, ARCH_X86_64, NUMBER, X32, answer, argument, fails, jump, load,
};
use std::io;

/// Flags of `clone` for namespaces. A user namespace would bring capabilities.
const NAMESPACES: u32 = 0x7e02_0000;

/// System calls that get `EPERM`.
const DENIED: [i64; 40] = [
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pkey_alloc,
    libc::SYS_pkey_free,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_setup,
    libc::SYS_userfaultfd,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_modify_ldt,
    libc::SYS_remap_file_pages,
    libc::SYS_rseq,
    libc::SYS_set_robust_list,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    SYS_OPEN_TREE_ATTR,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_kexec_load,
    libc::SYS_move_pages,
];

/// `open_tree_attr`, Linux 6.15.
const SYS_OPEN_TREE_ATTR: i64 = 467;

/// The only 32-bit call: it sets a thread's identity.
const I386_SET_THREAD_AREA: u32 = 243;
fn program() -> Vec<libc::sock_filter> {
    let allow = answer(libc::SECCOMP_RET_ALLOW);
    let deny = fails(libc::EPERM);
    let absent = fails(libc::ENOSYS);
    let mut program = vec![
        load(ARCH),
        jump(libc::BPF_JEQ, ARCH_X86_64, 5, 0),
        jump(libc::BPF_JEQ, ARCH_I386, 0, 3),
        load(NUMBER),
        jump(libc::BPF_JEQ, I386_SET_THREAD_AREA, 0, 1),
        allow,
        deny,
        load(NUMBER),
        jump(libc::BPF_JGE, X32, 0, 1),
        deny,
    ];
    for number in DENIED {
        program.push(jump(libc::BPF_JEQ, number as u32, 0, 1));
        program.push(deny);
    }
    let [sti, linux] = TERMINAL_INPUT;
    program.extend([
        // Its flags cannot be checked here; the C library has another way.
        jump(libc::BPF_JEQ, libc::SYS_clone3 as u32, 0, 1),
        absent,
        jump(libc::BPF_JEQ, libc::SYS_clone as u32, 0, 4),
        load(argument(0)),
        jump(libc::BPF_JSET, NAMESPACES, 0, 1),
        deny,
        allow,
        jump(libc::BPF_JEQ, libc::SYS_ioctl as u32, 0, 4),
        load(argument(1)),
        jump(libc::BPF_JEQ, sti, 1, 0),
        jump(libc::BPF_JEQ, linux, 0, 1),
        deny,
        allow,
    ]);
    program
}

/// Installs the filter on the calling thread, which is the only one.
pub fn install() -> io::Result<()> {
    seccomp::install(program(), 0)
}
