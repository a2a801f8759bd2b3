"use strict";
// Fills a table with a row of heads and lines of cells, each a text or an element.
function fillTable(table, heads, lines) {
  const row = (cells, name) => {
    const line = document.createElement("tr");
    cells.forEach((cell) => {
      const box = document.createElement(name);
      if (name === "th") box.scope = "col";
      box.append(cell);
      line.append(box);
    });
    return line;
  };
  const [head, body] = [document.createElement("thead"), document.createElement("tbody")];
  head.append(row(heads, "th"));
  body.append(...lines.map((cells) => row(cells, "td")));
  table.replaceChildren(head, body);
}
