//! Whom an attack on the process of a dataplane is on, and as whom it is made.
use crate::call;
use std::fs;

/// An unprivileged user.
const NOBODY: u64 = 65534;

/// As whom the attacks are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whom {
    /// As the program itself.
    Program,
    /// As the program itself, which nothing stops: it is the machine's root, or shares its process
    /// with the dataplane. So its attacks do no harm.
    Root,
    /// As an unprivileged child of the machine's root.
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

/// `Ok` if it succeeded.
pub type Attack = fn(&Aim) -> Result<(), String>;

/// What is attacked.
#[derive(Clone, Debug)]
pub struct Aim {
    /// As whom.
    pub whom: Whom,
    /// The process that has the dataplane.
    pub dataplane: u64,
    /// The process of its broker.
    pub broker: u64,
    /// Its tap.
    pub link: String,
    /// Its operators' socket, to which a path leads.
    pub control: String,
    /// Address of a page that it has mapped.
    pub mapped: usize,
}

impl Aim {
    /// The dataplane of this program, which has a process of its own, and whose tap and operators'
    /// socket are these.
    pub fn find(whom: Whom, [link, control]: [&str; 2]) -> Result<Aim, String> {
        let broker = broker();
        let mut below = processes_below(broker)?;
        let (dataplane, _) = below
            .find(|(_, name)| name == "ix-dataplane")
            .ok_or("there is no process of a dataplane")?;
        let [link, control] = [link, control].map(str::to_owned);
        Ok(Aim { whom, dataplane, broker, link, control, mapped: ix_proto::crossing::READ_AT })
    }

    /// The dataplane that this process is in, to which forked copies of it can do everything.
    pub fn within() -> Aim {
        let page = PAGE.0.as_ptr() as usize;
        let dataplane = u64::from(std::process::id());
        let (whom, broker) = (Whom::Root, broker());
        let (link, control) = (String::new(), String::new());
        Aim { whom, dataplane, broker, link, control, mapped: page }
    }

    /// The processes below another tenant's `ix run`: its dataplane and its program.
    pub fn at_tenant(broker: u64) -> Result<Vec<Aim>, String> {
        let aim = |dataplane| {
            let (link, control) = (String::new(), String::new());
            let mapped = ix_proto::crossing::READ_AT;
            Aim { whom: Whom::Program, dataplane, broker, link, control, mapped }
        };
        // The keeper of an XDP program is part of `ix run`.
        let tenants = processes_below(broker)?.filter(|(_, name)| name != "ix-keeper");
        let aims: Vec<Aim> = tenants.map(|(pid, _)| aim(pid)).collect();
        if aims.len() < 2 {
            return Err(format!("process {broker} has no dataplane, or no program"));
        }
        Ok(aims)
    }

    /// The process that is attacked, for a reader.
    pub fn what(&self) -> String {
        let name = fs::read_to_string(format!("/proc/{}/comm", self.dataplane));
        format!("process {} ({})", self.dataplane, name.unwrap_or_default().trim())
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

    /// What would do harm, or where nothing stops it what does none.
    pub fn harm(&self, harmful: u64, harmless: u64) -> u64 {
        if self.whom == Whom::Root { harmless } else { harmful }
    }

    /// A descriptor of the dataplane's process.
    pub fn pidfd(&self) -> Result<u64, String> {
        call(libc::SYS_pidfd_open, [self.dataplane, 0, 0, 0, 0, 0])
    }

    /// Its file of this name in `/proc`.
    pub fn file(&self, name: &str) -> String {
        format!("/proc/{}/{name}", self.dataplane)
    }
}

/// A page that no part of the attacker uses; its words are what they are.
#[repr(align(4096))]
struct Page([std::sync::atomic::AtomicU64; 512]);

static PAGE: Page = Page([const { std::sync::atomic::AtomicU64::new(1) }; 512]);

/// Number and name of each process whose parent is this one.
fn processes_below(parent: u64) -> Result<impl Iterator<Item = (u64, String)>, String> {
    let folder = fs::read_dir("/proc").map_err(|e| e.to_string())?;
    let pids = folder.flatten().filter_map(|e| e.file_name().to_str()?.parse::<u64>().ok());
    let below = format!("PPid:\t{parent}");
    Ok(pids.filter_map(move |pid| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let name = status.lines().find_map(|line| line.strip_prefix("Name:\t"))?;
        status.lines().any(|line| line == below).then(|| (pid, name.to_owned()))
    }))
}

fn broker() -> u64 {
    // SAFETY: no arguments.
    unsafe { libc::getppid() as u64 }
}
