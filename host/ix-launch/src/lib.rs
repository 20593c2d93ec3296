//! How the dataplane image gets into a process, and what each side may see.
//!
//! The dataplane is *planted*: [`launch`] starts the program under ptrace. At the stop after its
//! `execve`, before a single instruction of the program or of its dynamic loader has run, it maps
//! the image beside the program, gives the image its own stack and auxiliary vector, and lets it
//! run first. The image boots, talks to the broker over the [`Channel`](ix_entry::Channel), and
//! jumps to the entry point that the kernel had chosen. The program, gdb and `/proc` see nothing
//! unusual.
//!
//! ```text
//!  broker (`ix run`)                     the program's process
//!  launch()  ── fork, execve ──────────▶ stopped at its first instruction
//!    plant   ── map image, stack ──────▶ image boots on its own libc, heap and TLS
//!    serve() ◀─ hello ─────────────────  descriptors by SCM_RIGHTS, then moved out of the way
//!            ── config + descriptors ──▶
//!            ◀─ attached, ready ───────  IX_ABI patched; jump to the program's entry
//!    wait for its end
//! ```
//!
//! With [`Entry::Loading`] Linux executes the image, which maps the dynamic loader and the program
//! itself: nothing is traced.
//!
//! With [`Domain::Process`] the image in the program's process is only the gate: the dataplane is a
//! [`DataplaneProcess`], which executes the same image alone.
//!
//! With [`Domain::None`] the program can access the dataplane's memory. All of the image is in its
//! own page-aligned mappings; with [`Domain::Pku`] it raises the wall around them before the
//! program runs.
//!
//! What launcher and image agree on is in [`ix_entry`].
mod apart;
mod error;
mod exit;
mod image;
mod launch;
mod load;
mod plant;
mod program;
mod root;
mod serve;
mod signals;
mod tracee;

pub use apart::DataplaneProcess;
pub use error::LaunchError;
pub use exit::Exit;
pub use image::{Image, ImageError, memfd, seal_size, unchanging};
pub use launch::{Child, Domain, Entry, LaunchConfig, Occurrence, launch};
pub use root::NamespaceRoot;
pub use serve::{Conversation, ServeError, equip, serve};
pub use signals::SignalForwarding;
