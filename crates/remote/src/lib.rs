//! Processes on other hosts, started by a remote shell such as ssh, that speak lines of JSON.
//!
//! A [`RemoteShell`] makes the command that runs another one on a host. A [`Process`] has pipes to
//! such a command, or to one on this machine: requests go to its standard input, and responses come
//! from its standard output, a line of JSON each.

mod excerpt;
mod process;
mod shell;

pub use excerpt::excerpt;
pub use process::{Killer, Process, Requests, Responses};
pub use shell::RemoteShell;
