//! Latency, throughput and CPU time of broadcasts, all-reduces and barriers over real nodes.
//!
//! A worker process runs on every host: of a lab on this machine, of this machine's loopback
//! interface, or a separate machine. If several run there, they share the host's node.
//! Configurations are interleaved, round by round, so that other load on the machine affects all of
//! them alike. docs/bench.md defines each measurement.

mod all_reduce;
mod barrier;
mod board;
mod broadcast;
mod chart;
mod clock;
mod control;
mod coordinator;
mod delays;
mod error;
mod hosts;
mod limits;
mod mode;
mod operation;
mod peer;
mod peer_program;
mod predict;
mod report;
mod tune;
mod worker;
mod workers;

pub use broadcast::Broadcast;
pub use chart::{figure, figures};
pub use coordinator::{Bench, Late, Skew, Workload};
pub use error::{BenchError, WorkerId};
pub use hosts::{Hosts, RemoteHosts, WorkerCommand};
pub use limits::Limits;
pub use mode::Mode;
pub use operation::default_sizes;
pub use peer::Peer;
pub use report::{FORMAT, KilledMember, LateProcess, NodesOpened, Report, Row};
pub use tune::Tune;
pub use worker::work;
