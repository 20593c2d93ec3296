//! The control interface: vNICs, filters and rates, asked of whoever holds the devices.
//!
//! A [`Control`] is a connection to the control socket of a dataplane (`ix run --control`) or of a
//! shared interface (`ix share`). What it grants are [`Capability`]s: numbers that nobody can
//! guess, that may be handed to another program, and that end with what they stand for. Filters and
//! rates are said as `ix ctl` says them: `rx tcp service 10.0.0.2:80`, `100Mbit`.
mod json;

use core::fmt;
use json::{Json, quoted};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

/// Version of the protocol on the socket.
const PROTOCOL: u64 = 1;
/// Longest wait for an answer: the dataplane itself may have to say it.
const TIMEOUT: Duration = Duration::from_secs(6);
/// Longest line that is taken.
const LINE_MAX: u64 = 16 << 20;
/// Digits of a capability.
const DIGITS: usize = 32;

/// Why the control interface did not do it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlError {
    /// It cannot be reached, or it has gone: what, and why.
    Lost(String),
    /// It speaks another version of the protocol.
    Version(String),
    /// It refused: why, and what mends it where that is known.
    Refused(String),
    /// It said what this library does not understand.
    Nonsense,
    /// It was not asked: what of the request cannot be said.
    Invalid(&'static str),
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ControlError::Lost(why) => write!(f, "cannot talk to the control socket: {why}"),
            ControlError::Version(theirs) => {
                write!(f, "the control socket speaks protocol {theirs}, this is {PROTOCOL}")
            }
            ControlError::Refused(why) => f.write_str(why),
            ControlError::Invalid(why) => write!(f, "cannot ask the control socket: {why}"),
            ControlError::Nonsense => {
                f.write_str("the control socket's answer is not understood: use ix of this version")
            }
        }
    }
}

impl std::error::Error for ControlError {}

/// A right that can be handed on: whoever has its text has it. Forged ones are refused as stale
/// ones are.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Capability([u8; DIGITS]);

impl Capability {
    /// The text, to be handed to another program.
    pub fn reveal(&self) -> &str {
        core::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// Not the right itself, which would end up in some log.
impl fmt::Debug for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Capability(..)")
    }
}

impl FromStr for Capability {
    type Err = ControlError;

    fn from_str(text: &str) -> Result<Capability, ControlError> {
        let digits: [u8; DIGITS] = text.as_bytes().try_into().map_err(|_| forged())?;
        if digits.iter().all(u8::is_ascii_hexdigit) {
            Ok(Capability(digits))
        } else {
            Err(forged())
        }
    }
}

fn forged() -> ControlError {
    ControlError::Refused("there is no such capability".to_owned())
}

/// A vNIC that was made on a shared interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vnic {
    /// The name of its link.
    pub link: String,
    /// What `ix run --nic` takes: the link as a device.
    pub device: String,
    /// The right to assign filters to it.
    pub capability: Capability,
}

/// A granted filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Its number, which is no secret.
    pub filter: u32,
    /// The right to it.
    pub capability: Capability,
}

/// A connection to a control socket.
#[derive(Debug)]
pub struct Control(BufReader<UnixStream>);

impl Control {
    /// Connects. The socket of operators may do everything; that of readers does what capabilities
    /// allow.
    pub fn connect(path: impl AsRef<Path>) -> Result<Control, ControlError> {
        let path = path.as_ref();
        let lost = |e| ControlError::Lost(format!("{}: {e}", path.display()));
        let stream = UnixStream::connect(path).map_err(lost)?;
        stream.set_read_timeout(Some(TIMEOUT)).map_err(lost)?;
        stream.set_write_timeout(Some(TIMEOUT)).map_err(lost)?;
        let mut control = Control(BufReader::new(stream));
        let greeting = control.line()?;
        let hello = greeting.get("hello").ok_or(ControlError::Nonsense)?;
        match hello.get("protocol").and_then(Json::number) {
            Some(PROTOCOL) => Ok(control),
            other => Err(ControlError::Version(format!("{other:?}"))),
        }
    }

    /// Makes a vNIC with so many queue pairs on a shared interface; it goes with the process
    /// `owner`.
    pub fn create_vnic(
        &mut self,
        name: &str,
        queues: usize,
        owner: Option<u32>,
    ) -> Result<Vnic, ControlError> {
        self.vnic_by("afxdp", name, queues, owner)
    }

    /// The same with a tap and one queue pair, which asks nothing of the kernel.
    pub fn create_tap_vnic(
        &mut self,
        name: &str,
        owner: Option<u32>,
    ) -> Result<Vnic, ControlError> {
        self.vnic_by("tap", name, 1, owner)
    }

    fn vnic_by(
        &mut self,
        device: &str,
        name: &str,
        queues: usize,
        owner: Option<u32>,
    ) -> Result<Vnic, ControlError> {
        let owner = owner.map_or(String::new(), |pid| format!(r#","owner":{pid}"#));
        let name = quoted(name);
        let what = format!(r#""name":{name},"queues":{queues},"device":"{device}"{owner}"#);
        let answer = self.ask(&format!(r#"{{"do":"vnic-create",{what}}}"#))?;
        let text = |key| answer.get(key).and_then(Json::text).ok_or(ControlError::Nonsense);
        let (link, device) = (text("link")?.to_owned(), text("device")?.to_owned());
        Ok(Vnic { link, device, capability: capability_in(&answer)? })
    }

    /// Deletes one; its traffic is Linux' again.
    pub fn delete_vnic(&mut self, name: &str) -> Result<(), ControlError> {
        self.ask(&format!(r#"{{"do":"vnic-delete","name":{}}}"#, quoted(name))).map(drop)
    }

    /// Grants filters, all or none. Of a dataplane they are assigned at once; of a shared interface
    /// to `vnic`, or later by [`Control::assign`]. What overlaps with what another holds is refused
    /// with its name.
    pub fn create_filters(
        &mut self,
        filters: &[&str],
        holder: Option<&str>,
        vnic: Option<&str>,
    ) -> Result<Vec<Granted>, ControlError> {
        let request = with_texts(&create(filters), [("holder", holder), ("vnic", vnic)]);
        self.granted(&(request + "}"))
    }

    /// Grants filters to a holder and assigns them to one queue of a dataplane's vNIC, which holds
    /// them alone, all or none: as [`Control::create_filters`] and [`Control::assign_queue`], in
    /// one go.
    pub fn create_filters_of_queue(
        &mut self,
        filters: &[&str],
        holder: Option<&str>,
        queue: usize,
    ) -> Result<Vec<Granted>, ControlError> {
        let request = with_texts(&create(filters), [("holder", holder)]);
        self.granted(&format!(r#"{request},"queue":{queue}}}"#))
    }

    fn granted(&mut self, request: &str) -> Result<Vec<Granted>, ControlError> {
        let answer = self.ask(request)?;
        let made = answer.get("filters").ok_or(ControlError::Nonsense)?.list();
        made.iter().map(granted_in).collect()
    }

    /// A capability for a part of a filter, or (`None`) for all of it once more, to hand on. It
    /// ends with the one that it comes from.
    pub fn derive(
        &mut self,
        from: &Capability,
        part: Option<&str>,
    ) -> Result<Granted, ControlError> {
        let part = part.map_or(String::new(), |part| format!(r#","filter":{}"#, quoted(part)));
        let from = from.reveal();
        let answer =
            self.ask(&format!(r#"{{"do":"filter-derive","capability":"{from}"{part}}}"#))?;
        granted_in(&answer)
    }

    /// Assigns a filter to a vNIC of a shared interface.
    pub fn assign(&mut self, filter: &Capability, vnic: &Capability) -> Result<(), ControlError> {
        let (filter, vnic) = (filter.reveal(), vnic.reveal());
        let request =
            format!(r#"{{"do":"filter-assign","capability":"{filter}","vnic":"{vnic}"}}"#);
        self.ask(&request).map(drop)
    }

    /// Assigns a filter to one queue of a dataplane's vNIC, which holds it alone from then on;
    /// `None`: all queues do again. Receive filters that take packets of flows (TCP, UDP, ICMP,
    /// ARP) are refused: those have the queue of their flow group.
    pub fn assign_queue(
        &mut self,
        filter: &Capability,
        queue: Option<usize>,
    ) -> Result<(), ControlError> {
        let filter = filter.reveal();
        let queue = queue.map_or(String::new(), |queue| format!(r#","queue":{queue}"#));
        self.ask(&format!(r#"{{"do":"filter-assign","capability":"{filter}"{queue}}}"#)).map(drop)
    }

    /// Ends a filter and all that was derived from it; answers how many that were.
    pub fn revoke(&mut self, filter: &Capability) -> Result<usize, ControlError> {
        let filter = filter.reveal();
        self.revoked(&format!(r#"{{"do":"filter-revoke","capability":"{filter}"}}"#))
    }

    /// The same by its number, for operators; `None`: all filters end, and of a dataplane
    /// everything passes then.
    pub fn remove_filter(&mut self, filter: Option<u32>) -> Result<usize, ControlError> {
        let filter = filter.map_or(String::new(), |filter| format!(r#","filter":{filter}"#));
        self.revoked(&format!(r#"{{"do":"filter-remove"{filter}}}"#))
    }

    fn revoked(&mut self, request: &str) -> Result<usize, ControlError> {
        let answer = self.ask(request)?;
        let gone = answer.get("revoked").and_then(Json::number).ok_or(ControlError::Nonsense)?;
        Ok(gone as usize)
    }

    /// Other limits of a dataplane's vNIC while traffic runs; `none` lifts one, `None` leaves it.
    pub fn rate(&mut self, rx: Option<&str>, tx: Option<&str>) -> Result<(), ControlError> {
        let request = with_texts(r#"{"do":"rate""#, [("rx", rx), ("tx", tx)]);
        self.ask(&(request + "}")).map(drop)
    }

    /// Another limit of each flow of it, whose packets leave at even distances; `none` lifts it.
    pub fn rate_of_flows(&mut self, flow: &str) -> Result<(), ControlError> {
        let request = with_texts(r#"{"do":"rate""#, [("flow", Some(flow))]);
        self.ask(&(request + "}")).map(drop)
    }

    /// Other limits of a vNIC of a shared interface, which the kernel keeps, and its weight (1 to
    /// 1000) beside the others' while the interface is full.
    pub fn rate_of_vnic(
        &mut self,
        vnic: &str,
        rx: Option<&str>,
        tx: Option<&str>,
        weight: Option<u32>,
    ) -> Result<(), ControlError> {
        let weight = weight.map_or(String::new(), |weight| format!(r#","weight":{weight}"#));
        let request = format!(r#"{{"do":"rate"{weight}"#);
        let request = with_texts(&request, [("vnic", Some(vnic)), ("rx", rx), ("tx", tx)]);
        self.ask(&(request + "}")).map(drop)
    }

    /// Other limits of one queue of it, within its part of the vNIC's, and of each flow there
    /// (`flow`).
    pub fn rate_of_queue(
        &mut self,
        queue: usize,
        rx: Option<&str>,
        tx: Option<&str>,
        flow: Option<&str>,
    ) -> Result<(), ControlError> {
        let request = format!(r#"{{"do":"rate","queue":{queue}"#);
        let request = with_texts(&request, [("rx", rx), ("tx", tx), ("flow", flow)]);
        self.ask(&(request + "}")).map(drop)
    }

    /// Limits, filters and rates, and what of them is in hardware, as `ix ctl vnic --json` shows
    /// them: one line of JSON.
    pub fn look(&mut self) -> Result<String, ControlError> {
        self.send("vnic")?;
        loop {
            let line = self.read()?;
            let said = Json::parse(&line).ok_or(ControlError::Nonsense)?;
            if answer_in(&said)?.is_some() {
                return Ok(line.trim().to_owned());
            }
        }
    }

    fn ask(&mut self, request: &str) -> Result<Json, ControlError> {
        self.send(request)?;
        loop {
            let said = self.line()?;
            if let Some(answer) = answer_in(&said)? {
                return Ok(answer.clone());
            }
        }
    }

    fn send(&mut self, request: &str) -> Result<(), ControlError> {
        let sent = self.0.get_ref().write_all(format!("{request}\n").as_bytes());
        sent.map_err(|e| ControlError::Lost(e.to_string()))
    }

    fn read(&mut self) -> Result<String, ControlError> {
        let mut line = String::new();
        match (&mut self.0).take(LINE_MAX).read_line(&mut line) {
            Ok(0) => Err(ControlError::Lost("it has hung up".to_owned())),
            Ok(_) => Ok(line),
            Err(e) => Err(ControlError::Lost(e.to_string())),
        }
    }

    fn line(&mut self) -> Result<Json, ControlError> {
        Json::parse(&self.read()?).ok_or(ControlError::Nonsense)
    }
}

/// The beginning of a request for filters.
fn create(filters: &[&str]) -> String {
    let texts: Vec<String> = filters.iter().map(|filter| quoted(filter)).collect();
    format!(r#"{{"do":"filter-create","filters":[{}]"#, texts.join(","))
}

/// The beginning of a request with what more it says, where it says so.
fn with_texts<const N: usize>(request: &str, texts: [(&str, Option<&str>); N]) -> String {
    let mut request = request.to_owned();
    for (name, text) in texts {
        if let Some(text) = text {
            request.push_str(&format!(r#","{name}":{}"#, quoted(text)));
        }
    }
    request
}

/// The answer in what the socket said; `None`: it speaks of something else.
fn answer_in(said: &Json) -> Result<Option<&Json>, ControlError> {
    if let Some(error) = said.get("error") {
        let text = |name| error.get(name).and_then(Json::text).filter(|text| !text.is_empty());
        let why = text("why").unwrap_or("it does not say why");
        let mend = text("mend").map_or(String::new(), |mend| format!(": {mend}"));
        return Err(ControlError::Refused(format!("{why}{mend}")));
    }
    Ok(said.get("ok"))
}

fn capability_in(answer: &Json) -> Result<Capability, ControlError> {
    let text = answer.get("capability").and_then(Json::text).ok_or(ControlError::Nonsense)?;
    text.parse().map_err(|_| ControlError::Nonsense)
}

fn granted_in(answer: &Json) -> Result<Granted, ControlError> {
    let filter = answer.get("filter").and_then(Json::number).ok_or(ControlError::Nonsense)?;
    Ok(Granted { filter: filter as u32, capability: capability_in(answer)? })
}
