//! The corpora of the fuzzers for the stream of a copy and for what a receiver writes.

#[test]
fn the_corpora_break_no_invariant() {
    for (target, run) in
        [("stream", treecast_fuzz::stream as fn(&[u8])), ("writer", treecast_fuzz::writer as fn(&[u8]))]
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
