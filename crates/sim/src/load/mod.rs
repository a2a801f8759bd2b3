//! Many multicasts at once: traffic, measurement and saturation. docs/load.md states what is
//! measured and how saturation is decided.

mod document;
mod measurement;
mod permutation;
mod run;
mod saturation;
mod statistics;
mod traffic;
mod window;

pub use document::{
    LOAD_FORMAT, LoadContext, LoadDocument, LoadSetup, SATURATION_FORMAT, SaturationDocument,
    SaturationPointDocument,
};
pub use measurement::{LinkUtilization, LoadFigures};
pub use permutation::Permutation;
pub use run::{LoadOutcome, LoadRun};
pub use saturation::{Saturation, SaturationPoint};
pub use traffic::{Arrivals, DestinationSets};
pub use window::ShortWindow;

pub(crate) use measurement::Measurement;
pub(crate) use traffic::{Arrival, Traffic};
