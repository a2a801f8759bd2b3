//! Unicasts beside multicasts.

use treecast_sim::Offload;
use treecast_terms::Bytes;

use super::super::Parameters;
use super::{Case, one_packet, run, value};

/// A case of multicasts in a row on a star of 16 hosts, with unicasts.
fn beside(settings: &str) -> Case {
    Case::new(16, "binomial", &format!("broadcasts=100,{settings}"))
}

/// Whether a value is near another, by a fraction of that.
fn is_near(value: f64, other: f64, fraction: f64) -> bool {
    (value - other).abs() <= fraction * other
}

const OFFLOADS: [Offload; 2] = [Offload::Host, Offload::Nic];

#[test]
fn unicasts_that_no_multicast_meets_take_as_long_as_one_message_alone() {
    for (offload, bytes) in
        OFFLOADS.into_iter().flat_map(|offload| [0, 4, 4096].map(|bytes| (offload, bytes)))
    {
        let [received, _] = one_packet(&Parameters::default(), bytes);
        for pause in ["0", "50"] {
            let case = beside(&format!("unicasts=others,unicast_bytes={bytes},unicast_pause_us={pause}"));
            for name in ["unicast_us", "unicast_max_us"] {
                assert!(is_near(case.measured(offload, 64, name), received.us(), 1e-9), "{offload} {bytes}");
            }
        }
        // Nor do the multicasts take longer than in a group without these two.
        let alone = Case::new(14, "binomial", "broadcasts=100").latency(offload, 64);
        assert_eq!(beside("unicasts=others").latency(offload, 64), alone);
    }
}

#[test]
fn a_unicast_waits_at_most_for_the_work_that_multicasts_bring() {
    let defaults = Parameters::default();
    for (offload, multicast) in
        OFFLOADS.into_iter().flat_map(|offload| [4, 2000].map(|bytes| (offload, bytes)))
    {
        let case = beside("unicasts=members,unicast_pause_us=50");
        let outcome = run(&case.parameters, &case.task(offload, multicast)).unwrap();
        let [mean, longest] = ["unicast_us", "unicast_max_us"].map(|name| value(&outcome, name));
        let [received, _] = one_packet(&defaults, 4);
        // What a multicast brings to a node with three children: more than to any with fewer.
        let children = 3;
        let sends = if offload == Offload::Host { children } else { 1 };
        let bus = |rate| defaults.pci_setup + Bytes(multicast).time_at(rate);
        let packet = (defaults.header + Bytes(multicast)).time_at(defaults.link_mb_per_s);
        let event = defaults.pci_setup + Bytes(16).time_at(defaults.pci_write_mb_per_s);
        let of_send = defaults.host_post
            + defaults.nic_send_event
            + bus(defaults.pci_read_mb_per_s)
            + defaults.nic_send
            + defaults.nic_sent
            + event
            + defaults.host_event;
        let of_child = defaults.nic_replica + packet + defaults.nic_ack_receive;
        let of_receipt = defaults.nic_receive
            + bus(defaults.pci_write_mb_per_s)
            + defaults.nic_forward
            + defaults.nic_ack_send
            + defaults.ack.time_at(defaults.link_mb_per_s)
            + defaults.nic_event
            + event
            + defaults.host_event;
        let work = of_receipt.us() + f64::from(sends) * of_send.us() + f64::from(children) * of_child.us();
        // At either end, of the multicast that is under way and the next.
        let most = received.us() + 4.0 * work;
        assert!(
            received.us() < mean && mean < longest && longest <= most,
            "{received} {mean} {longest} {most}"
        );
    }
}

#[test]
fn unicasts_back_to_back_are_as_fast_as_the_busiest_part() {
    let defaults = Parameters::default();
    let stream = |settings: &str, bytes: u64, offload| {
        // 16 tokens are never returned: little of thousands.
        let settings =
            format!("broadcasts=1000,unicasts=others,unicasts_in_flight=16,unicast_bytes={bytes},{settings}");
        Case::new(16, "binomial", &settings).measured(offload, 4, "unicast_mb_per_s")
    };
    let processor =
        defaults.nic_send_event + defaults.nic_send + defaults.nic_ack_receive + defaults.nic_sent;
    let short = stream("", 4, Offload::Host);
    assert!(is_near(short, 4.0 / processor.us(), 0.01), "{short}");
    let read = |bytes: u64, rate| (defaults.pci_setup + Bytes(bytes).time_at(rate)).us();
    let bus = 4.0 * read(4096, defaults.pci_read_mb_per_s) + read(16, defaults.pci_write_mb_per_s);
    let long = stream("", 16_384, Offload::Host);
    assert!(is_near(long, 16_384.0 / bus, 0.03), "{long} {}", 16_384.0 / bus);
    // Changed firmware costs its time, where it is.
    let changed = |offload| stream("nic_firmware_us=1", 4, offload);
    assert!(is_near(changed(Offload::Host), short, 1e-9));
    let slower = changed(Offload::Nic);
    assert!(is_near(slower, 4.0 / (processor.us() + 1.0), 0.01), "{slower}");
}

#[test]
fn unicasts_back_to_back_get_the_time_of_the_processor_that_multicasts_leave() {
    let defaults = Parameters::default();
    let unicast = defaults.nic_send_event + defaults.nic_send + defaults.nic_ack_receive + defaults.nic_sent;
    // The sender is the root's first child, which has three children.
    let received = defaults.nic_receive + defaults.nic_ack_send + defaults.nic_event;
    let replicas = defaults.nic_replica + defaults.nic_replica;
    let acks = defaults.nic_ack_receive + defaults.nic_ack_receive + defaults.nic_ack_receive;
    let work = [
        (Offload::Host, received + unicast + unicast + unicast),
        (Offload::Nic, received + defaults.nic_forward + replicas + acks),
    ];
    for (offload, work) in work {
        let case = Case::new(16, "binomial", "broadcasts=1000,unicasts=members,unicasts_in_flight=16");
        let outcome = case.run(offload, 4);
        let (period, rate) = (outcome.latency.unwrap().us(), value(&outcome, "unicast_mb_per_s"));
        let left = (period - work.us()) / period;
        assert!(is_near(rate, left * 4.0 / unicast.us(), 0.02), "{offload}: {rate} {left}");
    }
}

#[test]
fn changed_firmware_delays_each_unicast_by_its_time() {
    let case = |firmware: &str| beside(&format!("unicasts=others,nic_firmware_us={firmware}"));
    let time = |firmware, offload| case(firmware).measured(offload, 4, "unicast_us");
    assert!(is_near(time("0.5", Offload::Nic), time("0", Offload::Nic) + 0.5, 1e-9));
    assert!(is_near(time("0.5", Offload::Host), time("0", Offload::Host), 1e-9));
    assert!(is_near(time("0", Offload::Nic), time("0", Offload::Host), 1e-9));
}

#[test]
fn lost_unicasts_are_retransmitted() {
    let case = beside("unicasts=members,loss=0.05,unicasts_in_flight=8,unicast_bytes=9000");
    for offload in OFFLOADS {
        let outcome = case.run(offload, 4);
        let longest = value(&outcome, "unicast_max_us");
        assert!(outcome.latency.is_some() && longest > Parameters::default().timeout.us(), "{longest}");
    }
}

#[test]
fn unicasts_that_cannot_be_are_rejected() {
    let error = |hosts, scheme, settings: &str| {
        let case = Case::new(hosts, scheme, settings);
        run(&case.parameters, &case.task(Offload::Nic, 4)).unwrap_err().to_string()
    };
    assert!(error(4, "binomial", "unicasts=members,operation=broadcast").contains("set operation=multicast"));
    assert!(error(4, "binomial", "unicasts=members,flow=lfc").contains("flow=none"));
    assert!(error(4, "serial", "unicasts=members").contains("here it has one"));
    assert!(error(3, "binomial", "unicasts=others").contains("there are 3 in all"));
}
