//! Pages of `docs/reference` that are made from the code. `IX_BLESS=1` writes them.
use crate::rust_items::{Member, kebab, members};
use crate::tree;
use ix_dataplane::metrics::LocalDrop;
use ix_proto::config::bounds;
use ix_proto::device::DeviceKind;
use ix_tcp::TcpCounter;
use ix_wire::DropReason;
use std::fmt::Write;
use std::fs;

const MADE: &str = "Made from the code by `IX_BLESS=1 cargo test -p ix-docs`; do not edit.";

/// Compares a page with its expected text, or writes it.
fn check(path: &str, page: &str) {
    let place = tree::root().join(path);
    if std::env::var_os("IX_BLESS").is_some() {
        fs::write(&place, page).expect("the page can be written");
    }
    let committed = fs::read_to_string(&place).unwrap_or_default();
    assert!(committed == page, "{path} is old: IX_BLESS=1 cargo test -p ix-docs writes it");
}

/// The only source that contains all of `marks`.
fn source_with(marks: &[&str]) -> String {
    let root = tree::root();
    let files = tree::files(&root).expect("the repository can be read");
    let sources = files.iter().filter(|path| path.ends_with(".rs") && !path.contains("ix-docs"));
    let mut texts = sources.filter_map(|path| fs::read_to_string(root.join(path)).ok());
    let found = texts.find(|text| marks.iter().all(|mark| text.contains(mark)));
    found.unwrap_or_else(|| panic!("no source has {marks:?}"))
}

/// Text for a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "\\<").replace("[`", "`").replace("`]", "`")
}

/// Help texts and guides list the kinds of devices by hand.
#[test]
fn every_kind_of_device_is_documented() {
    let page = |path: &str| fs::read_to_string(tree::root().join(path)).expect(path);
    let (guide, flags) = (page("docs/guide/operating.md"), page("docs/reference/command-line.md"));
    let flags: Vec<_> = flags.lines().filter(|line| line.starts_with("| `--nic ")).collect();
    let keys = page("docs/reference/configuration.md");
    let devices = keys.lines().find(|line| line.starts_with("| `devices` |")).expect("a key");
    for kind in DeviceKind::ALL {
        let (form, whole) = (kind.short_form(), format!("{}{}", kind.short_form(), kind.options()));
        let row = format!("| `{}` |", cell(&whole));
        assert!(guide.contains(&row), "docs/guide/operating.md has no row {row}");
        for line in flags.iter().copied().chain([devices]) {
            assert!(line.contains(&format!("`{form}")), "no {form}: {line}");
        }
    }
    assert!(!flags.is_empty(), "the page of flags has no --nic");
}

#[test]
fn drop_reasons_are_listed() {
    let mut page = format!(
        "# Drop reasons\n\n{MADE}\n\nEvery packet that goes no further is counted under one reason: by \
         `ix ctl stats`, in the metric\n`ix_dropped_packets_total{{reason=\"…\"}}`, and in the comments \
         of `ix pcap`.\n\n## Refused by the parser\n\n`core/ix-wire` parses each packet to a value or to \
         one of these.\n\n| reason | when |\n|---|---|\n"
    );
    for reason in DropReason::ALL {
        let _ = writeln!(page, "| `{}` | {} |", reason.name(), cell(reason.describe()));
    }
    page.push_str(
        "\n## Dropped by the dataplane\n\nThe packet is well formed, and the dataplane does not use \
         it.\n\n| reason | when |\n|---|---|\n",
    );
    for reason in LocalDrop::ALL {
        let _ = writeln!(page, "| `{}` | {} |", reason.name(), cell(reason.describe()));
    }
    page.push_str(
        "\n## Incidents of TCP\n\nNot drops: what happened inside TCP, in \
         `ix_tcp_incidents_total{kind=\"…\"}`.\n\n| kind | what is counted |\n|---|---|\n",
    );
    for counter in TcpCounter::ALL {
        let _ = writeln!(page, "| `{}` | {} |", counter.name(), cell(counter.describe()));
    }
    check("docs/reference/drop-reasons.md", &page);
}

#[test]
fn requests_of_the_control_socket_are_listed() {
    let source = source_with(&["pub enum Request {", "FilterCreate {"]);
    let request = members(&source, "Request").expect("an enum of requests");
    let mut page = format!(
        "# Control protocol\n\n{MADE}\n\nThe broker of `ix run` listens at two Unix sockets, `PID.sock` \
         for operators and `PID.ro.sock` for read-only use,\nbelow `/run/ix` (root's), \
         `$XDG_RUNTIME_DIR/ix` or `/tmp/ix-UID`. `ix share` listens at `IFNAME.share`.\n\nEverything is \
         lines of JSON. The broker greets a client with one line:\n\n```json\n\
         {{\"hello\":{{\"protocol\":1,\"ix\":\"0.1.0\",\"role\":\"operator\",\"pid\":7,\
         \"program\":\"ix-echo\"}}}}\n```\n\nThe client sends one request a line, such as \
         `{{\"do\":\"migrate\",\"groups\":\"0-15\",\"to\":1}}`, or only the word where there\nare no \
         arguments (`status`). It may send many, and gets one reply for each, in order: `{{\"ok\":…}}` \
         or\n`{{\"error\":{{\"code\":\"no-such-thread\",\"why\":…,\"mend\":…}}}}`. After `subscribe`, \
         lines `{{\"snapshot\":…}}` come between them.\nA request may name the `protocol` that it was \
         written for; another version is refused. Unknown keys are refused.\n\n```\necho status | socat - \
         UNIX:/run/ix/4711.sock\n```\n\n## Requests\n"
    );
    for variant in &request {
        let _ = writeln!(page, "\n### `{}`\n\n{}", kebab(&variant.name), prose(&variant.doc));
        let inner = match variant.kind.as_str() {
            "" => variant.fields.clone(),
            kind => keys_of(kind),
        };
        table(&mut page, &inner);
    }
    page.push_str("\n## Errors\n\n| code | why |\n|---|---|\n");
    let refusal = source_with(&["pub enum Refusal {", "Code::BadRequest => \"bad-request\""]);
    for variant in members(&refusal, "Refusal").expect("an enum of refusals") {
        let code = code_of(&refusal, &variant.name).expect("a code for each refusal");
        let _ = writeln!(page, "| `{code}` | {} |", cell(&variant.doc));
    }
    check("docs/reference/control-protocol.md", &page);
}

/// The fields of a struct that a request holds.
fn keys_of(name: &str) -> Vec<Member> {
    let head = format!("pub struct {name} {{");
    let source = source_with(&[&head]);
    let mut fields = members(&source, name).unwrap_or_default();
    // If the struct as a whole has a default, so has each of its fields.
    if source.contains(&format!("#[serde(default, deny_unknown_fields)]\n{head}")) {
        fields.iter_mut().for_each(|field| field.attributes.push("#[serde(default)]".to_owned()));
    }
    fields
}

/// The name of the `Code` that is called as a variant of `Refusal`.
fn code_of(source: &str, variant: &str) -> Option<String> {
    let arms = source.lines().filter(|line| line.contains(" => \"") && !line.contains("if "));
    let of = arms.filter(|line| {
        let name = line.trim().strip_prefix("Code::").unwrap_or_default();
        name.split(' ').next() == Some(variant)
    });
    of.filter_map(|line| line.split('"').nth(1)).map(str::to_owned).next()
}

fn table(page: &mut String, members: &[Member]) {
    if members.is_empty() {
        return;
    }
    page.push_str("\n| key | type | meaning |\n|---|---|---|\n");
    for member in members {
        let _ =
            writeln!(page, "| `{}` | {} | {} |", member.name, json_type(member), cell(&member.doc));
    }
}

/// JSON type of a Rust type.
fn json_type(member: &Member) -> String {
    let (inner, optional) = match member.kind.strip_prefix("Option<") {
        Some(rest) => (rest.trim_end_matches('>'), true),
        None => (member.kind.as_str(), false),
    };
    let default = member.attributes.iter().any(|attribute| attribute.contains("default"));
    let name = match inner {
        "String" | "Filter" | "GroupSet" | "PeerFilter" | "StateFilter" => "string",
        "f64" => "number",
        "bool" => "boolean",
        "Vec<Filter>" => "list of strings",
        "Topic" | "Sort" | "VnicDevice" => "word",
        inner if inner.starts_with(['u', 'i']) => "whole number",
        _ => "object",
    };
    if optional || default { format!("{name}, optional") } else { name.to_owned() }
}

/// Documentation without links of rustdoc.
fn prose(doc: &str) -> String {
    doc.replace("[`", "`").replace("`]", "`")
}

/// The structs of the configuration file that the reference has a table for.
const FILE_PARTS: [&str; 6] = ["File", "Route", "Tcp", "Vnic", "Queue", "Control"];

/// A key of the configuration file, as its field documents it.
struct Key {
    name: String,
    kind: String,
    value: String,
    default: String,
    meaning: String,
}

/// The keys of a part of the configuration file, without those that are parts themselves.
fn keys_of_file(part: &str) -> Vec<Key> {
    let source = source_with(&["pub struct File {", "pub host_addr: "]);
    let fields = members(&source, part).unwrap_or_else(|| panic!("no struct {part}"));
    // One that must be there has its place in the file beside it.
    let is_key =
        |field: &Member| ["Option<", "Spanned<"].iter().any(|of| field.kind.starts_with(of));
    let keys = fields.into_iter().filter(is_key);
    keys.map(|field| {
        let (meaning, rest) = field.doc.split_once(" Value: ").unwrap_or((&field.doc, ""));
        let (value, default) = rest.split_once(". Default: ").unwrap_or((rest, ""));
        Key {
            value: value.to_owned(),
            default: default.trim_end_matches('.').to_owned(),
            meaning: meaning.trim_end_matches('.').to_owned(),
            name: field.name,
            kind: field.kind,
        }
    })
    .collect()
}

#[test]
fn configuration_keys_are_described() {
    let path = "docs/reference/configuration.md";
    let mut page = fs::read_to_string(tree::root().join(path)).expect("a page");
    for part in FILE_PARTS {
        let mark = format!("<!-- keys of {part} -->\n");
        let (before, rest) = page.split_once(&mark).unwrap_or_else(|| panic!("no mark {mark}"));
        let (_, after) = rest.split_once("<!-- /keys -->\n").expect("a mark for their end");
        let mut table = "| key | value | default | meaning |\n|---|---|---|---|\n".to_owned();
        for Key { name, value, default, meaning, .. } in keys_of_file(part) {
            let _ = writeln!(table, "| `{name}` | {value} | {default} | {} |", cell(&meaning));
        }
        page = format!("{before}{mark}{table}<!-- /keys -->\n{after}");
    }
    check(path, &page);
}

/// What a field's documentation says of its bounds are those of its type.
#[test]
fn bounds_of_the_configuration_are_right() {
    let named = [
        ("BATCH", bounds::BATCH),
        ("TTL", bounds::TTL),
        ("BACKLOG", bounds::BACKLOG),
        ("FLOWS", bounds::FLOWS),
        ("ORPHANS", bounds::ORPHANS),
        ("TIMERS", bounds::TIMERS),
        ("FRAMES", bounds::FRAMES),
        ("ARENA_MB", bounds::ARENA_MB),
        ("IDLE_SPIN_US", bounds::IDLE_SPIN_US),
        ("NONRESPONSIVE_US", bounds::NONRESPONSIVE_US),
        ("QUEUE", bounds::QUEUE),
        ("MIN_RTO_US", bounds::MIN_RTO_US),
        ("DELACK_US", bounds::DELACK_US),
        ("TIME_WAIT_US", bounds::TIME_WAIT_US),
        ("RCV_BUFFERS", bounds::RCV_BUFFERS),
        ("METRIC", bounds::METRIC),
    ];
    let mut numbers = 0;
    for key in ["File", "Route", "Tcp"].into_iter().flat_map(keys_of_file) {
        let Some(rest) = key.kind.strip_prefix("Option<within!(") else { continue };
        let of = rest.trim_end_matches(")>");
        let found = named.iter().find(|(name, _)| *name == of);
        let (_, bounds) = found.unwrap_or_else(|| panic!("`{}`: bounds {of}", key.name));
        let zero = if bounds.or_zero { "0 or " } else { "" };
        let text = format!("{zero}{} to {}", bounds.least, bounds.most);
        let said = key.value.replace(',', "");
        let said = said.trim_end_matches(" MB").trim_end_matches(" µs");
        assert_eq!(said.trim_end_matches(" packets"), text, "the bounds of `{}`", key.name);
        numbers += 1;
    }
    assert!(numbers >= named.len(), "{numbers} numbers");
}

/// The folders at the top, from those that all use to those that use all.
const FOLDERS: [&str; 8] = ["sys", "core", "dataplane", "host", "app", "programs", "verify", "cli"];

/// The value of a key at the start of a line of a manifest.
fn manifest_value(manifest: &str, key: &str) -> Option<String> {
    let mut values =
        manifest.lines().filter_map(|line| line.strip_prefix(key)?.trim().strip_prefix('='));
    values.next().map(|value| value.trim().trim_matches('"').to_owned())
}

/// A table of all crates by folder: each folder's rule is the first paragraph of its README.
fn map_of_crates() -> String {
    let root = tree::root();
    let mut text = String::from("| | |\n|---|---|\n");
    for folder in FOLDERS {
        let readme = fs::read_to_string(root.join(folder).join("README.md"));
        let readme =
            readme.unwrap_or_else(|e| panic!("{folder}/README.md says what may be there: {e}"));
        let rule = readme.split("\n\n").nth(1).unwrap_or_default().replace('\n', " ");
        let _ = writeln!(text, "| **`{folder}/`** | **{rule}** |");
        let mut crates: Vec<_> = fs::read_dir(root.join(folder))
            .expect("a folder of crates")
            .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
            .collect();
        crates.sort();
        for name in crates {
            let path = format!("{folder}/{name}");
            let Ok(manifest) = fs::read_to_string(root.join(&path).join("Cargo.toml")) else {
                continue;
            };
            if let Some(what) = manifest_value(&manifest, "description") {
                let _ = writeln!(text, "| `{path}` | {what} |");
            }
        }
    }
    text
}

#[test]
fn the_map_of_crates_is_complete() {
    let path = "ARCHITECTURE.md";
    let page = fs::read_to_string(tree::root().join(path)).expect("a page");
    let (before, rest) = page.split_once("<!-- crates -->\n").expect("a mark for the crates");
    let (_, after) = rest.split_once("<!-- /crates -->\n").expect("a mark for their end");
    let whole = format!("{before}<!-- crates -->\n{}<!-- /crates -->\n{after}", map_of_crates());
    check(path, &whole);
}

#[test]
fn defaults_of_the_configuration_are_right() {
    let page = fs::read_to_string(tree::root().join("docs/reference/configuration.md"));
    let page = page.expect("a page about the configuration");
    let config = ix_dataplane::Config::default();
    let tcp = &config.tcp;
    let defaults = [
        ("batch", config.batch as u64),
        ("ttl", config.ttl.into()),
        ("backlog", config.backlog.into()),
        ("flows_max", config.flows_max as u64),
        ("orphans_max", config.orphans_max as u64),
        ("timers_max", config.timers_max as u64),
        ("rx_frames", config.rx_frames as u64),
        ("tx_frames", config.tx_frames as u64),
        ("arena_mb", config.arena_bytes as u64 >> 20),
        ("idle_spin_us", config.idle_spin_us),
        ("nonresponsive_us", config.nonresponsive_us),
        ("mark_queue", config.mark_queue as u64),
        ("drop_queue", config.drop_queue as u64),
        ("min_rto_us", tcp.min_rto_us.into()),
        ("delack_us", tcp.delack_us.into()),
        ("delack_max_us", tcp.delack_max_us.into()),
        ("time_wait_us", tcp.time_wait_us.into()),
        ("rcv_buffers", tcp.rcv_buffers_max.into()),
    ];
    for (key, value) in defaults {
        let row = page.lines().find(|line| line.starts_with(&format!("| `{key}` ")));
        let cell = row.and_then(|row| row.split('|').nth(3)).unwrap_or_default();
        let said = cell.trim().replace(',', "");
        assert_eq!(
            said,
            value.to_string(),
            "the default of `{key}` in docs/reference/configuration.md"
        );
    }
}
