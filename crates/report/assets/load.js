"use strict";
// The links of fabrics by their utilization, of one or several runs.

class LoadPicture extends FabricPicture {
  // `shares` has the utilization of each link, null for those without traffic. `choose` is called with the number of the link
  // that the reader clicks on, or null.
  constructor(fabric, name, shares, most, describe, choose) {
    super(fabric, name);
    this.shares = shares;
    this.most = most;
    this.chosen = null;
    this.canvas.addEventListener("click", (event) => choose(this.linkAt(event)));
    this.canvas.addEventListener("pointermove", (event) => {
      const link = this.linkAt(event);
      this.canvas.title = link === null ? "" : describe(link);
    });
  }

  // Links are drawn in classes of equal colour and width, the busiest last.
  static CLASSES = 12;

  draw() {
    const context = this.cleared();
    const classes = Array.from({ length: LoadPicture.CLASSES }, () => []);
    this.shares.forEach((share, link) => {
      if (share !== null) classes[Math.min(LoadPicture.CLASSES - 1, Math.floor(share / this.most * LoadPicture.CLASSES))].push(link);
    });
    classes.forEach((links, index) => {
      const part = (index + 1) / LoadPicture.CLASSES;
      this.stroke(context, links, LoadPicture.mixed(this.colours.used, this.colours.busy, part), part);
    });
    if (this.chosen !== null) this.stroke(context, [this.chosen], this.colours.way, 1.6);
    this.switches(context);
    const radius = Math.max(1.4, this.scale * 0.34);
    this.discs(context, this.fabric.hosts.map(([, point]) => this.place(point)), radius, this.colours.paper, this.colours.soft, 1);
    if (radius > 8) {
      this.fabric.hosts.forEach(([name, point]) => this.label(context, name, ...this.place(point), this.colours.soft, radius * 1.8));
    }
  }

  stroke(context, links, colour, part) {
    context.strokeStyle = colour;
    context.lineWidth = Math.max(0.6, Math.min(5, this.scale * 0.2) * part);
    context.beginPath();
    links.forEach((link) => FabricPicture.trace(context, this.curves[link], 1));
    context.stroke();
  }

  // A colour between two of the form #rrggbb.
  static mixed(from, to, part) {
    const parts = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
    const [a, b] = [parts(from), parts(to)];
    return `rgb(${a.map((value, index) => Math.round(value + (b[index] - value) * part)).join(" ")})`;
  }

  linkAt(event) {
    const reach = Math.max(this.scale * 0.2, 5);
    let [nearest, least] = [null, reach];
    this.curves.forEach(([a, control, b], link) => {
      if (this.shares[link] === null) return;
      const steps = 16;
      for (let step = 1; step < steps; step += 1) {
        const part = step / steps;
        const at = (axis) => (1 - part) ** 2 * a[axis] + 2 * part * (1 - part) * control[axis] + part ** 2 * b[axis];
        const distance = Math.hypot(at(0) - event.offsetX, at(1) - event.offsetY);
        if (distance < least) [nearest, least] = [link, distance];
      }
    });
    return nearest;
  }
}

(() => {
  const { fabrics, runs } = JSON.parse(document.getElementById("load").textContent);
  const element = (id) => document.getElementById(id);
  const percent = (share) => `${(share * 100).toLocaleString("en", { maximumFractionDigits: 1, minimumFractionDigits: 1 })} %`;
  // Of the window's height.
  const PICTURE_SHARE = 0.72;
  const ROWS_MAX = 200;

  // The utilization of each link by its name, of all runs: null where it carries no traffic. One scale is for all pictures.
  const byName = new Map();
  let most = 0;
  runs.forEach(({ links }, index) => links.forEach(([, linkName, share]) => {
    if (!byName.has(linkName)) byName.set(linkName, runs.map(() => null));
    byName.get(linkName)[index] = share;
    most = Math.max(most, share);
  }));
  const shown = (share) => (share === null ? "-" : percent(share));
  const described = (linkName) => {
    const shares = byName.get(linkName);
    return `${linkName}: ${runs.length === 1 ? shown(shares[0]) : runs.map(({ label }, index) => `${label} ${shown(shares[index])}`).join(", ")}`;
  };

  const parts = runs.map(({ fabric, name, links }) => {
    const { links: { length: count } } = fabrics[fabric];
    const shares = new Array(count).fill(null);
    const [names, numbers] = [new Map(), new Map()];
    let busiest = 0;
    links.forEach(([link, linkName, share]) => {
      shares[link] = share;
      names.set(link, linkName);
      numbers.set(linkName, link);
      busiest = Math.max(busiest, share);
    });
    const chosen = (link) => choose(link === null ? null : names.get(link));
    const picture = new LoadPicture(fabrics[fabric], name, shares, most, (link) => described(names.get(link)), chosen);
    picture.canvas.setAttribute("aria-label", `Utilization of links: ${links.length} of ${count} carry traffic, the busiest ${percent(busiest)} of the time`);
    picture.state.textContent = `the busiest link: ${percent(busiest)}`;
    return { picture, numbers };
  });
  const pictures = parts.map(({ picture }) => picture);
  element("pictures").append(...pictures.map((picture) => picture.figure));
  element("most").textContent = percent(most);

  function choose(linkName) {
    element("selection").textContent = linkName === null ? "" : described(linkName);
    parts.forEach(({ picture, numbers }) => {
      picture.chosen = numbers.get(linkName) ?? null;
      picture.draw();
    });
  }

  // Links of equal utilization stay in the order of the fabric.
  const highest = (shares) => Math.max(...shares.map((share) => share ?? 0));
  const busiest = [...byName].sort(([, a], [, b]) => highest(b) - highest(a));
  const heads = runs.length === 1 ? ["utilization"] : runs.map(({ label }) => label);
  fillTable(element("links"), ["link", ...heads], busiest.slice(0, ROWS_MAX).map(([linkName, shares]) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = linkName;
    button.addEventListener("click", () => choose(linkName));
    return [button, ...shares.map(shown)];
  }));
  if (busiest.length > ROWS_MAX) {
    element("links").createCaption().textContent = `The ${ROWS_MAX} busiest of ${busiest.length.toLocaleString("en")} links.`;
  }

  function resize() {
    pictures.forEach((picture) => {
      picture.resize(innerHeight * PICTURE_SHARE);
      picture.draw();
    });
  }

  document.addEventListener("keydown", (event) => { if (event.key === "Escape") choose(null); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => pictures.forEach((picture) => {
    picture.recolour();
    picture.draw();
  }));
  addEventListener("resize", resize);
  resize();
})();
