//! Time and memory to find the next links of one unicast to each of 65,536 hosts on a fat tree.
//!
//! `cargo run --release -p treecast-fabric --example next_links`, optionally with another adaptive
//! fabric as argument.

use std::time::Instant;

use treecast_fabric::{Fabric, FabricError, FabricSpec, HostId, NextLinks};

const SPEC: &str = "fat-tree:k=64";

#[expect(
    clippy::disallowed_methods,
    reason = "an example reads its arguments, the clock and the kernel's count"
)]
fn main() -> Result<(), FabricError> {
    let spec: FabricSpec = std::env::args().nth(1).as_deref().unwrap_or(SPEC).parse()?;
    let fabric = Fabric::from_spec(&spec)?;
    let topology = fabric.topology();
    let begin = Instant::now();
    let Some(mut next) = NextLinks::new(topology, fabric.routing()) else {
        println!("{spec} is not routed adaptively");
        return Ok(());
    };
    println!("{spec}, {} hosts; prepared in {:.1} ms", topology.host_count(), millis(begin));
    for round in ["first", "again"] {
        let begin = Instant::now();
        println!("{round}: {} links in {:.1} ms", walk_to_all(&fabric, &mut next), millis(begin));
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    println!("{}", status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or("peak memory unknown"));
    Ok(())
}

fn millis(begin: Instant) -> f64 {
    begin.elapsed().as_secs_f64() * 1e3
}

/// The number of links between switches on a path from host 0 to every other host; the choices
/// rotate.
fn walk_to_all(fabric: &Fabric, next: &mut NextLinks) -> u64 {
    let topology = fabric.topology();
    let mut count = 0;
    for to in topology.hosts() {
        let target = topology.switch_of(to);
        let (mut at, mut gone_down) = (topology.switch_of(HostId(0)), false);
        loop {
            let links = next.towards(target, at, gone_down);
            if links.is_empty() {
                break;
            }
            let link = links[(to.index() + count as usize) % links.len()];
            gone_down |= fabric.routing().up_down().is_some_and(|routing| !routing.is_up(topology, link));
            at = topology.link(link).to.switch().expect("a link between switches");
            count += 1;
        }
    }
    count
}
