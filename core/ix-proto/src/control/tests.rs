//! What one end writes the other reads back equal: every request and every answer.
use super::vnic::*;
use super::*;
use crate::capture::{self, RING_BYTES, SNAPLEN_MAX};
use crate::survey::FlowFigures;
use crate::{GroupSet, MigrationEnd, MigrationRecord, ThreadState};
use ix_vnic::{Filter, Rate};
use ix_wire::FLOW_GROUPS;
use proptest::collection::{btree_map, vec};
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select;
use std::collections::BTreeMap;
use std::net::SocketAddr;

fn word() -> impl Strategy<Value = String> {
    "\\PC{0,12}"
}

/// A figure as people measure it: JSON keeps few digits exactly.
fn figure() -> impl Strategy<Value = f64> {
    any::<u32>().prop_map(|n| f64::from(n) / 1000.0)
}

fn groups() -> impl Strategy<Value = GroupSet> {
    vec(0..FLOW_GROUPS, 1..9).prop_map(|groups| groups.into_iter().collect())
}

fn filter() -> impl Strategy<Value = Filter> {
    let filters = [
        "rx tcp service 10.0.0.5:80-90 peer 10.0.0.0/8",
        "tx udp service 10.0.0.5,10.0.0.7:53",
        "rx eth type 0x88b5",
        "tx ip proto 253 service 10.0.0.5",
    ];
    select(filters.map(|text| text.parse().expect(text)).to_vec())
}

fn change() -> impl Strategy<Value = RateChange> {
    prop_oneof![Just(RateChange::Keep), Just(RateChange::Remove), rate().prop_map(RateChange::Set)]
}

fn capture_filter() -> impl Strategy<Value = capture::Filter> {
    let filters = ["", "tcp and port 80", "not (drops or host ::1)"];
    select(filters.map(|text| text.parse().expect(text)).to_vec())
}

fn rate() -> impl Strategy<Value = Rate> {
    (of(1..1_000_000_000u64), 1..1_000_000_000u64, 1..1_000_000u32).prop_map(
        |(bits_per_s, packets, burst_bytes)| Rate {
            bits_per_s,
            packets_per_s: bits_per_s.is_none_or(|bits| bits % 2 == 0).then_some(packets),
            burst_bytes,
        },
    )
}

fn counts() -> impl Strategy<Value = BTreeMap<String, u64>> {
    btree_map("[a-z]{3,6}_[a-z]{1,4}", any::<u64>(), 0..5)
}

fn report() -> impl Strategy<Value = Report> {
    (any::<(u32, u16, u16)>(), word(), word(), word(), figure(), of(figure())).prop_map(
        |((pid, rung, rungs), policy, configuration, last, slo_us, power_w)| {
            let (rung, rungs) = (rung.into(), rungs.into());
            Report { pid, policy, slo_us, rung, rungs, configuration, last, power_w }
        },
    )
}

fn query() -> impl Strategy<Value = Query> {
    let peers = ["10.0.0.1", "10.0.0.1:4000", "10.0.0.0/8", "::1", "[::1]:7"];
    let states = ["established", "TIME-WAIT", "syn-sent"];
    (
        (0..=CONNECTIONS_MAX, of(0usize..64), of(any::<u32>()), of(groups())),
        of(select(peers.map(|text| text.parse().expect(text)).to_vec())),
        of(select(states.map(|text| text.parse().expect(text)).to_vec())),
        (select(Sort::ALL.to_vec()), 1..=INTERVAL_MAX_MS),
    )
        .prop_map(|((max, thread, process, groups), peer, state, (sort, interval_ms))| Query {
            max,
            thread,
            process,
            groups,
            peer,
            state,
            sort,
            interval_ms,
        })
}

/// Of every kind.
fn request() -> impl Strategy<Value = Request> {
    let topic = || select(vec![Topic::Status, Topic::Stats]);
    let device = select(vec![VnicDevice::Afxdp, VnicDevice::Tap]);
    let wish = (any::<u32>(), 1..=SNAPLEN_MAX, capture_filter());
    let thread = 0usize..64;
    prop_oneof![
        Just(Request::Status),
        Just(Request::Stats),
        (topic(), 10..=3_600_000u64)
            .prop_map(|(to, interval_ms)| Request::Subscribe { to, interval_ms }),
        Just(Request::Unsubscribe),
        query().prop_map(Request::Connections),
        (groups(), thread.clone()).prop_map(|(groups, to)| Request::Migrate { groups, to }),
        thread.clone().prop_map(|thread| Request::Drain { thread }),
        thread.clone().prop_map(|thread| Request::Park { thread }),
        thread.prop_map(|thread| Request::Resume { thread }),
        (of(word()), of(figure())).prop_map(|(text, slo_us)| Request::Policy { text, slo_us }),
        wish.prop_map(|(pid, snaplen, filter)| {
            let ring_bytes = *RING_BYTES.end();
            Request::Capture { wish: CaptureWish { pid, filter, snaplen, ring_bytes } }
        }),
        any::<u32>().prop_map(|pid| Request::CaptureStop { pid }),
        any::<bool>().prop_map(|all| Request::About { all }),
        Just(Request::Vnic),
        (vec(filter(), 0..4), of(word()), of(word()), of(0usize..9)).prop_map(
            |(filters, holder, vnic, queue)| Request::FilterCreate { filters, holder, vnic, queue }
        ),
        (word(), of(word()), of(0usize..9)).prop_map(|(capability, vnic, queue)| {
            Request::FilterAssign { capability, vnic, queue }
        }),
        (word(), 0usize..9, of(any::<u32>()), device).prop_map(|(name, queues, owner, device)| {
            Request::VnicCreate { name, queues, owner, device }
        }),
        word().prop_map(|name| Request::VnicDelete { name }),
        (word(), of(filter()))
            .prop_map(|(capability, filter)| Request::FilterDerive { capability, filter }),
        word().prop_map(|capability| Request::FilterRevoke { capability }),
        of(any::<u32>()).prop_map(|filter| Request::FilterRemove { filter }),
        (change(), change(), change(), of(word()), of(0usize..9), of(any::<u32>())).prop_map(
            |(rx, tx, flow, vnic, queue, weight)| Request::Rate {
                rx,
                tx,
                flow,
                vnic,
                queue,
                weight
            }
        ),
        report().prop_map(|report| Request::Control { report }),
    ]
}

fn window() -> impl Strategy<Value = Window> {
    vec([figure(), figure(), figure()], 6).prop_map(|all| Window {
        queueing_delay_us: all[0],
        queue_depth: all[1],
        batch: all[2],
        iteration_us: all[3],
        idle: all[4],
        rate_per_s: all[5],
    })
}

fn times() -> impl Strategy<Value = Times> {
    (vec(any::<u64>(), 0..9), any::<u64>()).prop_map(|(counts, sum_ns)| Times { counts, sum_ns })
}

fn thread() -> impl Strategy<Value = Thread> {
    let hardware = (any::<(u64, u64, Option<u64>)>()).prop_map(|(cycles, instructions, misses)| {
        Hardware { cycles, instructions, cache_misses: misses }
    });
    let ticks = any::<[u64; 6]>().prop_map(|[count, mean, p50, p99, p999, max]| CycleTicks {
        count,
        mean,
        p50,
        p99,
        p999,
        max,
    });
    (
        (select(ThreadState::ALL.to_vec()), any::<(u32, u64)>(), groups(), window()),
        (counts(), counts(), counts(), counts()),
        (vec(any::<u64>(), 0..9), ticks, of(hardware), times(), times()),
    )
        .prop_map(
            |(
                (state, (cpu, wake_ns), flow_groups, window),
                (drops, tcp, stage_ticks, counters),
                (batches, busy_cycle_ticks, hardware, busy_cycles_took, packets_waited),
            )| Thread {
                state,
                cpu,
                flow_groups,
                wake_ns,
                window,
                drops,
                tcp,
                stage_ticks,
                batches,
                busy_cycle_ticks,
                busy_cycles_took,
                packets_waited,
                hardware,
                counters,
            },
        )
}

fn migration() -> impl Strategy<Value = MigrationRecord> {
    let end = select(MigrationEnd::ALL.to_vec());
    (any::<[u32; 9]>(), any::<(u64, u64, u16, u16)>(), groups(), end).prop_map(
        |(us, (command, start_us, from, to), flow_groups, end)| MigrationRecord {
            command,
            flow_groups,
            from,
            to,
            flows: us[0],
            start_us,
            prepare_us: us[1],
            wait_us: us[2],
            rpc_us: us[3],
            deferred_us: us[4],
            total_us: us[5],
            pause_us: us[6],
            descheduled_us: us[7],
            packets: us[8],
            end,
        },
    )
}

fn sharing() -> impl Strategy<Value = Sharing> {
    let sharer = any::<(u32, u32)>().prop_map(|(number, pid)| Sharer { number, pid });
    let memory = any::<[u64; 4]>().prop_map(|bytes| MemoryUse {
        receive_bytes: bytes[0],
        build_bytes: bytes[1],
        transmit_bytes: bytes[2],
        own_bytes: bytes[3],
    });
    (vec(sharer, 0..3), any::<(u64, u64)>(), memory).prop_map(
        |(processes, (refused, died), memory)| Sharing { processes, refused, died, memory },
    )
}

fn look() -> impl Strategy<Value = Look> {
    let group = any::<(Option<u8>, u64)>()
        .prop_map(|(thread, packets)| Group { thread: thread.map(usize::from), packets });
    let starting = (word(), word(), any::<u32>(), of(report()), vec(word(), 0..3)).prop_map(
        |(error, program, pid, controller, devices)| {
            let device_states = devices.clone();
            let starting = Starting { error, program, pid, controller, devices, device_states };
            Look::Starting(Box::new(starting))
        },
    );
    let running = (
        (word(), any::<(u32, u64, u64, u32, u64)>(), of(word())),
        (vec(thread(), 0..3), vec(group, 0..5), vec(migration(), 0..3)),
        (any::<[u64; 5]>(), any::<bool>(), counts(), of(sharing())),
        (of(report()), vec(word(), 0..3), vec(word(), 0..3)),
    )
        .prop_map(
            |(
                (program, numbers, hardware_missing),
                lists,
                (done, stands, refused, sharing),
                more,
            )| {
                let (pid, now_us, ticks_per_us, batch_bound, migrations_ever) = numbers;
                let (threads, groups, migrations) = lists;
                let (controller, devices, device_states) = more;
                let [running, ended, done, refused_ever, timed_out] = done;
                Look::Running(Box::new(Status {
                    program,
                    pid,
                    now_us,
                    ticks_per_us,
                    batch_bound,
                    threads,
                    groups,
                    commands: Commands { running, ended, done, refused: refused_ever, timed_out },
                    wall: Wall { stands, refused },
                    migrations_ever,
                    migrations,
                    controller,
                    devices,
                    device_states,
                    sharing,
                    hardware_missing,
                    own_calls: Vec::new(),
                }))
            },
        );
    prop_oneof![starting, running]
}

fn connection() -> impl Strategy<Value = Connection> {
    let ends = any::<(SocketAddr, SocketAddr)>();
    (ends, 0u32..14, any::<(u16, u16, u32)>(), any::<[u32; 12]>(), any::<[u64; 4]>(), of(figure()))
        .prop_map(|(ends, state, (thread, flow_group, process), n, long, bytes_per_s)| {
            // The scope of an address is not among what is told.
            let plain = |end: SocketAddr| SocketAddr::new(end.ip(), end.port());
            Connection {
                peer: plain(ends.0),
                local: plain(ends.1),
                state: TcpState::of(state),
                thread,
                flow_group,
                process,
                figures: FlowFigures {
                    bytes_in: long[0],
                    bytes_out: long[1],
                    age_us: long[2],
                    idle_us: long[3],
                    cwnd_bytes: n[0],
                    ssthresh_bytes: n[1],
                    mss_bytes: n[2],
                    srtt_us: n[3],
                    rttvar_us: n[4],
                    rto_us: n[5],
                    snd_wnd_bytes: n[6],
                    rcv_wnd_bytes: n[7],
                    in_flight_bytes: n[8],
                    retransmits: n[9],
                    snd_queued_bytes: n[10],
                    rcv_queued_bytes: n[11],
                },
                bytes_per_s,
            }
        })
}

fn connections() -> impl Strategy<Value = Connections> {
    let sort = select(Sort::ALL.to_vec());
    (any::<(u64, u32, u64, u64)>(), sort, groups(), vec(connection(), 0..4)).prop_map(
        |((total, matched, took_us, left_out), sort, missing_flow_groups, connections)| {
            let matched = matched as usize;
            Connections {
                total,
                matched,
                sort,
                took_us,
                missing_flow_groups,
                left_out,
                connections,
            }
        },
    )
}

fn rates() -> impl Strategy<Value = Rates> {
    (of(rate()), of(rate()), of(rate())).prop_map(|(rx_rate, tx_rate, flow_rate)| Rates {
        rx_rate,
        tx_rate,
        flow_rate,
    })
}

fn queue_rates() -> impl Strategy<Value = QueueRates> {
    (0usize..9, rates()).prop_map(|(queue, rates)| QueueRates { queue, rates })
}

fn own_rates() -> impl Strategy<Value = OwnRates> {
    (rates(), of(rate()), of(rate()), vec(queue_rates(), 0..3)).prop_map(
        |(rates, link_rate, link_part, queue_rates)| OwnRates {
            rates,
            link_rate,
            link_part,
            queue_rates,
        },
    )
}

fn shared_rates() -> impl Strategy<Value = SharedRates> {
    (of(rate()), of(rate()), any::<u32>(), of(any::<u64>())).prop_map(
        |(rx_rate, tx_rate, weight, part_bits_per_s)| SharedRates {
            rx_rate,
            tx_rate,
            weight,
            part_bits_per_s,
        },
    )
}

fn refused() -> impl Strategy<Value = BTreeMap<Code, u64>> {
    btree_map(select(refusals()).prop_map(|refusal| refusal.code()), any::<u64>(), 0..4)
}

fn vnic() -> impl Strategy<Value = View> {
    let limits = || vec(select(vec![Limit::Filters, Limit::Rates, Limit::Weights]), 0..4);
    let own_filter = (any::<(u32, Option<u32>, bool)>(), filter(), word(), of(0usize..9)).prop_map(
        |((number, derived_from, in_hardware), text, holder, queue)| OwnFilter {
            filter: number,
            text,
            holder,
            derived_from,
            queue,
            in_hardware,
        },
    );
    let own = (
        (own_rates(), 1usize..9, vec(own_filter, 0..3)),
        any::<(u16, u16, u16, bool, bool)>(),
        (vec(filter(), 0..3), limits(), refused()),
    )
        .prop_map(
            |((rates, queues, filters), numbers, (in_hardware, in_software, refused))| {
                View::Own(Box::new(OwnVnic {
                    rates,
                    queues,
                    filters,
                    filters_max: numbers.0.into(),
                    derived_of_a_holder_max: numbers.1.into(),
                    filters_of_a_direction_max: numbers.2.into(),
                    rx_filtered: numbers.3,
                    tx_filtered: numbers.4,
                    in_hardware,
                    in_software,
                    refused,
                }))
            },
        );
    let shared_filter = (any::<(u32, Option<u32>)>(), filter(), word(), of(word())).prop_map(
        |((number, derived_from), text, holder, vnic)| SharedFilter {
            filter: number,
            text,
            holder,
            derived_from,
            vnic,
        },
    );
    let shared_vnic = (
        (word(), 1usize..9, of(word()), of(word()), of(any::<u32>())),
        any::<[u64; 8]>(),
        of(shared_rates()),
    )
        .prop_map(|((vnic, queues, link, device, owner), n, rates)| SharedVnic {
            vnic,
            queues,
            link,
            device,
            owner,
            sent: n[0],
            sent_bytes: n[1],
            received: n[2],
            foreign_mac: n[3],
            foreign: n[4],
            over_rate: n[5],
            over_share: n[6],
            received_over_rate: n[7],
            rates,
        });
    let shared = (
        (vec(shared_vnic, 0..3), vec(shared_filter, 0..3), vec(any::<std::net::IpAddr>(), 0..3)),
        any::<(u16, u16, u16, u16, bool)>(),
        (limits(), limits(), of(any::<u64>()), refused()),
    )
        .prop_map(|((vnics, filters, linux), max, more)| {
            let (in_hardware, in_software, link_bits_per_s, refused) = more;
            View::Shared(Box::new(SharedInterface {
                vnics,
                filters,
                limits: Limits {
                    vnics: max.0.into(),
                    queues: max.1.into(),
                    filters: max.2.into(),
                    derived_of_a_holder: max.3.into(),
                    overlap: max.4,
                },
                linux,
                in_hardware,
                in_software,
                link_bits_per_s,
                refused,
            }))
        });
    prop_oneof![own, shared]
}

/// What a request may return, and the request.
fn answer_to(request: Request) -> BoxedStrategy<Answer> {
    let queue = || of(of(0usize..9));
    match request {
        Request::Status | Request::Stats => look().prop_map(Answer::Look).boxed(),
        Request::Connections(_) => connections().prop_map(Answer::Connections).boxed(),
        Request::Policy { .. } => (any::<u32>(), word(), of(figure()))
            .prop_map(|(controller, policy, slo_us)| {
                PolicySet { controller, policy, slo_us }.into()
            })
            .boxed(),
        Request::Control { .. } => (any::<u64>(), of(word()), of(figure()))
            .prop_map(|(serial, policy, slo_us)| PolicyRequest { serial, policy, slo_us }.into())
            .boxed(),
        Request::Capture { .. } => {
            of(word()).prop_map(|path| CaptureStarted { path }.into()).boxed()
        }
        Request::About { .. } => (vec(word(), 0..4), of(word()), vec(word(), 0..4))
            .prop_map(|(command, config, log)| About { command, config, log }.into())
            .boxed(),
        Request::Vnic => vnic().prop_map(Answer::Vnic).boxed(),
        Request::Rate { .. } => prop_oneof![
            own_rates().prop_map(RatesSet::Own),
            queue_rates().prop_map(RatesSet::Queue),
            (word(), shared_rates(), of(word())).prop_map(|(vnic, rates, note)| {
                RatesSet::Shared(SharedRatesSet { vnic, rates, note })
            }),
        ]
        .prop_map(Answer::RatesSet)
        .boxed(),
        Request::FilterCreate { .. } => vec((any::<u32>(), filter(), queue(), word()), 0..4)
            .prop_map(|all| {
                let filters = all.into_iter().map(|(filter, text, queue, capability)| {
                    FilterCreated { filter, text, queue, capability }
                });
                FiltersCreated { filters: filters.collect() }.into()
            })
            .boxed(),
        Request::FilterDerive { .. } => (any::<u32>(), word())
            .prop_map(|(filter, capability)| FilterDerived { filter, capability }.into())
            .boxed(),
        Request::FilterAssign { .. } => (any::<u32>(), queue())
            .prop_map(|(filter, queue)| FilterAssigned { filter, queue }.into())
            .boxed(),
        Request::FilterRevoke { .. } | Request::FilterRemove { .. } => {
            (0usize..9).prop_map(|revoked| FiltersRevoked { revoked }.into()).boxed()
        }
        Request::VnicCreate { .. } => [word(), word(), word(), word()]
            .prop_map(|[vnic, link, device, capability]| {
                VnicCreated { vnic, link, device, capability }.into()
            })
            .boxed(),
        Request::VnicDelete { .. } => {
            word().prop_map(|deleted| VnicDeleted { deleted }.into()).boxed()
        }
        Request::Subscribe { .. }
        | Request::Unsubscribe
        | Request::Migrate { .. }
        | Request::Drain { .. }
        | Request::Park { .. }
        | Request::Resume { .. }
        | Request::CaptureStop { .. } => Just(Answer::Done {}).boxed(),
    }
}

/// One of each.
fn refusals() -> Vec<Refusal> {
    vec![
        Refusal::BadRequest("what?".to_owned()),
        Refusal::TooLong(4096),
        Refusal::Version("9".to_owned()),
        Refusal::NotAllowed,
        Refusal::Busy,
        Refusal::NoSuchThread(3, 2),
        Refusal::NoController,
        Refusal::Controlled(7),
        Refusal::Captured(7),
        Refusal::NoAnswer,
        Refusal::Dataplane("it is gone".to_owned()),
        Refusal::Unsupported("do that"),
        Refusal::Foreign,
        Refusal::NoCapability,
        Refusal::Vnic("held".to_owned()),
    ]
}

#[test]
fn what_says_nothing_has_nothing_in_it() {
    let request = Request::Park { thread: 0 };
    assert_eq!(Line::read(r#"{"ok":{}}"#, &request).expect("done"), Line::Ok(Answer::Done {}));
    for wrong in [r#"{"ok":{"deleted":"a"}}"#, r#"{"ok":"done"}"#, r#"{"ok":7}"#] {
        assert!(Line::read(wrong, &request).is_err(), "{wrong}");
    }
}

proptest! {
    #[test]
    fn every_request_is_read_as_it_was_written(request in request()) {
        let line = request.line().expect("JSON");
        prop_assert_eq!(Request::read(line.as_bytes()), Ok(request));
    }

    #[test]
    fn no_request_has_unknown_keys(request in request()) {
        let line = request.line().expect("JSON");
        let more = format!("{},\"more\":1}}", &line[..line.len() - 1]);
        let refused = Request::read(more.as_bytes());
        prop_assert!(matches!(refused, Err(Refusal::BadRequest(_))), "{}", more);
    }

    #[test]
    fn every_answer_is_read_as_it_was_written(
        (request, answer) in request().prop_flat_map(|r| (Just(r.clone()), answer_to(r))),
    ) {
        let line = Line::Ok(answer);
        let text = line.write().expect("JSON");
        prop_assert_eq!(Line::read(&text, &request).expect(&text), line);
    }

    #[test]
    fn snapshots_and_greetings_survive(
        look in look(),
        pid in any::<u32>(),
        program in word(),
        operator in any::<bool>(),
    ) {
        let line = Line::Snapshot(look);
        let text = line.write().expect("JSON");
        prop_assert_eq!(Line::read(&text, &Request::Unsubscribe).expect(&text), line);
        let role = if operator { Role::Operator } else { Role::ReadOnly };
        let hello = Hello { protocol: PROTOCOL, ix: "0.1.0".to_owned(), role, pid, program };
        let text = Line::Hello(hello.clone()).write().expect("JSON");
        prop_assert_eq!(Greeting::read(&text).expect(&text), Greeting::Hello(hello));
    }

    #[test]
    fn no_line_harms(line in "\\PC{0,60}", request in request()) {
        let _ = Line::read(&line, &request);
        let _ = Greeting::read(&line);
    }
}

#[test]
fn every_refusal_has_a_name_and_survives() {
    let mut names = std::collections::BTreeSet::new();
    for refusal in refusals() {
        let refused = Refused::from(&refusal);
        let line = Line::Error(refused.clone());
        let text = line.write().expect("JSON");
        assert!(text.contains(&format!("\"code\":\"{}\"", refusal.code())), "{text}");
        assert_eq!(Line::read(&text, &Request::Status).expect(&text), line);
        assert!(names.insert(refusal.code()), "{text}");
    }
}

#[test]
fn the_words_on_the_wire_are_those_of_the_reference() {
    let queue = FilterAssigned { filter: 3, queue: Some(None) };
    let shared = FilterAssigned { filter: 3, queue: None };
    let hello = Hello {
        protocol: PROTOCOL,
        ix: "0.1.0".to_owned(),
        role: Role::Operator,
        pid: 7,
        program: "ix-echo".to_owned(),
    };
    for (line, text) in [
        (Line::Ok(Answer::Done {}), r#"{"ok":{}}"#),
        (Line::Ok(CaptureStarted::default().into()), r#"{"ok":{}}"#),
        (Line::Ok(queue.into()), r#"{"ok":{"filter":3,"queue":null}}"#),
        (Line::Ok(shared.into()), r#"{"ok":{"filter":3}}"#),
        (
            Line::Hello(hello),
            r#"{"hello":{"protocol":1,"ix":"0.1.0","role":"operator","pid":7,"program":"ix-echo"}}"#,
        ),
        (
            Line::Error(Refused::from(&Refusal::NoSuchThread(5, 2))),
            r#"{"error":{"code":"no-such-thread","why":"no elastic thread 5","mend":"its threads are 0 to 1"}}"#,
        ),
    ] {
        assert_eq!(line.write().expect("JSON"), text);
    }
    assert!(Greeting::read(r#"{"ok":{}}"#).is_err());
    let other = Greeting::Other { protocol: 9, ix: "2.0.0".to_owned() };
    let line = r#"{"hello":{"protocol":9,"ix":"2.0.0","more":1}}"#;
    assert_eq!(Greeting::read(line).expect("a greeting"), other);
}

#[test]
fn what_is_missing_is_zero_and_what_is_new_is_passed_over() {
    let text = r#"{"ok":{"threads":[{"rx_packets":4,"new":{"a":1}}],"new":[1]}}"#;
    let Ok(Line::Ok(Answer::Look(Look::Running(status)))) = Line::read(text, &Request::Status)
    else {
        panic!("no status");
    };
    assert_eq!((status.total("rx_packets"), status.threads[0].flow_groups.len()), (4, 0));
    assert_eq!(status.threads[0].counters.len(), 1);
    let text = r#"{"ok":{"error":"its dataplane is starting"}}"#;
    assert!(Line::read(text, &Request::Stats).is_err(), "whose?");
    assert!(Line::read(r#"{"ok":{"threads":5}}"#, &Request::Status).is_err());
}
