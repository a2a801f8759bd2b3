//! Files to many hosts: receivers that a remote shell starts, and one multicast to all of them.
//!
//! [`copy`] runs at the host that has the files. It starts a receiver on each other host, forms a
//! group of all of them with a fresh token, sends what [`Sources`] has found as a stream of
//! [records](stream), and collects what each receiver has to say. [`receive`] is a receiver: it
//! verifies what comes by BLAKE3, writes files under other names, and renames each when it is
//! complete.

mod chunks;
mod compression;
mod control;
mod coordinator;
mod destination;
mod disk;
mod entry;
mod error;
mod exclusion;
mod file_hash;
mod host;
mod program;
mod progress;
mod queue;
mod receiver;
mod report;
mod sender;
mod server;
mod settings;
mod sources;
mod start;
mod stopper;
pub mod stream;
mod waits;
mod worker;
mod writer;

pub use chunks::Chunk;
pub use compression::LEVELS;
pub use control::{Existing, HELLO, Writing};
pub use coordinator::copy;
pub use destination::Destination;
pub use entry::{Attribute, Entry, Kind};
pub use error::CopyError;
pub use progress::{Progress, Slow, Upload};
pub use receiver::receive;
pub use report::{Cause, CopiedFile, HostReport, Outcome, Planned, Relieved, Report, Served};
pub use settings::CopySettings;
pub use sources::{SourceSettings, Sources};
pub use stopper::Stopper;
pub use writer::{WriteError, Writer};
