"use strict";
// Fabrics, and runs over them, on a canvas.

// What is under way at a time, of rows that are sorted by their last but one number, their start; the last is their
// end. Going forward looks at each row once.
class UnderWay {
  constructor(rows) {
    this.rows = rows;
    this.restart();
  }

  restart() {
    this.time = -1;
    this.next = 0;
    this.active = [];
  }

  at(time) {
    if (time < this.time) this.restart();
    this.time = time;
    while (this.next < this.rows.length && this.rows[this.next].at(-2) <= time) {
      this.active.push(this.rows[this.next]);
      this.next += 1;
    }
    this.active = this.active.filter((row) => row.at(-1) > time);
    return this.active;
  }
}

// A fabric on a canvas.
class FabricPicture {
  constructor(fabric, name) {
    this.fabric = fabric;
    this.figure = document.createElement("figure");
    const caption = document.createElement("figcaption");
    const title = document.createElement("b");
    title.textContent = name;
    this.state = document.createElement("span");
    caption.append(title, this.state);
    this.canvas = document.createElement("canvas");
    this.canvas.setAttribute("role", "img");
    this.figure.append(caption, this.canvas);

    const points = [...fabric.hosts, ...fabric.switches].map(([, point]) => point);
    const [xs, ys] = [points.map(([x]) => x), points.map(([, y]) => y)];
    const bounds = (values) => values.reduce(([low, high], v) => [Math.min(low, v), Math.max(high, v)], [Infinity, -Infinity]);
    const margin = 1 + (fabric.pitch ?? 0) / 2;
    const [[left, right], [top, bottom]] = [bounds(xs), bounds(ys)];
    this.box = { left: left - margin, top: top - margin, width: right - left + 2 * margin, height: bottom - top + 2 * margin };
    this.figure.classList.toggle("wide", this.isWide);
  }

  // Whether it needs the whole width of the page.
  get isWide() {
    return this.box.width > 1.8 * this.box.height;
  }

  // Fits the picture into its column; `high` is the most pixels that it may be high.
  resize(high) {
    const width = Math.max(this.figure.clientWidth - 2, 200);
    const dots = devicePixelRatio || 1;
    this.scale = Math.min(width / this.box.width, high / this.box.height);
    const height = Math.ceil(this.scale * this.box.height);
    this.shift = [(width - this.scale * this.box.width) / 2, 0];
    this.canvas.style.height = `${height}px`;
    this.canvas.width = Math.round(width * dots);
    this.canvas.height = Math.round(height * dots);
    this.size = { width, height, dots };
    this.curves = this.fabric.links.map(([from, to], link) => this.curve(from, to, link));
    this.recolour();
  }

  // After a change of light or dark.
  recolour() {
    const style = getComputedStyle(document.documentElement);
    this.colours = Object.fromEntries(
      ["paper", "ink", "soft", "line", "raised", "has", "cpu", "nic", "busy", "used", "wait", "way"]
        .map((name) => [name, style.getPropertyValue(`--${name}`).trim()]),
    );
    this.ground = document.createElement("canvas");
    [this.ground.width, this.ground.height] = [this.canvas.width, this.canvas.height];
    const context = this.ground.getContext("2d");
    context.scale(this.size.dots, this.size.dots);
    context.strokeStyle = this.colours.line;
    context.lineWidth = Math.max(0.5, Math.min(1.5, this.scale * 0.08));
    context.beginPath();
    this.curves.forEach((curve) => FabricPicture.trace(context, curve, 1));
    context.stroke();
  }

  place([x, y]) {
    return [(x - this.box.left) * this.scale + this.shift[0], (y - this.box.top) * this.scale + this.shift[1]];
  }

  // Hosts have numbers from 0, switches from -1 downwards.
  vertex(end) {
    return end >= 0 ? this.fabric.hosts[end] : this.fabric.switches[-1 - end];
  }

  // Start, control point and end of a link. The two directions run side by side; what would pass over other switches of
  // a grid goes around them.
  curve(from, to) {
    const [a, b] = [this.vertex(from)[1], this.vertex(to)[1]].map((point) => this.place(point));
    const [dx, dy] = [b[0] - a[0], b[1] - a[1]];
    const length = Math.hypot(dx, dy) || 1;
    const aside = Math.min(this.scale * 0.1, 3);
    const pitch = this.scale * (this.fabric.pitch ?? 0);
    const bend = pitch > 0 && length > pitch * 1.1 ? pitch * 0.9 : 0;
    const [nx, ny] = [-dy / length, dx / length];
    const moved = ([x, y], by) => [x + nx * by, y + ny * by];
    const middle = [(a[0] + b[0]) / 2, (a[1] + b[1]) / 2];
    return [moved(a, aside), moved(middle, aside + bend), moved(b, aside)];
  }

  // Adds the first part of a curve to the path, by De Casteljau's algorithm.
  static trace(context, [a, control, b], part) {
    const between = (p, q) => [p[0] + (q[0] - p[0]) * part, p[1] + (q[1] - p[1]) * part];
    const first = between(a, control);
    const end = between(first, between(control, b));
    context.moveTo(...a);
    context.quadraticCurveTo(...first, ...end);
    return end;
  }

  hostAt(event) {
    const reach = Math.max(this.scale * 0.6, 6);
    let [nearest, least] = [null, reach];
    this.fabric.hosts.forEach(([, point], host) => {
      const [x, y] = this.place(point);
      const distance = Math.hypot(x - event.offsetX, y - event.offsetY);
      if (distance < least) [nearest, least] = [host, distance];
    });
    return nearest;
  }

  // Starts a drawing with the fabric's links.
  cleared() {
    const context = this.canvas.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.drawImage(this.ground, 0, 0);
    context.scale(this.size.dots, this.size.dots);
    context.lineCap = "round";
    return context;
  }

  discs(context, points, radius, fill, stroke, line) {
    context.beginPath();
    points.forEach(([x, y]) => {
      context.moveTo(x + radius, y);
      context.arc(x, y, radius, 0, 2 * Math.PI);
    });
    if (fill) {
      context.fillStyle = fill;
      context.fill();
    }
    if (stroke) {
      context.strokeStyle = stroke;
      context.lineWidth = line;
      context.stroke();
    }
  }

  switches(context) {
    const half = Math.max(1.5, this.scale * 0.32);
    context.strokeStyle = this.colours.soft;
    context.lineWidth = 1;
    this.fabric.switches.forEach(([name, point]) => {
      const [x, y] = this.place(point);
      context.fillStyle = this.colours.raised;
      context.fillRect(x - half, y - half, 2 * half, 2 * half);
      context.strokeRect(x - half, y - half, 2 * half, 2 * half);
      if (half > 7) this.label(context, name, x, y, this.colours.soft, half * 1.8);
    });
  }

  label(context, name, x, y, colour, room) {
    context.fillStyle = colour;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.font = `${Math.min(11, room / Math.max(2, name.length) * 1.5)}px system-ui, sans-serif`;
    context.fillText(name, x, y + 0.5, room);
  }
}

// One run over its fabric.
class Picture extends FabricPicture {
  // `choose` is called with the number of the host that the reader clicks on, or null; `inWords` says a time of the clock.
  constructor(fabric, run, choose, inWords) {
    super(fabric, run.name);
    this.inWords = inWords;
    this.run = run;
    this.transfers = new UnderWay(run.transfers);
    this.work = new UnderWay(run.work);
    this.waits = new UnderWay(run.waits);
    this.delivered = new Map();
    for (const [host, cycle] of run.deliveries) {
      if (!this.delivered.has(host)) this.delivered.set(host, cycle);
    }
    this.members = new Set([run.root, ...run.worms.flatMap(([from, to]) => [from, ...to])]);
    // Of a plan, whose clock counts steps: the worms of each step, and the links that are used before it.
    this.bySteps = run.sends ? Picture.steps(run.sends) : null;
    this.way = { hosts: new Set(), links: new Set() };

    this.canvas.addEventListener("click", (event) => choose(this.hostAt(event)));
    this.canvas.addEventListener("pointermove", (event) => {
      const host = this.hostAt(event);
      this.canvas.title = host === null ? "" : this.describe(host);
    });
  }

  describe(host) {
    const name = this.fabric.hosts[host][0];
    if (host === this.run.root) return `${name}: the root`;
    if (!this.members.has(host)) return `${name}: outside the group`;
    const cycle = this.delivered.get(host);
    return cycle === undefined ? `${name}: never gets the message` : `${name}: has the message after ${this.inWords(cycle)}`;
  }

  // The hosts through which a host gets the message, the root first, and the links of those worms.
  wayTo(host) {
    const worms = [];
    const hosts = [host];
    while (hosts[0] !== this.run.root) {
      const worm = this.run.worms.findIndex(([from, to]) => from !== hosts[0] && to.includes(hosts[0]));
      if (worm < 0 || hosts.includes(this.run.worms[worm][0])) break;
      worms.unshift(worm);
      hosts.unshift(this.run.worms[worm][0]);
    }
    return { hosts, worms };
  }

  choose(host) {
    const { hosts, worms } = host === null || !this.members.has(host) ? { hosts: [], worms: [] } : this.wayTo(host);
    const links = this.bySteps ? worms.flatMap((worm) => this.run.sends[worm].links.map(([link]) => link))
      : this.run.transfers.filter(([, worm]) => worms.includes(worm)).map(([link]) => link);
    this.way = { hosts: new Set(hosts), links: new Set(links) };
    return hosts;
  }

  draw(time) {
    const context = this.cleared();
    const { colours, scale } = this;
    if (this.way.links.size > 0) {
      context.strokeStyle = colours.way;
      context.lineWidth = Math.max(2, Math.min(4, scale * 0.22));
      context.beginPath();
      this.way.links.forEach((link) => FabricPicture.trace(context, this.curves[link], 1));
      context.stroke();
    }
    context.lineWidth = Math.max(1.25, Math.min(3, scale * 0.14));
    context.strokeStyle = colours.used;
    context.beginPath();
    this.used(time).forEach((link) => FabricPicture.trace(context, this.curves[link], 1));
    context.stroke();
    const busy = this.busy(time);
    context.strokeStyle = colours.busy;
    context.beginPath();
    const heads = busy.map(([link, part]) => FabricPicture.trace(context, this.curves[link], part));
    context.stroke();
    this.discs(context, heads, Math.max(1.5, Math.min(4, scale * 0.18)), colours.busy);

    this.switches(context);
    const count = this.hosts(context, time);
    const waiting = this.waiting(context, time);
    this.state.textContent = `${count} of ${this.run.destinations} have it` + (waiting > 0 ? `, ${waiting} waiting` : "");
    this.canvas.setAttribute("aria-label", `${this.run.name}: ${count} of ${this.run.destinations} `
      + `processes have the message, ${busy.length} links are busy` + (this.bySteps ? "" : `, ${waiting} packets wait`));
  }

  static steps(sends) {
    const steps = Array.from({ length: sends.reduce((most, send) => Math.max(most, send.step), 0) + 1 }, () => ({ sends: [], used: [] }));
    sends.forEach((send) => steps[send.step].sends.push(send));
    const used = new Set();
    steps.forEach((step) => {
      step.used = [...used];
      step.sends.forEach((send) => send.links.forEach(([link]) => used.add(link)));
    });
    return steps;
  }

  // The links that the steps before this one have used.
  used(time) {
    return this.bySteps ? this.bySteps[Math.ceil(time)].used : [];
  }

  // The busy links, and which part of each the packet has passed. In a plan a worm passes its links one after another, and
  // they all stay busy until the end of the step.
  busy(time) {
    if (!this.bySteps) return this.transfers.at(time).map(([link, , , from, to]) => [link, (time - from) / (to - from)]);
    const step = Math.ceil(time);
    const passed = 1 - (step - time);
    return this.bySteps[step].sends.flatMap(({ links, hops }) => links
      .map(([link, hop]) => [link, Math.min(passed * hops - hop, 1)]).filter(([, part]) => part > 0));
  }

  // Draws the hosts; how many processes have the message.
  hosts(context, time) {
    const { colours, scale } = this;
    const radius = Math.max(1.4, scale * 0.34);
    const line = Math.max(1, Math.min(3, scale * 0.12));
    const has = (host) => host === this.run.root || (this.delivered.get(host) ?? Infinity) <= time;
    const groups = { idle: [], lacks: [], has: [] };
    this.fabric.hosts.forEach(([, point], host) => {
      groups[!this.members.has(host) ? "idle" : has(host) ? "has" : "lacks"].push(this.place(point));
    });
    this.discs(context, groups.idle, radius * 0.7, colours.line);
    this.discs(context, groups.lacks, radius, colours.paper, colours.soft, 1);
    this.discs(context, groups.has, radius, colours.has);
    const working = { cpu: new Map(), nic: new Map() };
    this.work.at(time).forEach(([host, isCpu]) => working[isCpu ? "cpu" : "nic"].set(host, this.place(this.fabric.hosts[host][1])));
    this.discs(context, [...working.nic.values()], radius, null, colours.nic, line);
    this.discs(context, [...working.cpu.values()], radius + line, null, colours.cpu, line);
    this.discs(context, [this.place(this.fabric.hosts[this.run.root][1])], radius + 2 * line, null, colours.ink, 1);
    if (this.way.hosts.size > 0) {
      const points = [...this.way.hosts].map((host) => this.place(this.fabric.hosts[host][1]));
      this.discs(context, points, radius + line, null, colours.way, line);
    }
    if (radius > 8) {
      this.fabric.hosts.forEach(([name, point], host) => {
        const colour = this.members.has(host) && has(host) ? colours.paper : colours.soft;
        this.label(context, name, ...this.place(point), colour, radius * 1.8);
      });
    }
    return this.run.deliveries.filter(([, cycle]) => cycle <= time).length;
  }

  // Marks the switches in which packets wait; how many there are.
  waiting(context, time) {
    const counts = new Map();
    const waits = this.waits.at(time);
    waits.forEach(([node]) => counts.set(node, (counts.get(node) ?? 0) + 1));
    const radius = Math.max(2.5, Math.min(9, this.scale * 0.32));
    const corner = Math.max(1.5, this.scale * 0.32);
    counts.forEach((count, node) => {
      const [x, y] = this.place(this.fabric.switches[node][1]);
      this.discs(context, [[x + corner, y - corner]], radius, this.colours.wait);
      if (radius > 5) this.label(context, String(count), x + corner, y - corner, this.colours.paper, radius * 1.7);
    });
    return waits.length;
  }
}
