//! The control interface: requests about vNICs, filters and rates to the process that has the
//! devices.
//!
//! A [`Control`] is a connection to the control socket of a dataplane (`ix run --control`) or of a
//! shared interface (`ix share`). It grants [`Capability`]s: numbers that cannot be guessed, that
//! may be passed to another program, and that end with their filter or vNIC. Filters and rates are
//! written as for `ix ctl`: `rx tcp service 10.0.0.2:80`, `100Mbit`.
mod json;

use crate::raw::connect_within;
use core::fmt;
use json::{Json, quoted};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

/// Version of the protocol on the socket.
const PROTOCOL: u64 = 1;
/// Longest wait for a reply: the dataplane itself may have to give it.
const TIMEOUT: Duration = Duration::from_secs(6);
/// Longest wait for a place in the socket's queue.
const CONNECTING: Duration = Duration::from_secs(2);
/// Longest accepted line.
const LINE_MAX: u64 = 16 << 20;
/// Digits of a capability.
const DIGITS: usize = 32;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlError {
    /// The socket cannot be reached, or the connection ended: what, and why.
    Lost(String),
    /// The socket has another version of the protocol.
    Version(String),
    /// The request was refused: why, and the remedy if it is known.
    Refused(String),
    /// The library cannot parse the reply.
    Nonsense,
    /// The request was not sent: the part of it that is invalid.
    Invalid(&'static str),
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ControlError::Lost(why) => write!(f, "cannot talk to the control socket: {why}"),
            ControlError::Version(theirs) => {
                write!(f, "the control socket has protocol {theirs}, this library {PROTOCOL}")
            }
            ControlError::Refused(why) => f.write_str(why),
            ControlError::Invalid(why) => write!(f, "cannot send the request: {why}"),
            ControlError::Nonsense => {
                f.write_str("cannot parse the control socket's reply; use the same version of ix and of this library")
            }
        }
    }
}

impl std::error::Error for ControlError {}

/// A right that can be passed on: the text is the right. A forged capability is refused like a
/// revoked one.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Capability([u8; DIGITS]);

impl Capability {
    /// The text, to pass to another program.
    pub fn reveal(&self) -> &str {
        core::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// Without the text, which is the right itself and must not appear in logs.
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
    ControlError::Refused("no such capability: forged or revoked".to_owned())
}

/// A vNIC that was created on a shared interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vnic {
    /// Name of its link.
    pub link: String,
    /// The device for `ix run --nic`.
    pub device: String,
    /// The right to assign filters to it.
    pub capability: Capability,
}

/// A granted filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Its number, which is not secret.
    pub filter: u32,
    /// The right to it.
    pub capability: Capability,
}

/// A connection to a control socket.
#[derive(Debug)]
pub struct Control(BufReader<UnixStream>);

impl Control {
    /// Connects to a control socket. The operators' socket allows everything; the read-only socket
    /// allows what capabilities allow.
    pub fn connect(path: impl AsRef<Path>) -> Result<Control, ControlError> {
        let path = path.as_ref();
        let lost = |e| ControlError::Lost(format!("{}: {e}", path.display()));
        let stream = connect_within(path, CONNECTING).map_err(|e| match e.kind() {
            std::io::ErrorKind::WouldBlock => ControlError::Lost(format!(
                "{}: too many clients wait for its process; check that it is not stopped",
                path.display()
            )),
            _ => lost(e),
        })?;
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

    /// Creates a vNIC with this many queue pairs on a shared interface; it is removed when the
    /// process `owner` ends.
    pub fn create_vnic(
        &mut self,
        name: &str,
        queues: usize,
        owner: Option<u32>,
    ) -> Result<Vnic, ControlError> {
        self.vnic_by("afxdp", name, queues, owner)
    }

    /// Creates a vNIC with a tap and one queue pair, which needs no privilege to open.
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

    /// Deletes a vNIC; Linux gets its packets again.
    pub fn delete_vnic(&mut self, name: &str) -> Result<(), ControlError> {
        self.ask(&format!(r#"{{"do":"vnic-delete","name":{}}}"#, quoted(name))).map(drop)
    }

    /// Grants filters, all or none. On a dataplane they are assigned at once; on a shared interface
    /// to `vnic`, or later by [`Control::assign`]. A filter that overlaps with another holder's is
    /// refused, and the error names the holder.
    pub fn create_filters(
        &mut self,
        filters: &[&str],
        holder: Option<&str>,
        vnic: Option<&str>,
    ) -> Result<Vec<Granted>, ControlError> {
        let request = with_texts(&create(filters), [("holder", holder), ("vnic", vnic)]);
        self.granted(&(request + "}"))
    }

    /// Grants filters to a holder and assigns them to one queue of a dataplane's vNIC alone, all or
    /// none: [`Control::create_filters`] and [`Control::assign_queue`] in one step.
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

    /// Creates a capability for a part of a filter, or (`None`) another one for all of it, to pass
    /// on. It ends with the capability that it is derived from.
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

    /// Assigns a filter to one queue of a dataplane's vNIC alone; `None`: to all queues again.
    /// Receive filters that take packets of flows (TCP, UDP, ICMP, ARP) are refused: their flow
    /// group decides the queue.
    pub fn assign_queue(
        &mut self,
        filter: &Capability,
        queue: Option<usize>,
    ) -> Result<(), ControlError> {
        let filter = filter.reveal();
        let queue = queue.map_or(String::new(), |queue| format!(r#","queue":{queue}"#));
        self.ask(&format!(r#"{{"do":"filter-assign","capability":"{filter}"{queue}}}"#)).map(drop)
    }

    /// Revokes a filter's capability and all derived from it; returns how many those were.
    pub fn revoke(&mut self, filter: &Capability) -> Result<usize, ControlError> {
        let filter = filter.reveal();
        self.revoked(&format!(r#"{{"do":"filter-revoke","capability":"{filter}"}}"#))
    }

    /// Removes a filter by its number, for operators; `None`: all filters, and then a dataplane
    /// passes everything.
    pub fn remove_filter(&mut self, filter: Option<u32>) -> Result<usize, ControlError> {
        let filter = filter.map_or(String::new(), |filter| format!(r#","filter":{filter}"#));
        self.revoked(&format!(r#"{{"do":"filter-remove"{filter}}}"#))
    }

    fn revoked(&mut self, request: &str) -> Result<usize, ControlError> {
        let answer = self.ask(request)?;
        let gone = answer.get("revoked").and_then(Json::number).ok_or(ControlError::Nonsense)?;
        Ok(gone as usize)
    }

    /// Sets rates of a dataplane's vNIC; `none` lifts one, `None` leaves it.
    pub fn rate(&mut self, rx: Option<&str>, tx: Option<&str>) -> Result<(), ControlError> {
        let request = with_texts(r#"{"do":"rate""#, [("rx", rx), ("tx", tx)]);
        self.ask(&(request + "}")).map(drop)
    }

    /// Sets the rate of each flow of a dataplane's vNIC, whose packets leave evenly; `none` lifts
    /// it.
    pub fn rate_of_flows(&mut self, flow: &str) -> Result<(), ControlError> {
        let request = with_texts(r#"{"do":"rate""#, [("flow", Some(flow))]);
        self.ask(&(request + "}")).map(drop)
    }

    /// Sets rates of a vNIC of a shared interface, which the kernel enforces, and its weight (1 to
    /// 1000) relative to the others' while the interface is full.
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

    /// Sets rates of one queue of a dataplane's vNIC, within its part of the vNIC's rates, and of
    /// each flow on it (`flow`).
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

    /// Returns limits, filters and rates, and which filters are in hardware, as `ix ctl vnic
    /// --json` prints them: one line of JSON.
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
            Ok(0) => Err(ControlError::Lost("the connection was closed".to_owned())),
            Ok(_) => Ok(line),
            Err(e) => Err(ControlError::Lost(e.to_string())),
        }
    }

    fn line(&mut self) -> Result<Json, ControlError> {
        Json::parse(&self.read()?).ok_or(ControlError::Nonsense)
    }
}

/// Begins a request for filters.
fn create(filters: &[&str]) -> String {
    let texts: Vec<String> = filters.iter().map(|filter| quoted(filter)).collect();
    format!(r#"{{"do":"filter-create","filters":[{}]"#, texts.join(","))
}

/// Begins a request, with optional fields.
fn with_texts<const N: usize>(request: &str, texts: [(&str, Option<&str>); N]) -> String {
    let mut request = request.to_owned();
    for (name, text) in texts {
        if let Some(text) = text {
            request.push_str(&format!(r#","{name}":{}"#, quoted(text)));
        }
    }
    request
}

/// The reply in a message; `None`: the message is about something else.
fn answer_in(said: &Json) -> Result<Option<&Json>, ControlError> {
    if let Some(error) = said.get("error") {
        let text = |name| error.get(name).and_then(Json::text).filter(|text| !text.is_empty());
        let why = text("why").unwrap_or("without a reason");
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
