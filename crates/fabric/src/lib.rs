//! Fabrics: hosts, switches with numbered ports, and the directed links between them, with their
//! routing.
//!
//! A [`Fabric`] is a [`Topology`] (hosts, switches and links) and a [`Routing`] over it (the links
//! that packets may take). It is generated ([`generate`]), or read from a file ([`read`]). A
//! [`FabricSpec`] describes a generated one in one line, such as
//! `irregular:switches=16,ports=8,hosts=32,seed=3`.
//!
//! ```
//! use treecast_fabric::{Fabric, FabricSpec, HostId};
//!
//! let spec: FabricSpec = "torus:k=4,n=2,uni".parse()?;
//! let fabric = Fabric::from_spec(&spec)?;
//! assert_eq!(fabric.topology().host_count(), 16);
//! let route = fabric.routing().route(fabric.topology(), HostId(0), HostId(5)).unwrap();
//! assert_eq!(route.iter().filter(|channel| !fabric.topology().is_internal(channel.link)).count(), 2);
//! # Ok::<(), treecast_fabric::FabricError>(())
//! ```
//!
//! The crate is pure: no clock, no environment, no file, no entropy. A seed determines a fabric,
//! byte for byte.

mod error;
mod fabric;
pub mod generate;
mod grid;
mod host_names;
mod hostlist;
mod ids;
mod limits;
pub mod read;
mod routing;
mod structure;
mod summary;
mod topology;
mod write;

pub use error::FabricError;
pub use fabric::{Fabric, FabricSpec, RoutingPolicy};
pub use grid::{Direction, Grid};
pub use host_names::HostNames;
pub use hostlist::{HostlistError, expand_hostlist};
pub use ids::{HostId, LinkId, PortNumber, SwitchId, Vertex};
pub use routing::{
    Channel, DimensionOrder, Distances, Minimal, NextLinks, Overlap, RouteFinder, Routing, ShortestPath,
    Ties, UpDown, Valiant, VirtualChannels,
};
pub use structure::{Dragonfly, HyperX, Sizes, Structure};
pub use summary::Summary;
pub use topology::{Link, Topology, TopologyBuilder};
