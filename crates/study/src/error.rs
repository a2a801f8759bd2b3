//! What can be wrong with a study.

use thiserror::Error;
use treecast_terms::SpecError;

/// Why a study could not be read, run or written.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StudyError {
    /// No `study.toml` among the files.
    #[error("the study has no file study.toml")]
    NoStudyFile,
    /// A file that is malformed.
    #[error("{file}:{line}: {reason}")]
    Malformed {
        /// The file's name as the caller gave it.
        file: String,
        /// The line, from 1.
        line: usize,
        /// What is wrong there.
        reason: String,
    },
    /// A name that is not known.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A run that is not possible.
    #[error("{run}: {reason}")]
    Run {
        /// Which run.
        run: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A figure that compares nothing with anything.
    #[error("{figure} shows no factors: 'relative_to' in its file names the series to compare with")]
    NoFactors {
        /// Its name.
        figure: String,
    },
    /// Rows that could not be written.
    #[error("the rows could not be written as {format}: {reason}")]
    Rows {
        /// The format.
        format: &'static str,
        /// What the library says.
        reason: String,
    },
}
