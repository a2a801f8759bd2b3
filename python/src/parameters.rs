//! Parameters.

use std::collections::BTreeMap;

use pyo3::exceptions::{PyKeyError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping, PyTuple};
use treecast_sim::Key;
use treecast_terms::{Keyed as _, SpecError, Value};

use crate::error::refused;
use crate::table::{Table, texts};

/// The parameters of hosts, network interfaces and switches, and the policies of the simulator.
///
/// Keys are those of `treecast sim --set`; `Parameters.known()` lists them, docs/simulation.md
/// describes them. The defaults are those of the ICPP'98 study. `host_overhead` and `nic_overhead`
/// set both ends. Times are in cycles, lengths in flits, which are bytes; keys that end in `_ns`
/// are in nanoseconds, in `_mb_per_s` in MB/s (10^6 bytes per second).
///
/// Parameters are immutable, compare, and are a mapping: `dict(parameters)` has every key. A dict
/// can be passed wherever they are expected.
///
/// Raises TreecastError for an unknown key and for an invalid value.
///
/// >>> parameters = Parameters(nic_overhead=500, adaptive="lowest")
/// >>> parameters
/// Parameters(nic_send_overhead=500, nic_receive_overhead=500, adaptive='lowest')
/// >>> parameters["host_send_overhead"]
/// 1000
/// >>> Parameters(nic_overhed=500)
/// Traceback (most recent call last):
/// treecast.TreecastError: parameters has no key 'nic_overhed': did you mean nic_overhead, nic_send_overhead, nic_receive_overhead?
#[pyclass(frozen, eq, hash, mapping, module = "treecast")]
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Parameters(pub treecast_sim::Parameters);

#[pymethods]
impl Parameters {
    #[new]
    #[pyo3(signature = (**keys))]
    fn new(keys: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let mut parameters = treecast_sim::Parameters::default();
        for (key, value) in keys.into_iter().flatten() {
            set(&mut parameters, &key, &value)?;
        }
        Ok(Self(parameters))
    }

    /// One row per key: `key`, its `default` as a text, what values are `expected`, and what it is
    /// `about`.
    #[staticmethod]
    fn known() -> Table {
        let defaults = treecast_sim::Parameters::default();
        let column = |text: &dyn Fn(&Key) -> String| {
            texts(treecast_sim::Parameters::keys().iter().map(|key| Some(text(key))))
        };
        Table::new([
            ("key", column(&|key| key.name.into())),
            ("default", column(&|key| key.value(&defaults).to_string())),
            ("expected", column(&|key| key.expected.into())),
            ("about", column(&|key| key.about.into())),
        ])
    }

    /// All keys.
    fn keys(&self) -> Vec<&'static str> {
        treecast_sim::Parameters::keys().iter().map(|key| key.name).collect()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, key: &str) -> PyResult<Bound<'py, PyAny>> {
        let known = treecast_sim::Parameters::keys().iter().find(|known| known.name == key);
        python(py, &known.ok_or_else(|| PyKeyError::new_err(key.to_string()))?.value(&self.0))
    }

    fn __len__(&self) -> usize {
        treecast_sim::Parameters::keys().len()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.keys().into_pyobject(py)?.try_iter()?.into_any())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let changed = self.changed(py)?;
        let shown = changed.iter().map(|(key, value)| Ok(format!("{key}={}", value.repr()?)));
        Ok(format!("Parameters({})", shown.collect::<PyResult<Vec<_>>>()?.join(", ")))
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
        Ok((PyTuple::empty(py), self.changed(py)?))
    }
}

impl Parameters {
    /// The parameters in a document.
    pub fn of(values: &BTreeMap<String, serde_json::Value>) -> PyResult<Self> {
        let mut parameters = treecast_sim::Parameters::default();
        for (key, value) in values {
            let text = value.as_str().map_or_else(|| value.to_string(), String::from);
            parameters.set(key, &text).map_err(refused)?;
        }
        Ok(Self(parameters))
    }

    /// The keys that differ from the defaults.
    fn changed<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let changed = PyDict::new(py);
        for ((key, own), (_, default)) in self.0.values().zip(treecast_sim::Parameters::default().values()) {
            if own != default {
                changed.set_item(key, python(py, &own)?)?;
            }
        }
        Ok(changed)
    }
}

/// Parameters as an argument: themselves, a mapping, or nothing for the defaults.
pub fn read(given: Option<&Bound<'_, PyAny>>) -> PyResult<treecast_sim::Parameters> {
    let mut parameters = treecast_sim::Parameters::default();
    let Some(given) = given else { return Ok(parameters) };
    if let Ok(given) = given.cast::<Parameters>() {
        return Ok(given.get().0.clone());
    }
    for item in given.cast::<PyMapping>()?.items()? {
        let (key, value): (Bound<PyAny>, Bound<PyAny>) = item.extract()?;
        set(&mut parameters, &key, &value)?;
    }
    Ok(parameters)
}

fn set(
    parameters: &mut treecast_sim::Parameters,
    key: &Bound<'_, PyAny>,
    value: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let key: String = key
        .extract()
        .map_err(|_| PyTypeError::new_err(format!("the keys of parameters are texts, not {key}")))?;
    let text = value.str()?.to_string();
    parameters.set(&key, &text).map_err(|error| match error {
        SpecError::UnknownKey { given, known, .. } => {
            refused(SpecError::UnknownKey { name: "parameters".into(), given, known })
        }
        other => refused(other),
    })
}

/// A value as Python has it: a number where it is one, else a text.
fn python<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match (value.whole(), value) {
        (Some(number), _) => number.into_pyobject(py)?.into_any(),
        (None, Value::Real(number)) => number.into_pyobject(py)?.into_any(),
        (None, text) => text.to_string().into_pyobject(py)?.into_any(),
    })
}
