//! The protocol with random inputs: valid and invalid packets, requests in any order, any times. The checks after every step are in
//! `fuzz/src`, which the fuzzer shares.

use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn no_input_breaks_an_invariant_of_a_node(bytes in prop::collection::vec(any::<u8>(), 0..1_500)) {
        treecast_fuzz::proto(&bytes);
    }
}

/// The corpora of the fuzzers.
#[test]
#[expect(clippy::disallowed_methods, reason = "the corpora are files")]
fn the_corpora_break_no_invariant() {
    for (target, run) in
        [("wire", treecast_fuzz::wire as fn(&[u8])), ("proto", treecast_fuzz::proto as fn(&[u8]))]
    {
        let directory = format!("{}/../../fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
        let files = std::fs::read_dir(&directory).expect("the corpora are part of the project");
        let mut count = 0;
        for file in files {
            let path = file.expect("the directory is readable").path();
            run(&std::fs::read(path).expect("the file is readable"));
            count += 1;
        }
        assert!(count > 0, "{directory} is empty");
    }
}
