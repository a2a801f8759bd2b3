//! The configurations that the options of `treecast bench` select.

use treecast_bench::Mode;
use treecast_node::{Authentication, EngineChoice, Integrity, Offload, Scheme, Transport, TreeScheme};

use super::Arguments;

/// Every distinct configuration of engine, offload, scheme, authentication, encryption, integrity,
/// transport and knowledge of the fabric. Host-based (software) multicast uses a binomial tree by
/// default, as MPI libraries do.
pub fn modes(arguments: &Arguments) -> Vec<Mode> {
    let schemes: Vec<Option<Scheme>> = arguments.scheme.iter().copied().map(Some).collect();
    let has_fabric = arguments.racks.is_some() || arguments.fabric.is_some();
    let fabrics = if has_fabric { &[false, true][..] } else { &[false] };
    let offloads = match (&arguments.offload[..], arguments.processes) {
        ([], 1) => &[Offload::Host, Offload::Assisted, Offload::Nic][..],
        ([], _) => &[Offload::Nic],
        (given, _) => given,
    };
    let mut modes = Vec::new();
    for &engine in &arguments.engine {
        // With offload host the application forwards, and the engine makes no difference: it is
        // measured once.
        let is_kernel = |engine| engine == EngineChoice::Ebpf;
        let skips = is_kernel(engine) && !arguments.engine.iter().copied().all(is_kernel);
        let is_engines = |offload| matches!(offload, Offload::Nic | Offload::Switch);
        for &offload in offloads.iter().filter(|&&offload| !skips || is_engines(offload)) {
            let default = [(offload == Offload::Host).then_some(Scheme::tree(TreeScheme::Binomial))];
            for &scheme in if schemes.is_empty() { &default[..] } else { &schemes } {
                let default =
                    if offload == Offload::Switch { Authentication::Payload } else { Authentication::Header };
                let authentications =
                    if arguments.auth.is_empty() { &[default][..] } else { &arguments.auth };
                let guards = authentications.iter().flat_map(|&authentication| {
                    // Where payloads have codes, members verify no CRC.
                    let integrities = match authentication {
                        Authentication::Header => &arguments.integrity[..],
                        Authentication::Payload => &arguments.integrity[..1],
                    };
                    integrities.iter().map(move |&integrity| (authentication, integrity))
                });
                // Data by multicast has codes of its payloads. An impossible configuration is
                // refused if it is the only one.
                let is_possible = |&(authentication, _): &(Authentication, Integrity)| {
                    offload != Offload::Switch
                        || authentication == Authentication::Payload
                        || arguments.auth.len() == 1
                };
                let guards = guards.filter(is_possible);
                // Multicast goes in packets, and the kernel's packet path runs no streams.
                let is_in_packets = offload == Offload::Switch || is_kernel(engine);
                let transports = move |has_checksums: bool| match &arguments.transport[..] {
                    [_, _, ..] if is_in_packets => &[Transport::Packets][..],
                    [] if is_in_packets || offload != Offload::Nic => &[Transport::Packets],
                    [] if has_checksums => &[Transport::Streams],
                    [] => &[Transport::Both],
                    given => given,
                };
                let guards =
                    guards.flat_map(|guard| arguments.encrypt.iter().map(move |&encrypt| (guard, encrypt)));
                for ((authentication, integrity), is_encrypted) in guards {
                    let has_checksums = is_encrypted
                        || (authentication, integrity) != (Authentication::Header, Integrity::Network);
                    let transports = transports(has_checksums)
                        .iter()
                        .flat_map(|&transport| fabrics.iter().map(move |&on_fabric| (transport, on_fabric)));
                    modes.extend(transports.map(|(transport, on_fabric)| Mode {
                        engine,
                        offload,
                        scheme,
                        authentication,
                        is_encrypted,
                        integrity,
                        transport,
                        on_fabric,
                    }));
                }
            }
        }
    }
    modes
}
