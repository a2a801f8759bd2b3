//! Plans: who sends which copy to whom, and in what order.
//!
//! [`plan`] turns a [`Group`] on a fabric into a [`Plan`] by a [`Scheme`]. A plan is a value: it is
//! analysed ([`Plan::analyse`]), printed ([`render`]), written to JSON and read back, simulated,
//! and executed.
//!
//! ```
//! use treecast_fabric::{Fabric, FabricSpec};
//! use treecast_plan::{Group, MemberId, MemberList, Placement, PlanOptions, plan};
//!
//! let fabric = Fabric::from_spec(&"star:8".parse::<FabricSpec>()?)?;
//! let placement = Placement::one_per_host(8);
//! let destinations = "1-7".parse::<MemberList>()?.resolve(&placement, MemberId(0), 1)?;
//! let group = Group::new(placement, MemberId(0), destinations)?;
//! let plan = plan(&fabric, &group, &"binomial".parse()?, &PlanOptions::default())?;
//! assert_eq!(plan.analyse(&fabric, 1)?.steps, 3);
//! # Ok::<(), treecast_plan::PlanError>(())
//! ```
//!
//! The crate is pure: no clock, no environment, no file, no entropy.

mod analysis;
mod check;
mod error;
mod group;
mod hierarchy;
mod label;
mod limits;
mod make;
mod named;
mod numbering;
pub mod order;
mod plan;
mod planner;
mod reduction;
pub mod render;
mod routes;
mod scheme;
pub mod shape;

pub use analysis::Analysis;
pub use error::PlanError;
pub use group::{Arrangement, Group, MemberList, Order, Placement};
pub use label::Label;
pub use limits::PACKETS_MAX;
pub use named::{destinations_named, destinations_on, member_named};
pub use plan::{Plan, Sends, Worm, WormKind};
pub use planner::{PlanOptions, Planner, plan};
pub use reduction::{Contribution, Reduction};
pub use scheme::{FlatScheme, Form, Local, PathPolicy, Relay, Scheme, Share, TorusScheme, TreeScheme};

pub use treecast_terms::MemberId;
