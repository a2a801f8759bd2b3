//! The corpora of the fuzzers for the daemon and for gathering.

#[test]
fn the_corpora_break_no_invariant() {
    treecast_fuzz::replay_corpus("daemon", treecast_fuzz::daemon);
    treecast_fuzz::replay_corpus("listen", treecast_fuzz::listen);
}
