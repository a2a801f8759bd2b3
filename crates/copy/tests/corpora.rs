//! The corpora of the fuzzers for the stream of a copy and for what a receiver writes.

#[test]
fn the_corpora_break_no_invariant() {
    treecast_fuzz::replay_corpus("stream", treecast_fuzz::stream);
    treecast_fuzz::replay_corpus("writer", treecast_fuzz::writer);
}
