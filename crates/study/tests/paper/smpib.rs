//! Mamidala, Chai, Jin, Panda: Efficient SMP-aware MPI-level broadcast over InfiniBand's hardware
//! multicast (2006).

use treecast_sim::Status;

use super::{latency, measured, rows, study};

/// The system (calibration): "about 6 us between nodes, and an order of magnitude less through
/// shared memory".
#[test]
fn a_message_inside_a_node_takes_a_tenth() {
    let smpib = study("smpib");
    let [between, inside] =
        ["inter-node", "intra-node"].map(|series| latency(&smpib, ["intra-inter", "", series], 1.0));
    assert!((5.8..6.2).contains(&between), "{between}");
    assert!((8.0..12.0).contains(&(between / inside)), "{between} {inside}");
}

/// The system: "the NIC moves a packet to each attached process in turn, so the cost grows with the
/// attached processes".
#[test]
fn delivery_costs_time_for_each_attached_process() {
    let smpib = study("smpib");
    let attached = |processes| latency(&smpib, ["ours-processes", "4 B", "nosmp_mcst"], processes);
    assert!(attached(16.0) > 2.0 * attached(2.0) && attached(64.0) > 2.0 * attached(16.0));
    let led = |processes| latency(&smpib, ["ours-processes", "4 B", "smp_mcst"], processes);
    assert!(led(16.0) < 1.2 * led(2.0));
}

/// Experiment attach-cost: "4 nodes of 2 against 8 of 1, every process attached". Two processes on
/// a node cost more for messages of several packets only: for short ones the model has it the other
/// way round.
#[test]
fn two_attached_processes_on_a_node_cost_more_for_long_messages_only() {
    let smpib = study("smpib");
    let shared = |bytes| {
        let time = |series| latency(&smpib, ["attach-cost", "", series], bytes);
        time("4 x 2") / time("8 x 1")
    };
    assert!(shared(8192.0) > 1.1);
    assert!(shared(1.0) < 1.0);
}

/// The system: "multicast is unreliable: packets of at most 2 KB may be lost". Acknowledgments and
/// repetitions make up for it.
#[test]
fn broadcasts_complete_where_datagrams_are_lost() {
    let smpib = study("smpib");
    for series in ["nosmp_mcst", "smp_mcst"] {
        let curve = ["ours-loss", "4 B", series];
        assert!(rows(&smpib, curve, 0.1).iter().all(|row| row.measured.status == Status::Complete));
        let count = |measure| measured(&smpib, curve, 0.1, measure);
        assert!(count("lost_datagrams") > 0.0 && count("retransmissions") > 0.0, "{series}");
    }
}

/// The schemes: "only leaders acknowledge". Of 15 receivers on 8 nodes, 7 lead a node without the
/// root.
#[test]
fn leaders_alone_acknowledge() {
    let smpib = study("smpib");
    let [all, leaders] = ["nosmp_mcst", "smp_mcst"]
        .map(|series| measured(&smpib, ["a-8x2", "", series], 4.0, "acknowledgments"));
    assert!((all / leaders - 15.0 / 7.0).abs() < 1e-9, "{all} {leaders}");
}

/// The schemes: "a table maps local ids to ranks". So the placement of ranks does not matter to
/// leaders, as it does to a tree over ranks.
#[test]
fn the_placement_of_ranks_does_not_matter_to_leaders() {
    let smpib = study("smpib");
    let time = |series| latency(&smpib, ["cyclic", "A, 8 x 2", series], 8192.0);
    assert!((time("smp_mcst, block") - time("smp_mcst, cyclic")).abs() < 1e-9);
    assert!(time("ori_bcst, cyclic") > 1.1 * time("ori_bcst, block"));
}

/// Dynamic attach: "a process attaches when its average wait exceeds that of its leader by more
/// than the threshold, 500 us with 2 processes and 250 us to attach; then it need not wait for the
/// leader".
#[test]
fn processes_attach_above_the_threshold() {
    let smpib = study("smpib");
    let of = |series, late, measure| measured(&smpib, ["dynamic-attach-wait", "4 B", series], late, measure);
    assert!(of("dynamic attach", 400.0, "attaches").abs() < 1e-9);
    assert!(of("dynamic attach", 1600.0, "attaches") > 0.0);
    let wait = |series| of(series, 1600.0, "nonleader_wait_us");
    assert!(wait("dynamic attach") < wait("smp_mcst") / 2.0);
}

/// Dynamic attach: "the policy starts after a minimum number of broadcasts, and a process detaches
/// lazily".
#[test]
fn processes_attach_after_a_minimum_and_detach_lazily() {
    let smpib = study("smpib");
    let of = |broadcasts, measure| {
        let curve = ["dynamic-attach-broadcasts", "leaders 1,600 us late", "dynamic attach"];
        measured(&smpib, curve, broadcasts, measure)
    };
    assert!(of(5.0, "attaches").abs() < 1e-9);
    assert!(of(20.0, "attaches") > 0.0 && of(20.0, "detaches").abs() < 1e-9);
    assert!(of(100.0, "detaches") > 0.0);
}
