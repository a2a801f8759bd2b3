//! The building blocks of all models: an event queue, servers that do one piece of work at a time,
//! and a network of links.

mod event_queue;
mod network;
mod server;

pub use event_queue::{EventQueue, LAST};
pub use network::{Network, Transit};
pub use server::Server;
