//! Arguments that are refused.

use super::bench;

#[test]
fn invalid_arguments_are_reported_in_one_sentence() {
    let cases: &[(&[&str], &str)] = &[
        (
            &["--sizes", "many"],
            "invalid value many for --sizes: expected a number of bytes, such as 65536, 16K, 4M or 1G",
        ),
        (&["--offload", "router"], "unknown offload 'router': known are host, assisted, nic, switch"),
        (&["--engine", "quantum"], "invalid engine quantum: expected auto, user or ebpf"),
        (&["--auth", "none"], "invalid value none for --auth: expected header or payload"),
        (&["--auth", "header,both"], "invalid value both for --auth: expected header or payload"),
        (&["--auth", "payload,"], "for --auth: expected header or payload"),
        (&["--auth", ""], "for --auth: expected header or payload"),
        (&["--auth"], "--auth"),
        (
            &["--skew", "long"],
            "invalid value long for --skew: expected a time up to 60s, such as 400us or 2ms",
        ),
        (&["--loopback", "1"], "--loopback"),
        (&["--messages", "0"], "--messages"),
        (&["--lab", "2", "--loopback", "2"], "--loopback"),
        (&["--scheme", "u-torus", "--loopback", "2"], "u-torus"),
        (&["--chart", "chart.png"], "expected a file name that ends with .svg or .html"),
        (&["--kill", "2"], "--kill takes one configuration and one size, and these are 12: "),
        (
            &["--kill", "2", "--racks", "2x2", "--offload", "nic", "--sizes", "4"],
            "and these are 2: name one engine, offload, scheme, authentication, encryption, integrity, transport and size; --racks and --fabric always measure two",
        ),
        (&["--uplink", "1mbit", "--loopback", "3"], "--uplink"),
        (&["--uplink", "1mbit", "--hosts", "a,b"], "--uplink"),
        (&["--uplink", "1mbit"], "--racks"),
        (
            &["--pace", "0"],
            "invalid value 0 for --pace: expected a number of bytes from 1, such as 65536 or 16M",
        ),
        (
            &["--tcp-congestion", "auto"],
            "invalid value auto for --tcp-congestion: expected an algorithm of the kernel, such as bbr, cubic or reno",
        ),
        (
            &["--tcp-congestion", "nonsense", "--loopback", "2", "--offload", "nic", "--sizes", "4"],
            "tcp_congestion=nonsense is not available",
        ),
        (&["--kill", "4", "--offload", "nic", "--sizes", "4"], "must be from 1 to 3, and not 4"),
        (&["--kill", "1", "--offload", "nic", "--sizes", "0"], "must be from 1 to 4294967296, and not 0"),
        (&["--hosts", "a,b", "--lab", "2"], "--hosts"),
        (&["--processes", "257"], "invalid value 257 for --processes: expected a whole number from 1 to 256"),
        (
            &["--loopback", "5", "--processes", "205"],
            "processes on all hosts must be from 2 to 1024, and not 1025",
        ),
        (
            &["--processes", "2", "--offload", "nic,host"],
            "2 processes on each host, and offload host: they share the node of their host, which forwards: \
             expected offload nic or switch",
        ),
        (
            &["--processes", "2", "--scheme", "postal"],
            "they do not measure lambda: add it, such as postal:lambda=8",
        ),
        (
            &["--processes", "2", "--loopback", "2", "--scheme", "leader:local=binomial"],
            "host 0, process 0: this group cannot carry out the plan",
        ),
        (
            &["--processes", "2", "--sizes", "4", "--kill", "1"],
            "2 processes on each host, and a member to kill (1): the loss of a host is measured",
        ),
        (&["--late", "4us"], "a late process, and 1 on each host: those in time are compared"),
        (
            &["--loopback", "3", "--late", "4us", "--late-host", "3"],
            "the number of the late host must be from 0 to 2, and not 3",
        ),
        (&["--loopback", "3", "--late", "4us", "--late-host", "0"], "it is the root, which is in time"),
        (
            &["--processes", "2", "--late", "4us", "--late-process", "2"],
            "the number of the late process must be from 0 to 1, and not 2",
        ),
        (&["--processes", "2", "--late-process", "1"], "--late"),
        (&["--processes", "2", "--placement", "random"], "known are block, cyclic"),
        (&["--processes", "2", "--late", "1us", "--skew", "1us"], "--skew"),
        (&["--processes", "2", "--late", "1us", "--stream"], "--stream"),
        (
            &["--processes", "2", "--late", "soon"],
            "invalid value soon for --late: expected a time up to 60s, such as 400us or 2ms",
        ),
        (
            &["--hosts", "a,b", "--shell", "no-such-shell -x"],
            "host a: the remote shell 'no-such-shell -x': No such file or directory",
        ),
        (
            &["--hosts", "127.0.0.1,127.0.0.2", "--shell", "false"],
            "host 127.0.0.1: the remote shell 'false': it has ended with exit status 1",
        ),
    ];
    assert_refused(cases);
}

#[test]
fn links_that_no_lab_has_are_refused_in_one_sentence() {
    assert_refused(&[
        (&["--loss", "1%"], "--lab"),
        (&["--reorder", "1%"], "--lab"),
        (&["--delay", "1ms"], "--lab"),
        (
            &["--lab", "2", "--delay", "2s"],
            "invalid value 2s for --delay: expected a time up to 1s, such as 500ns or 1us",
        ),
        (
            &["--lab", "2", "--reorder", "1"],
            "invalid value 1 for --reorder: expected a percentage from 0% to less than 100%",
        ),
        (&["--mtu", "100"], "--mtu"),
    ]);
}

#[test]
fn what_a_peer_does_not_support_is_refused_in_one_sentence() {
    assert_refused(&[
        (
            &["--lab", "2", "--peer", "openmpi", "--when-stored"],
            "openmpi, and --when-stored: it has no slots",
        ),
        (
            &["--lab", "2", "--peer", "tcp-tree", "--skew", "400us"],
            "tcp-tree, and --skew or --late: only openmpi and mpich have these",
        ),
    ]);
}

#[test]
fn what_only_broadcasts_support_is_refused_in_one_sentence() {
    assert_refused(&[
        (&["--operation", "reduce"], "expected broadcast, all-reduce or barrier"),
        (
            &["--operation", "all-reduce", "--sizes", "1K"],
            "a size of an all-reduce must be from 8 to 504, and not 1024",
        ),
        (
            &["--operation", "barrier", "--sizes", "8"],
            "operation barrier with 8 bytes: a barrier has no size, so leave out --sizes",
        ),
        (
            &["--operation", "barrier", "--stream"],
            "operation barrier with --stream, --when-stored, --no-flush, --skew or --late: each call waits for all members",
        ),
        (
            &["--operation", "all-reduce", "--lab", "2", "--peer", "tcp-tree"],
            "operation all-reduce with peer tcp-tree: it has only broadcasts",
        ),
    ]);
}

fn assert_refused(cases: &[(&[&str], &str)]) {
    for (arguments, expected) in cases {
        let output = bench("").args(*arguments).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.starts_with("treecast: ") && stderr.contains(expected), "{arguments:?}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}
