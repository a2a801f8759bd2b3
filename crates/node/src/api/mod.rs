//! What an application uses: nodes, groups, settings, errors.

pub(crate) mod addresses;
pub(crate) mod all_reduce;
pub(crate) mod config;
pub(crate) mod error;
pub(crate) mod files;
pub(crate) mod group;
pub(crate) mod hosts;
mod keys;
pub(crate) mod node;
pub(crate) mod offload;
mod open;
pub(crate) mod owned;
pub(crate) mod receive;
mod receiver;
pub(crate) mod send;
mod sender;
pub(crate) mod settings;
