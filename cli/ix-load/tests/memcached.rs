//! Against Debian's memcached: both protocols, TCP and UDP, both workloads.

use crate::support::{load, memcached};

const QUICK: &str = "--records 2000 --connections 8 --seconds 0.6 --warmup 0.1 --quiet";

#[test]
fn both_protocols_over_tcp_and_udp() {
    let Some((_memcached, at)) = memcached(&["-m", "64"]) else { return };
    for protocol in ["memcached", "memcached-binary"] {
        for transport in ["", "--udp"] {
            // The largest values of ETC do not fit one datagram of a request.
            let workload = if transport.is_empty() { "etc" } else { "usr" };
            let words = format!("--protocol {protocol} {transport} --workload {workload} {QUICK}");
            let ran = load(at, &format!("{words} --depth 3"));
            assert_eq!(ran.status, 0, "{words}: {}", ran.errors);
            assert!(ran.number("msgs_per_s") > 100.0, "{words}");
            assert_eq!(ran.number("hit_rate"), 1.0, "{words}");
            assert_eq!(ran.summary()["loop"], "closed");
            let open = load(at, &format!("{words} --rate 500 --no-preload"));
            assert_eq!(open.status, 0, "{words}: {}", open.errors);
            assert_eq!(open.number("hit_rate"), 1.0, "{words}");
            assert_eq!(open.summary()["loop"], "open");
            assert!((open.number("wanted_per_s") - 500.0).abs() < 1e-6);
        }
    }
}

/// Answers of more than one datagram.
#[test]
fn large_values_over_udp() {
    let Some((_memcached, at)) = memcached(&["-m", "64"]) else { return };
    let words = "--protocol memcached --udp --value-size 5000 --timeout 3";
    let ran = load(at, &format!("{words} {QUICK}"));
    assert_eq!((ran.status, ran.number("hit_rate")), (0, 1.0), "{}", ran.errors);
}

#[test]
fn values_of_a_megabyte_and_pipelines() {
    let Some((_memcached, at)) = memcached(&["-m", "256", "-I", "2m"]) else { return };
    for protocol in ["memcached", "memcached-binary"] {
        let words = format!("--protocol {protocol} --value-size uniform:0:900000 --records 60");
        let ran = load(at, &format!("{words} -c 3 --depth 8 --update 0.3 --seconds 0.5 -q"));
        assert_eq!((ran.status, ran.number("hit_rate")), (0, 1.0), "{}", ran.errors);
    }
}

#[test]
fn misses_cannot_pass_for_a_result() {
    let Some((_memcached, at)) = memcached(&["-m", "64"]) else { return };
    let words = format!("--protocol memcached --no-preload {QUICK}");
    let ran = load(at, &words);
    assert_eq!(ran.status, 3, "{}", ran.errors);
    assert_eq!(ran.number("hit_rate"), 0.0);
    assert!(ran.errors.contains("too few for a result"), "{}", ran.errors);
    assert_eq!(load(at, &format!("{words} --allow-misses")).status, 0);
}

/// Another client's values are under our keys.
#[test]
fn foreign_values_are_errors() {
    let Some((_memcached, at)) = memcached(&["-m", "64"]) else { return };
    let stored = load(at, "--protocol memcached --records 500 --value-size 77 --preload-only");
    assert_eq!(stored.status, 0, "{}", stored.errors);
    let words = "--protocol memcached --records 500 --value-size 78 --no-preload --seconds 0.3 -q";
    let ran = load(at, words);
    assert_ne!(ran.status, 0);
    assert!(ran.errors.contains("has 78 bytes, got 77"), "{}", ran.errors);
}

#[test]
fn a_measuring_client_beside_the_load() {
    let Some((_memcached, at)) = memcached(&["-m", "64"]) else { return };
    let words = format!("--protocol memcached-binary --workload usr {QUICK} --rate 2000");
    let ran = load(at, &format!("{words} --measure-connections 4 --measure-rate 500 --seconds 1"));
    assert_eq!(ran.status, 0, "{}", ran.errors);
    assert!((200.0..800.0).contains(&ran.number("measure_msgs_per_s")), "{}", ran.summary());
    assert!(ran.number("measure_p99_us") > 0.0);
    assert_eq!(ran.rows.len(), 2, "one second and the summary");
    assert_eq!(ran.rows[0]["second"], 0.0);
}
