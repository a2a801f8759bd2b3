//! Figures for the tests.

use treecast_study::figure::{Best, Curve, Figure, Missing, Panel, Point, Scale};

/// Four panels over R with four curves each: latency in cycles over 1 to 31 destinations.
pub fn example() -> Figure {
    let names = [
        ("ni", "separate worms, one after the other"),
        ("tree", "one tree worm"),
        ("path", "path worms that drop copies"),
        ("uni", "binomial tree of unicast worms"),
    ];
    let curve = |r: f64, (name, description): (&str, &str)| Curve {
        name: name.to_owned(),
        description: description.to_owned(),
        row: None,
        missing: Vec::new(),
        points: (1..=31).map(|x| point(f64::from(x), latency(name, f64::from(x), r))).collect(),
    };
    Figure {
        study: "multicast-support".to_owned(),
        name: "single".to_owned(),
        title: "Latency of one multicast, by the ratio of host to NIC overhead".to_owned(),
        x_label: "destinations".to_owned(),
        y_label: "latency (cycles)".to_owned(),
        row_label: None,
        best: Best::Lowest,
        x_scale: Scale::Linear,
        y_scale: Scale::Linear,
        shared_y: true,
        columns: 2,
        panels: [0.5, 1.0, 2.0, 5.0]
            .map(|r| Panel { title: format!("R = {r}"), curves: names.map(|name| curve(r, name)).into() })
            .into(),
        caption: "With R below 1 the network interface is the bottleneck & forwarding there costs more than \
                  it saves; from R = 2 on, a tree worm has <half> the latency of every other scheme."
            .to_owned(),
        command: "treecast paper run multicast-support single --runs 10".to_owned(),
    }
}

/// Message sizes from 128 to 2048 on logarithmic axes, one panel, ten curves, with holes.
pub fn sizes() -> Figure {
    let curve = |i: u32| Curve {
        name: format!("scheme {i}"),
        description: String::new(),
        row: None,
        missing: Vec::new(),
        points: (7..=11_u32)
            .filter(|power| !(power + i).is_multiple_of(6))
            .map(|power| point(2_f64.powf(f64::from(power)), 2_f64.powf(f64::from(power + i) / 1.7)))
            .collect(),
    };
    Figure {
        x_label: "message (bytes)".to_owned(),
        x_scale: Scale::Log2,
        y_scale: Scale::Log2,
        panels: vec![Panel { title: String::new(), curves: (0..10).map(curve).collect() }],
        title: "Latency by message size".to_owned(),
        name: "size".to_owned(),
        ..example()
    }
}

/// What a presentation must survive: no curves, no points, values that are not finite, hostile
/// texts.
pub fn hostile() -> Figure {
    let text = "</script><!-- & \"quoted\" 'text' \u{1b}[31m \u{0} {x}";
    let curve = |points| Curve {
        name: text.to_owned(),
        description: text.to_owned(),
        row: None,
        points,
        missing: vec![Missing { x: 2.0, why: text.to_owned() }],
    };
    let broken = vec![
        Point { x: f64::NAN, mean: 1.0, low: 1.0, high: 1.0, runs: 1 },
        Point { x: 1.0, mean: f64::INFINITY, low: 1.0, high: 1.0, runs: 1 },
        Point { x: 2.0, mean: 5.0, low: f64::NAN, high: f64::INFINITY, runs: 0 },
    ];
    let extreme = vec![point(-1e300, 1e300), point(1e300, -1e300), point(1e-300, 5e-324)];
    Figure {
        title: text.to_owned(),
        caption: text.to_owned(),
        command: text.to_owned(),
        x_label: text.to_owned(),
        shared_y: false,
        panels: [vec![], vec![curve(vec![])], vec![curve(broken), curve(vec![])], vec![curve(extreme)]]
            .map(|curves| Panel { title: text.to_owned(), curves })
            .into(),
        ..example()
    }
}

fn point(x: f64, mean: f64) -> Point {
    Point { x, mean, low: mean * 0.93, high: mean * 1.05, runs: 10 }
}

fn latency(name: &str, x: f64, r: f64) -> f64 {
    let (host, nic) = (2_000.0, 2_000.0 / r);
    let send = 600.0;
    let steps = (x + 1.0).log2().ceil();
    let cycles = match name {
        "ni" => host + nic + steps * (nic + send) + 90.0 * x,
        "tree" => host + nic + send + 35.0 * x,
        "path" => host + nic + (1.0 + x / 6.0).log2().ceil() * (host + nic) + send + 60.0 * x,
        _ => steps * (host + nic + send) + send,
    };
    cycles.round()
}
