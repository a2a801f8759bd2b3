//! Errors of fabrics.

use thiserror::Error;

use treecast_terms::SpecError;

use crate::ids::{PortNumber, SwitchId, Vertex};
use crate::limits;

/// Why a fabric could not be generated, read or routed. Each error names the offending value.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FabricError {
    /// A malformed fabric or routing spec.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A fabric without hosts.
    #[error("the fabric has no hosts")]
    NoHosts,
    /// More hosts than [`Topology::HOSTS_MAX`](crate::Topology::HOSTS_MAX).
    #[error("a fabric holds at most {} hosts", limits::HOSTS_MAX)]
    TooManyHosts,
    /// More switches than [`Topology::SWITCHES_MAX`](crate::Topology::SWITCHES_MAX).
    #[error("a fabric holds at most {} switches", limits::SWITCHES_MAX)]
    TooManySwitches,
    /// More ports than [`Topology::PORTS_MAX`](crate::Topology::PORTS_MAX).
    #[error("a switch has at most {most} ports, not {0}", most = limits::PORTS_MAX)]
    TooManyPorts(u32),
    /// More links than [`Topology::LINKS_MAX`](crate::Topology::LINKS_MAX).
    #[error("a fabric holds at most {} directed links", limits::LINKS_MAX)]
    TooManyLinks,
    /// A name that no host has.
    #[error("the fabric has no host '{name}'{hint}")]
    NoSuchHost {
        /// The name.
        name: String,
        /// The end of the message: the nearest names.
        hint: String,
    },
    /// A switch that does not exist.
    #[error("there is no switch {0}")]
    NoSuchSwitch(SwitchId),
    /// A port that a switch does not have.
    #[error("{switch} has no port {port}: its ports are 0 to {last}", last = i64::from(*.port_count) - 1)]
    NoSuchPort {
        /// The switch.
        switch: SwitchId,
        /// The requested port.
        port: PortNumber,
        /// The number of ports.
        port_count: u32,
    },
    /// Two links on one port.
    #[error("port {port} of {vertex} is in use already")]
    PortInUse {
        /// The switch.
        vertex: Vertex,
        /// The port.
        port: PortNumber,
    },
    /// A link from a switch to itself.
    #[error("{0} is linked to itself")]
    SelfLink(SwitchId),
    /// A name that two hosts or two switches have.
    #[error("the name '{0}' is given twice")]
    NameInUse(String),
    /// A topology that is declared as a generated one, such as a grid, but is not one.
    #[error("this is not {grid}: {reason}")]
    NotAGrid {
        /// The declared grid or structure.
        grid: String,
        /// The first difference.
        reason: String,
    },
    /// Parts of the fabric cannot reach each other.
    #[error("the fabric is not connected: there is no path from {from} to {to}")]
    NotConnected {
        /// Where the search began.
        from: SwitchId,
        /// A switch that was not reached.
        to: SwitchId,
    },
    /// A parameter of a generator lies outside its range.
    #[error("{key}={value} is out of range: {expected}")]
    OutOfRange {
        /// The parameter.
        key: &'static str,
        /// Its value.
        value: String,
        /// The valid values.
        expected: String,
    },
    /// The hosts do not leave enough ports to link the switches.
    #[error(
        "{hosts} hosts are more than the ports allow: {switches} switches with {ports} ports each take at most \
         {hosts_max} hosts and can still be linked"
    )]
    MoreHostsThanPorts {
        /// The requested number of hosts.
        hosts: u32,
        /// The requested number of switches.
        switches: u32,
        /// Ports per switch.
        ports: u32,
        /// The maximum number of hosts that fit.
        hosts_max: u64,
    },
    /// A routing that this topology does not support.
    #[error("{routing} routing does not fit this fabric: {reason}")]
    RoutingMismatch {
        /// The routing's name.
        routing: &'static str,
        /// The reason.
        reason: String,
    },
    /// A file that describes a fabric is malformed.
    #[error("{file}:{line}: {reason}")]
    Malformed {
        /// The file's name as the caller gave it.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The error.
        reason: String,
    },
}
