"use strict";
// The HTML report's script draws figures, keeps choices consistent, and sorts and exports tables.
(() => {
  const content = JSON.parse(document.getElementById("content").textContent);
  const { entries, sets } = content.explorer;
  const element = (id) => document.getElementById(id);
  const unique = (values) => [...new Set(values)];
  const counted = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
  const chosen = { line: null, entry: null, layer: 0, head: 0, measure: "lambda" };

  // ---- Figures. Their text inherits its colour from the document.

  const drawn = new Map(); // id of an element → vega-embed's result
  const newest = new Map(); // id of an element → number of its newest drawing; older drawings are discarded
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
    const drawing = (newest.get(id) || 0) + 1;
    newest.set(id, drawing);
    const container = document.createElement("div");
    const result = await vegaEmbed(container, { ...spec, config: merged(spec.config || {}, LOOK) }, {
      renderer: "svg",
      mode: "vega-lite",
      actions: { export: true, source: false, compiled: false, editor: false },
      downloadFileName: `papa-${id}`,
      tooltip: { theme: isDark() ? "dark" : "light" },
      loader: { load: () => Promise.reject(new Error("The HTML report loads nothing.")) },
    });
    if (newest.get(id) !== drawing) return result.finalize();
    drawn.get(id)?.finalize();
    drawn.set(id, result);
    element(id).replaceChildren(container);
    return result.view;
  }

  // Fill each row with as wide panels as fit, all of the same width; the figure specifies the margin of a panel.
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
    // a figure in a folded section has no width
    const view = await draw(id, fitted(content.figures[name], element(id).closest("section, header").clientWidth - MENU()));
    if (!view || !has(view, "lines_store")) return;
    mark(view);
    // a click in a legend
    view.addSignalListener("lines", (_, value) => {
      const [line] = value?.line || [null];
      if (line !== chosen.line && (line === null || line in content.lines)) chooseLine(line);
    });
  }

  const has = (view, data) => { try { view.data(data); return true; } catch { return false; } };

  // Select the chosen line in a figure that has it.
  function mark(view) {
    const lines = unique(Object.keys(view.getState({ data: () => true }).data)
      .flatMap((name) => (has(view, name) ? view.data(name) : [])).map((row) => row.line));
    const line = lines.includes(chosen.line) ? chosen.line : null;
    const selected = view.data("lines_store").map((row) => row.values[0])[0] ?? null;
    if (selected === line) return;
    const selection = { unit: "", fields: [{ type: "E", field: "line" }], values: [line] };
    view.data("lines_store", line === null ? [] : [selection]).run();
  }

  // ---- Choices.

  function chooseLine(line) {
    chosen.line = line;
    for (const [, result] of drawn) if (has(result.view, "lines_store")) mark(result.view);
    showLine();
    const settings = content.lines[line];
    if (!settings) return;
    const matches = (entry) => ["model", "constant", "order"].filter((key) => settings[key] === null || entry[key] === settings[key]).length;
    const candidates = chosen.entry ? entries.filter((entry) => entry.model === settings.model) : [];
    const best = candidates.sort((a, b) => matches(b) - matches(a) || (b.task === chosen.entry.task) - (a.task === chosen.entry.task))[0];
    if (best && best !== chosen.entry) chooseEntry(best);
  }

  function showLine() {
    for (const block of document.querySelectorAll(".block")) block.classList.toggle("chosen", block.dataset.line === chosen.line);
    element("line").value = chosen.line ?? "";
  }

  function chooseEntry(entry) {
    chosen.entry = entry;
    chosen.layer = Math.min(chosen.layer, entry.layers - 1);
    chosen.head = Math.min(chosen.head, entry.heads - 1);
    const ofModel = entries.filter((other) => other.model === entry.model);
    const ofTask = ofModel.filter((other) => other.task === entry.task);
    options("model", unique(entries.map((other) => other.model)).map((name) => [name, name]), entry.model);
    options("task", unique(ofModel.map((other) => other.task)).map((name) => [name, ofModel.find((other) => other.task === name).title]), entry.task);
    options("constants", ofTask.map((other, index) => [String(index), other.words]), String(ofTask.indexOf(entry)));
    options("layer", numbers(entry.layers), String(chosen.layer));
    options("head", numbers(entry.heads), String(chosen.head));
    for (const option of element("measure").options) option.disabled = entry.values[option.value].every((value) => value === null);
    const measure = element("measure");
    if (measure.selectedOptions[0]?.disabled ?? true) measure.value = [...measure.options].find((option) => !option.disabled)?.value ?? "";
    chosen.measure = measure.value;
    drawGrid();
    listHeads();
    showHead();
    // highlight the chosen model in the figures
    const line = Object.keys(content.lines).find((name) => content.lines[name].model === entry.model && fitsLine(content.lines[name], entry));
    if (chosen.line !== null && line && line !== chosen.line) chooseLine(line);
  }

  const fitsLine = (line, entry) => [line.constant, null].includes(entry.constant) && (line.order === null || entry.order === null || line.order === entry.order);
  const numbers = (count) => Array.from({ length: count }, (_, index) => [String(index), String(index)]);

  function options(id, pairs, value) {
    element(id).replaceChildren(...pairs.map(([key, text]) => new Option(text, key)));
    element(id).value = value;
    element(id).parentElement.hidden = pairs.length < 2;
  }

  function chooseHead(layer, head) {
    const { layers, heads } = chosen.entry;
    chosen.layer = Math.max(0, Math.min(layers - 1, layer));
    chosen.head = Math.max(0, Math.min(heads - 1, head));
    element("layer").value = chosen.layer;
    element("head").value = chosen.head;
    drawn.get("grid")?.view.signal("layer", chosen.layer).signal("head", chosen.head).runAsync();
    showHead();
  }

  // ---- Heads.

  const RAMP = () => (isDark() ? ["#1c2125", "#0072B2", "#bfe3ff"] : ["#ffffff", "#0072B2", "#00213a"]);
  const DIVERGING = () => (isDark() ? ["#56B4E9", "#2b3138", "#E69F00"] : ["#0072B2", "#f1f1f1", "#D55E00"]);
  const percent = (share) => (share === null ? "–" : `${(100 * share).toFixed(1)}\u00a0%`.replace("-", "−"));
  const MEASURES = { lambda: ["λ", ".3f"], rank: ["rank", "d"] };

  function rowsOf(entry) {
    const patterns = sets[entry.matrices]?.patterns;
    return entry.values.rank.map((rank, index) => ({
      layer: Math.floor(index / entry.heads),
      head: index % entry.heads,
      lambda: entry.values.lambda[index],
      rank: rank === null ? null : rank + 1,
      pattern: patterns ? Object.keys(content.flags).filter((flag) => patterns[index][flag]).map((flag) => content.flags[flag]).join(", ") || "none of these" : "",
    }));
  }

  // λ starts at 0.5 and changes little, so colours show the direction of the change.
  function colour(entry, measure) {
    const [title, format] = MEASURES[measure];
    const legend = { title, format, tickCount: 4, gradientLength: Math.min(160, 24 * entry.layers) };
    if (measure === "rank") return { field: measure, type: "quantitative", scale: { range: "ramp", interpolate: "rgb", zero: false, nice: false }, legend };
    const farthest = Math.max(0.001, ...entry.values.lambda.map((value) => Math.abs(value - 0.5)));
    const scale = { domain: [0.5 - farthest, 0.5, 0.5 + farthest], range: DIVERGING(), interpolate: "rgb", nice: false };
    return { field: measure, type: "quantitative", scale, legend };
  }

  function about(entry, measure) {
    const known = entry.values.lambda.filter((value) => value !== null);
    if (measure === "lambda") return `λ from ${Math.min(...known).toFixed(3)} to ${Math.max(...known).toFixed(3)}; only the order matters. `;
    return measure === "rank" ? "Rank 1 is replaced first. " : "These heads have no order. ";
  }

  async function drawGrid() {
    const { entry, measure } = chosen;
    if (!entry) return;
    const room = element("grid").clientWidth - MENU() - 110;
    const side = Math.max(12, Math.min(36, Math.floor(room / entry.heads)));
    const isChosen = "datum.layer === layer && datum.head === head";
    const axis = { labelAngle: 0, ticks: false, domain: false, grid: false, labelOverlap: true };
    element("grid-title").textContent = `${element("measure").selectedOptions[0]?.textContent ?? "Heads"}: ${entry.title}`;
    element("grid-note").textContent = `${about(entry, measure)}Arrow keys move between heads.`;
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
        stroke: { condition: { test: isChosen, value: isDark() ? "#ffffff" : "#000000" }, value: isDark() ? "#343a41" : "#dde1e5" },
        strokeWidth: { condition: { test: isChosen, value: 3 }, value: 0.5 },
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

  // Decode the cells of one head.
  const decoded = new Map();
  function cellsOf(set, index) {
    if (!decoded.has(set)) decoded.set(set, Uint8Array.from(atob(set.cells), (character) => character.charCodeAt(0)));
    const n = set.slots.length;
    const largest = set.largest[index];
    return [...decoded.get(set).subarray(index * n * n, (index + 1) * n * n)].flatMap((step, cell) =>
      step === 255 ? [] : [{ query: set.slots[Math.floor(cell / n)], key: set.slots[cell % n], mean: (step / 254) ** 2 * largest }]);
  }

  async function drawMatrix(set, index) {
    const n = set.slots.length;
    const step = 1 + Math.floor(n / 16);
    const special = set.slots.filter((slot) => slot in set.special);
    const hasRoom = (slot) => special.every((other) => Math.abs(other - slot) >= step || other === slot);
    const labelled = set.slots.filter((slot, number) => slot in set.special || (number % step === 0 && hasRoom(slot)));
    const axis = { values: labelled, labelAngle: 0, labelOverlap: false, ticks: false, domain: false, grid: false,
      labelExpr: `${JSON.stringify(set.special)}[datum.value] || datum.value` };
    const room = Math.min(420, element("matrix").clientWidth - MENU() - 115);
    const side = Math.max(1, Math.floor(room / n)) * n;
    const slots = (field, title, style) => ({ field, type: "ordinal", title, scale: { domain: set.slots }, axis: { ...axis, ...style } });
    await draw("matrix", {
      data: { values: cellsOf(set, index) },
      width: side,
      height: side,
      mark: { type: "rect", aria: false },
      encoding: {
        x: slots("key", "key slot", { labelAngle: -90, labelAlign: "right", labelBaseline: "middle" }),
        y: slots("query", "query slot"),
        color: { field: "mean", type: "quantitative", scale: { type: "sqrt", range: "ramp", interpolate: "rgb", domain: [0, set.largest[index] || 1] },
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
    const index = layer * entry.heads + head;
    const row = rowsOf(entry)[index];
    const set = sets[entry.matrices];
    element("matrix-title").textContent = `Constant matrix of layer ${layer}, head ${head}`;
    const sentences = [`Layer ${layer}, head ${head} on ${entry.title} (${entry.model}, ${entry.words}).`];
    if (row.lambda !== null) sentences.push(`λ ${row.lambda.toFixed(3)}.`);
    if (row.rank !== null) sentences.push(`Rank ${row.rank} of ${entry.layers * entry.heads}: rank 1 is replaced first.`);
    if (set) {
      const measured = set.patterns[index];
      sentences.push(`Pattern: ${row.pattern}.`);
      sentences.push(`[CLS] gets ${percent(measured.first_mass)} of its attention, separators ${percent(measured.separator_mass)}` +
        (measured.offset === null ? "." : `; the strongest diagonal looks ${direction(measured.offset)}, ${measured.diagonal_lift.toFixed(1)} times an even share.`));
      drawMatrix(set, index);
      const n = set.slots.length;
      element("slots").textContent = `Mean over ${counted(set.examples, "example")}` +
        (n < set.used ? `; the ${n} most used of ${counted(set.used, "used slot")} are drawn.` : ".") + " Colours follow the square root, so small entries are visible. Grey: no example has both slots.";
    } else {
      newest.set("matrix", (newest.get("matrix") || 0) + 1);
      drawn.get("matrix")?.finalize();
      drawn.delete("matrix");
      element("matrix").replaceChildren();
      element("slots").textContent = "These constants are not averaged over texts, and are the same for every head.";
    }
    element("chosen").textContent = sentences.join(" ");
    for (const line of element("heads").tBodies[0].rows) line.setAttribute("aria-selected", String(line.dataset.index === String(index)));
  }

  const direction = (offset) => (offset === 0 ? "at the token itself" : `${counted(Math.abs(offset), "token")} ${offset > 0 ? "back" : "ahead"}`);

  function listHeads() {
    const header = ["layer", "head", "λ", "rank", "pattern"];
    const table = element("heads");
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
    table.tBodies[0].replaceChildren(...rowsOf(chosen.entry).map((row, index) => {
      const line = document.createElement("tr");
      line.dataset.index = index;
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
    const column = cell.cellIndex;
    const ascending = cell.getAttribute("aria-sort") !== "ascending";
    for (const other of cell.parentElement.cells) other.removeAttribute("aria-sort");
    cell.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    const rows = [...table.tBodies[0].rows].map((row) => ({ row, text: row.cells[column]?.textContent.trim() ?? "" }));
    const empty = ({ text }) => ["", "-", "–"].includes(text);
    const asNumbers = rows.every((row) => empty(row) || numberIn(row.text) !== null);
    rows.sort((a, b) => {
      if (empty(a) || empty(b)) return empty(a) - empty(b); // last in either direction
      const order = asNumbers ? numberIn(a.text) - numberIn(b.text) : a.text.localeCompare(b.text);
      return ascending ? order : -order;
    });
    table.tBodies[0].append(...rows.map(({ row }) => row));
  }

  // Spreadsheets execute cells that begin like a formula, so these get a quote; numbers may begin with a sign.
  const NUMBER = /^[+-]?[\d.,]+( ?%)?( ±[\d.,]+)?$/;
  const inert = (text) => (/^[=+\-@\t\r]./s.test(text) && !NUMBER.test(text) ? `'${text}` : text);
  const quoted = (text) => `"${inert(text).replaceAll('"', '""')}"`;

  function download(id) {
    const lines = [...element(id).rows].map((row) => [...row.cells].map((cell) => quoted(cell.textContent.trim())).join(","));
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
    if (row) chooseHead(Math.floor(row.dataset.index / chosen.entry.heads), row.dataset.index % chosen.entry.heads);
  });
  element("line").addEventListener("change", (event) => chooseLine(event.target.value || null));
  for (const id of chosen.entry ? ["model", "task", "constants"] : []) {
    element(id).addEventListener("change", () => {
      const ofModel = entries.filter((entry) => entry.model === element("model").value);
      const ofTask = ofModel.filter((entry) => entry.task === element("task").value);
      const wanted = id === "constants" ? ofTask[Number(element("constants").value)] : (ofTask.length ? ofTask : ofModel).find((entry) => entry.words === chosen.entry.words);
      chooseEntry(wanted || ofTask[0] || ofModel[0]);
    });
  }
  element("measure")?.addEventListener("change", (event) => { chosen.measure = event.target.value; drawGrid(); });
  for (const id of chosen.entry ? ["layer", "head"] : []) {
    element(id).addEventListener("change", () => chooseHead(Number(element("layer").value), Number(element("head").value)));
  }
  element("grid")?.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    chooseHead(chosen.layer + step[0], chosen.head + step[1]);
  });

  // Some colours are fixed in figures, so a new theme redraws them.
  function changeTheme() {
    element("theme").textContent = isDark() ? "Light" : "Dark";
    drawAll();
  }
  element("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    changeTheme();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changeTheme);

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
    for (const folded of document.querySelectorAll("main details:not([open])")) folded.dataset.printed = folded.open = true;
  });
  addEventListener("afterprint", () => {
    for (const unfolded of document.querySelectorAll("details[data-printed]")) {
      unfolded.open = false;
      delete unfolded.dataset.printed;
    }
  });

  element("theme").textContent = isDark() ? "Light" : "Dark";
  showLine();
  if (entries.length) chooseEntry(entries[0]);
  Promise.all(Object.keys(content.figures).map(drawFigure)).then(() => { document.documentElement.dataset.drawn = "all"; });
})();
