//! Why there is no device: each message says in one line what, why, and what to do.
use crate::program_owner::owner_on;
use ix_nic::MTU_MAX;
use std::fmt;
use std::io;

/// Why a device cannot be opened.
#[derive(Debug)]
#[allow(missing_docs)] // The messages say what each field is.
pub enum OpenError {
    /// No interface of this name.
    NoSuchInterface { name: String },
    /// The caller lacks a privilege.
    Privilege { what: &'static str, name: String, needs: &'static str },
    /// Another program uses the interface.
    InUse { name: String },
    /// Something of this name exists and is not what the device needs.
    WrongKind { name: String, needs: &'static str },
    /// There are more elastic threads than the interface has queues.
    TooManyQueues { name: String, asked: usize, has: usize },
    /// The interface's frames are longer than ours.
    MtuTooLarge { name: String, mtu: usize, largest: usize },
    /// The interface takes no packets that are as long as asked for.
    MtuTooSmall { name: String, mtu: usize, asked: usize },
    /// The interface is down.
    Down { name: String },
    /// There is no address, so no packet would be for the dataplane.
    NoAddress { name: String },
    /// Another program's XDP program is on the interface; its owner, if that is known.
    ProgramPresent { name: String, owner: Option<String> },
    /// Runs have Linux's address there, and its XDP program.
    SharedByRuns { name: String },
    /// The driver refuses the mode that the user asked for.
    ModeRefused { name: String, mode: &'static str, source: io::Error },
    /// The device cannot do this, and why: for whatever only one kind of device knows.
    Refused { action: &'static str, name: String, why: String },
    /// The kernel does not accept a program that long.
    TooManyFilters { action: &'static str, name: String },
    /// Another error of the system.
    System { action: &'static str, name: String, source: io::Error },
}

impl OpenError {
    /// The interface has an XDP program already.
    pub(crate) fn program_present(name: &str) -> OpenError {
        let owner = owner_on(name).map(|owner| owner.to_string());
        OpenError::ProgramPresent { name: name.to_owned(), owner }
    }

    pub(crate) fn system(action: &'static str, name: &str, source: io::Error) -> OpenError {
        match source.raw_os_error() {
            Some(libc::ENODEV) => OpenError::NoSuchInterface { name: name.to_owned() },
            _ => OpenError::System { action, name: name.to_owned(), source },
        }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use OpenError::*;
        match self {
            NoSuchInterface { name } => {
                write!(f, "there is no interface `{name}`; `ip link` lists the interfaces")
            }
            Privilege { what, name, needs } => {
                write!(f, "cannot {what} for `{name}`: needs {needs}; run as root")
            }
            InUse { name } => {
                write!(f, "`{name}` is in use by another program; stop it or use another name")
            }
            WrongKind { name, needs } => {
                write!(f, "`{name}` exists and is not {needs}; use another name")
            }
            TooManyQueues { name, has: 0, .. } => write!(
                f,
                "`{name}` has no queues: it is a tap or a tunnel that no process has open; start \
                 the process that it belongs to, or use another interface"
            ),
            TooManyQueues { name, asked, has } => {
                let plural = if *has == 1 { "" } else { "s" };
                write!(
                    f,
                    "`{name}` has {has} queue{plural} for {asked} elastic threads; give {has} "
                )?;
                write!(f, "hardware thread{plural} with --cpus, or more queues with ")?;
                channels(f, name, *asked)
            }
            MtuTooLarge { name, mtu, largest } => {
                write!(f, "the MTU of `{name}` is {mtu}, at most {largest}; ")?;
                write!(f, "`ip link set {name} mtu {largest}`")?;
                match *largest == MTU_MAX {
                    true => Ok(()),
                    false => write!(f, ", or `--nic {name},mtu=1500` if nobody sends longer ones"),
                }
            }
            MtuTooSmall { name, mtu, asked } => {
                write!(f, "the MTU of `{name}` is {mtu}, less than mtu={asked}; ")?;
                write!(f, "`ip link set {name} mtu {asked}`")
            }
            Down { name } => write!(f, "`{name}` is down; `ip link set {name} up`"),
            NoAddress { name } => {
                write!(
                    f,
                    "`{name}` is shared with Linux, so the dataplane needs an address; give one"
                )
            }
            ProgramPresent { name, owner: Some(owner) } => {
                write!(f, "another XDP program is attached to `{name}`, that of {owner}; stop it")
            }
            SharedByRuns { name } => {
                write!(
                    f,
                    "other runs share the address of Linux on `{name}`; share it too, without "
                )?;
                write!(f, "--addr, or end them")
            }
            ProgramPresent { name, owner: None } => {
                write!(f, "another XDP program is attached to `{name}`, and no process has it; ")?;
                write!(f, "`ip link set {name} xdp off`")
            }
            ModeRefused { name, mode, source } => {
                write!(f, "`{name}` refuses mode={mode} ({source}); remove mode=")
            }
            TooManyFilters { action, name } => {
                write!(
                    f,
                    "cannot {action} `{name}`: the filters make a program longer than the kernel "
                )?;
                write!(f, "accepts; use fewer filters, or shorter lists")
            }
            Refused { action, name, why } => write!(f, "cannot {action} `{name}`: {why}"),
            System { action, name, source } => write!(f, "cannot {action} `{name}`: {source}"),
        }
    }
}

/// Writes the command that sets the number of queues.
fn channels(f: &mut fmt::Formatter<'_>, name: &str, queues: usize) -> fmt::Result {
    write!(f, "`ethtool -L {name} combined {queues}` (veth: `rx {queues} tx {queues}`)")
}

impl std::error::Error for OpenError {}

/// What a call of BPF's failed by.
pub(crate) fn bpf_error(what: &'static str, name: &str, error: std::io::Error) -> OpenError {
    match error.raw_os_error() {
        Some(libc::EPERM) => OpenError::Privilege {
            what,
            name: name.to_owned(),
            needs: "CAP_BPF and CAP_NET_ADMIN outside of any user namespace",
        },
        Some(libc::E2BIG) => OpenError::TooManyFilters { action: what, name: name.to_owned() },
        _ => OpenError::system(what, name, error),
    }
}
