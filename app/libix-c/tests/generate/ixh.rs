//! Writes `ix.h`.
use super::layout::Layout;
use super::names::{arguments, declare, prefix, prose, structure, value};
use super::parse::{Field, Item, Part, What};
use std::fmt::Write;

const BEGIN: &str = "\
/* ix.h: the contract between a program and the IX dataplane, and libix's event loop.
 *
 * Made from core/ix-abi and app/libix-c (IX_BLESS=1 cargo test -p libix-c); do not edit.
 * libix(3) says how the event loop is used, libix-contract(7) what the raw contract is.
 */
#ifndef IX_H
#define IX_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/* Says in the program's file that it was written for IX, so that `ix run` leaves its sockets to
 * Linux. A program that is to have them on IX as well defines IX_NO_NOTE. */
#if defined(__GNUC__) && defined(__x86_64__) && !defined(IX_NO_NOTE)
__asm__(\".pushsection .note.ix,\\\"a\\\",@note\\n\"
        \"\\t.balign 4\\n\\t.long 3, 4, 1\\n\\t.asciz \\\"IX\\\"\\n\\t.long ABI_VERSION\\n\"
        \"\\t.popsection\");
#endif

#ifdef __cplusplus
extern \"C\" {
#endif

";

const END: &str = "
#ifdef __cplusplus
}
#endif

#endif /* IX_H */
";

/// The header, of the contract's parts and the library's.
pub fn header(contract: &[Part], library: &[Part], layouts: &[Layout]) -> String {
    let mut out = BEGIN.replace("ABI_VERSION", &ix_abi::ABI_VERSION.to_string());
    for part in contract {
        constants(&mut out, part);
    }
    let items = || contract.iter().chain(library).flat_map(|part| &part.items);
    out.push('\n');
    for item in items() {
        if let What::Struct { name, aligned, fields } = &item.what {
            let layout = layouts.iter().find(|layout| layout.name == *name);
            let layout = layout.unwrap_or_else(|| panic!("{name} is missing in layout.rs"));
            forward(&mut out, library, name);
            comment(&mut out, "", &item.doc);
            record(&mut out, &structure(name), *aligned, fields, layout);
        }
    }
    for part in library.iter().filter(|part| part.items.iter().any(is_function)) {
        out.push('\n');
        comment(&mut out, "", &part.doc);
        for item in &part.items {
            if let What::Function { name, arguments: list, result } = &item.what {
                out.push('\n');
                comment(&mut out, "", &item.doc);
                let prototype = declare(result, &format!("{name}({})", arguments(list)));
                writeln!(out, "{};", fold(&prototype)).expect("a string");
            }
        }
    }
    out.push_str(END);
    out
}

/// Before the first structure of the library: its types that stay closed.
fn forward(out: &mut String, library: &[Part], name: &str) {
    if name != "ix_endpoint" {
        return;
    }
    for item in library.iter().flat_map(|part| &part.items) {
        if let What::Opaque { name } = &item.what {
            comment(out, "", &item.doc);
            writeln!(out, "typedef struct {name} {name};\n").expect("a string");
        }
    }
}

fn constants(out: &mut String, part: &Part) {
    if !part.items.iter().any(|item| matches!(item.what, What::Const { .. })) {
        return;
    }
    if !part.name.is_empty() {
        out.push('\n');
        comment(out, "", &part.doc);
    }
    for item in &part.items {
        if let What::Const { name, value: v } = &item.what {
            comment(out, "", &item.doc);
            writeln!(out, "#define {}{name} {}", prefix(&part.name), value(name, v)).expect("text");
        }
    }
}

fn record(out: &mut String, name: &str, aligned: bool, fields: &[Field], layout: &Layout) {
    let attribute = if aligned { " __attribute__((aligned(64)))" } else { "" };
    writeln!(out, "typedef struct{attribute} {name} {{").expect("a string");
    for field in fields {
        let place = layout.fields.iter().find(|(name, ..)| *name == field.name);
        let (_, at, _) = place.unwrap_or_else(|| panic!("{name}.{} has no place", field.name));
        let mut doc = field.doc.clone();
        doc.insert(0, format!("{at}:"));
        let first = doc.remove(0);
        if let Some(line) = doc.first_mut() {
            *line = format!("{first} {line}");
        }
        comment(out, "    ", &doc);
        let declared = format!("    {};", declare(&field.ty, &field.name));
        writeln!(out, "{}", fold(&declared).replace("(\n", "(\n    ")).expect("a string");
    }
    writeln!(out, "}} {name}; /* {} bytes */\n", layout.size).expect("a string");
}

fn is_function(item: &Item) -> bool {
    matches!(item.what, What::Function { .. })
}

fn comment(out: &mut String, indent: &str, doc: &[String]) {
    for (at, line) in doc.iter().enumerate() {
        let (open, close) = (at == 0, at + 1 == doc.len());
        let start = if open { "/* " } else { " * " };
        let line = format!("{indent}{start}{}", prose(line));
        out.push_str(line.trim_end());
        out.push_str(if close { " */\n" } else { "\n" });
    }
}

/// A prototype within 100 columns.
fn fold(prototype: &str) -> String {
    if prototype.len() < 100 {
        return prototype.to_owned();
    }
    // The list of arguments is what the last bracket opens: pointers to functions have two.
    let (head, list) = prototype.rsplit_once('(').expect("a prototype");
    format!("{head}(\n    {list}")
}
