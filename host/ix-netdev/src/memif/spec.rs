//! `memif:PATH[,id=N][,role=server|client][,queues=N][,secret=S][,mtu=N][,vlan=N][,peer-user=N]`.
use ix_nic::memif::QUEUES_MAX;
use ix_nic::{MTU_MAX, MemifRole};
use ix_sys::process;
use ix_sys::socket::peer_user;
use ix_wire::VlanId;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::str::FromStr;

/// A memif as the user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemifSpec {
    /// The control socket: a path, or `@NAME` for a socket without a file.
    pub path: String,
    /// Number of the interface behind the socket.
    pub id: u32,
    /// `None`: client if somebody listens at the path, else server.
    pub role: Option<MemifRole>,
    /// Queue pairs.
    pub queues: usize,
    /// Secret of both sides; at most [`SECRET_BYTES`].
    pub secret: String,
    /// Largest IP packet, bytes.
    pub mtu: usize,
    /// The VLAN whose tag frames have on the link.
    pub vlan: Option<VlanId>,
    /// A user whose process may be the peer, besides our own and root.
    pub peer_user: Option<u32>,
}

impl MemifSpec {
    /// Refuses the process at the other end of a control socket, with a reason, if its user is none
    /// of those that may be the peer: everybody may make a socket at some paths.
    pub fn check_peer(&self, socket: BorrowedFd<'_>) -> Result<(), String> {
        let user = peer_user(socket).map_err(|e| e.to_string())?;
        if user == 0 || user == process::user_id() || Some(user) == self.peer_user {
            return Ok(());
        }
        Err(format!("user {user} is not taken for the peer; peer-user={user} would allow that"))
    }
}

/// Bytes of a secret in the protocol.
pub const SECRET_BYTES: usize = 24;
/// Longest path in the address of a Unix socket.
const PATH_BYTES_MAX: usize = 107;
/// Largest IP packet where the text says none, bytes.
pub const MTU_DEFAULT: usize = 1500;
/// Least MTU of a link for IPv4 (RFC 791).
const MTU_MIN: usize = 68;

/// Error in the text after `memif:`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The messages say what each is.
pub enum MemifSpecError {
    Path,
    Option(String),
    Id,
    Role,
    Queues,
    Secret,
    Mtu,
    Vlan,
    PeerUser,
}

impl FromStr for MemifSpec {
    type Err = MemifSpecError;

    fn from_str(text: &str) -> Result<MemifSpec, MemifSpecError> {
        use MemifSpecError::*;
        let mut words = text.split(',');
        let path = words.next().unwrap_or_default().to_owned();
        let forbidden = |c: char| c.is_whitespace() || c.is_control();
        if path.trim_start_matches('@').is_empty()
            || path.len() > PATH_BYTES_MAX
            || path.contains(forbidden)
        {
            return Err(Path);
        }
        let mut spec = MemifSpec {
            path,
            id: 0,
            role: None,
            queues: 1,
            secret: String::new(),
            mtu: MTU_DEFAULT,
            vlan: None,
            peer_user: None,
        };
        let in_range = |value: &str, range: std::ops::RangeInclusive<usize>| {
            value.parse().ok().filter(|n| range.contains(n))
        };
        for word in words {
            match word.split_once('=').unwrap_or((word, "")) {
                ("id", value) => spec.id = value.parse().map_err(|_| Id)?,
                ("role", value) => {
                    spec.role = Some(MemifRole::from_name(value).ok_or(Role)?);
                }
                ("queues", value) => {
                    spec.queues = in_range(value, 1..=QUEUES_MAX).ok_or(Queues)?;
                }
                ("secret", value) if (1..=SECRET_BYTES).contains(&value.len()) => {
                    value.clone_into(&mut spec.secret);
                }
                ("secret", _) => return Err(Secret),
                ("mtu", value) => {
                    spec.mtu = in_range(value, MTU_MIN..=MTU_MAX).ok_or(Mtu)?;
                }
                ("vlan", value) => spec.vlan = Some(value.parse().map_err(|_| Vlan)?),
                ("peer-user", value) => {
                    spec.peer_user = Some(value.parse().map_err(|_| PeerUser)?);
                }
                _ => return Err(Option(word.to_owned())),
            }
        }
        Ok(spec)
    }
}

/// All but the secret, which must not appear in logs.
impl fmt::Display for MemifSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memif:{},id={},queues={}", self.path, self.id, self.queues)?;
        if let Some(role) = self.role {
            write!(f, ",role={}", role.name())?;
        }
        if self.mtu != MTU_DEFAULT {
            write!(f, ",mtu={}", self.mtu)?;
        }
        if let Some(vlan) = self.vlan {
            write!(f, ",vlan={vlan}")?;
        }
        if let Some(user) = self.peer_user {
            write!(f, ",peer-user={user}")?;
        }
        Ok(())
    }
}

impl fmt::Display for MemifSpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use MemifSpecError::*;
        match self {
            Path => {
                write!(
                    f,
                    "the path of a memif's socket must have 1 to {PATH_BYTES_MAX} bytes without space"
                )
            }
            Option(word) => write!(
                f,
                "unknown option `{}`; use id=N, role=server|client, queues=N, secret=S, \
                 mtu=N, vlan=N and peer-user=N",
                word.escape_debug()
            ),
            Id => write!(f, "id=N must be a number from 0 to {}", u32::MAX),
            Role => write!(f, "role= must be server or client"),
            Queues => write!(f, "queues=N must be a number from 1 to {QUEUES_MAX} for a memif"),
            Secret => write!(f, "secret=S must have 1 to {SECRET_BYTES} bytes without a comma"),
            PeerUser => write!(f, "peer-user=N must be a user's number (`id -u NAME` prints it)"),
            Vlan => write!(f, "vlan=N must be a number from 1 to {}", VlanId::MAX),
            Mtu => write!(f, "mtu=N must be a number from {MTU_MIN} to {}", MTU_MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        for text in [
            "/run/a.sock",
            "/a,id=7,role=client,queues=3,mtu=576,vlan=7",
            "@abstract,role=server,peer-user=1000",
        ] {
            let spec: MemifSpec = text.parse().unwrap();
            let again = spec.to_string();
            assert_eq!(again.strip_prefix("memif:").unwrap().parse(), Ok(spec), "{again}");
        }
        let spec: MemifSpec = "/a,secret=swordfish".parse().unwrap();
        assert_eq!(spec.secret, "swordfish");
        assert!(!spec.to_string().contains("swordfish"));
    }

    #[test]
    fn refuses_what_is_none() {
        let long = format!("/{}", "x".repeat(PATH_BYTES_MAX));
        for (text, says) in [
            ("", "1 to 107 bytes"),
            ("@", "1 to 107 bytes"),
            ("/a b", "without space"),
            (long.as_str(), "1 to 107 bytes"),
            ("/a,id=-1", "id=N"),
            ("/a,role=master", "server or client"),
            ("/a,queues=0", "from 1 to 16"),
            ("/a,queues=17", "from 1 to 16"),
            ("/a,secret=", "1 to 24"),
            ("/a,secret=1234567890123456789012345", "1 to 24"),
            ("/a,mtu=9217", "mtu=N"),
            ("/a,vlan=0", "from 1 to 4094"),
            ("/a,vlan=4095", "from 1 to 4094"),
            ("/a,peer-user=root", "a user's number"),
            ("/a,", "unknown option ``"),
            ("/a,zero-copy", "unknown option `zero-copy`"),
        ] {
            let says_what = text.parse::<MemifSpec>().unwrap_err().to_string();
            assert!(says_what.contains(says), "{text}: {says_what}");
        }
    }
}
