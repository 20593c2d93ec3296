//! How the dataplane image gets into a process, and what each side may see.
