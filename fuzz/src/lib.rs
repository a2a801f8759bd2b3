//! Fuzz targets: each function takes arbitrary bytes, and panics if an invariant is broken.

mod proto;
mod wire;

pub use proto::proto;
pub use wire::wire;
