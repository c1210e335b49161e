"use strict";
// The HTML report's script: it draws figures, keeps every choice the same everywhere, and sorts and exports tables.
(() => {
  const content = JSON.parse(document.getElementById("content").textContent);
  const { entries, sets } = content.explorer;
  const by = (id) => document.getElementById(id);
  const unique = (values) => [...new Set(values)];
  const counted = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
  const chosen = { line: null, entry: null, layer: 0, head: 0, measure: "lambda" };

  // ---- Figures. Their text has the colour of the surrounding text, so a new theme needs no redrawing.

  const drawn = new Map(); // by the id of the element: vega-embed's result
  const last = new Map(); // the newest drawing of each element; an older one that ends later is discarded
  const TEXT = { labelColor: "currentColor", titleColor: "currentColor" };
  const LOOK = {
    background: null,
    font: "system-ui, sans-serif",
    axis: { ...TEXT, gridColor: "currentColor", gridOpacity: 0.13, domainColor: "currentColor", domainOpacity: 0.4,
      tickColor: "currentColor", tickOpacity: 0.4, labelFontSize: 11, titleFontSize: 12, titleFontWeight: "normal" },
    legend: { ...TEXT, labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal" },
    title: { color: "currentColor", subtitleColor: "currentColor", fontWeight: 600 },
    text: { fill: "currentColor" },
    view: { stroke: null },
  };
  const MENU = () => (matchMedia("(max-width: 45rem)").matches ? 0 : 38); // room for the menu that saves a figure
  const isDark = () => (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

  const merged = (one, two) => {
    const both = { ...one };
    for (const [key, value] of Object.entries(two)) {
      const deep = value && typeof value === "object" && !Array.isArray(value) && both[key];
      both[key] = deep ? merged(both[key], value) : value;
    }
    return both;
  };

  async function draw(id, spec) {
    const turn = (last.get(id) || 0) + 1;
    last.set(id, turn);
    const place = document.createElement("div");
    const result = await vegaEmbed(place, { ...spec, config: merged(spec.config || {}, LOOK) }, {
      renderer: "svg",
      mode: "vega-lite",
      actions: { export: true, source: false, compiled: false, editor: false },
      downloadFileName: `papa-${id}`,
      tooltip: { theme: isDark() ? "dark" : "light" },
      loader: { load: () => Promise.reject(new Error("The HTML report loads nothing.")) },
    });
    if (last.get(id) !== turn) return result.finalize();
    drawn.get(id)?.finalize();
    drawn.set(id, result);
    by(id).replaceChildren(place);
    return result.view;
  }

  // Fill each row with the panels that fit, all of the same width; a figure records the margin that it needs.
  function fitted(spec, room) {
    const fits = structuredClone(spec);
    const margin = fits.usermeta?.margin ?? 72;
    if (fits.concat) {
      const widest = Math.max(...fits.concat.map((panel) => panel.width));
      fits.columns = Math.max(1, Math.min(fits.columns, fits.concat.length, Math.floor(room / (widest + margin - 24))));
      const width = Math.floor(Math.max(120, Math.min(room / fits.columns - margin, 1.6 * widest)));
      for (const panel of fits.concat) panel.width = width;
      fits.config = merged(fits.config || {}, { legend: { columns: Math.max(1, Math.min(4, Math.floor(room / 260))) } });
    } else if (fits.width > room - margin) {
      fits.width = room - margin;
    }
    // the darkest colours are invisible on a dark background
    const text = JSON.stringify(fits).replaceAll('"#000000"', '"currentColor"');
    return JSON.parse(isDark() ? text.replaceAll('"#0072B2"', '"#3a93d6"') : text);
  }

  async function drawFigure(name) {
    const id = `figure-${name}`;
    // a figure in a closed part has no width
    const view = await draw(id, fitted(content.figures[name], by(id).closest("section").clientWidth - MENU()));
    if (!view || !has(view, "lines_store")) return;
    mark(view);
    // a click in a legend
    view.addSignalListener("lines", (_, value) => {
      const [line] = value?.line || [null];
      if (line !== chosen.line && (line === null || line in content.lines)) chooseLine(line);
    });
  }

  const has = (view, data) => { try { view.data(data); return true; } catch { return false; } };

  // Select the chosen line in a figure, if the figure has it.
  function mark(view) {
    const there = unique(Object.keys(view.getState({ data: () => true }).data)
      .flatMap((name) => (has(view, name) ? view.data(name) : [])).map((row) => row.line));
    const line = there.includes(chosen.line) ? chosen.line : null;
    const now = view.data("lines_store").map((row) => row.values[0])[0] ?? null;
    if (now === line) return;
    const entry = { unit: "", fields: [{ type: "E", field: "line" }], values: [line] };
    view.data("lines_store", line === null ? [] : [entry]).run();
  }

  // ---- What is chosen.

  function chooseLine(line) {
    chosen.line = line;
    for (const [, result] of drawn) if (has(result.view, "lines_store")) mark(result.view);
    showLine();
    const about = content.lines[line];
    if (!about) return;
    const fits = (entry) => ["model", "constant", "order"].filter((key) => about[key] === null || entry[key] === about[key]).length;
    const known = chosen.entry ? entries.filter((entry) => entry.model === about.model) : [];
    const best = known.sort((one, two) => fits(two) - fits(one) || (two.task === chosen.entry.task) - (one.task === chosen.entry.task))[0];
    if (best && best !== chosen.entry) chooseEntry(best);
  }

  function showLine() {
    for (const block of document.querySelectorAll(".block")) block.classList.toggle("chosen", block.dataset.line === chosen.line);
    by("line").value = chosen.line ?? "";
  }

  function chooseEntry(entry) {
    chosen.entry = entry;
    chosen.layer = Math.min(chosen.layer, entry.layers - 1);
    chosen.head = Math.min(chosen.head, entry.heads - 1);
    const model = entries.filter((one) => one.model === entry.model);
    const task = model.filter((one) => one.task === entry.task);
    options("model", unique(entries.map((one) => one.model)).map((name) => [name, name]), entry.model);
    options("task", unique(model.map((one) => one.task)).map((name) => [name, model.find((one) => one.task === name).title]), entry.task);
    options("constants", task.map((one, place) => [String(place), one.words]), String(task.indexOf(entry)));
    options("layer", numbers(entry.layers), String(chosen.layer));
    options("head", numbers(entry.heads), String(chosen.head));
    for (const option of by("measure").options) option.disabled = entry.of[option.value].every((value) => value === null);
    const measure = by("measure");
    if (measure.selectedOptions[0]?.disabled ?? true) measure.value = [...measure.options].find((option) => !option.disabled)?.value ?? "";
    chosen.measure = measure.value;
    drawGrid();
    listHeads();
    showHead();
    // highlight the chosen model in the figures
    const line = Object.keys(content.lines).find((name) => content.lines[name].model === entry.model && fitsLine(content.lines[name], entry));
    if (chosen.line !== null && line && line !== chosen.line) chooseLine(line);
  }

  const fitsLine = (about, entry) => [about.constant, null].includes(entry.constant) && (about.order === null || entry.order === null || about.order === entry.order);
  const numbers = (count) => Array.from({ length: count }, (_, place) => [String(place), String(place)]);

  function options(id, pairs, value) {
    by(id).replaceChildren(...pairs.map(([key, text]) => new Option(text, key)));
    by(id).value = value;
    by(id).parentElement.hidden = pairs.length < 2;
  }

  function chooseHead(layer, head) {
    const { layers, heads } = chosen.entry;
    chosen.layer = Math.max(0, Math.min(layers - 1, layer));
    chosen.head = Math.max(0, Math.min(heads - 1, head));
    by("layer").value = chosen.layer;
    by("head").value = chosen.head;
    drawn.get("grid")?.view.signal("layer", chosen.layer).signal("head", chosen.head).runAsync();
    showHead();
  }

  // ---- Heads.

  const RAMP = () => (isDark() ? ["#1c2125", "#0072B2", "#bfe3ff"] : ["#ffffff", "#0072B2", "#00213a"]);
  const BOTH_WAYS = () => (isDark() ? ["#56B4E9", "#2b3138", "#E69F00"] : ["#0072B2", "#f1f1f1", "#D55E00"]);
  const percent = (share) => (share === null ? "–" : `${(100 * share).toFixed(1)}\u00a0%`.replace("-", "−"));
  const MEASURES = { lambda: ["λ", ".3f"], rank: ["rank", "d"] };

  function rowsOf(entry) {
    const patterns = sets[entry.set]?.patterns;
    return entry.of.rank.map((rank, place) => ({
      layer: Math.floor(place / entry.heads),
      head: place % entry.heads,
      lambda: entry.of.lambda[place],
      rank: rank === null ? null : rank + 1,
      pattern: patterns ? Object.keys(content.flags).filter((flag) => patterns[place][flag]).map((flag) => content.flags[flag]).join(", ") || "none of these" : "",
    }));
  }

  // λ starts at 0.5 and moves little; its colours show the direction.
  function colour(entry, measure) {
    const [title, format] = MEASURES[measure];
    const legend = { title, format, tickCount: 4, gradientLength: Math.min(160, 24 * entry.layers) };
    if (measure === "rank") return { field: measure, type: "quantitative", scale: { range: "ramp", interpolate: "rgb", zero: false, nice: false }, legend };
    const farthest = Math.max(0.001, ...entry.of.lambda.map((value) => Math.abs(value - 0.5)));
    const scale = { domain: [0.5 - farthest, 0.5, 0.5 + farthest], range: BOTH_WAYS(), interpolate: "rgb", nice: false };
    return { field: measure, type: "quantitative", scale, legend };
  }

  function about(entry, measure) {
    const known = entry.of.lambda.filter((value) => value !== null);
    if (measure === "lambda") return `λ from ${Math.min(...known).toFixed(3)} to ${Math.max(...known).toFixed(3)}; only the order matters. `;
    return measure === "rank" ? "Rank 1 is replaced first. " : "These heads have no order. ";
  }

  async function drawGrid() {
    const { entry, measure } = chosen;
    if (!entry) return;
    const room = by("grid").clientWidth - MENU() - 110;
    const side = Math.max(12, Math.min(36, Math.floor(room / entry.heads)));
    const here = "datum.layer === layer && datum.head === head";
    const axis = { labelAngle: 0, ticks: false, domain: false, grid: false, labelOverlap: true };
    by("grid-title").textContent = `${by("measure").selectedOptions[0]?.textContent ?? "Heads"}: ${entry.title}`;
    by("grid-note").textContent = `${about(entry, measure)}Arrow keys move between heads.`;
    const view = await draw("grid", {
      data: { values: rowsOf(entry) },
      params: [{ name: "layer", value: chosen.layer }, { name: "head", value: chosen.head }],
      width: { step: side },
      height: { step: Math.min(side, 28) },
      mark: { type: "rect", cornerRadius: 2, strokeWidth: 2.5 },
      encoding: {
        x: { field: "head", type: "ordinal", title: "head", axis, scale: { paddingInner: 0.12 } },
        y: { field: "layer", type: "ordinal", title: "layer", axis, scale: { paddingInner: 0.12 } },
        color: measure ? colour(entry, measure) : { value: isDark() ? "#2b3138" : "#f1f1f1" },
        stroke: { condition: { test: here, value: isDark() ? "#ffffff" : "#000000" }, value: isDark() ? "#343a41" : "#dde1e5" },
        strokeWidth: { condition: { test: here, value: 3 }, value: 0.5 },
        tooltip: [
          { field: "layer" }, { field: "head" },
          { field: "lambda", type: "quantitative", title: "λ", format: ".3f" },
          { field: "rank" },
          { field: "pattern" },
        ],
      },
      config: { range: { ramp: RAMP() } },
    });
    view?.addEventListener("click", (_, item) => {
      if (item?.datum && "layer" in item.datum) chooseHead(item.datum.layer, item.datum.head);
    });
    view?.signal("layer", chosen.layer).signal("head", chosen.head).runAsync();
  }

  // Cells of one head, as numbers again.
  const unpacked = new Map();
  function cellsOf(set, place) {
    if (!unpacked.has(set)) unpacked.set(set, Uint8Array.from(atob(set.cells), (letter) => letter.charCodeAt(0)));
    const n = set.slots.length;
    const largest = set.largest[place];
    return [...unpacked.get(set).subarray(place * n * n, (place + 1) * n * n)].flatMap((step, cell) =>
      step === 255 ? [] : [{ query: set.slots[Math.floor(cell / n)], key: set.slots[cell % n], mean: (step / 254) ** 2 * largest }]);
  }

  async function drawMatrix(set, place) {
    const n = set.slots.length;
    const step = 1 + Math.floor(n / 16);
    const special = set.slots.filter((slot) => slot in set.special);
    const far = (slot) => special.every((place) => Math.abs(place - slot) >= step || place === slot);
    const labelled = set.slots.filter((slot, number) => slot in set.special || (number % step === 0 && far(slot)));
    const axis = { values: labelled, labelAngle: 0, labelOverlap: false, ticks: false, domain: false, grid: false,
      labelExpr: `${JSON.stringify(set.special)}[datum.value] || datum.value` };
    const room = Math.min(420, by("matrix").clientWidth - MENU() - 115);
    const side = Math.max(1, Math.floor(room / n)) * n;
    const of = (field, title, more) => ({ field, type: "ordinal", title, scale: { domain: set.slots }, axis: { ...axis, ...more } });
    await draw("matrix", {
      data: { values: cellsOf(set, place) },
      width: side,
      height: side,
      mark: { type: "rect", aria: false },
      encoding: {
        x: of("key", "key slot", { labelAngle: -90, labelAlign: "right", labelBaseline: "middle" }),
        y: of("query", "query slot"),
        color: { field: "mean", type: "quantitative", scale: { type: "sqrt", range: "ramp", interpolate: "rgb", domain: [0, set.largest[place] || 1] },
          legend: { title: null, gradientLength: Math.min(side, 200), tickCount: 4 } },
        tooltip: [
          { field: "query", title: "query slot" }, { field: "key", title: "key slot" },
          { field: "mean", type: "quantitative", title: "mean attention", format: ".4f" },
        ],
      },
      config: { range: { ramp: RAMP() }, view: { fill: isDark() ? "#343a41" : "#e6e6e6" } },
    });
  }

  function showHead() {
    const { entry, layer, head } = chosen;
    if (!entry) return;
    const place = layer * entry.heads + head;
    const row = rowsOf(entry)[place];
    const set = sets[entry.set];
    by("matrix-title").textContent = `Constant matrix of layer ${layer}, head ${head}`;
    const said = [`Layer ${layer}, head ${head} on ${entry.title} (${entry.model}, ${entry.words}).`];
    if (row.lambda !== null) said.push(`λ ${row.lambda.toFixed(3)}.`);
    if (row.rank !== null) said.push(`Rank ${row.rank} of ${entry.layers * entry.heads}: rank 1 is replaced first.`);
    if (set) {
      const about = set.patterns[place];
      said.push(`Pattern: ${row.pattern}.`);
      said.push(`[CLS] gets ${percent(about.first_mass)} of its attention, separators ${percent(about.separator_mass)}` +
        (about.offset === null ? "." : `; the strongest diagonal looks ${looks(about.offset)}, ${about.diagonal_lift.toFixed(1)} times an even share.`));
      drawMatrix(set, place);
      const n = set.slots.length;
      by("slots").textContent = `Mean over ${counted(set.examples, "example")}` +
        (n < set.used ? `; ${n} of ${counted(set.used, "used slot")} are drawn, those in most use.` : ".") + " Colours follow the square root, so that small entries show. Grey: no example has both slots.";
    } else {
      last.set("matrix", (last.get("matrix") || 0) + 1);
      drawn.get("matrix")?.finalize();
      drawn.delete("matrix");
      by("matrix").replaceChildren();
      by("slots").textContent = "These constants are not averaged over texts, and are the same for every head.";
    }
    by("chosen").textContent = said.join(" ");
    for (const line of by("heads").tBodies[0].rows) line.setAttribute("aria-selected", String(line.dataset.place === String(place)));
  }

  const looks = (offset) => (offset === 0 ? "at the token itself" : `${counted(Math.abs(offset), "token")} ${offset > 0 ? "back" : "ahead"}`);

  function listHeads() {
    const header = ["layer", "head", "λ", "rank", "pattern"];
    const table = by("heads");
    table.tHead.rows[0].replaceChildren(...header.map((name) => {
      const cell = document.createElement("th");
      if (name !== "pattern") cell.className = "number";
      cell.scope = "col";
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = name;
      cell.append(button);
      return cell;
    }));
    table.tBodies[0].replaceChildren(...rowsOf(chosen.entry).map((row, place) => {
      const line = document.createElement("tr");
      line.dataset.place = place;
      const cells = [row.layer, row.head, row.lambda === null ? "–" : row.lambda.toFixed(3), row.rank ?? "–", row.pattern];
      line.append(...cells.map((text, column) => {
        const cell = document.createElement("td");
        if (header[column] !== "pattern") cell.className = "number";
        cell.textContent = text;
        return cell;
      }));
      return line;
    }));
  }

  // ---- Tables.

  const numberIn = (text) => {
    if (/^\d{4}-\d\d-\d\d/.test(text)) return null; // a date sorts as text
    const match = text.replaceAll(",", "").match(/^(all )?([+−-]?[\d.]+)(?:\/(\d+))?/);
    return match ? Number(match[2].replace("−", "-")) / Number(match[3] || 1) : null;
  };

  function sort(cell) {
    const table = cell.closest("table");
    const place = cell.cellIndex;
    const up = cell.getAttribute("aria-sort") !== "ascending";
    for (const other of cell.parentElement.cells) other.removeAttribute("aria-sort");
    cell.setAttribute("aria-sort", up ? "ascending" : "descending");
    const rows = [...table.tBodies[0].rows].map((row) => ({ row, text: row.cells[place]?.textContent.trim() ?? "" }));
    const empty = ({ text }) => ["", "-", "–"].includes(text);
    const asNumbers = rows.every((one) => empty(one) || numberIn(one.text) !== null);
    rows.sort((one, two) => {
      if (empty(one) || empty(two)) return empty(one) - empty(two); // last in either direction
      const order = asNumbers ? numberIn(one.text) - numberIn(two.text) : one.text.localeCompare(two.text);
      return up ? order : -order;
    });
    table.tBodies[0].append(...rows.map(({ row }) => row));
  }

  // A spreadsheet runs a cell that begins like a formula; numbers with intervals may begin with a sign.
  const NUMBER = /^[+-]?[\d.,]+( ?%)?( ±[\d.,]+)?$/;
  const inert = (text) => (/^[=+\-@\t\r]./s.test(text) && !NUMBER.test(text) ? `'${text}` : text);
  const quoted = (text) => `"${inert(text).replaceAll('"', '""')}"`;

  function download(id) {
    const lines = [...by(id).rows].map((row) => [...row.cells].map((cell) => quoted(cell.textContent.trim())).join(","));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([`${lines.join("\r\n")}\r\n`], { type: "text/csv" }));
    link.download = `${id}.csv`;
    link.click();
    URL.revokeObjectURL(link.href);
  }

  // ---- Events.

  chosen.entry = entries[0] ?? null;

  document.addEventListener("click", (event) => {
    const sorted = event.target.closest("th button");
    if (sorted) return sort(sorted.parentElement);
    const csv = event.target.closest("button.csv");
    if (csv) return download(csv.dataset.table);
    const row = event.target.closest("#heads tbody tr");
    if (row) chooseHead(Math.floor(row.dataset.place / chosen.entry.heads), row.dataset.place % chosen.entry.heads);
  });
  by("line").addEventListener("change", (event) => chooseLine(event.target.value || null));
  for (const id of chosen.entry ? ["model", "task", "constants"] : []) {
    by(id).addEventListener("change", () => {
      const model = entries.filter((entry) => entry.model === by("model").value);
      const task = model.filter((entry) => entry.task === by("task").value);
      const wanted = id === "constants" ? task[Number(by("constants").value)] : (task.length ? task : model).find((entry) => entry.words === chosen.entry.words);
      chooseEntry(wanted || task[0] || model[0]);
    });
  }
  by("measure")?.addEventListener("change", (event) => { chosen.measure = event.target.value; drawGrid(); });
  for (const id of chosen.entry ? ["layer", "head"] : []) {
    by(id).addEventListener("change", () => chooseHead(Number(by("layer").value), Number(by("head").value)));
  }
  by("grid")?.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    chooseHead(chosen.layer + step[0], chosen.head + step[1]);
  });

  // Redraw figures with fixed colours when the theme changes.
  function themed() {
    by("theme").textContent = isDark() ? "Light" : "Dark";
    drawAll();
  }
  by("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    themed();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themed);

  function drawAll() {
    const ready = [...Object.keys(content.figures).map(drawFigure), drawGrid()];
    showHead();
    return Promise.all(ready);
  }
  let width = document.documentElement.clientWidth;
  let waiting;
  addEventListener("resize", () => {
    if (document.documentElement.clientWidth === width) return;
    width = document.documentElement.clientWidth;
    clearTimeout(waiting);
    waiting = setTimeout(drawAll, 150);
  });
  addEventListener("beforeprint", () => {
    for (const part of document.querySelectorAll("main details:not([open])")) part.dataset.printed = part.open = true;
  });
  addEventListener("afterprint", () => {
    for (const part of document.querySelectorAll("details[data-printed]")) {
      part.open = false;
      delete part.dataset.printed;
    }
  });

  by("theme").textContent = isDark() ? "Light" : "Dark";
  showLine();
  if (entries.length) chooseEntry(entries[0]);
  Promise.all(Object.keys(content.figures).map(drawFigure)).then(() => { document.documentElement.dataset.drawn = "all"; });
})();
