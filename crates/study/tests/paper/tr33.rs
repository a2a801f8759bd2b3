//! Yu, Buntinas, Panda: High performance and reliable NIC-based multicast over Myrinet/GM-2 (TR33,
//! 2003).

use treecast_sim::Status;

use super::{latency, mean, measured, rows, study};

/// The substrate: "a small message takes about 7 us from one host to another" (calibration).
#[test]
fn a_small_message_takes_seven_microseconds() {
    let one_way = measured(&study("gm"), ["one-way", "", "as the testbed"], 1.0, "delivered_us");
    assert!((6.8..7.2).contains(&one_way), "{one_way}");
}

/// Multisend: "the host sends one event, whatever the number of destinations; its NIC gets the
/// packet once and sends it to one after the other, with a new header".
#[test]
fn a_multisend_costs_the_host_one_event_and_the_bus_one_packet() {
    let gm = study("gm");
    let root = |series, panel, measure| measured(&gm, ["multisend", panel, series], 4096.0, measure);
    let grows =
        |series, measure| root(series, "8 destinations", measure) / root(series, "4 destinations", measure);
    assert!((grows("NIC-based", "root_cpu_us") - 1.0).abs() < 1e-9);
    assert!(grows("host-based", "root_cpu_us") > 1.5);
    // Buses: the root's read of the packet, and a write at each destination.
    let bus = |series, panel, hosts: f64| root(series, panel, "pci_busy_us") * hosts;
    let write = |series| (bus(series, "8 destinations", 16.0) - bus(series, "4 destinations", 16.0)) / 4.0;
    assert!(write("host-based") > 1.5 * write("NIC-based"), "{} {}", write("host-based"), write("NIC-based"));
}

/// Multisend (calibration): "up to 128 bytes to 4 destinations are 2.05 times as fast as four
/// unicasts of the host".
#[test]
fn a_multisend_to_four_is_twice_as_fast_as_four_sends() {
    let gm = study("gm");
    let factors = [1.0, 4.0, 16.0, 64.0, 128.0].map(|bytes| {
        let time = |series| latency(&gm, ["multisend", "4 destinations", series], bytes);
        time("host-based") / time("NIC-based")
    });
    let geometric = mean(factors.iter().map(|factor| factor.ln())).exp();
    assert!((2.0..2.1).contains(&geometric), "{factors:?}");
}

/// Forwarding: "an intermediate NIC forwards a packet without its host". So the CPU time of a
/// broadcast does not grow when processes are late, as it does where hosts forward.
#[test]
fn a_late_process_holds_nobody_up_where_nics_forward() {
    let gm = study("gm");
    let cpu = |series, skew| measured(&gm, ["skew", "4 B", series], skew, "host_cpu_us");
    assert!(cpu("NIC-based", 400.0) < cpu("NIC-based", 0.0));
    assert!(cpu("host-based", 400.0) > 2.0 * cpu("host-based", 0.0));
}

/// Forwarding: "the published version first copies a packet to the host, and then forwards it".
/// With both at once a chain, which forwards most, is faster.
#[test]
fn copying_before_forwarding_costs_a_chain_time() {
    let gm = study("gm");
    let chain =
        |order: &str| latency(&gm, ["ours-forwarding", "16 nodes", &format!("chain, {order}")], 8192.0);
    assert!(chain("copy first") > 1.2 * chain("both at once"));
}

/// The tree: "lambda is a number of destinations: an integer, rounded down, at least 1; it depends
/// on the message, and so does the tree".
#[test]
fn lambda_is_a_whole_number_that_falls_with_the_message() {
    let gm = study("gm");
    let lambda = |bytes| measured(&gm, ["gm-multicast", "16 nodes", "NIC-based"], bytes, "lambda");
    let lambdas = [1.0, 1024.0, 4096.0, 16_384.0].map(lambda);
    assert!(lambdas.iter().all(|lambda| lambda.fract().abs() < 1e-9 && *lambda >= 1.0), "{lambdas:?}");
    assert!(lambdas.is_sorted_by(|a, b| a >= b) && lambdas[0] > lambdas[3], "{lambdas:?}");
}

/// Order and reliability: "after a timeout a packet goes again to the children that have not
/// acknowledged". Each multicast over lossy links completes, and nothing is repeated where nothing
/// is lost.
#[test]
fn lost_packets_are_repeated_and_every_multicast_completes() {
    let gm = study("gm");
    let curve = ["ours-loss", "4 B", "NIC-based"];
    let lossy = rows(&gm, curve, 0.1);
    assert!(lossy.iter().all(|row| row.measured.status == Status::Complete));
    assert!(measured(&gm, curve, 0.1, "retransmissions") > 0.0);
    assert!(measured(&gm, curve, 0.0, "retransmissions").abs() < 1e-9);
}

/// Deadlock: "no credits; forwarding needs no receive token of its own". LFC, whose credits stand
/// for buffers of other NICs, can deadlock, and the study's scheme and FM/MC do not.
#[test]
fn only_lfc_deadlocks() {
    let gm = study("gm");
    let status = |series| rows(&gm, ["flow-deadlock", "", series], 4.0)[0].measured.status;
    assert_eq!(status("LFC, round"), Status::Deadlocked);
    for series in ["LFC, by id", "FM/MC, round", "NIC-based, round", "NIC-based, by id"] {
        assert_eq!(status(series), Status::Complete, "{series}");
    }
}

/// The compared schemes: "FM/MC has one central manager of credits", which becomes a bottleneck as
/// nodes and groups become more.
#[test]
fn the_central_manager_becomes_the_bottleneck() {
    let gm = study("gm");
    let busy = |panel, nodes| measured(&gm, ["flow-manager", panel, "FM/MC"], nodes, "manager_utilization");
    assert!(busy("every node a root", 64.0) > 1.2 * busy("every node a root", 4.0));
    let time =
        |series, nodes| latency(&gm, ["flow-latency", "1,024 receive tokens a process", series], nodes);
    let behind = [4.0, 16.0, 64.0].map(|nodes| time("FM/MC", nodes) / time("NIC-based", nodes));
    assert!(behind[2] > behind[0] && behind.iter().all(|factor| *factor > 1.5), "{behind:?}");
}

/// Experiments: "every broadcast follows the one before it, 5,000 times in a row, and in the skew
/// experiment after a barrier". The figures repeat less often: their means are within 1 % of those
/// of 5,000. Alone, a broadcast after a barrier is faster, since no tokens are left to be returned.
#[test]
fn the_means_of_figures_in_a_row_are_those_of_five_thousand() {
    let gm = study("gm");
    let time = |panel, series, broadcasts| latency(&gm, ["ours-in-a-row", panel, series], broadcasts);
    for series in ["host-based", "NIC-based"] {
        for (panel, few) in [
            ("multicast, 4 nodes", 50.0),
            ("multicast, 16 nodes", 50.0),
            ("MPI_Bcast, 4 nodes", 1_500.0),
            ("MPI_Bcast, 8 nodes", 1_500.0),
            ("MPI_Bcast, 16 nodes", 1_500.0),
        ] {
            let [few, all] = [few, 5_000.0].map(|broadcasts| time(panel, series, broadcasts));
            assert!((few / all - 1.0).abs() < 0.01, "{panel}, {series}: {few} {all}");
        }
        assert!(time("MPI_Bcast, 4 nodes", series, 1_500.0) > 1.2 * time("MPI_Bcast, 4 nodes", series, 1.0));
    }
}

/// Experiments: "unicasts are not slower where the multicast is in the NIC". The model assumes it.
/// Ours: unicasts wait for multicasts through their hosts, and for those of NICs less.
#[test]
fn unicasts_wait_only_for_multicasts_through_their_hosts() {
    let gm = study("gm");
    for (figure, name, is_time) in
        [("ours-unicast-latency", "unicast_us", true), ("ours-unicast-bandwidth", "unicast_mb_per_s", false)]
    {
        for panel in ["multicasts of 4 B", "multicasts of 4 KB"] {
            let value = |series| measured(&gm, [figure, panel, series], 64.0, name);
            let [unchanged, changed] = ["host-based, elsewhere", "NIC-based, elsewhere"].map(value);
            let [hosts, nics] = ["host-based, through both", "NIC-based, through both"].map(value);
            assert!((changed / unchanged - 1.0).abs() < 0.005, "{panel}: {unchanged} {changed}");
            let slower = |a: f64, b: f64| if is_time { a > 1.02 * b } else { b > 1.02 * a };
            assert!(slower(nics, unchanged) && slower(hosts, nics), "{panel}: {unchanged} {nics} {hosts}");
        }
    }
    // A message alone takes the same time.
    let alone = measured(&gm, ["one-way", "", "as the testbed"], 64.0, "delivered_us");
    let curve = ["ours-unicast-latency", "multicasts of 4 B", "NIC-based, elsewhere"];
    assert!((measured(&gm, curve, 64.0, "unicast_us") - alone).abs() < 1e-9);
}

/// MPI: "eager messages use the multicast, and each receiver copies them to their final place". The
/// model meets it: `MPI_Bcast` gains at every length, and most at the longest eager message, which
/// forwarding hosts copy at every hop; and the more so the more nodes there are.
#[test]
fn mpi_broadcasts_gain_at_every_eager_length() {
    let gm = study("gm");
    let factors = |bytes| {
        ["4 nodes", "8 nodes", "16 nodes"].map(|panel| {
            let time = |series| latency(&gm, ["mpi-bcast-factor", panel, series], bytes);
            time("host-based") / time("NIC-based")
        })
    };
    let longest = factors(16_287.0);
    assert!(longest.is_sorted(), "{longest:?}");
    for bytes in [4.0, 1024.0] {
        let shorter = factors(bytes);
        let is_met = |(short, long): (&f64, &f64)| *short > 1.0 && short < long;
        assert!(shorter.iter().zip(&longest).all(is_met), "{bytes}: {shorter:?} {longest:?}");
    }
}

/// MPI: "eager messages, up to 16,287 bytes, use the multicast, and longer ones go by rendezvous as
/// before".
#[test]
fn messages_of_rendezvous_gain_nothing() {
    let gm = study("gm");
    let long = |series| latency(&gm, ["ours-long", "16 nodes", series], 16_384.0);
    assert!((long("NIC-based, rendezvous") - long("host-based")).abs() < 1e-9);
    let eager = |series| latency(&gm, ["mpi-bcast", "16 nodes", series], 16_287.0);
    assert!(eager("NIC-based") < eager("host-based"));
}

/// MPI: "the group of a communicator and root is made at the first broadcast from that root".
#[test]
fn the_first_broadcast_of_a_root_pays_for_the_group() {
    let gm = study("gm");
    let time = |series| latency(&gm, ["ours-first-broadcast", "", series], 4.0);
    assert!(time("first broadcast") > time("host-based"));
    assert!(time("later broadcasts") < time("host-based"));
}
