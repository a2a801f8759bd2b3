//! Oral, George: A user-level multicast performance comparison of SCI and Myrinet interconnects
//! (2003).

use super::{latency, measured, study};

/// The networks (calibration): "Myrinet takes 17 us one way, and 8 us more with the changed
/// firmware; SCI a little less than 2 us at hardware level, and at user level about an order of
/// magnitude less than Myrinet".
#[test]
fn one_way_latencies_are_those_of_the_study() {
    let sci = study("sci");
    let one_way = |series| latency(&sci, ["one-way", "", series], 2.0);
    assert!((16.5..17.5).contains(&one_way("Myrinet")));
    assert!((7.9..8.1).contains(&(one_way("Myrinet, changed firmware") - one_way("Myrinet"))));
    assert!((1.7..2.0).contains(&one_way("SCI, hardware level")));
    assert!((8.0..12.0).contains(&(one_way("Myrinet") / one_way("SCI"))));
}

/// The networks: "the sender's CPU does the copying on SCI", and the NIC does on Myrinet.
#[test]
fn the_root_copies_on_sci_and_not_on_myrinet() {
    let sci = study("sci");
    let busy = |series| measured(&sci, ["fig4b", "", series], 15.0, "root_cpu_utilization");
    assert!(busy("SCI separate") > 0.99);
    assert!(busy("separate H.B.") < 0.01);
}

/// Experiment fig4: "CPU utilization as the system's activity reporter shows it, polling included,
/// while multicasts follow one another". The model counts work alone: a polling root would be busy
/// all the time.
#[test]
fn the_root_that_polls_does_not_count_as_busy() {
    let sci = study("sci");
    let busy = |series| measured(&sci, ["fig4a", "", series], 15.0, "root_cpu_utilization");
    for series in ["SCI S-torus", "serial H.B.", "binomial N.A."] {
        assert!(busy(series) < 0.1, "{series} {}", busy(series));
    }
}

/// The schemes: "N.A. adds 8 us to each unicast send". Along a chain each message is one send.
#[test]
fn changed_firmware_costs_a_chain_eight_microseconds_a_send() {
    let sci = study("sci");
    for destinations in [3.0, 7.0, 15.0] {
        let time = |series| latency(&sci, ["fig3a", "", series], destinations);
        let each = (time("serial N.A.") - time("serial H.B.")) / destinations;
        assert!((7.5..8.5).contains(&each), "{destinations} {each}");
    }
}

/// The schemes: U-torus takes ceil(log2 n) steps, so a doubling of the members adds one message;
/// S-torus is a chain, so each destination does.
#[test]
fn u_torus_grows_by_steps_and_s_torus_by_destinations() {
    let sci = study("sci");
    let time = |series, destinations| latency(&sci, ["fig3b", "", series], destinations);
    let message = time("SCI S-torus", 3.0) / 3.0;
    assert!(((time("SCI S-torus", 15.0) - time("SCI S-torus", 3.0)) / 12.0 / message - 1.0).abs() < 0.02);
    for (steps, destinations) in [(2.0, 3.0), (3.0, 7.0), (4.0, 15.0)] {
        let counted = time("SCI U-torus", destinations) / message;
        assert!((counted - steps).abs() < 0.05, "{destinations} {counted}");
    }
}

/// Large messages: "the axis of the plot of latencies ends at 25,000 us, with 64 KB and up to 16
/// nodes". All curves of the model end below it, the slowest at about a quarter.
#[test]
fn large_messages_fit_the_axis_of_the_study() {
    let sci = study("sci");
    let slowest =
        ["SCI separate", "SCI S-torus", "separate H.B.", "serial H.B.", "separate N.A.", "serial N.A."]
            .map(|series| latency(&sci, ["fig3b", "", series], 15.0))
            .into_iter()
            .fold(0.0, f64::max);
    assert!((5000.0..25_000.0).contains(&slowest), "{slowest}");
}

/// Large messages: "a relay on SCI receives through a message library and sends again: that costs
/// far more than the link". In the model a relay costs what a message does, without a library: many
/// links for a word, a few for 64 KB.
#[test]
fn a_relay_costs_more_than_a_link() {
    let sci = study("sci");
    let relay = |figure| {
        let time = |destinations| latency(&sci, [figure, "", "SCI S-torus"], destinations);
        (time(15.0) - time(3.0)) / 12.0
    };
    // A link takes 0.07 us, and 64 KB at 662.5 MB/s take 99 us.
    assert!(relay("fig3a") > 20.0 * 0.07, "{}", relay("fig3a"));
    assert!(relay("fig3b") > 3.0 * 99.0, "{}", relay("fig3b"));
}

/// Experiment fig5: link concentration, visits over distinct links. A chain along a Hamiltonian
/// cycle visits each link once, and messages from one root visit its links again and again.
#[test]
fn a_hamiltonian_chain_visits_each_link_once() {
    let sci = study("sci");
    let visits = |series| measured(&sci, ["fig5a", "", series], 15.0, "link_concentration_run");
    assert!((visits("SCI S-torus") - 1.0).abs() < 1e-9);
    for series in ["SCI U-torus", "SCI Md-torus", "SCI Mu-torus"] {
        assert!(
            visits("SCI S-torus") < visits(series) && visits(series) < visits("SCI separate"),
            "{series}"
        );
    }
}
