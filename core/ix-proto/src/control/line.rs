//! The lines that the broker sends: a greeting, answers and snapshots.
use super::{Answer, Look, PROTOCOL, Refused, Request};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What a client may do, by the socket that it has opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Make all requests.
    Operator,
    /// Read.
    ReadOnly,
}

/// The greeting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Version of the protocol.
    pub protocol: u64,
    /// Version of the broker.
    pub ix: String,
    /// What the client may do.
    pub role: Role,
    /// The program's process.
    pub pid: u32,
    /// The program.
    pub program: String,
}

/// A greeting that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Greeting {
    /// Of this version of the protocol.
    Hello(Hello),
    /// Of another version, whose greeting may have other keys.
    Other {
        /// Version of the protocol.
        protocol: u64,
        /// Version of the broker.
        ix: String,
    },
}

/// A line from the broker.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Line {
    /// The greeting.
    Hello(Hello),
    /// The answer to the client's next request.
    Ok(Answer),
    /// Why the client's next request is refused.
    Error(Refused),
    /// A snapshot of a subscription.
    Snapshot(Look),
}

/// A line whose content is not read yet.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Raw {
    Hello(Value),
    Ok(Value),
    Error(Refused),
    Snapshot(Value),
}

/// The keys that the greeting of every version has.
#[derive(Deserialize)]
struct Versions {
    protocol: u64,
    ix: String,
}

impl Greeting {
    /// Reads the first line.
    pub fn read(line: &str) -> serde_json::Result<Greeting> {
        let Raw::Hello(hello) = serde_json::from_str(line)? else {
            return Err(serde::de::Error::custom("it does not begin with a greeting"));
        };
        let Versions { protocol, ix } = Versions::deserialize(&hello)?;
        match protocol {
            PROTOCOL => serde_json::from_value(hello).map(Greeting::Hello),
            _ => Ok(Greeting::Other { protocol, ix }),
        }
    }
}

impl Line {
    /// The line's text, without its end.
    pub fn write(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }

    /// Reads a line that follows this request.
    pub fn read(line: &str, after: &Request) -> serde_json::Result<Line> {
        Ok(match serde_json::from_str(line)? {
            Raw::Hello(hello) => Line::Hello(serde_json::from_value(hello)?),
            Raw::Ok(answer) => Line::Ok(Answer::read(after, answer)?),
            Raw::Error(refused) => Line::Error(refused),
            Raw::Snapshot(look) => Line::Snapshot(Look::read(look)?),
        })
    }
}
