//! The engine of a node: the protocol on sockets and in the kernel's packet path, the thread that
//! drives it, and how applications' threads wait with it; settings, and the status of a node.

mod datagrams;
pub mod random;
pub mod settings;
pub mod status;
mod step;
mod streams;
pub mod text;
pub mod tree;
pub mod wait;

pub use datagrams::path_mtu;
pub use step::{EngineHandle, Happened, audit, backend, enter, query, root_socket, thread};
