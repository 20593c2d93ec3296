//! The dataplane in its program's process, kept from it by protection keys, where the processor has
//! them.
use crate::support::traffic::echo;
use crate::support::{self, Nic, PATIENCE, TestNet};
use ix_skip::{Need, skip};

/// It serves as its own user and as another one. (Linux 6.17 and later told the loader that an
/// environment of a program that changes its user is not to be trusted.)
#[test]
fn a_program_behind_keys_serves_as_each_user() {
    let name = "a_program_behind_keys_serves_as_each_user";
    if let Err(e) = ix_sys::probe::protection_keys() {
        return skip(name, Need::Hardware("a processor or guest with protection keys"), e);
    }
    for user in [&[][..], &["--user", "65534"], &["--entry", "loading"]] {
        let Some(net) = TestNet::new(name, Nic::Tap, 1) else { return };
        let flags = [&["--domain", "pku"], user].concat();
        let service = net.serve_with(&flags, &["64"]);
        net.client.run(|| echo(&mut support::connect(), 10, 64));
        service.finish(PATIENCE);
    }
}
