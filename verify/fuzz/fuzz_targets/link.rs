#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ix_fuzz::run("link", bytes));
