//! Many multicasts at once: traffic, what is measured of it, and when it is too much. docs/load.md says what is measured
//! and how saturation is decided.

mod document;
mod measurement;
mod run;
mod saturation;
mod statistics;
mod traffic;

pub use document::{
    LOAD_FORMAT, LoadContext, LoadDocument, LoadSetup, SATURATION_FORMAT, SaturationDocument,
    SaturationPointDocument,
};
pub use measurement::{LinkUtilization, LoadFigures};
pub use run::{BACKLOG_PER_HOST, LoadOutcome, LoadRun};
pub use saturation::{Saturation, SaturationPoint};
pub use traffic::{Arrivals, DestinationSets};

pub(crate) use measurement::Measurement;
pub(crate) use traffic::{Arrival, Traffic};
