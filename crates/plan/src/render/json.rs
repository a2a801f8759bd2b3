//! Plans as JSON, written and read back.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use treecast_fabric::{Channel, Fabric, HostId, LinkId, RoutingPolicy, Topology};

use crate::analysis::Analysis;
use crate::error::PlanError;
use crate::group::{Arrangement, Order, Placement};
use crate::label::Label;
use crate::limits::PACKETS_MAX;
use crate::plan::{Plan, Worm, WormKind};
use crate::reduction::{Contribution, Reduction};
use crate::routes::Routes;
use crate::scheme::Scheme;
use treecast_terms::{MemberId, Operation};

/// The format that is written and read.
pub const FORMAT: &str = "treecast-plan/1";

/// A plan as it is stored in a JSON file, with the inputs that reproduce it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanDocument {
    /// `treecast-plan/1`.
    pub format: String,
    /// The fabric: the line that describes it, or its file.
    pub fabric: String,
    /// The routing of the fabric: `auto`, `up-down`, `up-down:root=3,channels=2`, `shortest-path`,
    /// `dimension-order`, `dimension-order:channels=none`, `minimal`, `valiant`, `ugal`.
    pub routing: String,
    /// Which member runs on which host.
    pub placement: PlacementDocument,
    /// The order on which the tree was built; null if none was chosen.
    pub order: Option<String>,
    /// Packets of the message.
    pub packets: u32,
    /// The scheme with its keys.
    pub scheme: String,
    /// Where the algorithm comes from.
    pub label: Label,
    /// The member that sends first.
    pub root: MemberId,
    /// All worms in causal order: each member receives before it sends.
    pub worms: Vec<WormDocument>,
    /// The static analysis of the plan. It may be omitted: a reader recomputes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub analysis: Option<Analysis>,
    /// The way up of an all-reduce or a barrier, whose way down the worms are. It may be omitted: a
    /// reader ignores it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reduction: Option<ReductionDocument>,
}

/// The way up of an all-reduce or a barrier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReductionDocument {
    /// `all-reduce` or `barrier`.
    pub operation: String,
    /// Steps until the root has the result, in the one-port model.
    pub steps: u32,
    /// The most contributions that one member combines.
    pub max_fan_in: u32,
    /// All contributions in causal order: those that a member combines precede its own.
    pub contributions: Vec<ContributionDocument>,
}

/// The contribution of one member to its parent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ContributionDocument {
    /// The member.
    pub from: MemberId,
    /// Its parent.
    pub to: MemberId,
    /// The step in which it travels.
    pub step: u32,
    /// How many contributions of children the member combines with its own values.
    pub combines: u32,
    /// `unicast`, or `local` on the same host.
    pub kind: WormKind,
    /// The names of the links it crosses, as those of a worm.
    pub route: Vec<String>,
}

impl ReductionDocument {
    /// The document of the way up of a plan.
    pub fn new(operation: Operation, reduction: &Reduction, fabric: &Fabric) -> Self {
        let contribution = |contribution: &Contribution| ContributionDocument {
            from: contribution.from(),
            to: contribution.to(),
            step: contribution.step,
            combines: contribution.combined,
            kind: contribution.worm.kind,
            route: route_names(fabric, &contribution.worm),
        };
        Self {
            operation: operation.to_string(),
            steps: reduction.steps(),
            max_fan_in: reduction.max_fan_in(),
            contributions: reduction.contributions().iter().map(contribution).collect(),
        }
    }
}

/// Which member runs on which host: with `block` member m is on host m / processes, with `cyclic`
/// on m % hosts; otherwise `host_of` lists the host of each member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlacementDocument {
    /// The number of hosts.
    pub hosts: u32,
    /// The number of processes on each host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<u32>,
    /// The numbering of processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrangement: Option<Arrangement>,
    /// The host of each member, instead of `processes` and `arrangement`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_of: Option<Vec<u32>>,
}

impl From<&Placement> for PlacementDocument {
    fn from(placement: &Placement) -> Self {
        let (hosts, arrangement) = (placement.host_count(), placement.arrangement());
        let host_of = || {
            let members = (0..placement.member_count()).map(MemberId);
            members.map(|member| placement.host_of(member).0).collect()
        };
        Self {
            hosts,
            processes: arrangement.map(|_| placement.processes()),
            arrangement,
            host_of: arrangement.is_none().then(host_of),
        }
    }
}

impl PlacementDocument {
    fn placement(&self) -> Result<Placement, PlanError> {
        match (self.processes, self.arrangement, &self.host_of) {
            (Some(processes), Some(arrangement), None) => Placement::new(self.hosts, processes, arrangement),
            (None, None, Some(host_of)) => {
                Placement::listed(self.hosts, host_of.iter().copied().map(HostId).collect())
            }
            _ => Err(PlanError::Json("a placement has processes and arrangement, or else host_of".into())),
        }
    }
}

/// One worm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WormDocument {
    /// The sender.
    pub from: MemberId,
    /// Its position among the sender's worms, from 0.
    pub index: u32,
    /// The kind of worm.
    pub kind: WormKind,
    /// The receivers; a path passes them in this order.
    pub to: Vec<MemberId>,
    /// The names of the links it crosses, from the sender's to the last receiver's: `h0>s1:4`,
    /// `s1:3>s2:0`, `s2:5>h9`; with the suffix `/1` for virtual channel 1. Empty inside a host, and
    /// where the fabric routes adaptively. It may be omitted where the fabric determines it, except
    /// for path worms.
    #[serde(default)]
    pub route: Vec<String>,
}

/// The inputs of a plan that the plan itself does not contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanContext<'a> {
    /// The fabric: the line that describes it, or its file.
    pub fabric: &'a str,
    /// The requested routing.
    pub routing: RoutingPolicy,
    /// The requested order.
    pub order: Option<Order>,
    /// Packets of the message.
    pub packets: u32,
}

impl PlanDocument {
    /// The document of a plan.
    ///
    /// # Errors
    /// As [`Plan::analyse`].
    pub fn new(plan: &Plan, fabric: &Fabric, context: &PlanContext) -> Result<Self, PlanError> {
        let worm = |worm: &Worm| WormDocument {
            from: worm.from,
            index: worm.index,
            kind: worm.kind,
            to: worm.to.clone(),
            route: route_names(fabric, worm),
        };
        let analysis = plan.analyse(fabric, context.packets)?;
        let placement = plan.placement();
        Ok(Self {
            format: FORMAT.into(),
            fabric: context.fabric.into(),
            routing: context.routing.to_string(),
            placement: placement.into(),
            order: context.order.map(|order| order.to_string()),
            packets: context.packets,
            scheme: plan.scheme().to_string(),
            label: plan.label(),
            root: plan.root(),
            worms: plan.worms().iter().map(worm).collect(),
            analysis: Some(analysis),
            reduction: None,
        })
    }

    /// The document in a JSON text.
    ///
    /// # Errors
    /// [`PlanError::Json`] with the line and the error.
    pub fn parse(text: &str) -> Result<Self, PlanError> {
        let document: Self =
            serde_json::from_str(text).map_err(|error| PlanError::Json(error.to_string()))?;
        if document.format != FORMAT {
            return Err(PlanError::Json(format!("its format is '{}', not '{FORMAT}'", document.format)));
        }
        Ok(document)
    }

    /// The JSON text of the document, ending with a line end.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("every field has a JSON form") + "\n"
    }

    /// The plan, after checks: it is sound, it fits this fabric, and every route leads from the
    /// sender over existing links to each receiver. A unicast or tree worm without a route gets the
    /// one that the fabric determines, if it does.
    ///
    /// # Errors
    /// [`PlanError`] naming the worm and the error.
    pub fn plan(&self, fabric: &Fabric) -> Result<Plan, PlanError> {
        let placement = self.placement.placement()?;
        placement.check_fabric(fabric)?;
        let scheme = self.checked_scheme(fabric)?;
        let names = LinkNames::of(fabric.topology(), &self.worms);
        let worms = self.worms.iter().enumerate().map(|(position, worm)| {
            let route =
                names.channels(fabric, &worm.route).map_err(|what| PlanError::unsound(position, &what))?;
            Ok(Worm { from: worm.from, index: worm.index, kind: worm.kind, to: worm.to.clone(), route })
        });
        let worms = worms.collect::<Result<Vec<_>, PlanError>>()?;
        let mut plan = Plan::new(scheme, self.label, self.root, placement, worms)?;
        plan.check(fabric)?;
        let mut routes = Routes::new(&plan, fabric);
        let determined = fabric.routing().is_deterministic(fabric.topology());
        let mut checked = Vec::with_capacity(plan.worms.len());
        for (position, (worm, given)) in plan.worms.iter().zip(&self.worms).enumerate() {
            if worm.index != given.index {
                let what =
                    format!("its index is {}, but it is the sender's number {}", given.index, worm.index);
                return Err(PlanError::unsound(position, &what));
            }
            checked.push(if determined { routes.of(worm) } else { worm.route.clone() });
        }
        for (worm, route) in plan.worms.iter_mut().zip(checked) {
            worm.route = route;
        }
        Ok(plan)
    }

    /// The scheme, if scheme, order, routing and label are consistent.
    fn checked_scheme(&self, fabric: &Fabric) -> Result<Scheme, PlanError> {
        if !(1..=PACKETS_MAX).contains(&self.packets) {
            return Err(PlanError::Packets(self.packets.into()));
        }
        let routing = fabric.routing().name();
        let fits = match self.routing.parse::<RoutingPolicy>()? {
            RoutingPolicy::Auto => true,
            RoutingPolicy::UpDown { .. } => routing == "up-down",
            RoutingPolicy::ShortestPath { .. } => routing == "shortest-path",
            RoutingPolicy::DimensionOrder { .. } => routing == "dimension-order",
            policy @ (RoutingPolicy::Minimal | RoutingPolicy::Valiant | RoutingPolicy::Ugal) => {
                routing == policy.to_string()
            }
        };
        if !fits {
            return Err(PlanError::Unsound(format!(
                "it was made for routing {}, the fabric is routed by {routing}",
                self.routing
            )));
        }
        let scheme: Scheme = self.scheme.parse()?;
        let order = self.order.as_deref().map(str::parse::<Order>).transpose()?;
        scheme.check(order)?;
        let label = scheme.label_on(fabric, order);
        if self.label != label {
            return Err(PlanError::Unsound(format!(
                "it is labelled {}, but {scheme} is {label}",
                self.label
            )));
        }
        Ok(scheme)
    }
}

/// The names of the channels of a worm's route.
fn route_names(fabric: &Fabric, worm: &Worm) -> Vec<String> {
    worm.route.iter().map(|&channel| channel_name(fabric.topology(), channel)).collect()
}

/// A link's name, with the virtual channel as a suffix unless that is 0.
pub(super) fn channel_name(topology: &Topology, channel: Channel) -> String {
    let name = topology.link_name(channel.link);
    if channel.virtual_channel == 0 { name } else { format!("{name}/{}", channel.virtual_channel) }
}

/// All links by name; empty if there are no names to look up.
struct LinkNames(BTreeMap<String, LinkId>);

impl LinkNames {
    fn of(topology: &Topology, worms: &[WormDocument]) -> Self {
        let needed = worms.iter().any(|worm| !worm.route.is_empty());
        Self(topology.links().filter(|_| needed).map(|link| (topology.link_name(link), link)).collect())
    }

    fn channels(&self, fabric: &Fabric, route: &[String]) -> Result<Vec<Channel>, String> {
        let count = fabric.routing().virtual_channel_count();
        let channel = |name: &String| {
            let (link, virtual_channel) = name.split_once('/').unwrap_or((name, "0"));
            let link = *self.0.get(link).ok_or_else(|| format!("the fabric has no link '{link}'"))?;
            match virtual_channel.parse() {
                Ok(virtual_channel) if virtual_channel < count => Ok(Channel { link, virtual_channel }),
                _ => Err(format!("'{name}' is not a channel: links have {count}, numbered from 0")),
            }
        };
        route.iter().map(channel).collect()
    }
}
