//! A search for the saturation load, as a figure.

use treecast_sim::{SaturationDocument, SaturationPointDocument, Status};

use crate::figure::{Best, Curve, Figure, Panel, Point, Scale};

/// The mean latency over the offered load, of the loads that a search has tried. Loads that are
/// not sustained have no point. `command` is what makes the figure.
pub fn saturation_figure(document: &SaturationDocument, command: String) -> Figure {
    let setup = &document.setup;
    let mut points: Vec<&SaturationPointDocument> = document.points.iter().collect();
    points.sort_by(|a, b| a.offered_load.total_cmp(&b.offered_load));
    let is_sustained = |point: &SaturationPointDocument| point.status == Status::Complete;
    let latency = |point: &SaturationPointDocument| {
        let mean = point.latency_mean_cycles?;
        Some(Point { x: point.offered_load, mean, low: mean, high: mean, runs: 1 })
    };
    // Not as missing points: they may be far beyond the points, and widen the axis.
    let refused: Vec<String> = points
        .iter()
        .filter(|point| !is_sustained(point))
        .map(|point| format!("{:.5} ({})", point.offered_load, point.status.name()))
        .collect();
    let curve = Curve {
        name: format!("{} {}", setup.scheme, setup.offload),
        description: format!("{}, offload {}", setup.scheme, setup.offload),
        row: None,
        missing: Vec::new(),
        points: points
            .iter()
            .filter(|point| is_sustained(point))
            .filter_map(|point| latency(point))
            .collect(),
    };
    let found = match document.saturation_offered_load {
        Some(load) => format!("The highest sustained load is {load:.5} flits/host/cycle"),
        None => "No load tried is sustained".into(),
    };
    let refused = match &refused[..] {
        [] => String::new(),
        refused => format!(" Not sustained: {}.", refused.join(", ")),
    };
    let caption = format!(
        "{found}, within {} %. From every host {} flits to {} others ({}), arrivals {}, {} cycles.{refused}",
        document.precision * 100.0,
        setup.message_flits,
        setup.degree,
        setup.destination_sets,
        setup.arrivals,
        setup.cycles
    );
    Figure {
        study: "saturation".into(),
        name: "latency".into(),
        title: format!("{} on {}: latency over load", setup.scheme, setup.fabric),
        x_label: "offered load (flits/host/cycle)".into(),
        y_label: "mean latency (cycles)".into(),
        row_label: None,
        best: Best::Lowest,
        x_scale: Scale::Linear,
        y_scale: Scale::Linear,
        shared_y: true,
        columns: 1,
        panels: vec![Panel { title: String::new(), curves: vec![curve] }],
        caption,
        command,
    }
}

#[cfg(test)]
mod tests {
    use treecast_fabric::{Fabric, FabricSpec};
    use treecast_sim::{Arrivals, DestinationSets, LoadContext, LoadRun, Offload, Parameters, Simulator};
    use treecast_terms::{Cycles, Flits};

    use super::*;

    #[test]
    fn sustained_loads_are_points_and_the_others_are_named() {
        let fabric = Fabric::from_spec(&"star:4".parse::<FabricSpec>().unwrap()).unwrap();
        let parameters = Parameters::default();
        let run = LoadRun {
            fabric: &fabric,
            scheme: &"binomial".parse().unwrap(),
            order: None,
            offload: Offload::Host,
            message: Flits(128),
            degree: 2,
            load: 1.0,
            arrivals: Arrivals::default(),
            sets: DestinationSets::default(),
            cycles: Cycles(200_000),
            warmup: Cycles(100_000),
            backlog_max: None,
            parameters: &parameters,
            seed: 1,
            simulator: Simulator::Event,
        };
        let saturation = run.find_saturation(0.1).unwrap();
        let context = LoadContext { fabric: "star:4".into(), routing: "auto".into() };
        let document = SaturationDocument::new(&run, 0.1, &saturation, context);
        let figure = saturation_figure(&document, String::new());
        let points = &figure.panels[0].curves[0].points;
        let is_sustained = |point: &&SaturationPointDocument| point.status == Status::Complete;
        assert_eq!(points.len(), document.points.iter().filter(is_sustained).count());
        assert_eq!(points.last().map(|point| point.x), document.saturation_offered_load);
        assert!(figure.caption.contains("Not sustained: ") && figure.caption.contains("(saturated)"));
    }
}
