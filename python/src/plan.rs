//! Plans.

use std::hash::{DefaultHasher, Hash, Hasher};

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use treecast_fabric::Channel;
use treecast_plan::render::{self, PlanContext, PlanDocument, WORMS_SHOWN};
use treecast_plan::{Analysis, MemberId, Order, PlanError, PlanOptions, Worm};

use crate::error::{TreecastError, refused};
use crate::fabric::Fabric;
use crate::group::Group;
use crate::json;
use crate::number::Whole;
use crate::table::{Table, numbers, text_lists, texts};

/// Makes the plan of a scheme for a group on a fabric.
///
/// `scheme` is one of `separate`, `serial`, `binary`, `binomial`, `k-binomial`, `postal`,
/// `hierarchical`, `u-torus`, `s-torus`, `md-torus`, `mu-torus`, `path`, `tree-worm`, `leader`,
/// with keys as in `k-binomial:k=2`. `order` is the order that a tree is built on: `id`, `given`,
/// `random:seed=3`, `switch`, `cco`; None is `id`, and is required for schemes that take no order.
/// `packets` is the number of packets of the message, 1 to 2**20: steps count them, and k-binomial
/// trees depend on them. docs/plans.md describes every scheme and order, and names its source.
///
/// Raises TreecastError if the fabric does not support the scheme, or the group is not on this
/// fabric.
///
/// >>> fabric = Fabric("star:8")
/// >>> plan(fabric, Group(fabric), "binomial").analysis["steps"]
/// 3
/// >>> plan(fabric, Group(fabric), "u-torus")
/// Traceback (most recent call last):
/// treecast.TreecastError: scheme u-torus needs a torus; this fabric is a network of switches
#[pyfunction]
#[pyo3(signature = (fabric, group, scheme, order = None, packets = Whole(1)))]
#[pyo3(text_signature = "(fabric, group, scheme, order=None, packets=1)")]
pub fn plan(
    fabric: Bound<'_, Fabric>,
    group: &Bound<'_, Group>,
    scheme: &str,
    order: Option<&str>,
    packets: Whole<u32>,
) -> PyResult<Plan> {
    let scheme: treecast_plan::Scheme = scheme.parse().map_err(refused)?;
    let order = order.map(str::parse).transpose().map_err(refused)?;
    let options = PlanOptions { order, packets: packets.0 };
    let (on, group) = (&fabric.get().fabric, group.get());
    let made = fabric.py().detach(|| treecast_plan::plan(on, &group.0, &scheme, &options));
    Ok(Plan {
        plan: made.map_err(refused)?,
        order,
        packets: packets.0,
        destinations: Some(group.destination_list()),
        fabric: fabric.unbind(),
    })
}

/// Who sends which copy to whom, in which order.
///
/// `plan` makes it, and `Plan.from_json` reads it. A plan is immutable and sound: every destination
/// receives exactly once, and a member sends only after it has received. It prints as in the
/// `treecast` command, and as a picture in a notebook. Two are equal if they have equal fabrics,
/// numbers of packets and worms.
///
/// >>> fabric = Fabric("star:4")
/// >>> print(plan(fabric, Group(fabric), "binomial"))
/// binomial (published): h0 to 3 destinations, 3 worms
/// h0
/// ├─ step 1: h2
/// │  └─ step 2: h3
/// └─ step 2: h1
/// <BLANKLINE>
/// steps 2, phases 2, depth 2, worms 3, largest fan-out 2
/// link visits 6 on 5 links (concentration 1.20), at once 2
/// no contention; the id rule holds
#[pyclass(frozen, module = "treecast")]
pub struct Plan {
    pub plan: treecast_plan::Plan,
    pub fabric: Py<Fabric>,
    pub order: Option<Order>,
    pub packets: u32,
    /// The destinations in the notation of a run; `None` if the plan was read.
    pub destinations: Option<String>,
}

#[pymethods]
impl Plan {
    /// The fabric it was made for.
    #[getter]
    fn fabric(&self, py: Python<'_>) -> Py<Fabric> {
        self.fabric.clone_ref(py)
    }

    /// The scheme with its keys.
    #[getter]
    fn scheme(&self) -> String {
        self.plan.scheme().to_string()
    }

    /// Where the algorithm comes from: `published`, `reconstructed` (a paper names it, this is our
    /// interpretation) or `ours`.
    #[getter]
    fn label(&self) -> String {
        self.plan.label().to_string()
    }

    /// The order as requested.
    #[getter]
    fn order(&self) -> Option<String> {
        self.order.map(|order| order.to_string())
    }

    /// The number of packets of the message.
    #[getter]
    fn packets(&self) -> u32 {
        self.packets
    }

    /// The member that sends first.
    #[getter]
    fn root(&self) -> u32 {
        self.plan.root().0
    }

    /// One row per member, the root first, the others as worms reach them: `member`, its `host` and
    /// the `name` of that, and `step`, the step of the one-port model in which it receives, from 1;
    /// 0 for the root.
    #[getter]
    fn nodes(&self) -> Table {
        let steps = self.plan.steps();
        let mut nodes = vec![(self.plan.root(), 0)];
        for (worm, step) in self.plan.worms().iter().zip(steps) {
            nodes.extend(worm.to.iter().map(|&member| (member, step)));
        }
        let host = |member: MemberId| self.plan.placement().host_of(member);
        let topology = self.fabric.get().topology();
        Table::new([
            ("member", numbers(nodes.iter().map(|(member, _)| member.0))),
            ("host", numbers(nodes.iter().map(|&(member, _)| host(member).0))),
            ("name", texts(nodes.iter().map(|&(member, _)| Some(topology.host_name(host(member)))))),
            ("step", numbers(nodes.iter().map(|&(_, step)| step))),
        ])
    }

    /// One row per copy; a member receives before it sends: the members `sender` and `receiver`;
    /// `worm`, the number of the worm that carries it (a worm of switches or to shared memory
    /// carries several); `order`, its position among the sender's worms, from 0; its `kind`,
    /// `unicast`, `path`, `tree` or `local`; `step`, as for nodes; and `route`, the names of the
    /// links that the worm crosses, with the suffix `/1` for virtual channel 1. The route is empty
    /// inside a host, and where the fabric routes adaptively.
    ///
    /// >>> fabric = Fabric("star:2")
    /// >>> plan(fabric, Group(fabric), "binomial").edges.to_pylist()
    /// [{'sender': 0, 'receiver': 1, 'worm': 0, 'order': 0, 'kind': 'unicast', 'step': 1, 'route': ['h0>s0:0', 's0:1>h1']}]
    #[getter]
    fn edges(&self, py: Python<'_>) -> Table {
        let topology = self.fabric.get().topology();
        let name = |channel: &Channel| match channel.virtual_channel {
            0 => topology.link_name(channel.link),
            further => format!("{}/{further}", topology.link_name(channel.link)),
        };
        py.detach(|| self.edge_table(name))
    }

    /// The static analysis of the plan, as a dict: `steps` until the last destination has all
    /// packets; `depth`, the number of worms on the longest path of the tree; `phases`, steps until
    /// the last has the first packet; `worms`; `max_fan_out`, the most worms of one sender;
    /// `link_visits`, the number of link crossings; `links_used`, the number of distinct links
    /// crossed; `link_concentration`, visits divided by links used; `link_concurrency`, the most
    /// worms in transit in one step; `contending_pairs` of worms that may meet on a link;
    /// `id_rule`, whether every child's number is greater than its parent's, unless the parent is
    /// the root. docs/plans.md defines them. Each access recomputes them.
    #[getter]
    fn analysis<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        json::to_python(py, &self.analyse(py)?)
    }

    /// The plan as a tree for a terminal, with at most `limit` worms.
    #[pyo3(signature = (limit = WORMS_SHOWN))]
    #[pyo3(text_signature = "($self, limit=200)")]
    fn tree(&self, limit: usize) -> PyResult<String> {
        render::tree(&self.plan, &self.fabric.get().fabric, limit).map_err(refused)
    }

    /// The plan in the language of Graphviz.
    fn dot(&self) -> PyResult<String> {
        render::dot(&self.plan, &self.fabric.get().fabric, None).map_err(refused)
    }

    /// A picture of the plan in SVG: time runs downwards, one row per step, and each member has a
    /// column.
    ///
    /// Raises TreecastError beyond 2,000 members.
    fn svg(&self, py: Python<'_>) -> PyResult<String> {
        let analysis = self.analyse(py)?;
        render::svg(&self.plan, &self.fabric.get().fabric, &analysis).map_err(refused)
    }

    /// The picture for a notebook; None beyond 200 destinations, for which the notebook prints a
    /// line.
    fn _repr_svg_(&self, py: Python<'_>) -> PyResult<Option<String>> {
        if self.plan.destination_count() > WORMS_SHOWN { Ok(None) } else { self.svg(py).map(Some) }
    }

    /// The plan as JSON, as `treecast plan --format json` writes it; docs/schema/plan.schema.json
    /// is its schema.
    fn to_json(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| self.document().map(|document| document.to_json())).map_err(refused)
    }

    /// Reads a plan from JSON, and checks it: it is sound, and every route leads over links of the
    /// fabric. Without `fabric` it is the one that the JSON names, which must then be the spec of a
    /// generated fabric.
    ///
    /// Raises TreecastError naming the worm and the error.
    #[staticmethod]
    #[pyo3(signature = (text, fabric = None))]
    fn from_json(py: Python<'_>, text: &str, fabric: Option<Bound<'_, Fabric>>) -> PyResult<Self> {
        let document = PlanDocument::parse(text).map_err(refused)?;
        let fabric = match fabric {
            Some(fabric) => fabric.unbind(),
            None => Py::new(py, named_fabric(py, &document)?)?,
        };
        let on = &fabric.get().fabric;
        let plan = py.detach(|| document.plan(on)).map_err(refused)?;
        let order = document.order.as_deref().map(str::parse).transpose().map_err(refused)?;
        Ok(Self { plan, order, packets: document.packets, destinations: None, fabric })
    }

    fn __str__(&self, py: Python<'_>) -> PyResult<String> {
        let text = format!("{}\n{}", self.tree(WORMS_SHOWN)?, render::figures(&self.analyse(py)?));
        Ok(text.trim_end().into())
    }

    fn __repr__(&self) -> String {
        let destinations = render::counted(self.plan.destination_count(), "destination");
        format!(
            "<Plan {} ({}): member {} to {destinations}, {}>",
            self.plan.scheme(),
            self.plan.label(),
            self.plan.root(),
            render::counted(self.plan.worms().len(), "worm")
        )
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.plan == other.plan
            && self.packets == other.packets
            && (self.fabric.is(&other.fabric) || self.fabric.get().__eq__(other.fabric.get()))
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.plan.hash(&mut hasher);
        hasher.finish()
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let (py, plan) = (slf.py(), slf.get());
        let arguments = (plan.to_json(py)?, plan.fabric(py), plan.destinations.clone());
        Ok((slf.get_type().getattr("_restored")?, arguments.into_pyobject(py)?))
    }

    /// The plan of a pickle.
    #[staticmethod]
    fn _restored(
        py: Python<'_>,
        text: &str,
        fabric: Bound<'_, Fabric>,
        destinations: Option<String>,
    ) -> PyResult<Self> {
        Ok(Self { destinations, ..Self::from_json(py, text, Some(fabric))? })
    }
}

impl Plan {
    fn edge_table(&self, name: impl Fn(&Channel) -> String) -> Table {
        let steps = self.plan.steps();
        let worms = (0..).zip(self.plan.worms());
        let copies: Vec<(u32, &Worm, MemberId)> =
            worms.flat_map(|(number, worm)| worm.to.iter().map(move |&to| (number, worm, to))).collect();
        let copies = || copies.iter();
        let route = |worm: &Worm| worm.route.iter().map(&name).collect();
        Table::new([
            ("sender", numbers(copies().map(|(_, worm, _)| worm.from.0))),
            ("receiver", numbers(copies().map(|(_, _, to)| to.0))),
            ("worm", numbers(copies().map(|(number, _, _)| *number))),
            ("order", numbers(copies().map(|(_, worm, _)| worm.index))),
            ("kind", texts(copies().map(|(_, worm, _)| Some(worm.kind.name().into())))),
            ("step", numbers(copies().map(|(number, _, _)| steps[*number as usize]))),
            ("route", text_lists(copies().map(|(_, worm, _)| route(worm)))),
        ])
    }

    fn analyse(&self, py: Python<'_>) -> PyResult<Analysis> {
        let fabric = self.fabric.get();
        py.detach(|| self.plan.analyse(&fabric.fabric, self.packets)).map_err(refused)
    }

    fn document(&self) -> Result<PlanDocument, PlanError> {
        let fabric = self.fabric.get();
        let context = PlanContext {
            fabric: &fabric.source,
            routing: fabric.policy,
            order: self.order,
            packets: self.packets,
        };
        PlanDocument::new(&self.plan, &fabric.fabric, &context)
    }
}

fn named_fabric(py: Python<'_>, document: &PlanDocument) -> PyResult<Fabric> {
    Fabric::generated(py, &document.fabric, &document.routing).map_err(|error| {
        let reason = error.value(py);
        TreecastError::new_err(format!("pass the plan's fabric as an argument: {reason}"))
    })
}
