//! What all models are made of: an agenda, parts that do one thing at a time, and a network of links.

mod agenda;
mod network;
mod server;

pub use agenda::{Agenda, LAST};
pub use network::{Network, Transit};
pub use server::Server;
