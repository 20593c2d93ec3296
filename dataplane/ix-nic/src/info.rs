//! [`NicInfo`] as one line of text, to travel from the broker to the dataplane.
use crate::{NicInfo, Steering, XdpBind, XdpMode};
use std::fmt::{self, Write};

/// A line that describes no device. Only a mistake in a program makes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineError {
    pub(crate) key: &'static str,
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device line: `{}` is missing or malformed", self.key)
    }
}

impl std::error::Error for LineError {}

const KINDS: [&str; 4] = ["tap", "afxdp", "memif", "sim"];

impl NicInfo {
    /// One line of `key=value` words without a line break; `mode`, which is prose, comes last.
    pub fn to_line(&self) -> String {
        let steering = match &self.steering {
            Steering::Software => "software".to_owned(),
            Steering::Table => "table".to_owned(),
            Steering::Rss(key) => format!("rss:{}", hex(key)),
        };
        let mut line = format!(
            "kind={} name={} queues={} mac={} mtu={} steering={steering} partial_checksums={} \
             shared_frames={} table_fd={}",
            self.kind,
            self.name,
            self.queues,
            hex(&self.mac),
            self.mtu,
            u8::from(self.partial_checksums),
            u8::from(self.shared_frames),
            u8::from(self.table_fd),
        );
        if let Some(xdp) = &self.xdp {
            let (mode, frags) = (xdp.mode.name(), u8::from(xdp.frags));
            let _ = write!(line, " ifindex={} bind={mode} frags={frags}", xdp.ifindex);
        }
        let _ = write!(line, " mode={}", self.mode.replace(['\n', '\r'], " "));
        line
    }

    /// Reads what [`NicInfo::to_line`] wrote.
    pub fn from_line(line: &str) -> Result<NicInfo, LineError> {
        let (words, mode) = line.split_once(" mode=").ok_or(LineError { key: "mode" })?;
        let fields = Fields(words);
        let kind = fields.get("kind")?;
        Ok(NicInfo {
            kind: KINDS.into_iter().find(|k| *k == kind).ok_or(LineError { key: "kind" })?,
            name: fields.get("name")?.to_owned(),
            mode: mode.to_owned(),
            queues: fields.number("queues")?,
            mac: unhex(fields.get("mac")?).ok_or(LineError { key: "mac" })?,
            mtu: fields.number("mtu")?,
            steering: steering(fields.get("steering")?).ok_or(LineError { key: "steering" })?,
            partial_checksums: fields.flag("partial_checksums")?,
            shared_frames: fields.flag("shared_frames")?,
            table_fd: fields.flag("table_fd")?,
            xdp: match kind {
                "afxdp" => Some(XdpBind {
                    ifindex: fields.number("ifindex")?,
                    mode: XdpMode::from_name(fields.get("bind")?)
                        .ok_or(LineError { key: "bind" })?,
                    frags: fields.flag("frags")?,
                }),
                _ => None,
            },
        })
    }
}

struct Fields<'a>(&'a str);

impl<'a> Fields<'a> {
    fn get(&self, key: &'static str) -> Result<&'a str, LineError> {
        let mut pairs = self.0.split(' ').filter_map(|word| word.split_once('='));
        pairs.find(|(k, _)| *k == key).map(|(_, value)| value).ok_or(LineError { key })
    }

    fn number<T: std::str::FromStr>(&self, key: &'static str) -> Result<T, LineError> {
        self.get(key)?.parse().map_err(|_| LineError { key })
    }

    fn flag(&self, key: &'static str) -> Result<bool, LineError> {
        match self.get(key)? {
            "0" => Ok(false),
            "1" => Ok(true),
            _ => Err(LineError { key }),
        }
    }
}

fn steering(text: &str) -> Option<Steering> {
    match text {
        "software" => Some(Steering::Software),
        "table" => Some(Steering::Table),
        _ => text.strip_prefix("rss:").and_then(unhex).map(Steering::Rss),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if text.len() != 2 * N || !text.is_ascii() {
        return None;
    }
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_info() -> impl Strategy<Value = NicInfo> {
        let steering = prop_oneof![
            Just(Steering::Software),
            Just(Steering::Table),
            proptest::array::uniform32(any::<u8>()).prop_map(|half| {
                let mut key = [0; 40];
                key[..32].copy_from_slice(&half);
                Steering::Rss(key)
            }),
        ];
        let mode = prop_oneof![
            Just(XdpMode::Auto),
            Just(XdpMode::ZeroCopy),
            Just(XdpMode::Copy),
            Just(XdpMode::Generic),
        ];
        let xdp = (any::<u32>(), mode, any::<bool>()).prop_map(|(ifindex, mode, frags)| XdpBind {
            ifindex,
            mode,
            frags,
        });
        let text = ("[a-z0-9.=-]{1,15}", "[ -~]{0,60}");
        let flags = any::<[bool; 3]>();
        (text, 0..4usize, any::<(usize, [u8; 6], usize)>(), flags, steering, xdp).prop_map(
            |((name, mode), kind, (queues, mac, mtu), flags, steering, xdp)| {
                let [partial_checksums, shared_frames, table_fd] = flags;
                NicInfo {
                    shared_frames,
                    table_fd,
                    kind: KINDS[kind],
                    name,
                    mode,
                    queues,
                    mac,
                    mtu,
                    steering,
                    partial_checksums,
                    xdp: (KINDS[kind] == "afxdp").then_some(xdp),
                }
            },
        )
    }

    proptest! {
        #[test]
        fn survives_the_journey(info in any_info()) {
            let line = info.to_line();
            prop_assert!(!line.contains('\n'));
            prop_assert_eq!(NicInfo::from_line(&line), Ok(info));
        }

        #[test]
        fn any_text_is_an_answer(text in "\\PC*") {
            let _ = NicInfo::from_line(&text);
        }
    }

    #[test]
    fn names_what_is_missing() {
        let line = "kind=tap name=tap0 queues=1 mac=02000000000g mtu=1500 mode=x";
        assert_eq!(NicInfo::from_line(line), Err(LineError { key: "mac" }));
        assert_eq!(NicInfo::from_line("kind=tap"), Err(LineError { key: "mode" }));
    }
}
