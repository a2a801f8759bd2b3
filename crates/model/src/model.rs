//! Which models there are.

use treecast_terms::{Key, Keyed, SpecError};

use crate::task::{Measure, ModelError, Outcome, Task};

macro_rules! models {
    ($($(#[$doc:meta])* $variant:ident, $module:ident, $name:literal;)+) => {
        /// A model of some hardware, with what its parts cost.
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

            /// Every key with its value as text.
            pub fn values(&self) -> Vec<(&'static str, String)> {
                match self {
                    $(Self::$variant(parameters) => parameters.values().collect(),)+
                }
            }

            /// The keys of its parameters, each with what it means and what it may be.
            pub fn keys(&self) -> Vec<[&'static str; 3]> {
                fn texts<P>(keys: &'static [Key<P>]) -> Vec<[&'static str; 3]> {
                    keys.iter().map(|key| [key.name, key.about, key.expected]).collect()
                }
                match self {
                    $(Self::$variant(_) => texts(crate::$module::Parameters::keys()),)+
                }
            }

            /// What it measures besides the latency.
            pub fn measures(&self) -> &'static [Measure] {
                match self {
                    $(Self::$variant(_) => crate::$module::MEASURES,)+
                }
            }

            /// Carries out a task.
            ///
            /// # Errors
            /// [`ModelError`] where the plan cannot be made, or the model does not do that.
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
}

impl Model {
    /// Multiplies a parameter that is a number; one that is a whole number stays whole.
    ///
    /// # Errors
    /// [`SpecError::BadValue`] where it is no number, or the product does not fit; [`SpecError::UnknownKey`].
    pub fn scale(&mut self, key: &str, factor: f64) -> Result<(), SpecError> {
        let value = self.values().into_iter().find(|(name, _)| *name == key).map(|(_, value)| value);
        let value = value.unwrap_or_default();
        let scaled =
            value.parse::<f64>().map_or_else(|_| value.clone(), |value| (value * factor).to_string());
        let whole = value.parse::<u64>().map(|value| (value as f64 * factor).round().to_string());
        match (self.set(key, &scaled), whole) {
            (Err(SpecError::BadValue { .. }), Ok(whole)) => self.set(key, &whole),
            (other, _) => other,
        }
    }

    /// Something that some model measures, by its name.
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
