//! Bounds of a topology.

pub const HOSTS_MAX: u32 = 1 << 20;
pub const SWITCHES_MAX: u32 = 1 << 20;
pub const PORTS_MAX: u32 = 1 << 20;
pub const LINKS_MAX: u32 = 1 << 26;
