//! The list of models.

use treecast_terms::{Key, Keyed, SpecError, Value};

use crate::task::{Measure, ModelError, Outcome, Task};

macro_rules! models {
    ($($(#[$doc:meta])* $variant:ident, $module:ident, $name:literal;)+) => {
        /// A model of one kind of hardware, with the costs of its parts.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Model {
            $($(#[$doc])* $variant(crate::$module::Parameters),)+
        }

        impl Model {
            /// The names of all models.
            pub const NAMES: &[&str] = &[$($name),+];

            /// The model with a name, its parameters at their defaults.
            ///
            /// # Errors
            /// [`SpecError::UnknownName`] with the names that there are.
            pub fn named(name: &str) -> Result<Self, SpecError> {
                match name {
                    $($name => Ok(Self::$variant(crate::$module::Parameters::default())),)+
                    _ => {
                        let known = Self::NAMES.iter().map(|name| (*name).to_string()).collect();
                        Err(SpecError::UnknownName { what: "model", given: name.into(), known })
                    }
                }
            }

            /// Its name.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => $name,)+
                }
            }

            /// Sets a parameter by its key.
            ///
            /// # Errors
            /// As [`Keyed::set_key`], with the name of the model.
            pub fn set(&mut self, key: &str, value: &str) -> Result<(), SpecError> {
                let set = match self {
                    $(Self::$variant(parameters) => parameters.set_key(key, value),)+
                };
                set.map_err(|error| match error {
                    SpecError::UnknownKey { given, known, .. } => {
                        SpecError::UnknownKey { name: format!("model {}", self.name()), given, known }
                    }
                    other => other,
                })
            }

            /// Every key with its value.
            pub fn values(&self) -> Vec<(&'static str, Value)> {
                match self {
                    $(Self::$variant(parameters) => parameters.values().collect(),)+
                }
            }

            /// The keys of its parameters, each with its meaning and its valid values.
            pub fn keys(&self) -> Vec<[&'static str; 3]> {
                fn texts<P>(keys: &'static [Key<P>]) -> Vec<[&'static str; 3]> {
                    keys.iter().map(|key| [key.name, key.about, key.expected]).collect()
                }
                match self {
                    $(Self::$variant(_) => texts(crate::$module::Parameters::keys()),)+
                }
            }

            /// Its measures besides the latency.
            pub fn measures(&self) -> &'static [Measure] {
                match self {
                    $(Self::$variant(_) => crate::$module::MEASURES,)+
                }
            }

            /// Carries out a task.
            ///
            /// # Errors
            /// [`ModelError`] if the plan cannot be made, the model does not support the task, or
            /// the run was told to stop.
            pub fn run(&self, task: &Task) -> Result<Outcome, ModelError> {
                match self {
                    $(Self::$variant(parameters) => crate::$module::run(parameters, task),)+
                }
            }
        }
    };
}

models! {
    /// Myrinet's network interfaces with GM.
    Myrinet, myrinet, "myrinet";
    /// Nodes of several processes on InfiniBand.
    Smp, smp, "smp";
    /// Rings of the Scalable Coherent Interface.
    Sci, sci, "sci";
    /// Hosts on Ethernet that run Treecast's nodes.
    Ethernet, ethernet, "ethernet";
}

impl Model {
    /// The value of a parameter, by its key.
    ///
    /// # Errors
    /// [`SpecError::UnknownKey`] with the known keys.
    pub fn value(&self, key: &str) -> Result<Value, SpecError> {
        let found = self.values().into_iter().find(|(name, _)| *name == key);
        found.map(|(_, value)| value).ok_or_else(|| SpecError::UnknownKey {
            name: format!("model {}", self.name()),
            given: key.into(),
            known: self.keys().iter().map(|[name, ..]| (*name).to_string()).collect(),
        })
    }

    /// Multiplies a parameter that is a number; one that is a whole number stays whole.
    ///
    /// # Errors
    /// [`SpecError::BadValue`] if it is not a number, or the product does not fit;
    /// [`SpecError::UnknownKey`].
    pub fn scale(&mut self, key: &str, factor: f64) -> Result<(), SpecError> {
        let scaled = match self.value(key)? {
            Value::Whole(number) => (number as f64 * factor).round(),
            Value::Real(number) => number * factor,
            Value::Text(value) => {
                return Err(SpecError::BadValue { key: key.into(), value, expected: "a number".into() });
            }
        };
        self.set(key, &scaled.to_string())
    }

    /// A measure of some model, by its name.
    ///
    /// # Errors
    /// [`SpecError::UnknownName`] with all names.
    pub fn measure(name: &str) -> Result<Measure, SpecError> {
        let models = Self::NAMES.iter().filter_map(|name| Self::named(name).ok());
        let measures: Vec<Measure> = models.flat_map(|model| model.measures()).copied().collect();
        measures.iter().find(|measure| measure.name == name).copied().ok_or_else(|| SpecError::UnknownName {
            what: "measure",
            given: name.into(),
            known: measures.iter().map(|measure| measure.name.to_string()).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use treecast_fabric::{Fabric, FabricSpec};
    use treecast_plan::{Group, MemberId, Placement};
    use treecast_terms::{Bytes, Offload};

    use super::*;

    /// A run of each model that would take long: its fabric and routing, the length of its message,
    /// and what is repeated.
    const LONG_RUNS: [(&str, [&str; 2], u64, Option<&str>); 4] = [
        ("myrinet", ["star:16", "auto"], 64, Some("broadcasts")),
        ("smp", ["star:16", "auto"], 64, Some("iterations")),
        ("sci", ["torus:k=4,n=2,uni", "dimension-order:channels=none"], 1 << 25, None),
        ("ethernet", ["star:16", "auto"], 1 << 30, None),
    ];

    #[test]
    fn a_run_that_is_told_to_stop_ends() {
        for (name, [fabric, routing], message, repeated) in LONG_RUNS {
            let mut model = Model::named(name).unwrap();
            if let Some(key) = repeated {
                model.set(key, "1000000").unwrap();
            }
            let topology = fabric.parse::<FabricSpec>().unwrap().topology().unwrap();
            let fabric = Fabric::new(topology, routing.parse().unwrap()).unwrap();
            let group = Group::new(Placement::one_per_host(16), MemberId(0), (1..16).map(MemberId).collect());
            let stop = AtomicBool::new(true);
            let task = Task {
                fabric: &fabric,
                group: &group.unwrap(),
                scheme: &"binomial".parse().unwrap(),
                order: None,
                offload: Offload::Host,
                message: Bytes(message),
                seed: 1,
                stop: Some(&stop),
            };
            assert_eq!(model.run(&task), Err(ModelError::Interrupted), "{name}");
        }
    }

    #[test]
    fn a_scaled_whole_number_stays_whole_unless_its_key_takes_fractions() {
        let mut model = Model::named("smp").unwrap();
        model.set("queue_slots", "3").unwrap();
        model.set("numa_factor", "3").unwrap();
        for key in ["queue_slots", "numa_factor"] {
            model.scale(key, 0.8).unwrap();
        }
        assert_eq!(model.value("queue_slots"), Ok(Value::Whole(2)));
        assert_eq!(model.value("numa_factor"), Ok(Value::Real(3.0 * 0.8)));
    }

    #[test]
    fn what_cannot_be_scaled_is_named() {
        let error = |key, factor| Model::named("smp").unwrap().scale(key, factor).unwrap_err().to_string();
        assert_eq!(error("threshold_us", 0.8), "invalid value threshold_us=auto: expected a number");
        assert_eq!(
            error("numa_factor", 0.1),
            "invalid value numa_factor=0.1: expected a number from 1 to 100"
        );
        assert!(
            error("threshold", 0.8)
                .starts_with("model smp has no key 'threshold': did you mean threshold_us")
        );
    }
}
