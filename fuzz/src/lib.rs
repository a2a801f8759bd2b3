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
