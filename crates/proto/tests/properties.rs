//! The protocol alone, given anything: packets valid and not, requests in any order, any times. What is checked after every
//! step stands in `fuzz/src`, where the fuzzer has it from.

use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn nothing_that_happens_to_a_node_breaks_it(bytes in prop::collection::vec(any::<u8>(), 0..1_500)) {
        treecast_fuzz::proto(&bytes);
    }
}

/// What fuzzers have found worth keeping.
#[test]
#[expect(clippy::disallowed_methods, reason = "the corpora are files")]
fn the_corpora_hold() {
    for (target, play) in
        [("wire", treecast_fuzz::wire as fn(&[u8])), ("proto", treecast_fuzz::proto as fn(&[u8]))]
    {
        let folder = format!("{}/../../fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
        let files = std::fs::read_dir(&folder).expect("the corpora are part of the project");
        let mut count = 0;
        for file in files {
            let path = file.expect("a folder is read").path();
            play(&std::fs::read(path).expect("a file is read"));
            count += 1;
        }
        assert!(count > 0, "{folder} is empty");
    }
}
