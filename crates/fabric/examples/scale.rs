//! Time and memory to generate and route a fabric of 10,000 hosts and 1,000 switches.
//!
//! `cargo run --release -p treecast-fabric --example scale`, optionally with another fabric as
//! argument.

use std::time::{Duration, Instant};

use treecast_fabric::{Fabric, FabricError, FabricSpec, RoutingPolicy, SwitchId, Topology, read};

const SPEC: &str = "irregular:switches=1000,ports=24,hosts=10000,connectivity=0.75,seed=1";

#[expect(clippy::disallowed_methods, reason = "an example may read its arguments")]
fn main() -> Result<(), FabricError> {
    let spec: FabricSpec = std::env::args().nth(1).as_deref().unwrap_or(SPEC).parse()?;
    println!("{spec}");
    let topology = timed("build", || spec.topology())?;
    println!("{}", topology.summary());
    let text = timed("write TOML", || topology.to_toml());
    timed("read TOML", || read::toml("scale.toml", &text))?;
    let text = timed("write GraphML", || topology.to_graphml());
    timed("read GraphML", || read::graphml("scale.graphml", &text))?;
    let fabric = timed("route", || Fabric::new(topology, RoutingPolicy::UpDown { root: None, channels: 1 }))?;
    timed("distances to 100 switches", || distances_to(&fabric, 100));
    timed("reach", || fabric.routing().up_down().map(|routing| routing.reach(fabric.topology()).len()));
    println!("{}", peak_memory());
    Ok(())
}

fn distances_to(fabric: &Fabric, count: u32) -> u64 {
    let topology: &Topology = fabric.topology();
    let Some(routing) = fabric.routing().up_down() else { return 0 };
    let links = |target| {
        let distances = routing.distances(topology, target);
        topology.switches().filter_map(move |from| distances.from(from, false)).map(u64::from).sum::<u64>()
    };
    (0..count.min(topology.switch_count())).map(SwitchId).map(links).sum()
}

fn timed<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let start = now();
    let result = work();
    let taken: Duration = now() - start;
    println!("{what:26} {:9.3} ms", taken.as_secs_f64() * 1e3);
    result
}

#[expect(clippy::disallowed_methods, reason = "an example may read the clock")]
fn now() -> Instant {
    Instant::now()
}

/// The kernel's line with the peak memory, if there is one.
#[expect(clippy::disallowed_methods, reason = "an example may read a file")]
fn peak_memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or("peak memory unknown").to_string()
}
