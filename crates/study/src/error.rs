//! Errors of studies.

use thiserror::Error;
use treecast_terms::SpecError;

/// An error in reading, running or writing a study.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StudyError {
    /// No `study.toml` among the files.
    #[error("the study has no file study.toml")]
    NoStudyFile,
    /// A malformed file.
    #[error("{file}:{line}: {reason}")]
    Malformed {
        /// The file's name as the caller gave it.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The error at that line.
        reason: String,
    },
    /// An unknown name.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// An invalid run.
    #[error("{run}: {reason}")]
    Run {
        /// The run.
        run: String,
        /// The reason.
        reason: String,
    },
    /// The runs were told to stop.
    #[error("the runs were interrupted")]
    Interrupted,
    /// A figure without improvement factors, where factors are needed.
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
        /// The message of the library.
        reason: String,
    },
}
