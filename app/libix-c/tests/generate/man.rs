//! Writes the man pages.
use super::names::{arguments, declare, prefix, prose, structure};
use super::parse::{Part, What};

/// A page that grows.
struct Page(String);

impl Page {
    fn new(name: &str, section: u32, what: &str) -> Page {
        let mut page = Page(String::from(
            ".\\\" Made from the sources (IX_BLESS=1 cargo test -p libix-c); do not edit.\n",
        ));
        page.line(&format!(".TH {} {section} \"\" IX IX", name.to_uppercase()));
        page.section("NAME");
        page.line(&format!("{} \\- {what}", name.replace('-', "\\-")));
        page
    }

    fn line(&mut self, line: &str) {
        self.0.push_str(line);
        self.0.push('\n');
    }

    fn section(&mut self, name: &str) {
        self.line(&format!(".SH \"{name}\""));
    }

    /// Sentences, in paragraphs where the source has empty lines.
    fn text(&mut self, doc: &[String]) {
        for line in doc {
            let bullet = line.strip_prefix("* ");
            match bullet {
                _ if line.is_empty() => self.line(".PP"),
                Some(said) => {
                    self.line(".IP \\(bu 2");
                    self.line(&escape(&prose(said)));
                }
                None => self.line(&escape(&prose(line))),
            }
        }
    }

    fn code(&mut self, lines: &[String]) {
        self.line(".nf");
        for line in lines {
            self.line(&format!("\\fB{}\\fR", escape(line)));
        }
        self.line(".fi");
    }

    fn entry(&mut self, head: &str, doc: &[String]) {
        self.line(".TP");
        self.line(&format!("\\fB{}\\fR", escape(head)));
        self.text(doc);
    }
}

/// What stands for itself in roff.
fn escape(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('µ', "\\(mc");
    assert!(text.replace('…', "").is_ascii(), "not for roff: {text}");
    let text = text.replace('…', "...");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

/// libix(3).
pub fn library(parts: &[Part]) -> String {
    let mut page = Page::new("libix", 3, "event loop of network services on the IX dataplane");
    page.section("SYNOPSIS");
    page.code(&["#include <ix.h>".into(), "cc ... $(pkg-config --cflags --libs libix)".into()]);
    page.section("DESCRIPTION");
    page.text(&lines(
        "A program that ix run starts shares its process with a dataplane: its own TCP/IP on\n\
         hardware threads of its own. It makes one event loop for each elastic thread (see\n\
         ix_threads) that it uses, tells it what to call back, and runs it. Functions answer 0 or\n\
         more, or minus an IX_ERROR_ number; those that answer NULL leave a line for\n\
         ix_last_error. Connections, listeners, sockets and timers are numbers that are not used\n\
         twice: a stale one is an error.",
    ));
    for part in parts {
        for item in &part.items {
            if let What::Struct { name, fields, .. } = &item.what {
                page.section(&format!("struct {name}"));
                page.text(&item.doc);
                for field in fields {
                    page.entry(&field.name, &field.doc);
                }
            }
        }
    }
    for part in parts {
        let functions = part.items.iter().filter(|i| matches!(i.what, What::Function { .. }));
        for (at, item) in functions.enumerate() {
            if at == 0 {
                let title = part.doc.first().expect("a title").trim_end_matches('.');
                page.section(&title.split(':').next().unwrap_or(title).to_uppercase());
                page.text(&part.doc[1..]);
            }
            if let What::Function { name, arguments: list, result } = &item.what {
                page.line(".PP");
                let prototype = declare(result, &format!("{name}({});", arguments(list)));
                page.code(&[prototype]);
                page.line(".RS 4");
                page.text(&item.doc);
                page.line(".RE");
            }
        }
    }
    page.section("SEE ALSO");
    page.line(".BR libix\\-contract (7)");
    page.0
}

/// libix-contract(7).
pub fn contract(parts: &[Part]) -> String {
    let what = "the raw contract between a program and the IX dataplane";
    let mut page = Page::new("libix-contract", 7, what);
    page.section("DESCRIPTION");
    // Behind its title, and without what is of no use in C.
    let front = parts[0].doc[2..].split(|line| line.as_str() == "# In Rust").next();
    let front = front.unwrap_or_default();
    page.text(front.strip_suffix(&[String::new()]).unwrap_or(front));
    for part in parts {
        let constants = part.items.iter().filter(|i| matches!(i.what, What::Const { .. }));
        for (at, item) in constants.enumerate() {
            if at == 0 {
                let title = format!("{}*", prefix(&part.name));
                page.section(if part.name.is_empty() { "NUMBERS" } else { &title });
                page.text(if part.name.is_empty() { &[] } else { &part.doc });
            }
            if let What::Const { name, .. } = &item.what {
                page.entry(&format!("{}{name}", prefix(&part.name)), &item.doc);
            }
        }
    }
    for item in &parts[0].items {
        if let What::Struct { name, fields, .. } = &item.what {
            page.section(&format!("struct {}", structure(name)));
            page.text(&item.doc);
            for field in fields {
                page.entry(&declare(&field.ty, &field.name), &field.doc);
            }
        }
    }
    page.section("SEE ALSO");
    page.line(".BR libix (3)");
    page.0
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}
