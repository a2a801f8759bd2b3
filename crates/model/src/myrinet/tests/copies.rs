//! What each copy of a message costs, and the links that it takes.

use treecast_sim::Offload;

use super::Case;

#[test]
fn each_copy_pays_for_changed_firmware() {
    let separate = |firmware: &str, hosts| {
        let settings = format!("operation=broadcast,nic_firmware_us={firmware}");
        Case::new(hosts, "separate", &settings).run(Offload::Assisted, 2).latency.unwrap().us()
    };
    for destinations in [1, 3, 7] {
        let more = separate("8", destinations + 1) - separate("0", destinations + 1);
        let each = more / f64::from(destinations);
        // Acknowledgments of earlier copies share the NIC.
        assert!((7.5..8.5).contains(&each), "{destinations} {each}");
    }
}

#[test]
fn messages_on_a_star_visit_the_link_of_their_sender_and_that_of_their_receiver() {
    let measured = |scheme, name| {
        let outcome = Case::new(8, scheme, "operation=broadcast").run(Offload::Host, 8192);
        outcome.measured.iter().find(|(known, _)| *known == name).unwrap().1
    };
    assert!((measured("separate", "link_concentration_run") - 14.0 / 8.0).abs() < 1e-9);
    assert!((measured("serial", "link_concentration_run") - 1.0).abs() < 1e-9);
    // Neither the length nor who sends changes the links.
    for scheme in ["separate", "serial", "binary", "binomial"] {
        let case = Case::new(8, scheme, "operation=broadcast");
        let of = |offload, bytes| case.measured(offload, bytes, "link_concentration_run");
        for (offload, bytes) in [(Offload::Host, 2), (Offload::Assisted, 2), (Offload::Assisted, 65536)] {
            assert!(
                (of(offload, bytes) - of(Offload::Host, 65536)).abs() < 1e-9,
                "{scheme} {offload} {bytes}"
            );
        }
    }
    assert!((measured("serial", "link_concurrency_run") - 1.0).abs() < 1e-9);
    assert!(measured("binomial", "link_concurrency_run") > 1.0);
    // The root of a chain polls until the end has answered.
    assert!((measured("serial", "root_user_fraction") - 1.0).abs() < 1e-9);
    assert!(measured("serial", "root_user_us") > measured("binary", "root_user_us"));
}
