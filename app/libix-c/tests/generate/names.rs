//! Rust's names and types as C's.
use super::parse;

/// Prefix of the constants of a module of `ix-abi`.
pub fn prefix(module: &str) -> &'static str {
    match module {
        "" => "IX_",
        "call_op" => "IX_CALL_",
        "flow_opt" => "IX_OPT_",
        "event_kind" => "IX_EVENT_",
        "revoke" => "IX_REVOKE_",
        "error" => "IX_ERROR_",
        "migrated" => "IX_MIGRATED_",
        "dead" => "IX_DEAD_",
        "packet_kind" => "IX_PACKET_KIND_",
        "flow_info_flag" => "IX_FLOW_INFO_FLAG_",
        "packet_flag" => "IX_PACKET_FLAG_",
        "gate_op" => "IX_GATE_",
        _ => panic!("a new module `{module}`: give it a prefix"),
    }
}

/// A constant's value.
pub fn value(name: &str, value: &str) -> String {
    match value {
        "u64::MAX" => "UINT64_MAX".to_owned(),
        text if text.starts_with('"') => text.to_owned(),
        _ if name == "ABI_MAGIC" => format!("UINT64_C({:#x})", ix_abi::ABI_MAGIC),
        // What initializes an array.
        bytes if bytes.starts_with('[') => {
            format!("{{ {} }}", bytes.trim_matches(['[', ']']).trim())
        }
        number if number.bytes().all(|b| b.is_ascii_digit()) => number.to_owned(),
        other => panic!("{name} = {other}: not understood"),
    }
}

/// `ProcessHeader` as `ix_process_header`, `CallSlot` as `ix_call`; our own names as they are.
pub fn structure(name: &str) -> String {
    if name.starts_with("ix_") {
        return name.to_owned();
    }
    // C has no enums with fields, so it needs no second name for the slot of a call or an event.
    let name = name.strip_suffix("Slot").unwrap_or(name);
    let mut c = String::from("ix");
    for letter in name.chars() {
        if letter.is_uppercase() {
            c.push('_');
        }
        c.extend(letter.to_lowercase());
    }
    c
}

/// A declaration of something with a type; an empty name gives the type itself.
pub fn declare(ty: &str, name: &str) -> String {
    let ty = ty.trim();
    if let Some(function) = ty.strip_prefix("Option<").map(str::trim_start) {
        let list = function.strip_prefix("unsafe extern \"C\" fn(").expect("a function");
        let close = parse::close_of(list);
        let (list, result) = (parse::arguments(&list[..close]), &list[close + 1..]);
        let result = result.trim_end_matches(['>', ',', ' ']).trim();
        let result = result.strip_prefix("->").unwrap_or("()");
        return declare(result, &format!("(*{name})({})", arguments(&list)));
    }
    if let Some(array) = ty.strip_prefix('[') {
        let (of, count) = array.trim_end_matches(']').split_once(';').expect("an array");
        return declare(of, &format!("{name}[{}]", count.trim()));
    }
    if let Some(to) = ty.strip_prefix("*const ") {
        return format!("const {}", declare(to, &format!("*{name}")));
    }
    if let Some(to) = ty.strip_prefix("*mut ") {
        return declare(to, &format!("*{name}"));
    }
    let ty = ty.rsplit("::").next().unwrap_or(ty);
    let plain = match ty {
        "u8" | "u16" | "u32" | "u64" => format!("uint{}_t", &ty[1..]),
        "i64" => "int64_t".to_owned(),
        "usize" => "size_t".to_owned(),
        "Cookie" | "Handle" => "uint64_t".to_owned(),
        "Addr" => return declare("[u8; 16]", name),
        "c_int" => "int".to_owned(),
        "c_char" => "char".to_owned(),
        "c_void" | "()" => "void".to_owned(),
        "iovec" => "struct iovec".to_owned(),
        name if name.starts_with(|c: char| c.is_uppercase()) || name.starts_with("ix_") => {
            structure(name)
        }
        other => panic!("a type that is not understood: {other}"),
    };
    format!("{plain} {name}").trim_end().to_owned()
}

/// A list of arguments.
pub fn arguments(list: &[(String, String)]) -> String {
    match list {
        [] => "void".to_owned(),
        some => {
            let each = some.iter().map(|(name, ty)| declare(ty, name).replace("* ", "*"));
            each.collect::<Vec<_>>().join(", ")
        }
    }
}

/// A sentence of the documentation: links of Rust as names of C.
pub fn prose(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some(start) = rest.find("[`") {
        let end = rest[start..].find("`]").expect("a link ends") + start;
        out.push_str(&rest[..start]);
        let link = linked(&rest[start + 2..end]);
        // "a [`dead`]" is one of a module's constants; "numbers of [`dead`]" are all of them.
        let one = out.ends_with("a ") || out.ends_with("an ");
        if link.ends_with('*') && one {
            out.truncate(out.trim_end_matches("a ").trim_end_matches("an ").len());
            out.push_str("an ");
        }
        out.push_str(&link);
        out.push_str(if link.ends_with('*') && one { " number" } else { "" });
        rest = &rest[end + 2..];
    }
    out.push_str(rest);
    out.replace('`', "")
}

fn is_of_constant(letter: u8) -> bool {
    letter.is_ascii_uppercase() || letter.is_ascii_digit() || letter == b'_'
}

fn linked(path: &str) -> String {
    let path = path.trim_start_matches("crate::");
    match path.split_once("::") {
        Some((module, name)) if module.starts_with(char::is_lowercase) => {
            format!("{}{name}", prefix(module))
        }
        Some((_, field)) => field.to_owned(),
        None if path.starts_with(char::is_lowercase) => format!("{}*", prefix(path)),
        None if path.bytes().all(is_of_constant) => format!("IX_{path}"),
        None => structure(path),
    }
}
