//! The page in a real browser. Skipped where there is no `chromium`; the variable `CHROMIUM` names
//! another one.
#![expect(clippy::disallowed_methods, reason = "the browser is another program, and the page a file")]

#[path = "../../page/tests/support/browser.rs"]
mod browser;

use treecast_fabric::{Fabric, FabricSpec, RoutingPolicy};
use treecast_plan::render::PlanContext;
use treecast_plan::{Group, MemberId, Placement, PlanOptions, plan};
use treecast_report::{Broadcast, LoadPart, Report, ReportError, broadcasts_page, load_page, plan_page};
use treecast_sim::{
    Arrivals, DestinationSets, LoadContext, LoadDocument, LoadRun, Offload, Operation, Outcome, Parameters,
    Run, Simulator,
};
use treecast_terms::{Cycles, Flits};

/// A page of one run for each offload, and their outcomes.
fn page(spec: &str, scheme: &str, offloads: &[Offload], name: &str) -> (String, Vec<Outcome>) {
    let fabric = Fabric::from_spec(&spec.parse::<FabricSpec>().unwrap()).unwrap();
    let hosts = fabric.topology().host_count();
    let group = Group::new(Placement::one_per_host(hosts), MemberId(0), (1..hosts).map(MemberId).collect());
    let plan = plan(&fabric, &group.unwrap(), &scheme.parse().unwrap(), &PlanOptions::default()).unwrap();
    let parameters = Parameters::default();
    let mut report = Report::new(&fabric, name, parameters.cycle, name);
    let mut outcomes = Vec::new();
    for &offload in offloads {
        let run = Run {
            fabric: &fabric,
            plan: &plan,
            operation: Operation::Broadcast,
            offload,
            message: Flits(128),
            parameters: &parameters,
            seed: 1,
            simulator: Simulator::Event,
        };
        outcomes.push(report.add(&run).unwrap());
    }
    (report.html(), outcomes)
}

/// The page in the browser after `script`. What that passes to `say` is in an element of the class
/// `said`.
fn rendered(page: &str, script: &str) -> Option<String> {
    let say = "const say = (text) => { const line = document.createElement('p'); line.className = 'said'; \
               line.textContent = text; document.querySelector('main').prepend(line); };";
    browser::rendered(page, &format!("{say}\n{script}"))
}

/// What the script said, the last first.
fn said(dom: &str) -> Vec<&str> {
    dom.split("<p class=\"said\">").skip(1).map(|rest| rest.split("</p>").next().unwrap()).collect()
}

/// A number as the page writes it.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| str::from_utf8(group).unwrap()).collect();
    groups.join(",")
}

const STATES: &str = "const states = () => [...document.querySelectorAll('figcaption span')].map((it) => it.textContent).join('; ');
    const clock = () => document.getElementById('time').textContent;
    const key = (name) => document.body.dispatchEvent(new KeyboardEvent('keydown', { key: name, bubbles: true }));";

/// A browser without a screen, whose time runs ahead, draws no frames: here they are timers.
const FRAMES: &str =
    "window.requestAnimationFrame = (draw) => setTimeout(() => draw(performance.now()), 50);";

#[test]
fn the_clock_shows_who_has_the_message() {
    let (page, outcomes) = page("star:8", "binomial", &[Offload::Host, Offload::Nic], "star:8");
    let script = format!(
        "{STATES} say(states()); key('ArrowRight'); say(clock()); key('End'); say(states()); say(clock());
        const range = document.getElementById('clock'); range.value = {}; range.dispatchEvent(new Event('input'));
        say(states()); key('Home'); say(clock());",
        // The first delivery of the first run.
        outcomes[0].deliveries.iter().map(|delivery| delivery.cycle.0).min().unwrap()
    );
    let Some(dom) = rendered(&page, &script) else { return };
    let end = outcomes.iter().map(|outcome| outcome.latency.unwrap().0).max().unwrap();
    let [home, first, last_clock, last, event, start] = said(&dom)[..] else { panic!("{dom}") };
    assert_eq!(start, "0 of 7 have it; 0 of 7 have it");
    // The root's CPU works until then.
    assert!(event.starts_with(&format!("cycle 1,000 of {}", grouped(end))), "{event}");
    assert_eq!(last, "7 of 7 have it; 7 of 7 have it");
    assert!(last_clock.starts_with(&format!("cycle {} of", grouped(end))), "{last_clock}");
    assert!(first.starts_with("1 of 7 have it; "), "{first}");
    assert!(home.starts_with("cycle 0 of"), "{home}");
    for outcome in &outcomes {
        assert!(dom.contains(&format!("<td>{}</td>", grouped(outcome.latency.unwrap().0))));
    }
}

#[test]
fn a_plan_is_played_step_by_step() {
    let fabric = Fabric::from_spec(&"star:8".parse::<FabricSpec>().unwrap()).unwrap();
    let group = Group::new(Placement::one_per_host(8), MemberId(0), (1..8).map(MemberId).collect()).unwrap();
    let plan = plan(&fabric, &group, &"binomial".parse().unwrap(), &PlanOptions::default()).unwrap();
    let context = PlanContext { fabric: "star:8", routing: RoutingPolicy::Auto, order: None, packets: 1 };
    let page = plan_page(&plan, &fabric, &context, "treecast plan ...").unwrap();
    let script = format!(
        "{STATES} {FRAMES} say(`${{clock()}}: ${{states()}}`);
        for (let step = 0; step < 3; step += 1) {{
          document.getElementById('forward').click();
          say(`${{clock()}}: ${{states()}}, ${{document.querySelector('canvas').getAttribute('aria-label').split(', ').at(-1)}}`);
        }}
        const cells = [...document.querySelectorAll('#sends tbody tr')].map((row) => row.cells[0].textContent + row.cells[2].textContent);
        say(cells.join());
        [...document.querySelectorAll('#sends button')].find((it) => it.textContent === 'h7').click();
        say(document.getElementById('selection').textContent);
        key('Home'); document.getElementById('play').click();
        setTimeout(() => say(clock()), 15000);"
    );
    let Some(dom) = rendered(&page, &script) else { return };
    let [played, way, sends, third, second, first, start] = said(&dom)[..] else { panic!("{dom}") };
    assert_eq!(start, "step 0 of 3: 0 of 7 have it");
    // Each send crosses two links of a star.
    assert_eq!(first, "step 1 of 3: 1 of 7 have it, 2 links are busy");
    assert_eq!(second, "step 2 of 3: 3 of 7 have it, 4 links are busy");
    assert_eq!(third, "step 3 of 3: 7 of 7 have it, 8 links are busy");
    assert_eq!(sends, "1h4,2h2,2h6,3h1,3h5,3h3,3h7");
    assert_eq!(
        way,
        "binomial: h7: has the message after 3 steps, by h0 \u{2192} h4 \u{2192} h6 \u{2192} h7."
    );
    assert_eq!(played, "step 3 of 3");
    assert!(dom.contains("<th scope=\"row\">links used</th><td>11</td>"), "{dom}");
    assert!(dom.contains("Made with <code>treecast plan ...</code>"));
}

/// A chain of three, as it was measured and as it was predicted.
#[test]
fn measured_broadcasts_are_played_beside_predicted_ones() {
    let broadcast = |name: &str, delivered_us: &[f64], stored_us: &[f64], root_us| Broadcast {
        name: name.into(),
        parents: vec![0, 1, 2],
        delivered_us: delivered_us.into(),
        stored_us: stored_us.into(),
        root_us,
    };
    let measured = broadcast("kernel engine", &[20.5, 30.5, 40.5], &[10.0, 20.0, 30.0], Some(50.25));
    let predicted = broadcast("kernel engine, predicted", &[9.0, 19.0, 29.0], &[], None);
    let page = broadcasts_page(&[measured.clone(), predicted], "A title", "treecast report ...").unwrap();
    let script = format!(
        "{STATES} const works = () => JSON.parse(document.getElementById('report').textContent).runs[0].work.length;
        const at = (ns) => {{ const range = document.getElementById('clock'); range.value = ns; range.dispatchEvent(new Event('input'));
          say(`${{clock()}}: ${{states()}}, ${{document.querySelector('canvas').getAttribute('aria-label').split(', ').at(-2)}}`); }};
        at(5000); at(25000); at(40500);
        [...document.querySelectorAll('#deliveries button')].find((it) => it.textContent === 'h3').click();
        say(document.getElementById('selection').textContent);
        say([...document.querySelectorAll('#summary td')].map((cell) => cell.textContent).join());
        say(works()); say(document.documentElement.scrollWidth <= innerWidth);"
    );
    let Some(dom) = rendered(&page, &script) else { return };
    let [fits, works, summary, way, end, middle, begin] = said(&dom)[..] else { panic!("{dom}") };
    // One member after another: each line crosses two links.
    assert_eq!(begin, "5 of 40.5 us: 0 of 3 have it; 0 of 3 have it, 2 links are busy");
    assert_eq!(middle, "25 of 40.5 us: 1 of 3 have it; 2 of 3 have it, 2 links are busy");
    assert_eq!(end, "40.5 of 40.5 us: 3 of 3 have it; 3 of 3 have it, 0 links are busy");
    let path = "by h0 \u{2192} h1 \u{2192} h2 \u{2192} h3.";
    assert_eq!(
        way,
        format!(
            "kernel engine: h3: has the message after 40.5 us, {path}kernel engine, predicted: h3: has the message after 29 us, {path}"
        )
    );
    assert_eq!(summary, "kernel engine,40.5,30.5,50.25,kernel engine, predicted,29,19,-");
    // The kernel has stored the message before the application wakes.
    assert_eq!((works, fits), ("3", "true"));

    let other = Broadcast { parents: vec![0, 1], ..measured.clone() };
    assert!(matches!(broadcasts_page(&[measured, other], "", ""), Err(ReportError::DifferentGroups)));
    assert!(matches!(broadcasts_page(&[], "", ""), Err(ReportError::DifferentGroups)));
}

#[test]
fn parents_that_form_a_circle_are_refused() {
    let refused = |parents: &[u32]| {
        let times = vec![1.0; parents.len()];
        let (parents, name) = (parents.to_vec(), "edited".into());
        let broadcast = Broadcast { name, parents, delivered_us: times, stored_us: vec![], root_us: None };
        broadcasts_page(&[broadcast], "", "").err().map(|error| error.to_string())
    };
    let error =
        |members: &str| Some(format!("the parents of 'edited' form a circle, so nothing reaches {members}"));
    assert_eq!(refused(&[2, 0, 2, 3]), None);
    // Member 1 leads into the circle, and is none of it.
    assert_eq!(refused(&[3, 4, 2, 3, 0]), error("members 3, 2, 4"));
    assert_eq!(refused(&[0, 2]), error("member 2"));
    let all: Vec<u32> = (1..=12).map(|member| member % 12 + 1).collect();
    assert_eq!(refused(&all), error("members 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 2 more"));
}

/// A run under load.
fn load_of(fabric: &Fabric, name: &str, scheme: &str, load: f64) -> LoadDocument {
    let parameters = Parameters::default();
    let run = LoadRun {
        fabric,
        scheme: &scheme.parse().unwrap(),
        order: None,
        offload: Offload::Host,
        message: Flits(128),
        degree: 3,
        load,
        arrivals: Arrivals::default(),
        sets: DestinationSets::default(),
        cycles: Cycles(100_000),
        warmup: Cycles(50_000),
        backlog_max: None,
        parameters: &parameters,
        seed: 1,
        simulator: Simulator::Event,
    };
    let context = LoadContext { fabric: name.into(), routing: "auto".into() };
    LoadDocument::new(&run, &run.simulate().unwrap(), context)
}

#[test]
fn links_under_load_show_their_utilization() {
    let fabric = Fabric::from_spec(&"icpp98".parse::<FabricSpec>().unwrap()).unwrap();
    let document = load_of(&fabric, "icpp98", "tree-worm", 0.01);
    let part = LoadPart {
        label: "load.json",
        document: &document,
        fabric: &fabric,
        simulated_with: "treecast sim ...",
    };
    let page = load_page(&[part], "treecast report ...").unwrap();
    // Clicks on the canvas, then on the first row of the table, which is the busiest link.
    let script = "const canvas = document.querySelector('canvas'); const box = canvas.getBoundingClientRect();
        const selection = document.getElementById('selection'); const names = new Set();
        for (let x = 0; x < box.width; x += 6) for (let y = 0; y < box.height; y += 6) {
          canvas.dispatchEvent(new MouseEvent('click', { clientX: box.left + x, clientY: box.top + y, bubbles: true }));
          if (selection.textContent) names.add(selection.textContent);
        }
        say(names.size);
        document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape', bubbles: true }));
        say(`nothing: ${selection.textContent}`);
        document.querySelector('#links button').click();
        const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
        let chosen = 0;
        for (let i = 0; i < pixels.length; i += 4) chosen += pixels[i] === 130 && pixels[i + 1] === 80 && pixels[i + 2] === 223;
        say(chosen > 20); say(selection.textContent); say(document.documentElement.scrollWidth <= innerWidth);";
    let Some(dom) = rendered(&page, script) else { return };
    let [fits, busiest, is_drawn, nothing, links] = said(&dom)[..] else { panic!("{dom}") };
    assert_eq!((fits, is_drawn, nothing), ("true", "true", "nothing: "));
    // All links of icpp98 carry traffic; nearly all can be hit by a click every six pixels.
    let links: usize = links.parse().unwrap();
    assert!(links > document.links.len() / 2 && links <= document.links.len(), "{links}");
    let link = &document.figures.link_utilization;
    let (name, most) = (link.link.as_ref().unwrap(), link.max * 100.0);
    assert_eq!(busiest.replace("&gt;", ">"), format!("{name}: {most:.1} %"));
    assert!((document.links[name] - link.max).abs() < 1e-12);
    assert!(dom.contains("Simulated with <code>treecast sim ...</code>"));
}

#[test]
fn runs_under_load_are_side_by_side_on_one_scale() {
    let fabric = Fabric::from_spec(&"star:8".parse::<FabricSpec>().unwrap()).unwrap();
    let [low, high] = [0.01, 0.05].map(|load| load_of(&fabric, "star:8", "separate", load));
    let part = |label, document| LoadPart { label, document, fabric: &fabric, simulated_with: label };
    let parts = [part("low.json", &low), part("high.json", &high)];
    let page = load_page(&parts, "treecast report ...").unwrap();
    assert!(page.contains("<title>2 runs under load") && page.contains("<h2 id=\"figures-title\">The runs"));
    assert!(page.contains("<td>0.0100</td><td>0.0500</td>"), "{page}");
    // The two runs share one fabric.
    assert_eq!(page.matches("\"switches\":").count(), 1, "{page}");
    let script = "say(document.querySelectorAll('canvas').length);
        say([...document.querySelectorAll('#links th')].map((head) => head.textContent).join());
        document.querySelector('#links button').click();
        const chosen = [...document.querySelectorAll('canvas')].map((canvas) => {
          const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
          let count = 0;
          for (let i = 0; i < pixels.length; i += 4) count += pixels[i] === 130 && pixels[i + 1] === 80 && pixels[i + 2] === 223;
          return count > 20;
        });
        say(chosen.join()); say(document.getElementById('selection').textContent);
        say(document.getElementById('most').textContent); say(document.documentElement.scrollWidth <= innerWidth);";
    let Some(dom) = rendered(&page, script) else { return };
    let [fits, most, selection, chosen, heads, canvases] = said(&dom)[..] else { panic!("{dom}") };
    assert_eq!((fits, canvases, heads, chosen), ("true", "2", "link,low.json,high.json", "true,true"));
    let link = &high.figures.link_utilization;
    let (name, highest) = (link.link.as_ref().unwrap(), link.max * 100.0);
    assert_eq!(most, format!("{highest:.1} %"));
    let expected = format!("{name}: low.json {:.1} %, high.json {highest:.1} %", low.links[name] * 100.0);
    assert_eq!(selection.replace("&gt;", ">"), expected);
}

#[test]
fn only_wide_fabrics_take_the_whole_width() {
    let specs = ["star:8", "fat-tree:k=8"];
    let fabrics = specs.map(|spec| Fabric::from_spec(&spec.parse::<FabricSpec>().unwrap()).unwrap());
    let documents = [0, 1].map(|number| load_of(&fabrics[number], specs[number], "separate", 0.01));
    let part = |number: usize| LoadPart {
        label: specs[number],
        document: &documents[number],
        fabric: &fabrics[number],
        simulated_with: specs[number],
    };
    let page = load_page(&[part(0), part(1)], "treecast report ...").unwrap();
    let script =
        "say([...document.querySelectorAll('#pictures figure')].map((it) => it.matches('.wide')).join());";
    let Some(dom) = rendered(&page, script) else { return };
    assert_eq!(said(&dom), ["false,true"]);
}

#[test]
fn a_run_under_load_on_another_fabric_has_no_page() {
    let text = r#"{"format": "treecast-load/1", "status": "complete", "offered_load": 0.1, "ejection_load": 0.1,
        "accepted_load": 0.1, "multicasts_measured": 1, "latency_mean_cycles": 1.0, "latency_p50_cycles": 1,
        "latency_p99_cycles": 1, "latency_max_cycles": 1, "latency_ci95_cycles": null,
        "first_last_spread_mean_cycles": 0.0, "link_utilization": {"mean": 0.1, "max": 0.1, "link": "h9>s0:9"},
        "links": {"h9>s0:9": 0.1}, "end_cycle": 20, "deadlock": null, "fabric": "star:16", "routing": "auto",
        "scheme": "separate", "order": null, "offload": "host", "message_flits": 1, "degree": 1,
        "arrivals": "fixed", "destination_sets": "random", "cycles": 20, "warmup_cycles": 0, "backlog_max": 9,
        "simulator": "event", "seed": 1, "parameters": {}}"#;
    let document: LoadDocument = serde_json::from_str(text).unwrap();
    let fabric = Fabric::from_spec(&"star:4".parse::<FabricSpec>().unwrap()).unwrap();
    let part = LoadPart { label: "", document: &document, fabric: &fabric, simulated_with: "" };
    let error = load_page(&[part], "").unwrap_err();
    assert_eq!(
        error.to_string(),
        "the fabric has no link h9>s0:9, which the run names: give the fabric of the run"
    );
}

#[test]
fn play_runs_to_the_end_and_starts_again() {
    let (page, _) = page("icpp98", "binomial", &[Offload::Host], "icpp98");
    let script = format!(
        "{STATES} {FRAMES} const play = document.getElementById('play'); play.click(); say(play.textContent);
        setTimeout(() => {{ say(states()); say(play.textContent); key(' '); say(play.textContent); key(' '); say(clock()); }}, 20000);"
    );
    let Some(dom) = rendered(&page, &script) else { return };
    let [clock, again, at_end, states, playing] = said(&dom)[..] else { panic!("{dom}") };
    assert_eq!((playing, states, at_end, again), ("Pause", "31 of 31 have it", "Play", "Pause"));
    assert!(clock.starts_with("cycle 0 of"), "{clock}");
}

#[test]
fn a_click_on_a_host_shows_the_way_of_its_message() {
    let (page, _) = page("star:8", "binomial", &[Offload::Host], "star:8");
    // On the canvas, and in the table; then beside all hosts.
    let script = format!(
        "{STATES} const canvas = document.querySelector('canvas'); const box = canvas.getBoundingClientRect();
        const selection = document.getElementById('selection');
        let [reached, names] = [0, new Set()];
        for (let x = 0; x < box.width; x += 24) for (let y = 0; y < box.height; y += 24) {{
          canvas.dispatchEvent(new MouseEvent('click', {{ clientX: box.left + x, clientY: box.top + y, bubbles: true }}));
          if (selection.textContent) names.add(selection.textContent.split(': ')[1]);
        }}
        say([...names].sort().join());
        [...document.querySelectorAll('#deliveries button')].find((it) => it.textContent === 'h7').click();
        say(selection.textContent); key('Escape'); say(`nothing: ${{selection.textContent}}`);"
    );
    let Some(dom) = rendered(&page, &script) else { return };
    let [nothing, way, names] = said(&dom)[..] else { panic!("{dom}") };
    assert_eq!(names, "h0,h1,h2,h3,h4,h5,h6,h7");
    assert!(way.contains("h7: has the message after"), "{way}");
    assert!(way.contains(", by h0 \u{2192} ") && way.ends_with(" \u{2192} h7."), "{way}");
    assert_eq!(nothing, "nothing: ");
}

#[test]
fn pictures_are_drawn_and_fit_into_the_window() {
    for (spec, scheme) in
        [("torus:k=4,n=2", "binomial"), ("fat-tree:k=4", "separate"), ("icpp98", "tree-worm")]
    {
        let (page, _) = page(spec, scheme, &[Offload::Host], spec);
        // The number of colours on the canvas: some at the start, more while links are busy.
        let script = format!(
            "{STATES} const canvas = document.querySelector('canvas');
            const colours = () => {{ const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
              const seen = new Set(); for (let i = 0; i < pixels.length; i += 4) if (pixels[i + 3] === 255)
                seen.add(`${{pixels[i]}},${{pixels[i + 1]}},${{pixels[i + 2]}}`); return seen; }};
            const run = JSON.parse(document.getElementById('report').textContent).runs[0];
            const busy = run.transfers.find(([, , , from, to]) => to - from > 100);
            const range = document.getElementById('clock'); range.value = busy[3] + 60; range.dispatchEvent(new Event('input'));
            say(colours().has('213,94,0')); say(document.documentElement.scrollWidth <= innerWidth);"
        );
        let Some(dom) = rendered(&page, &script) else { return };
        assert_eq!(said(&dom), ["true", "true"], "{spec}");
    }
}

#[test]
fn hostile_names_do_no_harm() {
    let name = "</script><img src=x onerror=say('harm')>&\"'";
    let (page, _) = page("star:3", "separate", &[Offload::Host], name);
    let Some(dom) = rendered(&page, "say('done')") else { return };
    assert_eq!(said(&dom), ["done"]);
    assert!(dom.contains("Made with <code>&lt;/script&gt;&lt;img src=x onerror=say('harm')&gt;&amp;"));
}
