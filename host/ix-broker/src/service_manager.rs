//! What a service manager is told of a run (sd_notify(3), in the protocol's own words): that the
//! program serves, that this process lives, that it ends. Without `NOTIFY_SOCKET` nobody is told.
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

/// The variables by which a service manager speaks to this process, and to none that it starts.
pub const VARIABLES: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];
/// Time between looks at whether the program serves, while the manager waits for that.
const LOOK: Duration = Duration::from_millis(10);

/// The service manager that has started this process, if there is one.
#[derive(Debug, Default)]
pub struct ServiceManager {
    socket: Option<UnixDatagram>,
    /// How often it must hear of this process.
    every: Option<Duration>,
    /// When it hears the next time.
    next: Option<Instant>,
    is_ready: bool,
}

impl ServiceManager {
    /// The one that the environment names. An error if it cannot be told.
    pub fn find() -> io::Result<ServiceManager> {
        ServiceManager::named(|name| std::env::var_os(name), std::process::id())
    }

    /// The one that these variables name, for the process `pid`.
    fn named(variable: impl Fn(&str) -> Option<OsString>, pid: u32) -> io::Result<ServiceManager> {
        let [socket, every, whose] = VARIABLES.map(variable);
        let Some(name) = socket else { return Ok(ServiceManager::default()) };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address(&name)?)?;
        // A manager that takes nothing must not hold the broker up.
        socket.set_nonblocking(true)?;
        let number = |text: &OsString| text.to_str()?.parse::<u64>().ok();
        // sd_watchdog_enabled(3): the bound may be another process's. Twice in it is enough.
        let is_ours = whose.as_ref().is_none_or(|whose| number(whose) == Some(pid.into()));
        let every = every.as_ref().filter(|_| is_ours).and_then(number);
        let every = every.filter(|us| *us > 0).map(|us| Duration::from_micros(us / 2));
        let next = every.map(|_| Instant::now());
        Ok(ServiceManager { socket: Some(socket), every, next, is_ready: false })
    }

    /// Whether it waits until the program serves.
    pub fn is_waiting(&self) -> bool {
        self.socket.is_some() && !self.is_ready
    }

    /// The program serves.
    pub fn ready(&mut self) {
        self.is_ready = true;
        self.tell("READY=1\nSTATUS=The program serves on its dataplane");
    }

    /// What the run is at.
    pub fn status(&self, text: &str) {
        self.tell(&format!("STATUS={text}"));
    }

    /// The program has ended, and what it has left is cleaned up.
    pub fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    /// When [`ServiceManager::service`] is to be called at the latest.
    pub fn due(&self, now: Instant) -> Option<Instant> {
        self.next.into_iter().chain(self.is_waiting().then_some(now + LOOK)).min()
    }

    /// Tells it that this process lives, if it must hear that now.
    pub fn service(&mut self, now: Instant) {
        if let Some((every, _)) = self.every.zip(self.next).filter(|(_, next)| *next <= now) {
            self.tell("WATCHDOG=1");
            self.next = Some(now + every);
        }
    }

    fn tell(&self, text: &str) {
        if let Some(socket) = &self.socket {
            // A manager that has gone, or does not read, is told again by the next word.
            let _ = socket.send(text.as_bytes());
        }
    }
}

/// The address that a name means: a path, or behind `@` a name without a file (unix(7)).
fn address(name: &OsStr) -> io::Result<SocketAddr> {
    match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest),
        [b'/', ..] => SocketAddr::from_pathname(name),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("NOTIFY_SOCKET={} is neither a path nor @NAME", name.display()),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PID: u32 = 4711;

    /// A manager's socket, and what it hears.
    fn listening(name: &str) -> UnixDatagram {
        let name = format!("ix-test-{}-{name}", std::process::id());
        let address = SocketAddr::from_abstract_name(name).expect("a short name");
        let socket = UnixDatagram::bind_addr(&address).expect("bound");
        socket.set_nonblocking(true).expect("set");
        socket
    }

    fn heard(socket: &UnixDatagram) -> Option<String> {
        let mut bytes = [0; 256];
        let len = socket.recv(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes[..len]).into_owned())
    }

    fn manager(name: &str, every: &str, whose: &str) -> ServiceManager {
        let socket = format!("@ix-test-{}-{name}", std::process::id());
        let variable = |name: &str| {
            let value = match name {
                "NOTIFY_SOCKET" => &socket,
                "WATCHDOG_USEC" => every,
                _ => whose,
            };
            (!value.is_empty()).then(|| value.into())
        };
        ServiceManager::named(variable, PID).expect("found")
    }

    #[test]
    fn without_a_manager_nobody_is_told_and_nothing_is_due() {
        let mut nobody = ServiceManager::named(|_| None, PID).expect("nobody");
        nobody.service(Instant::now());
        nobody.stopping();
        assert!(!nobody.is_waiting() && nobody.due(Instant::now()).is_none());
    }

    #[test]
    fn it_hears_of_a_living_process_twice_in_its_bound() {
        let socket = listening("bound");
        let mut manager = manager("bound", "30000000", "4711");
        let start = Instant::now();
        for (after_s, told) in [(1, true), (10, false), (16, true), (17, false), (31, true)] {
            manager.service(start + Duration::from_secs(after_s));
            assert_eq!(heard(&socket).as_deref() == Some("WATCHDOG=1"), told, "{after_s} s");
        }
        assert!(manager.is_waiting());
        manager.ready();
        assert!(heard(&socket).is_some_and(|text| text.starts_with("READY=1\n")));
        assert!(!manager.is_waiting() && manager.due(start).is_some_and(|due| due > start));
        manager.stopping();
        assert_eq!(heard(&socket).as_deref(), Some("STOPPING=1"));
    }

    #[test]
    fn a_bound_of_another_process_or_none_is_not_kept() {
        let socket = listening("other");
        for (every, whose) in [("30000000", "4712"), ("", ""), ("0", "4711"), ("soon", "4711")] {
            let mut manager = manager("other", every, whose);
            manager.service(Instant::now());
            assert_eq!(heard(&socket), None, "{every} {whose}");
        }
        let mut ours = manager("other", "1000", "");
        ours.service(Instant::now());
        assert_eq!(heard(&socket).as_deref(), Some("WATCHDOG=1"));
    }

    #[test]
    fn a_name_that_is_no_address_is_an_error() {
        for name in ["notify", "", "vsock:2:1"] {
            let variable = |of: &str| (of == "NOTIFY_SOCKET").then(|| name.into());
            let told = ServiceManager::named(variable, PID).expect_err("no address").to_string();
            assert!(told.contains(name), "{told}");
        }
    }
}
