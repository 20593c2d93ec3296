//! The address that Linux has on the interface: refused, unless it is to be taken as a whole.
use crate::support::traffic::echo;
use crate::support::{Nic, PATIENCE, PREFIX, SERVICE, TestNet, build_echo};

/// A private link on whose near end Linux has the service's address.
fn on_linux_address(test: &str) -> Option<TestNet> {
    let net = TestNet::new(test, Nic::Afxdp, 1)?;
    net.server.add_address("ixs0", *SERVICE.ip(), PREFIX).expect("an address");
    Some(net)
}

#[test]
fn an_address_of_linux_is_refused() {
    let Some(net) = on_linux_address("an_address_of_linux_is_refused") else { return };
    let echo = build_echo();
    let service = net.start(&[echo.to_str().expect("text"), "64"]);
    let (status, lines) = service.process.wait(PATIENCE);
    assert_eq!(status.code(), Some(125), "{lines:#?}");
    let [line] = &lines[..] else { panic!("one line: {lines:#?}") };
    for words in [
        "ix: cannot use `host_addr = \"10.88.0.2/16\"`",
        "the address of Linux on ixs0",
        "--take-address",
    ] {
        assert!(line.contains(words), "{words}: {line}");
    }
    assert_eq!(net.server.xdp_program("ixs0").expect("asked"), None, "the interface is as before");
}

#[test]
fn an_address_of_linux_is_taken_when_told() {
    let Some(net) = on_linux_address("an_address_of_linux_is_taken_when_told") else { return };
    let service = net.serve_with(&["--take-address"], &["64"]);
    let mut stream = net.connect();
    echo(&mut stream, 1, 64);
    drop(stream);
    service.finish(PATIENCE);
}
