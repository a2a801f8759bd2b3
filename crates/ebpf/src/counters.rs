//! The counters of a group in the program's maps.

use treecast_proto::GroupCounters;

use crate::layout::FastPathCounters;

/// The counters of a group in the program's maps.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct KernelCounters {
    /// The protocol's counters.
    pub group: GroupCounters,
    /// The program's additional counters.
    pub fast_path: FastPathCounters,
}

impl FastPathCounters {
    /// All counters with their names.
    pub const fn values(&self) -> [(&'static str, u64); 4] {
        let Self { slow_path, transmit_errors, deferred, invalid } = *self;
        [
            ("slow_path", slow_path),
            ("transmit_errors", transmit_errors),
            ("deferred", deferred),
            ("invalid", invalid),
        ]
    }
}

impl KernelCounters {
    /// All counters in a fixed order: those of the fast path first.
    pub fn values(&self) -> Vec<u64> {
        self.fast_path.values().into_iter().chain(self.group.values()).map(|(_, value)| value).collect()
    }

    /// Counters from their values in the same order; missing values are 0.
    pub fn from_values(values: impl IntoIterator<Item = u64>) -> Self {
        let mut values = values.into_iter();
        let mut next = || values.next().unwrap_or_default();
        let fast_path = FastPathCounters {
            slow_path: next(),
            transmit_errors: next(),
            deferred: next(),
            invalid: next(),
        };
        Self { fast_path, group: GroupCounters::from_values(values) }
    }
}
