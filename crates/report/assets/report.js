"use strict";
// The clock, and what is beside the pictures.
(() => {
  // The clock of simulated runs counts cycles, that of measured ones nanoseconds, and that of a plan steps, whose length no plan
  // knows.
  const { fabric, clock: { unit, ns }, runs } = JSON.parse(document.getElementById("report").textContent);
  const element = (id) => document.getElementById(id);
  const whole = (number) => number.toLocaleString("en");
  const micros = (cycles) => (cycles * ns / 1000).toLocaleString("en", { maximumSignificantDigits: 5 });

  const inSteps = unit === "step";
  const inTime = unit === "us";
  // A time of the clock, and what it is given in.
  const shown = (time) => (inTime ? micros(time) : whole(time));
  const units = { step: "steps", us: "us", cycle: "cycles" }[unit];
  // The picture takes that many seconds at speed 1; a plan that many for each step, if it has few.
  const SECONDS = 12;
  const SECONDS_OF_STEP = 1.5;
  // Of the window's height.
  const PICTURE_SHARE = 0.72;
  const ROWS_MAX = 2000;

  const rows = (run) => [run.transfers, run.work, run.waits];
  const ends = runs.flatMap((run) => [...rows(run).map((list) => list.reduce((end, row) => Math.max(end, row.at(-1)), 0)),
    ...run.deliveries.map(([, cycle]) => cycle)]);
  const end = ends.reduce((a, b) => Math.max(a, b), 1);
  const seconds = inSteps ? Math.min(SECONDS, SECONDS_OF_STEP * end) : SECONDS;
  const events = (() => {
    const all = [0, end];
    runs.forEach((run) => {
      rows(run).forEach((list) => list.forEach((row) => all.push(row.at(-2), row.at(-1))));
      run.deliveries.forEach(([, cycle]) => all.push(cycle));
    });
    const sorted = Float64Array.from(all).sort();
    return sorted.filter((cycle, index) => index === 0 || cycle !== sorted[index - 1]);
  })();

  let now = 0;
  let since = null;

  const pictures = runs.map((run) => new Picture(fabric, run, choose, (time) => `${shown(time)} ${time === 1 ? unit : units}`));
  element("pictures").append(...pictures.map((picture) => picture.figure));

  function show() {
    pictures.forEach((picture) => picture.draw(now));
    element("clock").value = now;
    element("time").textContent = inSteps ? `step ${whole(Math.ceil(now))} of ${whole(end)}`
      : inTime ? `${micros(Math.floor(now))} of ${micros(end)} us`
      : `cycle ${whole(Math.floor(now))} of ${whole(end)} = ${micros(Math.floor(now))} us`;
    const cursor = document.querySelector("#progress .cursor");
    if (cursor) cursor.setAttribute("transform", `translate(${position(now)} 0)`);
  }

  function goTo(cycle) {
    now = Math.min(Math.max(cycle, 0), end);
    show();
  }

  function play(on) {
    since = on ? performance.now() : null;
    element("play").textContent = on ? "Pause" : "Play";
    if (!on) return;
    if (now >= end) goTo(0);
    requestAnimationFrame(frame);
  }

  function frame(time) {
    if (since === null) return;
    // A frame's time may be a little earlier than the click that started the clock.
    const passed = Math.max(0, time - since) / 1000;
    since = time;
    goTo(now + passed * Number(element("speed").value) * end / seconds);
    if (now >= end) play(false);
    else requestAnimationFrame(frame);
  }

  // The event before or after now.
  function step(forward) {
    play(false);
    let [low, high] = [0, events.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (forward ? events[middle] <= now : events[middle] < now) low = middle + 1;
      else high = middle;
    }
    goTo(events[forward ? Math.min(low, events.length - 1) : Math.max(low - 1, 0)]);
  }

  function choose(host) {
    const ways = pictures.map((picture) => picture.choose(host));
    const said = host === null ? [] : pictures.map((picture, index) => {
      const way = ways[index].map((at) => fabric.hosts[at][0]).join(" \u2192 ");
      return `${runs[index].name}: ${picture.describe(host)}${ways[index].length > 1 ? `, by ${way}` : ""}.`;
    });
    element("selection").replaceChildren(...said.flatMap((line, index) => (index > 0 ? [document.createElement("br"), line] : [line])));
    show();
  }

  // The chart of deliveries.
  const chart = { width: 800, height: 260, left: 56, right: 16, top: 10, bottom: 40 };
  const position = (cycle) => chart.left + (chart.width - chart.left - chart.right) * cycle / end;
  const ticks = (most, count) => {
    const rough = most / count;
    const power = 10 ** Math.floor(Math.log10(rough));
    const pitch = Math.max(1, [1, 2, 5, 10].map((factor) => factor * power).find((pitch) => pitch >= rough));
    return Array.from({ length: Math.floor(most / pitch) + 1 }, (_, index) => index * pitch);
  };
  const DASHES = ["", "7 4", "2 3", "9 3 2 3"];
  const HUES = ["var(--has)", "var(--cpu)", "var(--nic)", "var(--way)"];

  function drawProgress() {
    const most = Math.max(1, ...runs.map((run) => run.destinations));
    const bottom = chart.height - chart.bottom;
    const height = (count) => bottom - (bottom - chart.top) * count / most;
    const made = (name, attributes, text) => {
      const node = document.createElementNS("http://www.w3.org/2000/svg", name);
      Object.entries(attributes).forEach(([key, value]) => node.setAttribute(key, value));
      if (text !== undefined) node.textContent = text;
      return node;
    };
    const svg = made("svg", { viewBox: `0 0 ${chart.width} ${chart.height}`, role: "img", "aria-label": "Hosts with the message over time" });
    ticks(most, 4).forEach((count) => {
      svg.append(made("line", { class: "grid", x1: chart.left, x2: chart.width - chart.right, y1: height(count), y2: height(count) }));
      svg.append(made("text", { x: chart.left - 8, y: height(count) + 4, "text-anchor": "end" }, whole(count)));
    });
    ticks(end, 6).forEach((cycle) => {
      svg.append(made("text", { x: position(cycle), y: bottom + 17, "text-anchor": "middle" }, shown(cycle)));
    });
    svg.append(made("text", { x: (chart.left + chart.width) / 2, y: chart.height - 6, "text-anchor": "middle" }, units));
    runs.forEach((run, index) => {
      let path = `M${position(0)},${height(0)}`;
      run.deliveries.forEach(([, cycle], before) => { path += `H${position(cycle)}V${height(before + 1)}`; });
      path += `H${position(end)}`;
      const look = { fill: "none", "stroke-width": 2, "stroke-dasharray": DASHES[(index + Math.floor(index / 4)) % 4] };
      svg.append(made("path", { ...look, d: path, style: `stroke: ${HUES[index % 4]}` }));
      // Curves rise to the right: there is room below them.
      const [x, y] = [chart.left + 0.55 * (chart.width - chart.left), bottom - 14 - 18 * (runs.length - 1 - index)];
      svg.append(made("path", { ...look, d: `M${x},${y}h28`, style: `stroke: ${HUES[index % 4]}` }));
      svg.append(made("text", { x: x + 36, y: y + 4 }, run.name));
    });
    svg.append(made("line", { class: "cursor", x1: 0, x2: 0, y1: chart.top, y2: bottom }));
    element("progress").replaceChildren(svg);
  }

  function fillSends(sends) {
    const rows = sends.map((send, worm) => [send, worm]).sort(([a], [b]) => a.step - b.step);
    fillTable(element("sends"), ["step", "from", "to", "kind", "links"], rows.slice(0, ROWS_MAX).map(([send, worm]) => [
      whole(send.step), send.from,
      hostButton(send.to.join(", "), runs[0].worms[worm][1].at(-1)), send.kind, send.route.join(" ") || "-",
    ]));
    if (rows.length > ROWS_MAX) element("sends").createCaption().textContent = `The first ${whole(ROWS_MAX)} of ${whole(rows.length)} sends.`;
  }

  // A button that shows the way to a host.
  function hostButton(text, host) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.addEventListener("click", () => choose(host));
    return button;
  }

  const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

  function fillTimes() {
    fillTable(element("summary"), ["broadcast", "last delivery, us", "mean, us", "until the root knows, us"], runs.map((run) => {
      const times = run.deliveries.map(([, time]) => time);
      return [run.name, micros(run.latency), micros(sum(times) / times.length), run.rootKnew === undefined ? "-" : micros(run.rootKnew)];
    }));
  }

  function fillSummary() {
    fillTable(element("summary"),
      ["run", "result", "last delivery, cycles", "us", "mean, cycles", "worms", "CPUs busy, cycles", "links busy, cycles", "waits", "longest, cycles"],
      runs.map((run) => {
        const cycles = run.deliveries.map(([, cycle]) => cycle);
        const waits = run.waits.map((row) => row.at(-1) - row.at(-2));
        const last = run.latency === null ? ["-", "-"] : [whole(run.latency), micros(run.latency)];
        const mean = cycles.length === 0 ? "-" : whole(Math.round(sum(cycles) / cycles.length));
        return [run.name, run.status, ...last, mean, whole(run.worms.length), whole(run.cpuBusy),
          whole(sum(run.transfers.map((row) => row.at(-1) - row.at(-2)))), whole(waits.length), whole(waits.reduce((a, b) => Math.max(a, b), 0))];
      }));
    runs.filter((run) => run.trouble).forEach((run) => {
      const line = document.createElement("p");
      line.className = "trouble";
      line.textContent = `${run.name}: ${run.trouble}`;
      element("summary").parentElement.after(line);
    });
  }

  function fillDeliveries() {
    const hosts = fabric.hosts.map((_, host) => host).filter((host) => pictures.some((picture) => picture.delivered.has(host)));
    const first = (host) => Math.min(...pictures.map((picture) => picture.delivered.get(host) ?? Infinity));
    hosts.sort((a, b) => first(a) - first(b) || a - b);
    fillTable(element("deliveries"), ["host", ...runs.map((run) => `${run.name}, ${inSteps ? "step" : units}`)], hosts.slice(0, ROWS_MAX).map((host) => {
      return [hostButton(fabric.hosts[host][0], host), ...pictures.map((picture) => (picture.delivered.has(host) ? shown(picture.delivered.get(host)) : "-"))];
    }));
    if (hosts.length > ROWS_MAX) {
      element("deliveries").createCaption().textContent = `The first ${whole(ROWS_MAX)} of ${whole(hosts.length)} hosts.`;
    }
  }

  function resize() {
    pictures.forEach((picture) => picture.resize(innerHeight * PICTURE_SHARE));
    show();
  }

  element("clock").max = end;
  element("clock").addEventListener("input", (event) => { play(false); goTo(Number(event.target.value)); });
  element("play").addEventListener("click", () => play(since === null));
  element("back").addEventListener("click", () => step(false));
  element("forward").addEventListener("click", () => step(true));
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("select, summary") || event.ctrlKey || event.metaKey || event.altKey;
    const pressing = event.key === " " && event.target.closest("button");
    if (typing || pressing) return;
    const hundredth = end / 100;
    const actions = {
      " ": () => play(since === null),
      ArrowLeft: () => (event.shiftKey ? goTo(now - hundredth) : step(false)),
      ArrowRight: () => (event.shiftKey ? goTo(now + hundredth) : step(true)),
      Home: () => goTo(0),
      End: () => goTo(end),
      Escape: () => choose(null),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    pictures.forEach((picture) => picture.recolour());
    show();
  });
  addEventListener("resize", resize);
  drawProgress();
  if (inSteps) fillSends(runs[0].sends);
  else if (inTime) fillTimes();
  else fillSummary();
  fillDeliveries();
  resize();
  const asked = /^#(?:cycle|step|us)=([0-9]+(?:\.[0-9]+)?)$/.exec(location.hash);
  if (asked) goTo(Number(asked[1]) * (inTime ? 1000 : 1));
})();
