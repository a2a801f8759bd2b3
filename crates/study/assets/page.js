"use strict";
// Draws the chart of every figure, again whenever the reader's choice of light or dark changes.
(() => {
  const specs = JSON.parse(document.getElementById("specs").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");

  // The page's own colours and type, so that charts look like the text around them.
  const config = () => {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const [ink, soft, line] = ["--ink", "--soft", "--line"].map(colour);
    return {
      background: null,
      font: "system-ui, sans-serif",
      view: { stroke: line },
      axis: {
        labelColor: soft, titleColor: ink, gridColor: line, domainColor: soft, tickColor: soft,
        labelFontSize: 12, titleFontSize: 13, titleFontWeight: "normal", gridOpacity: 0.7,
      },
      header: { labelColor: ink },
      legend: { labelColor: ink, titleColor: ink },
      text: { color: ink },
    };
  };

  // As many columns as there is room for, and panels no wider than fits: beside them stand axes and the menu.
  const fitted = (spec, room) => {
    const columns = room < 760 ? 1 : spec.columns;
    const width = Math.min(spec.spec.width, Math.floor((room - 40) / columns) - 92);
    const names = Math.max(1, Math.floor(spec.config.legend.columns * Math.min(1, room / 760)));
    const legend = { ...spec.config.legend, columns: names };
    return { ...spec, columns, spec: { ...spec.spec, width }, config: { ...spec.config, legend } };
  };

  const draw = async (spec, id) => {
    const chart = document.getElementById(id);
    const boxes = [...document.querySelectorAll(`fieldset[data-chart="${id}"] input`)];
    try {
      const { view } = await vegaEmbed(chart, fitted(spec, chart.clientWidth), {
        mode: "vega-lite", renderer: "svg", ast: true, config: config(),
        tooltip: { theme: dark.matches ? "dark" : "light" },
        actions: { export: true, source: false, compiled: false, editor: false },
      });
      const hide = () => {
        view.signal("hidden", boxes.filter((box) => !box.checked).map((box) => box.value)).runAsync();
      };
      boxes.forEach((box) => { box.onchange = hide; });
      hide();
    } catch (error) {
      chart.textContent = `The chart could not be drawn: ${error.message}`;
      chart.classList.add("error");
    }
  };

  const drawAll = () => specs.forEach((spec, i) => draw(spec, `chart-${i + 1}`));
  dark.addEventListener("change", drawAll);
  drawAll();
})();
