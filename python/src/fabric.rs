//! Fabrics.

use std::hash::{DefaultHasher, Hash, Hasher};

use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};
use treecast_fabric::generate::GridShape;
use treecast_fabric::read::{self, Read};
use treecast_fabric::{FabricError, FabricSpec, Link, RoutingPolicy, Topology, Vertex};

use crate::error::{TreecastError, read_text, refused};
use crate::table::{Table, numbers, optional_numbers, texts};

/// A network: hosts, switches, the directed links between them, and the routing.
///
/// `spec` names a generator: `icpp98`, `star:16`, `torus:k=4,n=2`, `torus:k=4,n=2,uni`,
/// `mesh:k=4,n=2`, `fat-tree:k=8`,
/// `irregular:switches=16,ports=8,hosts=32,links_per_switch=1.25,seed=3`. `routing` is `auto`
/// (dimension order on tori and meshes, up*/down* elsewhere), `up-down`, `up-down:root=3`,
/// `dimension-order` or `dimension-order:channels=none`. `Fabric.read` reads a file,
/// `Fabric.from_networkx` a graph.
///
/// A fabric is immutable. Two are equal if they have the same links, ports and names, and the same
/// requested routing.
///
/// Raises TreecastError for an invalid spec, and for a routing that the fabric does not support.
///
/// >>> fabric = Fabric("torus:k=4,n=2")
/// >>> fabric
/// <Fabric torus:k=4,n=2: 16 hosts, 16 switches, 32 links between switches; routing dimension-order>
/// >>> Fabric("tours:k=4")
/// Traceback (most recent call last):
/// treecast.TreecastError: unknown fabric 'tours': did you mean torus?
#[pyclass(frozen, module = "treecast")]
pub struct Fabric {
    pub fabric: treecast_fabric::Fabric,
    /// Its spec, the path of its file, or another description of its origin.
    pub source: String,
    /// Whether `source` alone reproduces it.
    is_generated: bool,
    pub policy: RoutingPolicy,
    notes: Vec<String>,
}

/// The most hosts and switches of a picture that a notebook shows without being asked.
const VERTICES_SHOWN: u32 = 600;

#[pymethods]
impl Fabric {
    #[new]
    #[pyo3(signature = (spec, routing = "auto"))]
    fn new(py: Python<'_>, spec: &str, routing: &str) -> PyResult<Self> {
        Self::generated(py, spec, routing)
    }

    /// Reads a file: TOML, GraphML, the output of `ibnetdiscover` on an InfiniBand cluster, Slurm's
    /// `topology.conf`, or an inventory of hosts and racks.
    ///
    /// The format is known by the extension, or else detected. `notes` lists what was ignored.
    ///
    /// Raises OSError if the file cannot be read, TreecastError with the line number if it is
    /// invalid.
    #[staticmethod]
    #[pyo3(signature = (path, routing = "auto"))]
    fn read(path: Bound<'_, PyAny>, routing: &str) -> PyResult<Self> {
        let py = path.py();
        let path = py.import("pathlib")?.getattr("Path")?.call1((path,))?;
        let text = read_text(&path)?;
        let name = path.str()?.to_string();
        Self::build(py, routing, name.clone(), move || read::read(&name, &text), refused)
    }

    /// The fabric that a networkx graph describes.
    ///
    /// The attribute `kind` of a node is `host` or `switch`; without it a node is a host if it has
    /// one link, else a switch. Its name is its attribute `name` or `label`, else the node itself.
    /// A switch may have `ports`, their number, and `rank`, 0 at the top. Hosts and switches are
    /// numbered in the order of their nodes.
    ///
    /// Edges of undirected graphs are bidirectional links. Those of directed graphs are one-way
    /// links; two opposite ones that claim the same ports, or none, are one bidirectional link.
    /// `sourceport` and `targetport` of a directed edge are its ports; without them it takes the
    /// lowest free ones. Links are numbered in the order of the edges, or, if all edges have a
    /// whole number `link`, in the order of these numbers.
    ///
    /// The graph itself may have `grid`, such as `torus:k=4,n=2`, which is checked, and `routing`,
    /// which the argument overrides.
    ///
    /// Raises TreecastError if the graph is not a fabric. Needs networkx.
    ///
    /// >>> import networkx
    /// >>> Fabric.from_networkx(networkx.star_graph(4))
    /// <Fabric networkx: 4 hosts, 1 switch, 0 links between switches; routing up-down>
    #[classmethod]
    #[pyo3(signature = (graph, routing = None))]
    fn from_networkx<'py>(
        class: &Bound<'py, PyType>,
        graph: Bound<'py, PyAny>,
        routing: Option<&str>,
    ) -> PyResult<Bound<'py, PyAny>> {
        class.py().import("treecast._networkx")?.call_method1("from_networkx", (graph, routing))
    }

    /// A networkx `MultiDiGraph`, from which `Fabric.from_networkx` builds an equal fabric.
    ///
    /// Nodes are `h0`, `h1`, ... with `kind="host"` and `s0`, `s1`, ... with `kind="switch"`,
    /// `ports` and, in fat trees, `rank`; all have `name`. Each directed link is an edge with its
    /// number `link`, its `name`, `sourceport` and `targetport`. Both directions of a link have the
    /// same key, so `to_undirected()` makes one edge of them.
    ///
    /// Needs networkx.
    ///
    /// >>> graph = Fabric("star:3").to_networkx()
    /// >>> graph.nodes["h2"]
    /// {'kind': 'host', 'name': 'h2'}
    /// >>> graph.number_of_edges(), graph.to_undirected().number_of_edges()
    /// (6, 3)
    fn to_networkx<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("treecast._networkx")?.call_method1("to_networkx", (slf,))
    }

    /// The fabric without its routing, as the text of a TOML file.
    fn to_toml(&self, py: Python<'_>) -> String {
        py.detach(|| self.topology().to_toml())
    }

    /// The fabric without its routing, as the text of a GraphML file.
    fn to_graphml(&self, py: Python<'_>) -> String {
        py.detach(|| self.topology().to_graphml())
    }

    /// Its source: the spec, the path of the file, or `networkx`.
    #[getter]
    fn source(&self) -> &str {
        &self.source
    }

    /// The routing as requested.
    #[getter]
    fn routing(&self) -> String {
        self.policy.to_string()
    }

    /// The number of hosts; they are numbered from 0.
    #[getter]
    fn host_count(&self) -> u32 {
        self.topology().host_count()
    }

    /// The number of switches; they are numbered from 0.
    #[getter]
    fn switch_count(&self) -> u32 {
        self.topology().switch_count()
    }

    /// The number of directed links; they are numbered from 0. A bidirectional link counts as two.
    #[getter]
    fn link_count(&self) -> u32 {
        self.topology().link_count()
    }

    /// The torus or mesh that the switches form, such as `torus:k=4,n=2`; None for other networks.
    #[getter]
    fn grid(&self) -> Option<String> {
        let grid = self.topology().grid()?;
        let shape = match (grid.wraps(), grid.is_bidirectional()) {
            (false, _) => GridShape::Mesh,
            (true, true) => GridShape::Torus,
            (true, false) => GridShape::UnidirectionalTorus,
        };
        Some(FabricSpec::Grid(shape, grid.radix(), grid.dimensions()).to_string())
    }

    /// One row per host, by number: its `name`, and `switch`, the number of its switch.
    #[getter]
    fn hosts(&self, py: Python<'_>) -> Table {
        py.detach(|| {
            let topology = self.topology();
            Table::new([
                ("name", texts(topology.hosts().map(|host| Some(topology.host_name(host))))),
                ("switch", numbers(topology.hosts().map(|host| topology.switch_of(host).0))),
            ])
        })
    }

    /// One row per switch, by number: its `name`; `ports`, their number; `rank`, 0 at the top, null
    /// if the fabric has no ranks.
    #[getter]
    fn switches(&self, py: Python<'_>) -> Table {
        py.detach(|| {
            let topology = self.topology();
            let switches = || topology.switches();
            let rank =
                |switch: treecast_fabric::SwitchId| topology.ranks().map(|ranks| ranks[switch.index()]);
            Table::new([
                ("name", texts(switches().map(|switch| Some(topology.switch_name(switch))))),
                ("ports", numbers(switches().map(|switch| topology.port_count(switch)))),
                ("rank", optional_numbers(switches().map(rank))),
            ])
        })
    }

    /// One row per directed link, by number: its `name`, such as `h0>s1:4` or `s1:3>s2:0`; its ends
    /// `source` and `target`, such as `h0` and `s1`, with `sourceport` and `targetport`; and
    /// `reverse`, the number of the link in the opposite direction, null for a one-way link.
    ///
    /// >>> Fabric("star:2").links.column("name")
    /// ['h0>s0:0', 's0:0>h0', 'h1>s0:1', 's0:1>h1']
    #[getter]
    fn links(&self, py: Python<'_>) -> Table {
        py.detach(|| {
            let topology = self.topology();
            let ends = || topology.links().map(|link| topology.link(link));
            let end = |vertex: Vertex| Some(vertex.to_string());
            let reverse = |link| topology.reverse(link).map(|reverse| reverse.0);
            Table::new([
                ("name", texts(topology.links().map(|link| Some(topology.link_name(link))))),
                ("source", texts(ends().map(|Link { from, .. }| end(from)))),
                ("sourceport", numbers(ends().map(|link| link.from_port.0))),
                ("target", texts(ends().map(|Link { to, .. }| end(to)))),
                ("targetport", numbers(ends().map(|link| link.to_port.0))),
                ("reverse", optional_numbers(topology.links().map(reverse))),
            ])
        })
    }

    /// The reader's notes on what it ignored, one sentence each.
    #[getter]
    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    /// A picture in SVG: switches as squares, hosts as circles, links as lines.
    ///
    /// Raises TreecastError beyond 4,000 hosts and switches.
    fn svg(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| treecast_report::fabric_svg(&self.fabric)).map_err(refused)
    }

    /// The picture for a notebook; None beyond 600 hosts and switches, for which the notebook
    /// prints a line.
    fn _repr_svg_(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let vertices = self.topology().host_count() + self.topology().switch_count();
        if vertices > VERTICES_SHOWN { Ok(None) } else { self.svg(py).map(Some) }
    }

    fn __repr__(&self) -> String {
        let routing = self.fabric.routing().name();
        format!("<Fabric {}: {}; routing {routing}>", self.source, self.topology().summary())
    }

    pub fn __eq__(&self, other: &Self) -> bool {
        self.policy == other.policy && self.topology() == other.topology()
    }

    fn __hash__(&self) -> u64 {
        let topology = self.topology();
        let mut hasher = DefaultHasher::new();
        (topology.host_count(), topology.switch_count(), topology.link_count()).hash(&mut hasher);
        self.policy.to_string().hash(&mut hasher);
        hasher.finish()
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let (py, class, fabric) = (slf.py(), slf.get_type(), slf.get());
        let routing = fabric.policy.to_string();
        if fabric.is_generated {
            return Ok((class.into_any(), (&fabric.source, routing).into_pyobject(py)?));
        }
        let arguments = (fabric.to_toml(py), "toml", &fabric.source, routing);
        Ok((class.getattr("_from_text")?, arguments.into_pyobject(py)?))
    }

    /// The fabric of a text that the package wrote, with the name of its origin. An error has two
    /// arguments: the sentence, and the line of the text, which users do not see.
    #[staticmethod]
    fn _from_text(py: Python<'_>, text: &str, format: &str, source: String, routing: &str) -> PyResult<Self> {
        let reader = if format == "toml" { read::toml } else { read::graphml };
        Self::build(
            py,
            routing,
            source,
            || reader("", text),
            |error| match error {
                FabricError::Malformed { reason, line, .. } => TreecastError::new_err((reason, line)),
                other => refused(other),
            },
        )
    }
}

impl Fabric {
    pub fn topology(&self) -> &Topology {
        self.fabric.topology()
    }

    /// The fabric of a spec.
    pub fn generated(py: Python<'_>, spec: &str, routing: &str) -> PyResult<Self> {
        let parsed: FabricSpec = spec.parse().map_err(refused)?;
        let read = move || Ok(Read { topology: parsed.topology()?, notes: Vec::new() });
        Ok(Self { is_generated: true, ..Self::build(py, routing, spec.into(), read, refused)? })
    }

    fn build(
        py: Python<'_>,
        routing: &str,
        source: String,
        read: impl FnOnce() -> Result<Read, FabricError> + Send,
        complain: impl FnOnce(FabricError) -> PyErr,
    ) -> PyResult<Self> {
        let policy: RoutingPolicy = routing.parse().map_err(refused)?;
        let built = py.detach(|| {
            let Read { topology, notes } = read()?;
            Ok((treecast_fabric::Fabric::new(topology, policy)?, notes))
        });
        let (fabric, notes) = built.map_err(complain)?;
        Ok(Self { fabric, source, is_generated: false, policy, notes })
    }
}
