//! The protocol with random inputs: valid and invalid packets, requests in any order, any times.
//! The checks after every step are in `fuzz/src`, which the fuzzer shares.

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
fn the_corpora_break_no_invariant() {
    treecast_fuzz::replay_corpus("wire", treecast_fuzz::wire);
    treecast_fuzz::replay_corpus("proto", treecast_fuzz::proto);
}
