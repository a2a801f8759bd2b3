//! What an application uses: nodes and groups.

pub(crate) mod all_reduce;
mod cipher;
pub(crate) mod group;
mod loan;
pub(crate) mod measure;
pub(crate) mod node;
mod open;
pub(crate) mod owned;
pub(crate) mod peek;
pub(crate) mod receive;
mod receiver;
pub(crate) mod send;
mod sender;
mod sink;
