//! What an application uses: nodes, groups, settings, errors.

pub(crate) mod access;
pub(crate) mod addresses;
pub(crate) mod error;
pub(crate) mod group;
mod keys;
pub(crate) mod node;
pub(crate) mod settings;
