//! The secret for initial sequence numbers and timestamps, kept until the host reboots.
//!
//! A dataplane that ends and is started again uses the same addresses and ports. A server that
//! still has its old connections in TIME-WAIT accepts new ones if their timestamps or sequence
//! numbers continue where the old ones stopped (RFC 6191). That needs the same secret (RFC 6528
//! section 3). Without a secret that lasts, half of the new connections are refused at first.
use ix_wire::IpAddr;
use siphasher::sip128::{Hasher128, SipHasher24};
use std::fs::{self, OpenOptions};
use std::hash::Hasher;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Returns the key of a dataplane with these addresses. If this host has no secret yet, `fresh`
/// becomes it.
///
/// A dataplane gets a key derived for its own addresses only, because its program might read it.
pub fn of_addresses(folder: Option<&Path>, addresses: &[IpAddr], fresh: [u8; 16]) -> [u8; 16] {
    let host = folder.and_then(|folder| keep(&folder.join("isn-key"), fresh)).unwrap_or(fresh);
    let mut hasher = SipHasher24::new_with_key(&host);
    for address in addresses {
        match address.as_v4() {
            Some(octets) => hasher.write(&octets),
            None => hasher.write(&address.0),
        }
    }
    hasher.finish128().as_bytes()
}

/// Returns the file's key; writes `fresh` into a new file if there is none. `None`: the file can be
/// neither read nor written, or holds no key.
fn keep(path: &Path, fresh: [u8; 16]) -> Option<[u8; 16]> {
    if let Ok(bytes) = fs::read(path) {
        return bytes.try_into().ok();
    }
    // Another process may do the same now: a link makes the file appear whole or not at all.
    let draft = path.with_extension(std::process::id().to_string());
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft);
    let written = made.and_then(|mut file| file.write_all(&fresh));
    let _ = written.and_then(|()| fs::hard_link(&draft, path));
    let _ = fs::remove_file(&draft);
    fs::read(path).ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_lasts_and_differs_by_address() {
        let folder = std::env::temp_dir().join(format!("ix-isn-key-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("folder");
        let of = |last, fresh: u8| {
            of_addresses(Some(&folder), &[IpAddr::v4([10, 0, 0, last])], [fresh; 16])
        };
        let first = of(1, 7);
        assert_eq!(of(1, 8), first, "later random bytes are not used");
        assert_ne!(of(2, 8), first);
        assert_ne!(first, [7; 16], "the host's secret is not handed out");
        // A damaged file counts as no file.
        fs::write(folder.join("isn-key"), b"short").expect("write");
        assert_ne!(of(1, 8), first);
        assert_eq!(fs::read_dir(&folder).expect("folder").count(), 1, "no drafts left");
        fs::remove_dir_all(&folder).expect("remove");
        let nowhere = |fresh| of_addresses(None, &[], [fresh; 16]);
        assert_ne!(nowhere(1), nowhere(2));
    }
}
