// Filters and details of the atlas. The picture and the table are in the page; nothing is loaded.
"use strict";
(() => {
  const atlas = document.querySelector(".atlas");
  const form = atlas.querySelector("form");
  const details = atlas.querySelector(".atlas-details");
  const nodes = [...atlas.querySelectorAll("a.node")];
  const rows = [...atlas.querySelectorAll("tbody tr")];

  function matches(entry, filters) {
    const text = `${entry.name} ${entry.title} ${entry.summary}`.toLowerCase();
    return text.includes(filters.text.trim().toLowerCase())
      && (!filters.kind || entry.kind === filters.kind)
      && (!filters.year || Number(entry.year) >= Number(filters.year))
      && (!filters.trains || entry.trains === filters.trains)
      && (!filters.cost || Number(entry.cost) <= Number(filters.cost))
      && (!filters.folds || entry.folds === filters.folds);
  }

  function apply() {
    const filters = Object.fromEntries(new FormData(form));
    let count = 0;
    for (const row of rows) {
      row.hidden = !matches(row.dataset, filters);
      count += !row.hidden;
    }
    for (const node of nodes) node.classList.toggle("faded", !matches(node.dataset, filters));
    form.querySelector("output").textContent = `${count} of ${rows.length}`;
  }

  function show(entry) {
    const measured = entry.loss === "" ? "not measured"
      : `${entry.trains === "yes" ? "trains" : "does not train"} at depth without warm-up (loss ${entry.loss})`;
    const cost = `${Math.abs(100 * entry.cost).toFixed(1)} % ${entry.cost < 0 ? "fewer" : "more"} stored activations than Pre-LN`;
    const folds = entry.folds === "nothing" ? "folds to no plain wiring" : `folds to ${entry.folds}`;
    const lines = [
      ["strong", `${entry.title} (${entry.year}, ${entry.kind})`],
      ["code", entry.formula],
      ["span", entry.summary],
      ["span", `${measured}; ${cost}; ${folds}.`],
    ];
    details.replaceChildren(...lines.map(([tag, text]) => {
      const line = document.createElement("div");
      line.append(Object.assign(document.createElement(tag), { textContent: text }));
      return line;
    }));
    for (const node of nodes) node.classList.toggle("target", node.dataset.name === entry.folds);
  }

  for (const node of nodes) {
    for (const event of ["pointerenter", "focus"]) node.addEventListener(event, () => show(node.dataset));
  }
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(apply));
  apply();
})();
