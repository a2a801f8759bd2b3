//! The costs of a way to send, from the times of broadcasts to one host and to three.
//!
//! Four hosts are enough, because each cost is the difference of two measurements:
//!
//! - the root of a star of four hosts has two more children than that of two hosts: a copy is half
//!   of the difference of their CPU times, and the call is what remains;
//! - a member that forwards nothing takes as much CPU time as to be woken, to take the message in
//!   and to have it;
//! - the last member of a chain of four hosts is two relays further away than that of two: a relay
//!   is half of the difference of the last deliveries. It consists of a wake-up, a receipt and a
//!   copy.
//!
//! In a chain two hosts at most work at a time, so that a relay takes as long on two processors
//! that all hosts share as on hosts of their own. Costs for each piece and for each KB are those
//! that fit all sizes best. A relay of several pieces overlaps the next one, so relays of one piece
//! only are used.
//!
//! Links with a limit ([`link_mb_per_s`]) add the time of a message on them to last deliveries. A
//! relay of a long message is then mostly that time, in which it already forwards: relays of one
//! packet only are used.

use treecast_model::ethernet::{EAGER_MAX, PACKET, Parameters, Wake};
use treecast_node::EngineChoice;
use treecast_terms::{Bytes, Picoseconds};

use super::Tune;
use super::fit::{Sample, fit};

/// What was measured of messages of one size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measurement {
    /// The size in bytes.
    pub bytes: u64,
    /// A root with one child.
    pub pair: Times,
    /// A root with three children.
    pub star: Times,
    /// A chain of a root and three members; `None` with multicast, where members do not relay.
    pub chain: Option<Times>,
}

/// The times of a broadcast in microseconds: a median, and mean CPU times.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Times {
    /// From the root's call until the last member's application had the message.
    pub last_delivery_us: f64,
    /// CPU time of the root.
    pub root_us: f64,
    /// CPU time of a member.
    pub member_us: f64,
}

impl Times {
    /// The mean of two measurements.
    pub fn mean(self, other: Self) -> Self {
        let mean = |one: f64, other: f64| f64::midpoint(one, other);
        Self {
            last_delivery_us: mean(self.last_delivery_us, other.last_delivery_us),
            root_us: mean(self.root_us, other.root_us),
            member_us: mean(self.member_us, other.member_us),
        }
    }
}

impl Measurement {
    fn pieces(&self) -> f64 {
        self.bytes.div_ceil(Tune::PIECE.0) as f64
    }

    fn kilobytes(&self) -> f64 {
        self.bytes as f64 / 1e3
    }

    /// CPU time of the root for a further child.
    fn copy_us(&self) -> f64 {
        (self.star.root_us - self.pair.root_us) / 2.0
    }

    /// From one member's receipt to the next one's.
    fn relay_us(&self) -> Option<f64> {
        Some((self.chain?.last_delivery_us - self.pair.last_delivery_us) / 2.0)
    }
}

/// A number of microseconds, or of microseconds for each KB, as a parameter.
fn us(us: f64) -> Picoseconds {
    Picoseconds((us.max(0.0) * 1e6).round() as u64)
}

/// A cost for each piece or message, and one for each KB, in microseconds.
#[derive(Debug, Clone, Copy)]
struct Cost {
    us: f64,
    per_kb_us: f64,
}

impl Cost {
    /// The cost of the pieces that fits a value of each size best.
    fn of_pieces(measured: &[Measurement], value: impl Fn(&Measurement) -> f64) -> Self {
        let sample = |it: &Measurement| Sample { counts: [it.pieces(), it.kilobytes()], value: value(it) };
        let [us, per_kb_us] = fit(&measured.iter().map(sample).collect::<Vec<_>>());
        Self { us, per_kb_us }
    }

    /// The cost of the message that fits a value of each size best.
    fn of_message(measured: &[Measurement], value: impl Fn(&Measurement) -> f64) -> Self {
        let sample = |it: &Measurement| Sample { counts: [1.0, it.kilobytes()], value: value(it) };
        let [us, per_kb_us] = fit(&measured.iter().map(sample).collect::<Vec<_>>());
        Self { us, per_kb_us }
    }

    /// For all pieces of a message.
    fn for_pieces(self, of: &Measurement) -> f64 {
        of.pieces() * self.us + of.kilobytes() * self.per_kb_us
    }

    /// Once for a message.
    fn for_message(self, of: &Measurement) -> f64 {
        self.us + of.kilobytes() * self.per_kb_us
    }
}

fn mean_of(measured: &[Measurement], value: impl Fn(&Measurement) -> f64) -> f64 {
    measured.iter().map(value).sum::<f64>() / measured.len().max(1) as f64
}

/// The messages of one piece.
fn single(measured: &[Measurement]) -> Vec<Measurement> {
    measured.iter().filter(|it| it.pieces() <= 1.0).copied().collect()
}

/// The messages whose relays tell what a node takes: those of one piece. Where links have a limit,
/// those of one packet, or else the shortest.
fn relayed(base: &Parameters, measured: &[Measurement]) -> Vec<Measurement> {
    if base.link_mb_per_s == 0 {
        return single(measured);
    }
    let least = measured.iter().map(|it| it.bytes).min().unwrap_or_default();
    measured.iter().filter(|it| it.bytes <= least.max(PACKET.0)).copied().collect()
}

/// The time of a KB on a link, in microseconds.
fn link_us_per_kb(costs: &Parameters) -> f64 {
    if costs.link_mb_per_s == 0 { 0.0 } else { 1e3 / costs.link_mb_per_s as f64 }
}

/// A link is the bottleneck if a further child delays the last delivery by at least this many times
/// the CPU time of a copy.
const BOTTLENECK: f64 = 1.25;

/// The rate of the root's link in MB/s, by what two more children delay the last deliveries of
/// messages of several pieces. 0 if the copies take about as long by themselves: the links are then
/// no bottleneck, and their rate cannot be measured.
pub fn link_mb_per_s(measured: &[Measurement]) -> u64 {
    let us_per_kb = |it: &Measurement| {
        let child_us = (it.star.last_delivery_us - it.pair.last_delivery_us) / 2.0;
        (child_us > BOTTLENECK * it.copy_us()).then(|| child_us / it.kilobytes())
    };
    let long = measured.iter().filter(|it| it.pieces() > 1.0);
    // Losses only make a link look slower.
    long.filter_map(us_per_kb).min_by(f64::total_cmp).map_or(0, |us| (1e3 / us).round().max(1.0) as u64)
}

/// What a member does with a message.
struct Member {
    /// CPU time for each message, whatever its length: the wake-up, and to have it.
    once_us: f64,
    /// CPU time for each piece.
    receive_us: f64,
    per_kb_us: f64,
}

impl Member {
    fn of(measured: &[Measurement]) -> Self {
        let sample = |it: &Measurement| Sample {
            counts: [1.0, it.pieces(), it.kilobytes()],
            value: it.pair.member_us,
        };
        let [once_us, receive_us, per_kb_us] = fit(&measured.iter().map(sample).collect::<Vec<_>>());
        Self { once_us, receive_us, per_kb_us }
    }
}

/// The parameters of a way whose members' nodes forward, in a thread or in the kernel. `base` has
/// those that are known: processors, links, pieces.
///
/// `copy_us_per_kb` is what a copy in memory takes: of a member's time for each KB, the part after
/// the node has forwarded the message, in which the application gets its bytes.
pub fn of_nodes(
    base: &Parameters,
    engine: EngineChoice,
    measured: &[Measurement],
    copy_us_per_kb: f64,
) -> Parameters {
    let send = Cost::of_pieces(measured, Measurement::copy_us);
    let call = Cost::of_message(measured, |it| it.pair.root_us - send.for_pieces(it));
    let Member { once_us, receive_us, per_kb_us } = Member::of(measured);
    // From the first copy until the application has the message, and until the copy to the next
    // member.
    let link_us = |it: &Measurement| it.kilobytes() * link_us_per_kb(base);
    let sent_us = |it: &Measurement| send.for_pieces(it) + link_us(it);
    let arrival_us = |it: &Measurement| it.pair.last_delivery_us - call.for_message(it) - sent_us(it);
    let relay_us = |it: &Measurement| it.relay_us().map_or(0.0, |relay_us| relay_us - sent_us(it));
    let relayed = relayed(base, measured);
    let of_root = Parameters {
        call: us(call.us),
        call_per_kb: us(call.per_kb_us),
        send: us(send.us),
        send_per_kb: us(send.per_kb_us),
        // Without a flush members acknowledge next to nothing.
        ack: Picoseconds::ZERO,
        ..base.clone()
    };
    if engine == EngineChoice::Ebpf {
        // The program receives and forwards where a packet comes from; a member's own time is for
        // its application.
        let receive = if base.link_mb_per_s == 0 {
            Cost::of_pieces(&relayed, relay_us)
        } else {
            // What each KB takes is hidden behind the links, and packets alone do not tell it.
            Cost { us: mean_of(&relayed, relay_us), per_kb_us: 0.0 }
        };
        let deliver_us = once_us + receive_us;
        let wake_us = mean_of(&relayed, |it| {
            arrival_us(it) - receive.for_pieces(it) - deliver_us - it.kilobytes() * per_kb_us
        });
        return Parameters {
            wake_for: Wake::Message,
            wake: us(wake_us),
            wake_cpu: Picoseconds::ZERO,
            receive: us(receive.us),
            receive_per_kb: us(receive.per_kb_us),
            deliver: us(deliver_us),
            deliver_per_kb: us(per_kb_us),
            ..of_root
        };
    }
    let deliver_per_kb_us = copy_us_per_kb.min(per_kb_us);
    let receive_per_kb_us = per_kb_us - deliver_per_kb_us;
    // The application has the message when the node has forwarded it.
    let deliver_us =
        mean_of(&relayed, |it| arrival_us(it) - relay_us(it) - it.kilobytes() * deliver_per_kb_us);
    let deliver_us = deliver_us.clamp(0.0, once_us);
    let wake_cpu_us = once_us - deliver_us;
    let wake_us =
        mean_of(&relayed, |it| relay_us(it) - wake_cpu_us - receive_us - it.kilobytes() * receive_per_kb_us);
    Parameters {
        wake_for: Wake::Arrival,
        wake: us(wake_us),
        wake_cpu: us(wake_cpu_us),
        receive: us(receive_us),
        receive_per_kb: us(receive_per_kb_us),
        deliver: us(deliver_us),
        deliver_per_kb: us(deliver_per_kb_us),
        ..of_root
    }
}

/// The parameters of a way whose applications ask their nodes to forward: those of the nodes, and
/// what a relay takes longer than its steps.
pub fn of_applications(of_nodes: &Parameters, measured: &[Measurement]) -> Parameters {
    let steps_us = |it: &Measurement| {
        let kb = it.kilobytes();
        let per_kb = of_nodes.receive_per_kb.us()
            + of_nodes.deliver_per_kb.us()
            + of_nodes.send_per_kb.us()
            + link_us_per_kb(of_nodes);
        let once = [of_nodes.wake, of_nodes.wake_cpu, of_nodes.receive, of_nodes.deliver, of_nodes.send];
        once.map(Picoseconds::us).iter().sum::<f64>() + kb * per_kb
    };
    let ask_us =
        mean_of(&single(measured), |it| it.relay_us().map_or(0.0, |relay_us| relay_us - steps_us(it)));
    Parameters { ask: us(ask_us), ..of_nodes.clone() }
}

/// The parameters of a way whose messages the switches copy: where they are in this machine, in the
/// sender's time.
pub fn of_switches(of_nodes: &Parameters, measured: &[Measurement]) -> Parameters {
    let switch_copy = Cost::of_pieces(measured, Measurement::copy_us);
    let call_us = |it: &Measurement| of_nodes.call.us() + it.kilobytes() * of_nodes.call_per_kb.us();
    let send = Cost::of_pieces(measured, |it| it.pair.root_us - switch_copy.for_pieces(it) - call_us(it));
    Parameters {
        send: us(send.us),
        send_per_kb: us(send.per_kb_us),
        switch_copy: us(switch_copy.us),
        switch_copy_per_kb: us(switch_copy.per_kb_us),
        ..of_nodes.clone()
    }
}

/// What was measured of Open MPI's broadcasts of one size between two ranks, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Call {
    pub bytes: Bytes,
    /// The median from the root's call until the end of the other rank's.
    pub last_delivery_us: f64,
    /// Mean CPU time of the root's call.
    pub root_us: f64,
}

/// The parameters of Open MPI, from pairs only: the other ranks of larger groups poll too, and
/// disturb those that share a processor with them.
///
/// A rank that polls needs no wake-up, so that a last delivery is a send and a receipt, and for
/// long messages a handshake. The send's part of it is that of the root's CPU time where the root
/// does not wait, which is in messages that are sent without asking.
pub fn of_openmpi(base: &Parameters, calls: &[Call]) -> Parameters {
    let kilobytes = |call: &Call| call.bytes.0 as f64 / 1e3;
    let is_eager = |call: &Call| call.bytes <= EAGER_MAX;
    let sample = |call: &Call| Sample {
        counts: [
            call.bytes.0.div_ceil(Tune::PIECE.0) as f64,
            kilobytes(call),
            if is_eager(call) { 0.0 } else { 1.0 },
        ],
        value: call.last_delivery_us - kilobytes(call) * link_us_per_kb(base),
    };
    let [each_us, per_kb_us, rendezvous_us] = fit(&calls.iter().map(sample).collect::<Vec<_>>());
    let eager = || calls.iter().filter(|call| is_eager(call));
    let of_root: f64 = eager().map(|call| call.root_us).sum();
    let all: f64 = eager().map(|call| sample(call).value).sum();
    let share = if all > 0.0 { (of_root / all).clamp(0.0, 1.0) } else { 1.0 };
    Parameters {
        call: Picoseconds::ZERO,
        call_per_kb: Picoseconds::ZERO,
        ask: Picoseconds::ZERO,
        send: us(share * each_us),
        send_per_kb: us(share * per_kb_us),
        wake_for: Wake::Arrival,
        wake: Picoseconds::ZERO,
        wake_cpu: Picoseconds::ZERO,
        receive: us((1.0 - share) * each_us),
        receive_per_kb: us((1.0 - share) * per_kb_us),
        deliver: Picoseconds::ZERO,
        deliver_per_kb: Picoseconds::ZERO,
        rendezvous: us(rendezvous_us),
        ack: Picoseconds::ZERO,
        ..base.clone()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use treecast_fabric::Fabric;
    use treecast_model::Task;
    use treecast_model::ethernet;
    use treecast_node::Offload;
    use treecast_plan::{Group, MemberId, Placement};
    use treecast_terms::Keyed;

    use super::*;

    /// What the model itself says about a broadcast.
    fn times(costs: &Parameters, offload: Offload, hosts: u32, scheme: &str, bytes: u64) -> Times {
        let fabric = Fabric::from_spec(&format!("star:{hosts}").parse().unwrap()).unwrap();
        let others = (1..hosts).map(MemberId).collect();
        let group = Group::new(Placement::one_per_host(hosts), MemberId(0), others).unwrap();
        let scheme = scheme.parse().unwrap();
        let message = Bytes(bytes);
        let task = Task {
            fabric: &fabric,
            group: &group,
            scheme: &scheme,
            order: None,
            offload,
            message,
            seed: 0,
            stop: None,
        };
        let outcome = ethernet::run(costs, &task).unwrap();
        let measured = |name| outcome.measured.iter().find(|(known, _)| *known == name).unwrap().1;
        Times {
            last_delivery_us: outcome.latency.unwrap().us(),
            root_us: measured("root_cpu_us"),
            // In a pair, the only one that is used.
            member_us: measured("cpu_us") - measured("root_cpu_us"),
        }
    }

    fn measurements(costs: &Parameters, offload: Offload) -> Vec<Measurement> {
        let measurement = |bytes| Measurement {
            bytes,
            pair: times(costs, offload, 2, "separate", bytes),
            star: times(costs, offload, 4, "separate", bytes),
            chain: (offload != Offload::Switch).then(|| times(costs, offload, 4, "serial", bytes)),
        };
        [64, 1_000, 16_000, 60_000, 200_000, 1_000_000].map(measurement).to_vec()
    }

    fn known(settings: &str) -> Parameters {
        let mut costs = Parameters::default();
        costs
            .set_all("processors=2 shared_processors=2 link_mb_per_s=0 hop_us=0 piece_bytes=65536 ack_us=0")
            .unwrap();
        costs.set_all(settings).unwrap();
        costs
    }

    /// Checks that the costs predict what they were computed from, and larger groups, in which
    /// threads that become ready at nearly the same time may have the processors in another order.
    fn check(found: &Parameters, truth: &Parameters, offload: Offload, schemes: &[&str]) {
        for bytes in [64, 4_000, 60_000] {
            for (hosts, scheme) in schemes.iter().flat_map(|scheme| [(2, scheme), (4, scheme), (12, scheme)])
            {
                let [found, truth] = [found, truth].map(|costs| times(costs, offload, hosts, scheme, bytes));
                let error = found.last_delivery_us / truth.last_delivery_us - 1.0;
                let error_max = if hosts > 4 { 0.06 } else { 0.02 };
                assert!(
                    error.abs() < error_max,
                    "{scheme} to {hosts} hosts, {bytes} bytes: {found:?}, {truth:?}"
                );
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(30))]

        #[test]
        fn links_that_are_no_bottleneck_have_no_rate(send_kb in 100..300_u32) {
            let truth = known(&format!("shared_processors=0 send_ns_per_kb={send_kb} link_mb_per_s=12500"));
            prop_assert_eq!(link_mb_per_s(&measurements(&truth, Offload::Nic)), 0);
        }

        /// The model with these costs is measured, and the costs are found again.
        #[test]
        fn costs_of_the_model_are_found_again(
            call in 1..20_u32,
            send in 1..20_u32,
            wake in 0..30_u32,
            wake_cpu in 1..10_u32,
            receive in 1..10_u32,
            deliver in 1..10_u32,
            per_kb in prop::array::uniform3(10..300_u32),
        ) {
            let [send_kb, receive_kb, deliver_kb] = per_kb;
            let truth = known(&format!(
                "call_us={call} call_ns_per_kb={deliver_kb} send_us={send} send_ns_per_kb={send_kb} wake_us={wake} \
                 wake_cpu_us={wake_cpu} receive_us={receive} receive_ns_per_kb={receive_kb} deliver_us={deliver} \
                 deliver_ns_per_kb={deliver_kb}"
            ));
            let measured = measurements(&truth, Offload::Nic);
            let copy_us_per_kb = f64::from(deliver_kb) / 1e3;
            let found = of_nodes(&known(""), EngineChoice::User, &measured, copy_us_per_kb);
            check(&found, &truth, Offload::Nic, &["separate", "serial", "binomial"]);
            for offload in [Offload::Assisted, Offload::Host] {
                let asked = Parameters { ask: us(f64::from(wake_cpu)), ..truth.clone() };
                let found = of_applications(&found, &measurements(&asked, offload));
                check(&found, &asked, offload, &["serial", "binomial"]);
            }
            let multicast = Parameters { switch_copy: us(f64::from(receive)), ..truth.clone() };
            let found = of_switches(&found, &measurements(&multicast, Offload::Switch));
            check(&found, &multicast, Offload::Switch, &["separate"]);
        }

        /// The same on links that are the bottleneck, whose rate is found too.
        #[test]
        fn the_rate_of_links_is_found_if_they_are_the_bottleneck(
            mb_per_s in 2..300_u32, wake in 0..30_u32, receive in 1..10_u32, send_kb in 10..300_u32,
        ) {
            let truth = known(&format!(
                "shared_processors=0 link_mb_per_s={mb_per_s} call_us=5 call_ns_per_kb=50 send_us=5 \
                 send_ns_per_kb={send_kb} wake_us={wake} wake_cpu_us=2 receive_us={receive} \
                 receive_ns_per_kb=100 deliver_us=3 deliver_ns_per_kb=50"
            ));
            let measured = measurements(&truth, Offload::Nic);
            let rate = link_mb_per_s(&measured);
            prop_assert!((f64::from(mb_per_s) / rate as f64 - 1.0).abs() < 0.05, "{} {}", rate, mb_per_s);
            let base = Parameters { link_mb_per_s: rate, ..known("shared_processors=0") };
            let found = of_nodes(&base, EngineChoice::User, &measured, 0.05);
            for (scheme, bytes) in [("separate", 64), ("serial", 64), ("separate", 1_000_000), ("serial", 1_000_000)] {
                let [found, truth] =
                    [&found, &truth].map(|costs| times(costs, Offload::Nic, 12, scheme, bytes).last_delivery_us);
                prop_assert!((found / truth - 1.0).abs() < 0.1, "{} of {}: {} {}", scheme, bytes, found, truth);
            }
        }

        /// The same with the kernel's packet path, with a processor for each thread.
        #[test]
        fn costs_of_the_kernels_path_are_found_again(
            call in 1..20_u32,
            send in 1..20_u32,
            wake in 0..30_u32,
            receive in 1..10_u32,
            deliver in 1..10_u32,
            per_kb in prop::array::uniform3(10..300_u32),
        ) {
            let [send_kb, receive_kb, deliver_kb] = per_kb;
            let truth = known(&format!(
                "shared_processors=0 wake_for=message call_us={call} call_ns_per_kb={deliver_kb} send_us={send} \
                 send_ns_per_kb={send_kb} wake_us={wake} wake_cpu_us=0 receive_us={receive} \
                 receive_ns_per_kb={receive_kb} deliver_us={deliver} deliver_ns_per_kb={deliver_kb}"
            ));
            let mut measured = measurements(&truth, Offload::Nic);
            // The time of a process has nothing of what the packet path does at its host.
            for it in &mut measured {
                it.pair.member_us -=
                    it.pieces() * f64::from(receive) + it.kilobytes() * f64::from(receive_kb) / 1e3;
            }
            let found = of_nodes(&known("shared_processors=0"), EngineChoice::Ebpf, &measured, 0.1);
            check(&found, &truth, Offload::Nic, &["separate", "serial", "binomial"]);
        }
    }

    /// Calls whose costs are known give them back.
    #[test]
    fn the_costs_of_open_mpi_are_found_again() {
        let call = |bytes: u64| {
            let all_us = 8.0 * bytes.div_ceil(65_536) as f64 + 0.4 * bytes as f64 / 1e3;
            let handshake_us = if bytes > EAGER_MAX.0 { 15.0 } else { 0.0 };
            let (last_delivery_us, root_us) = (all_us + handshake_us, 0.75 * all_us);
            Call { bytes: Bytes(bytes), last_delivery_us, root_us }
        };
        let base = Parameters { link_mb_per_s: 0, ..Parameters::default() };
        let costs = of_openmpi(&base, &[64, 1_000, 16_000, 65_536, 262_144, 1 << 20].map(call));
        let near = |span: Picoseconds, us: f64| assert!((span.us() - us).abs() < 0.01, "{costs:?}");
        near(costs.send, 6.0);
        near(costs.send_per_kb, 0.3);
        near(costs.receive, 2.0);
        near(costs.receive_per_kb, 0.1);
        near(costs.rendezvous, 15.0);
    }
}
