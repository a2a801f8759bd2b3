#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| treecast_fuzz::writer(bytes));
