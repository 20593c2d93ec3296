use super::*;

fn args() -> BenchArgs {
    BenchArgs::default()
}

fn plan(name: &str, args: &BenchArgs) -> Plan {
    Plan::of(name, args, 4)
}

fn value(point: &Point, key: &str) -> Value {
    point.also.iter().find(|(name, _)| *name == key).map_or(Value::Null, |(_, v)| v.clone())
}

#[test]
fn pingpong_is_ixs() {
    let pingpong = plan("pingpong", &args());
    let sizes: Vec<_> = pingpong.points.iter().map(|p| p.size).collect();
    assert_eq!(sizes.len(), 14);
    assert_eq!((sizes[0], sizes[1], sizes[10], sizes[13]), (64, 20_000, 200_000, 524_288));
    assert!(pingpong.points.iter().all(|p| p.connections == 1 && p.figures == Figures::OneWay));
    assert_eq!(pingpong.runs, 5, "medians of five");
}

#[test]
fn short_sweeps_cores_messages_and_sizes() {
    let points = plan("short", &args()).points;
    assert!(points.iter().all(|p| p.connections == 100));
    let key = |p: &Point| {
        let number = |key| value(p, key).as_u64().expect("a number");
        (number("cores"), number("messages_per_connection"), p.size)
    };
    let keys: Vec<_> = points.iter().map(key).collect();
    assert_eq!(keys[..5], [(1, 1, 64), (2, 1, 64), (3, 1, 64), (4, 1, 64), (4, 2, 64)]);
    assert_eq!(keys[11..13], [(4, 1024, 64), (4, 1, 256)]);
    assert_eq!(keys.len(), 4 + 8 + 4);
    assert!(points.iter().all(|p| p.server.threads() as u64 == value(p, "cores")));
    // On a machine with one core for the server nothing is measured twice.
    assert_eq!(Plan::of("short", &args(), 1).points.len(), 1 + 8 + 4);
}

#[test]
fn connections_scale_to_a_quarter_of_a_million() {
    let counts = scaling_connections();
    assert_eq!((counts.len(), counts[0], counts[20]), (21, 25, 251_188));
    let points = plan("connscaling", &args()).points;
    assert!(points.iter().map(|p| p.connections).eq(counts));
    assert_eq!(
        (value(&points[0], "in_flight"), value(&points[20], "in_flight")),
        (25.into(), 64.into())
    );
    let client = points[20].client.join(" ");
    assert!(client.contains("--connections 251188 --ports 32 --in-flight 64"), "{client}");
    assert!(points[20].setup_seconds > 10.0);
}

#[test]
fn the_batch_bound_is_ixs_alone() {
    let points = plan("batch", &args()).points;
    let (linux, ix): (Vec<_>, Vec<_>) = points.iter().partition(|p| p.on == On::Linux);
    assert_eq!((linux.len(), ix.len()), (2, 14));
    assert!(linux.iter().all(|p| p.server.batch.is_none()));
    assert_eq!(ix.iter().filter_map(|p| p.server.batch).max(), Some(64));
    assert!(ix.iter().all(|p| value(p, "batch") == json!(p.server.batch)));
}

#[test]
fn connections_end_in_three_ways() {
    let points = plan("churn", &BenchArgs { connections: vec![8], ..args() }).points;
    let closes: Vec<_> = points.iter().map(|p| value(p, "close")).collect();
    assert_eq!(closes, ["client resets", "client closes", "server closes"]);
    assert!(points[2].server.arguments.join(" ").contains("--messages-per-connection 1"));
    assert!(points.iter().all(|p| p.figures == Figures::Churn));
}

#[test]
fn arrakis_echo_is_over_udp() {
    let points = plan("udp-echo", &args()).points;
    assert!(points.iter().map(|p| p.size).eq([[64; 6], [1024; 6]].concat()));
    let linux = points.iter().filter(|point| point.on == On::Linux);
    assert_eq!(linux.count(), 4, "two a size");
    let posix = BenchArgs { server: Some(ServerKind::Posix), ..args() };
    let posix = plan("udp-echo", &posix).points;
    assert!(
        posix.iter().map(|p| &p.also[1].1).eq([
            &json!(null),
            &json!("one a call"),
            &json!("sockets")
        ]
        .repeat(2))
    );
    assert!(points.iter().all(|p| p.server.arguments.contains(&"--udp".to_owned())));
    assert!(points.iter().all(|p| p.client.join(" ").contains("--udp --depth 64")));
}

#[test]
fn flags_replace_what_they_name() {
    let asked = BenchArgs {
        connections: vec![3, 5],
        size: vec![100],
        seconds: Some(0.25),
        runs: Some(2),
        ..args()
    };
    let plan = plan("echo", &asked);
    let points: Vec<_> = plan.points.iter().map(|p| (p.connections, p.size)).collect();
    assert_eq!(points, [(3, 100), (5, 100)]);
    assert_eq!(plan.points[0].client.join(" "), "--size 100 --connections 3 --seconds 0.25");
    assert_eq!((plan.points[0].server.arguments.join(" ").as_str(), plan.runs), ("100", 2));
}

#[test]
fn quick_plans_are_small() {
    let quick = BenchArgs { quick: true, ..args() };
    for name in ["echo", "pingpong", "short", "bulk", "connscaling", "batch", "churn", "udp-echo"] {
        let plan = Plan::of(name, &quick, 1);
        assert!((1..=12).contains(&plan.points.len()), "{name}: {}", plan.points.len());
        assert!(plan.seconds < 1.0);
    }
}

#[test]
fn bulk_goes_both_ways_with_and_without_offloads() {
    let plan = plan("bulk", &BenchArgs { quick: true, ..args() });
    assert_eq!(plan.points.len(), 4);
    assert!(plan.points.iter().all(|p| !p.client.contains(&"--seconds".to_owned())));
    assert!(plan.points.iter().any(|p| p.offloads) && plan.points.iter().any(|p| !p.offloads));
}
