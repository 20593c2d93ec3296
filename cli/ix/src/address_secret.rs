//! The secret of which the identifiers in IPv6 addresses are made (RFC 7217): always the same for
//! one interface of one host, and not told to others.
use siphasher::sip128::{Hasher128, SipHasher24};
use std::fs;
use std::hash::Hasher;
use std::path::Path;

/// Where systemd and its like keep the number of a machine.
pub const MACHINE_ID: &str = "/etc/machine-id";

/// The secret of an interface of the machine with the number in this file; `None`: it has none.
///
/// The machine's number is the key, so the result does not tell it (machine-id(5) wants that).
pub fn of_interface(machine_id: &Path, interface: &str) -> Option<[u8; 16]> {
    let text = fs::read_to_string(machine_id).ok()?;
    let digits = Some(text.trim()).filter(|digits| digits.len() == 32)?;
    let number = u128::from_str_radix(digits, 16).ok().filter(|number| *number != 0)?;
    let mut hasher = SipHasher24::new_with_key(&number.to_be_bytes());
    hasher.write(b"addresses of ix on ");
    hasher.write(interface.as_bytes());
    Some(hasher.finish128().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_the_hosts_and_the_interfaces() {
        let file = std::env::temp_dir().join(format!("ix-machine-id-{}", std::process::id()));
        let of = |id: &str, interface: &str| {
            fs::write(&file, id).expect("write");
            of_interface(&file, interface)
        };
        let id = "0123456789abcdef0123456789abcdef\n";
        let secret = of(id, "ix0").expect("a secret");
        assert_eq!(of(id, "ix0"), Some(secret));
        assert_ne!(of(id, "ix1"), Some(secret));
        assert_ne!(of("0123456789abcdef0123456789abcdee", "ix0"), Some(secret));
        assert_ne!(secret, 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef_u128.to_be_bytes());
        for none in [
            "",
            "uninitialized\n",
            "00000000000000000000000000000000",
            "0123456789abcdef0123456789abcdef0",
        ] {
            assert_eq!(of(none, "ix0"), None, "{none}");
        }
        fs::remove_file(&file).expect("remove");
        assert_eq!(of_interface(&file, "ix0"), None);
    }
}
