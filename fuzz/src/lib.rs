//! What fuzzers do: each function takes any bytes, and panics if something is wrong with our code.

mod proto;
mod wire;

pub use proto::proto;
pub use wire::wire;
