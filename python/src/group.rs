//! Groups.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use pyo3::{Borrowed, FromPyObject};
use treecast_plan::{Arrangement, MemberId, MemberList, Placement, destinations_named, member_named};

use crate::error::refused;
use crate::fabric::Fabric;
use crate::number::Whole;

/// The members of a multicast: a root that sends, and the destinations.
///
/// `on` is the fabric, or just its number of hosts. `root` is the number of a member, or the name
/// of its host on the fabric. Members are processes: with one per host, member and host have the
/// same number; with `processes` per host they are numbered host by host with `placement="block"`,
/// or round robin over the hosts with `"cyclic"`.
///
/// `destinations` are numbers of members, or a text: `all`, `1-31`, `3,5,9`, or `random:15`, which
/// `seed` draws as the `treecast` command does; or the names of hosts on the fabric,
/// `n[1-16],login`, of which the root is left out. A group is immutable; two are equal if they have
/// the same members in the same order.
///
/// Raises TreecastError for unknown or duplicate members and hosts, and if there are no
/// destinations.
///
/// >>> Group(16, 0, [3, 5, 9])
/// <Group: member 0 of 16 to 3 destinations>
/// >>> Group(16, 0, "random:5").destinations
/// [1, 9, 13, 3, 4]
/// >>> Group(Fabric("star:16"), "h2", "h[0-5]").destinations
/// [0, 1, 3, 4, 5]
/// >>> Group(16, 0, [16])
/// Traceback (most recent call last):
/// treecast.TreecastError: there is no host 16: the group has hosts 0 to 15
#[pyclass(frozen, eq, hash, module = "treecast")]
#[derive(PartialEq, Eq, Hash)]
pub struct Group(pub treecast_plan::Group);

/// The `on` argument of a group.
#[derive(FromPyObject)]
pub enum Hosts<'py> {
    Of(Bound<'py, Fabric>),
    Number(Whole<u32>),
}

/// The `root` argument.
enum Root {
    Number(Whole<u32>),
    Name(String),
}

/// A derived implementation would hide the error of a number out of range.
impl<'a, 'py> FromPyObject<'a, 'py> for Root {
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        match given.cast::<PyString>() {
            Ok(name) => Ok(Self::Name(name.to_str()?.into())),
            Err(_) => given.extract().map(Self::Number),
        }
    }
}

/// The `destinations` argument.
#[derive(FromPyObject)]
enum Destinations<'py> {
    Text(String),
    Members(Bound<'py, PyAny>),
}

#[pymethods]
impl Group {
    #[new]
    #[pyo3(signature = (on, root = Root::Number(Whole(0)), destinations = Destinations::Text("all".into()), *, processes = Whole(1), placement = "block", seed = Whole(1)))]
    #[pyo3(text_signature = "(on, root=0, destinations='all', *, processes=1, placement='block', seed=1)")]
    fn new(
        on: Hosts<'_>,
        root: Root,
        destinations: Destinations<'_>,
        processes: Whole<u32>,
        placement: &str,
        seed: Whole<u64>,
    ) -> PyResult<Self> {
        let (hosts, topology) = match &on {
            Hosts::Of(fabric) => (fabric.get().topology().host_count(), Some(fabric.get().topology())),
            Hosts::Number(Whole(hosts)) => (*hosts, None),
        };
        let arrangement: Arrangement = placement.parse().map_err(refused)?;
        let placement = Placement::new(hosts, processes.0, arrangement).map_err(refused)?;
        let root = match (root, topology) {
            (Root::Number(Whole(number)), _) => MemberId(number),
            (Root::Name(name), Some(topology)) => {
                member_named(&name, topology, &placement).map_err(refused)?
            }
            (Root::Name(name), None) => {
                return Err(PyTypeError::new_err(format!(
                    "the root '{name}' is the name of a host, and {hosts} hosts have no names: give the fabric"
                )));
            }
        };
        let destinations = match (destinations, topology) {
            (Destinations::Text(text), Some(topology)) => {
                destinations_named(&text, topology, &placement, root, seed.0)
            }
            (Destinations::Text(text), None) => {
                text.parse().and_then(|list: MemberList| list.resolve(&placement, root, seed.0))
            }
            (Destinations::Members(members), _) => {
                let number = |member: PyResult<Bound<PyAny>>| Ok(member?.extract::<Whole<u32>>()?.0);
                let members = members.try_iter()?.map(number).collect::<PyResult<Vec<u32>>>()?;
                let list = MemberList::Ranges(members.into_iter().map(|member| (member, member)).collect());
                list.resolve(&placement, root, seed.0)
            }
        };
        let destinations = destinations.map_err(refused)?;
        treecast_plan::Group::new(placement, root, destinations).map(Self).map_err(refused)
    }

    /// The member that sends.
    #[getter]
    fn root(&self) -> u32 {
        self.0.root().0
    }

    /// The members that receive, in the order given.
    #[getter]
    fn destinations(&self) -> Vec<u32> {
        self.0.destinations().iter().map(|member| member.0).collect()
    }

    /// The number of hosts of the fabric.
    #[getter]
    fn host_count(&self) -> u32 {
        self.0.placement().host_count()
    }

    /// The number of processes per host.
    #[getter]
    fn processes(&self) -> u32 {
        self.0.placement().processes()
    }

    /// The placement of processes on hosts: `block` or `cyclic`; None, if the host of every member
    /// is listed.
    #[getter]
    fn placement(&self) -> Option<&'static str> {
        self.0.placement().arrangement().map(|arrangement| match arrangement {
            Arrangement::Block => "block",
            Arrangement::Cyclic => "cyclic",
        })
    }

    /// The number of members, including the root.
    fn __len__(&self) -> usize {
        self.0.size() as usize
    }

    fn __repr__(&self) -> String {
        let (root, members) = (self.0.root(), self.0.placement().member_count());
        let destinations = treecast_plan::render::counted(self.0.destinations().len(), "destination");
        format!("<Group: member {root} of {members} to {destinations}>")
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
        let keywords = PyDict::new(py);
        keywords.set_item("processes", self.processes())?;
        keywords.set_item("placement", self.placement())?;
        let arguments = (self.host_count(), self.root(), self.destinations());
        Ok((arguments.into_pyobject(py)?, keywords))
    }
}

impl Group {
    /// The destinations in the notation of a run: `all`, or one by one.
    pub fn destination_list(&self) -> String {
        let destinations = self.0.destinations();
        let all = MemberList::All.resolve(self.0.placement(), self.0.root(), 0);
        if all.as_deref() == Ok(destinations) {
            return "all".into();
        }
        destinations.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }
}
