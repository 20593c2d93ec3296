//! Why requests are refused, and how that is said.
use super::PROTOCOL;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The line is not a request, or has a value that no request can have.
    BadRequest(String),
    /// The line is longer than a request may be: at most this many bytes.
    TooLong(usize),
    /// The request is written for another version of the protocol.
    Version(String),
    /// The read-only socket does not allow it.
    NotAllowed,
    /// The client is in another user namespace than the broker, or cannot be looked at.
    Foreign,
    /// There are too many clients.
    Busy,
    /// No elastic thread has this number: the number asked for, and how many threads there are.
    NoSuchThread(usize, usize),
    /// No controller controls this dataplane.
    NoController,
    /// Another controller controls it: this process.
    Controlled(u32),
    /// Another process captures: this one.
    Captured(u32),
    /// The dataplane did not answer in time.
    NoAnswer,
    /// The dataplane refuses; the reason is in `why`.
    Dataplane(String),
    /// This dataplane has no such function.
    Unsupported(&'static str),
    /// The capability is forged, revoked, or for something else.
    NoCapability,
    /// This part of the header space is not available; the reason is in `why`.
    Vnic(String),
}

/// The name of a refusal for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Code {
    /// Of [`Refusal::BadRequest`].
    BadRequest,
    /// Of [`Refusal::TooLong`].
    TooLong,
    /// Of [`Refusal::Version`].
    Version,
    /// Of [`Refusal::NotAllowed`].
    NotAllowed,
    /// Of [`Refusal::Foreign`].
    Foreign,
    /// Of [`Refusal::Busy`].
    Busy,
    /// Of [`Refusal::NoSuchThread`].
    NoSuchThread,
    /// Of [`Refusal::NoController`].
    NoController,
    /// Of [`Refusal::Controlled`].
    Controlled,
    /// Of [`Refusal::Captured`].
    Captured,
    /// Of [`Refusal::NoAnswer`].
    NoAnswer,
    /// Of [`Refusal::Dataplane`].
    #[serde(rename = "refused")]
    Dataplane,
    /// Of [`Refusal::Unsupported`].
    Unsupported,
    /// Of [`Refusal::NoCapability`].
    NoCapability,
    /// Of [`Refusal::Vnic`].
    Vnic,
}

/// A refusal as it is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Its name.
    pub code: Code,
    /// The reason, for people.
    pub why: String,
    /// What the user can do about it; empty where nothing is known.
    pub mend: String,
}

impl Code {
    /// Its text.
    pub fn name(self) -> &'static str {
        match self {
            Code::BadRequest => "bad-request",
            Code::TooLong => "too-long",
            Code::Version => "version",
            Code::NotAllowed => "not-allowed",
            Code::Foreign => "foreign",
            Code::Busy => "busy",
            Code::NoSuchThread => "no-such-thread",
            Code::NoController => "no-controller",
            Code::Controlled => "controlled",
            Code::Captured => "captured",
            Code::NoAnswer => "no-answer",
            Code::Dataplane => "refused",
            Code::Unsupported => "unsupported",
            Code::NoCapability => "no-capability",
            Code::Vnic => "vnic",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Refusal {
    /// Its name for programs.
    pub fn code(&self) -> Code {
        match self {
            Refusal::BadRequest(_) => Code::BadRequest,
            Refusal::TooLong(_) => Code::TooLong,
            Refusal::Version(_) => Code::Version,
            Refusal::NotAllowed => Code::NotAllowed,
            Refusal::Foreign => Code::Foreign,
            Refusal::Busy => Code::Busy,
            Refusal::NoSuchThread(..) => Code::NoSuchThread,
            Refusal::NoController => Code::NoController,
            Refusal::Controlled(_) => Code::Controlled,
            Refusal::Captured(_) => Code::Captured,
            Refusal::NoAnswer => Code::NoAnswer,
            Refusal::Dataplane(_) => Code::Dataplane,
            Refusal::Unsupported(_) => Code::Unsupported,
            Refusal::NoCapability => Code::NoCapability,
            Refusal::Vnic(_) => Code::Vnic,
        }
    }

    /// What the user can do about it; empty where nothing is known.
    pub fn mend(&self) -> String {
        match self {
            Refusal::BadRequest(_) | Refusal::TooLong(_) => {
                "requests are listed by `ix ctl --help`".into()
            }
            Refusal::Version(_) => "use the `ix` that started the dataplane".into(),
            Refusal::NotAllowed => "ask through the operator socket".into(),
            Refusal::Foreign => "ask from outside, or through the read-only socket".into(),
            Refusal::Busy => "try again later".into(),
            Refusal::NoSuchThread(_, threads) => match threads {
                0 | 1 => "its only thread is 0".into(),
                n => format!("its threads are 0 to {}", n - 1),
            },
            Refusal::NoController => "start one with `ix run --policy …` or `ix cp`".into(),
            Refusal::Captured(pid) => format!("end process {pid}, or share its file"),
            Refusal::Controlled(pid) => format!("end process {pid} first"),
            Refusal::NoAnswer => {
                "the program may not have entered the dataplane; check with `ix ctl threads`".into()
            }
            Refusal::NoCapability => "ask its holder, or an operator, for another".into(),
            Refusal::Vnic(_) => "`ix ctl vnic` lists what is held".into(),
            Refusal::Dataplane(_) | Refusal::Unsupported(_) => String::new(),
        }
    }
}

impl From<&Refusal> for Refused {
    fn from(refusal: &Refusal) -> Refused {
        Refused { code: refusal.code(), why: refusal.to_string(), mend: refusal.mend() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::BadRequest(why) => write!(f, "invalid request: {why}"),
            Refusal::TooLong(most) => write!(f, "request too long: at most {most} bytes"),
            Refusal::Version(theirs) => {
                write!(f, "the request is of protocol {theirs}, this dataplane speaks {PROTOCOL}")
            }
            Refusal::NotAllowed => write!(f, "this socket is for looking only"),
            Refusal::Foreign => {
                write!(
                    f,
                    "operators are in the user namespace of `ix run`, and this process is not"
                )
            }
            Refusal::Busy => write!(f, "too many clients"),
            Refusal::NoSuchThread(thread, _) => write!(f, "no elastic thread {thread}"),
            Refusal::NoController => write!(f, "no controller runs for this dataplane"),
            Refusal::Controlled(pid) => {
                write!(f, "another controller controls it: process {pid}")
            }
            Refusal::Captured(pid) => write!(f, "process {pid} captures already"),
            Refusal::NoAnswer => write!(f, "the dataplane did not answer in time"),
            Refusal::Dataplane(why) => write!(f, "{why}"),
            Refusal::Unsupported(what) => write!(f, "this dataplane cannot {what}"),
            Refusal::NoCapability => f.write_str("no such capability: forged or revoked"),
            Refusal::Vnic(why) => f.write_str(why),
        }
    }
}
