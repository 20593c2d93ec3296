//! The library that gives unmodified programs sockets on IX, and the decision when to use it.
use crate::args::{Posix, Syscalls};
use crate::settings::Settings;
use crate::sharing::Sharing;
use ix_abi::OWN_FILE_BYTES;
use ix_broker::low_ports::LowPorts;
use ix_broker::own_calls::OwnCallsPage;
use ix_broker::program_root::ProgramRoot;
use ix_broker::run::Preload;
use ix_entry::ReservedFds;
use ix_launch::{memfd, seal_size, unchanging};
use ix_report::domain::Domain;
use ix_report::problem::{Problem, Result, STATUS_NOT_EXECUTABLE};
use ix_sys::program_file::{self, Elf, PT_INTERP, PT_NOTE};
use ix_sys::{process, say};
use ix_wire::IpAddr;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The library's file, for the dynamic loader.
static LIBRARY: &[u8] = include_bytes!(env!("IX_POSIX_LIBRARY"));

/// Bytes of a program's file that are read to classify it: the headers and the notes behind them.
const HEAD_BYTES: u64 = 64 << 10;
/// Most elastic threads that the library uses (`ELASTIC_THREADS_MAX` in libix-posix).
const THREADS_MAX: usize = 64;

/// What a program's file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    /// It was written for IX.
    Native,
    /// The dynamic loader loads it.
    Dynamic,
    /// The dynamic loader loads it, but it calls Linux by instructions of its own.
    Go,
    /// It is linked statically.
    Static,
    /// It is for another machine.
    Foreign,
    /// It is not an ELF file that can be read; the kernel decides what to do with it.
    Unknown,
}

/// Decides whether the program gets the library, and prepares that.
///
/// `root`: binds low ports for it.
pub fn preload(
    (how, syscalls): (Posix, Syscalls),
    program: &Path,
    settings: &Settings,
    domain: Domain,
    (root, sharing): (Option<&ProgramRoot>, Option<&Sharing>),
) -> Result<Preload> {
    let kind = look_at(program);
    let name = program.display();
    let wanted = match (how, kind) {
        (_, Program::Foreign) => {
            return Err(Problem::new(
                format!("cannot run {name}"),
                "the program is not for x86-64",
            )
            .mend("build the program for x86-64")
            .with_status(STATUS_NOT_EXECUTABLE));
        }
        (Posix::Off, _) | (Posix::Auto, Program::Native | Program::Unknown) => false,
        (Posix::Auto | Posix::On, Program::Static) if domain != Domain::Process => {
            let why = "it is linked statically, and only behind --domain process can its calls be \
                       intercepted";
            let problem = Problem::new(format!("cannot run {name} with sockets on IX"), why)
                .mend("leave --domain out, or use --posix off to give it Linux sockets")
                .with_status(STATUS_NOT_EXECUTABLE);
            return Err(problem);
        }
        (Posix::Auto, Program::Dynamic | Program::Go | Program::Static) | (Posix::On, _) => true,
    };
    if !wanted {
        return Ok(Preload::default());
    }
    refuse_other_identity(program)?;
    if kind == Program::Go && domain != Domain::Process {
        say!(
            "{name} is written in Go, which calls Linux itself and not through the C library: \
             its sockets are Linux's, not IX's; leave --domain out, or say --posix off to run it \
             without this line"
        );
    }
    let threads = settings.cpus().len();
    if threads > THREADS_MAX {
        let why = format!("an unmodified program uses at most {THREADS_MAX}");
        let what = format!("cannot run {name} on {threads} elastic threads");
        return Err(Problem::new(what, why).mend("give fewer hardware threads with --cpus"));
    }
    prepare(settings, domain, syscalls, (root, sharing))
        .map_err(|e| Problem::new("cannot pass the socket library to the program", e))
}

/// What the flag says, or the variable that was there before it.
pub fn syscalls(flag: Option<Syscalls>) -> Syscalls {
    let variable = std::env::var_os("IX_SYSCALLS");
    let by_variable = match variable.as_deref().and_then(OsStr::to_str) {
        None | Some("auto") => Syscalls::Auto,
        Some("trap") => Syscalls::Trap,
        Some(_) => Syscalls::On,
    };
    flag.unwrap_or(by_variable)
}

/// Whether a program cannot use IX, although its dataplane begins with it: it was not written for
/// IX, and gets Linux's sockets.
pub fn cannot_use(how: Posix, program: &Path) -> bool {
    how == Posix::Off && matches!(look_at(program), Program::Dynamic | Program::Static)
}

/// What to say of a program that has ended and never used its dataplane.
pub fn why_unused(how: Posix, program: &Path, settings: &Settings) -> Problem {
    let addresses: Vec<String> = settings.addresses().iter().map(IpAddr::to_string).collect();
    let addresses = addresses.join(", ");
    let (why, mend) = match (how, look_at(program)) {
        (Posix::Off, _) => {
            ("--posix off gives it Linux's sockets".to_owned(), "leave --posix out".to_owned())
        }
        (Posix::Auto, Program::Native) => {
            ("it was written for IX, and has not entered its dataplane".to_owned(), String::new())
        }
        (_, Program::Unknown) => (
            "its file does not say what it is, so its sockets are Linux's".to_owned(),
            "name the program itself, or use --posix on".to_owned(),
        ),
        _ => (
            format!(
                "it has waited for no socket on {addresses}: all of its sockets were on the \
                 loopback or other addresses, or spoke to this host itself or to link-local \
                 addresses (fe80::), it had none, or a program that it executed had them"
            ),
            "name the program itself; let a server bind to that address or to the wildcard, and a \
             client connect to another host"
                .to_owned(),
        ),
    };
    Problem::new("this program never used IX", why).mend(mend)
}

/// What to say of a program that has ended and never used its dataplane, because it was refused the
/// port that it named with this errno.
pub fn why_refused(errno: i32, port: u16) -> Problem {
    let (why, mend) = match errno {
        libc::EACCES => (
            "ports this low need a right that it does not have (EACCES)",
            "give it a port above 1023, or run it as root (--user root), and have it become no other \
             user before it binds",
        ),
        _ => (
            "another socket has that port (EADDRINUSE)",
            "`ss -lntup` says whose it is: stop that program, or give this one another port",
        ),
    };
    Problem::new(format!("this program was refused port {port}"), why).mend(mend)
}

/// The dynamic loader ignores preloaded libraries when a program changes its user.
fn refuse_other_identity(program: &Path) -> Result<()> {
    let Ok(metadata) = program.metadata() else { return Ok(()) };
    let (user, group) = (process::user_id(), process::group_id());
    let other_user = metadata.mode() & libc::S_ISUID != 0 && metadata.uid() != user;
    let other_group = metadata.mode() & libc::S_ISGID != 0 && metadata.gid() != group;
    if !other_user && !other_group {
        return Ok(());
    }
    let why = "it is set-uid or set-gid, and the loader preloads nothing into such programs";
    Err(Problem::new(format!("cannot run {} with sockets on IX", program.display()), why)
        .mend("run it as its owner, or use --posix off to give it Linux sockets")
        .with_status(STATUS_NOT_EXECUTABLE))
}

fn prepare(
    settings: &Settings,
    domain: Domain,
    syscalls: Syscalls,
    (root, sharing): (Option<&ProgramRoot>, Option<&Sharing>),
) -> std::io::Result<Preload> {
    // All processes of the program have a descriptor of it, also those that gave root's rights up.
    let file = unchanging(c"libix-posix.so", LIBRARY)?;
    // They write here, so it is a file of its own.
    let counts = File::from(memfd(c"ix-own-calls")?);
    counts.set_len(OWN_FILE_BYTES as u64)?;
    seal_size(counts.as_fd())?;
    let own_calls = OwnCallsPage::new(counts.try_clone()?);
    // The descriptor gets the number that it has in the program, which closes it.
    let reserved = ReservedFds::of_this_process()?;
    // Behind keys the dataplane's descriptors exist before the library is loaded: the library's own
    // must not be among their numbers.
    let copy = |fd: BorrowedFd<'_>| match domain {
        Domain::Pku => reserved.copy_below(fd),
        Domain::None | Domain::Process => reserved.copy(fd),
    };
    let (fd, counts) = (copy(file.as_fd())?, copy(counts.as_fd())?);
    let (number, counts_number) = (fd.as_raw_fd(), counts.as_raw_fd());
    let mut libraries = OsString::from(format!("/proc/self/fd/{number}"));
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        libraries.push(":");
        libraries.push(others);
    }
    let config = &settings.config;
    let network = |(addr, prefix): &(IpAddr, u8)| format!("{addr}/{prefix}");
    let addresses = config.host_addrs.iter().map(network).collect::<Vec<_>>().join(",");
    let gateways = config.gateway_addrs.iter().map(IpAddr::to_string);
    let routes = config
        .routes
        .iter()
        .filter_map(|route| Some(format!("{}/{}={}", route.to, route.prefix, route.source?)));
    let gateways = gateways.chain(routes).collect::<Vec<_>>().join(",");
    let (numbers, congestion) = (reserved_text(reserved), config.tcp.congestion.name());
    let interfaces = settings.interfaces().join(",");
    let shared = sharing.map(Sharing::interface);
    let asked = root.is_some() || shared.is_some();
    let ports = asked.then(|| LowPorts::pair(root.map(ProgramRoot::root), shared)).transpose()?;
    let (ports, asks) = ports.unzip();
    let asks = asks.map(|fd| copy(fd.as_fd())).transpose()?;
    let asks_number = asks.as_ref().map_or(String::new(), |fd| fd.as_raw_fd().to_string());
    // Packet memory is locked by the process that has the dataplane.
    let locks = u8::from(domain != Domain::Process);
    let (first, last) = config.local_ports;
    let outgoing = if config.shares_address { format!("{first}-{last}") } else { String::new() };
    let told = format!(
        "{addresses};{gateways};{number};{numbers};{congestion};{asks_number};{locks};{outgoing};\
         {};{counts_number};{interfaces}",
        syscalls.word()
    );
    let mut env = vec![("LD_PRELOAD".into(), libraries), ("IX_POSIX".into(), told.into())];
    if ix_sys::log::is_json() {
        env.push((ix_sys::log::FORMAT_ENV.into(), "json".into()));
    }
    let inherited = [fd, counts].into_iter().chain(asks).collect();
    Ok(Preload { env, inherited, own_calls, ports })
}

/// The dataplane's numbers of descriptors: the first one, and the one behind the last.
fn reserved_text(reserved: ReservedFds) -> String {
    format!("{}-{}", reserved.base(), reserved.end())
}

fn look_at(program: &Path) -> Program {
    let mut head = Vec::new();
    let read = File::open(program).and_then(|file| file.take(HEAD_BYTES).read_to_end(&mut head));
    match read {
        // The kernel runs the script's interpreter, with the same environment.
        Ok(_) if head.starts_with(b"#!") => {
            program_file::interpreter(&head).map_or(Program::Unknown, |(program, _)| {
                let program = Path::new(OsStr::from_bytes(program));
                let mut head = Vec::new();
                let read =
                    File::open(program).and_then(|f| f.take(HEAD_BYTES).read_to_end(&mut head));
                read.ok().and_then(|_| judge(&head)).unwrap_or(Program::Unknown)
            })
        }
        Ok(_) => judge(&head).unwrap_or(Program::Unknown),
        Err(_) => Program::Unknown,
    }
}

/// Classifies an ELF file by its program headers.
fn judge(file: &[u8]) -> Option<Program> {
    let Elf::Ours(header) = program_file::elf(file)? else { return Some(Program::Foreign) };
    let (mut dynamic, mut go) = (false, false);
    for segment in header.segments() {
        match segment.kind()? {
            PT_INTERP => dynamic = true,
            PT_NOTE => {
                let notes = segment.bytes()?;
                if program_file::has_note(notes, b"IX\0") {
                    return Some(Program::Native);
                }
                go |= program_file::has_note(notes, b"Go\0\0");
            }
            _ => {}
        }
    }
    Some(match dynamic {
        true if go => Program::Go,
        true => Program::Dynamic,
        false => Program::Static,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_say_what_they_are() {
        assert_eq!(look_at(Path::new("/bin/sh")), Program::Dynamic);
        assert_eq!(look_at(Path::new("/etc/passwd")), Program::Unknown);
        assert_eq!(look_at(Path::new("/no/such")), Program::Unknown);
        for (script, expected) in [
            (&b"#!/bin/sh -e\nexit 0\n"[..], Program::Dynamic),
            (b"#! /bin/sh", Program::Dynamic),
            (b"#!/no/such\n", Program::Unknown),
            (b"#!\n", Program::Unknown),
        ] {
            let path = std::env::temp_dir().join(format!("ix-script-{}", std::process::id()));
            std::fs::write(&path, script).expect("a file");
            assert_eq!(look_at(&path), expected);
            std::fs::remove_file(path).expect("its end");
        }
    }

    /// There the image refuses memory that has a descriptor of the dataplane's numbers.
    #[test]
    fn behind_keys_the_librarys_descriptors_are_not_among_the_dataplanes() {
        let reserved = ReservedFds::of_this_process().expect("a limit");
        let reserved = reserved.base()..reserved.end();
        for (domain, are_there) in [(Domain::Pku, false), (Domain::Process, true)] {
            let settings = Settings::default();
            let preload = prepare(&settings, domain, Syscalls::Auto, (None, None));
            let all = preload.expect("descriptors").inherited;
            assert_eq!(all.len(), 2);
            assert!(
                all.iter().all(|fd| reserved.contains(&fd.as_raw_fd()) == are_there),
                "{all:?}"
            );
        }
    }

    /// An ELF file of nothing but these program headers and a note by this owner.
    fn file(kinds: &[u32], owner: &[u8]) -> Vec<u8> {
        let mut file = vec![0; 64];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[18] = 62;
        (file[32], file[54], file[56]) = (64, 56, kinds.len() as u8);
        let note = [&(owner.len() as u32).to_le_bytes(), &[0; 8][..], owner].concat();
        let at = (64 + 56 * kinds.len()) as u64;
        for kind in kinds {
            let mut header = vec![0; 56];
            header[..4].copy_from_slice(&kind.to_le_bytes());
            header[8..16].copy_from_slice(&at.to_le_bytes());
            header[32..40].copy_from_slice(&(note.len() as u64).to_le_bytes());
            file.extend(header);
        }
        [file, note].concat()
    }

    #[test]
    fn notes_say_who_made_a_program() {
        let (interpreter, note) = (3, 4);
        assert_eq!(judge(&file(&[interpreter, note], b"Go\0\0")), Some(Program::Go));
        assert_eq!(judge(&file(&[note, interpreter], b"Go\0\0")), Some(Program::Go));
        assert_eq!(judge(&file(&[note], b"Go\0\0")), Some(Program::Static));
        assert_eq!(judge(&file(&[interpreter, note], b"GNU\0")), Some(Program::Dynamic));
        assert_eq!(judge(&file(&[interpreter, note], b"IX\0")), Some(Program::Native));
    }

    #[test]
    fn a_damaged_file_is_unknown_or_judged_by_what_is_there() {
        let file = std::fs::read("/bin/sh").expect("a shell");
        for len in [0, 5, 63, 64, 100, 400] {
            let _ = judge(&file[..len]);
        }
        assert_eq!(judge(&file[..64]), None);
        assert!(!program_file::has_note(&[0xff; 64], b"IX\0"));
    }
}
