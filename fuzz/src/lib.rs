//! Fuzz targets: each function takes arbitrary bytes, and panics if an invariant is broken.

#[cfg(feature = "copy")]
mod copy;
#[cfg(feature = "node")]
mod daemon;
#[cfg(feature = "node")]
mod listen;
#[cfg(feature = "node")]
mod node;
mod proto;
mod wire;

#[cfg(feature = "copy")]
pub use copy::{stream, writer};
#[cfg(feature = "node")]
pub use daemon::daemon;
#[cfg(feature = "node")]
pub use listen::listen;
pub use proto::proto;
pub use wire::wire;

/// Gives a target each file of its corpus.
///
/// # Panics
/// If an invariant is broken, or the corpus is empty or not readable.
#[expect(clippy::disallowed_methods, reason = "the corpora are files")]
pub fn replay_corpus(target: &str, run: fn(&[u8])) {
    let directory = format!("{}/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
    let files = std::fs::read_dir(&directory).expect("the corpora are part of the project");
    let mut count = 0;
    for file in files {
        let path = file.expect("the directory is readable").path();
        run(&std::fs::read(path).expect("the file is readable"));
        count += 1;
    }
    assert!(count > 0, "{directory} is empty");
}
