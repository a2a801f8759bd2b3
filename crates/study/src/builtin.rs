//! The studies that come with the program: the directories of papers/, included when it is built.

use include_dir::{Dir, include_dir};

use crate::error::StudyError;
use crate::spec::Study;

static PAPERS: Dir = include_dir!("$CARGO_MANIFEST_DIR/../../papers");

/// Their names.
pub fn names() -> Vec<&'static str> {
    PAPERS.dirs().filter_map(|directory| directory.path().to_str()).collect()
}

/// The study with a name, if there is one.
///
/// ```
/// let study = treecast_study::builtin::study("icpp98").unwrap()?;
/// assert_eq!(study.name(), "icpp98");
/// assert!(treecast_study::builtin::study("icpp89").is_none());
/// # Ok::<(), treecast_study::StudyError>(())
/// ```
///
/// # Errors
/// As [`Study::parse`]; no study in papers/ is known to cause it.
pub fn study(name: &str) -> Option<Result<Study, StudyError>> {
    let files = PAPERS.get_dir(name)?.files().filter_map(|file| {
        let name = file.path().file_name()?.to_str()?;
        file.path().extension().filter(|extension| *extension == "toml")?;
        Some((name, file.contents_utf8()?))
    });
    Some(Study::parse(&files.collect::<Vec<_>>()))
}
