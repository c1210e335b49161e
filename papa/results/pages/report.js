"use strict";
// The HTML report's script draws figures, keeps choices consistent, and sorts and exports tables.
(() => {
  const content = JSON.parse(document.getElementById("content").textContent);
  const { entries, sets } = content.explorer;
  const element = (id) => document.getElementById(id);
  const unique = (values) => [...new Set(values)];
  const counted = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
  const chosen = { line: null };

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
    const [first] = panes;
    const candidates = first ? entries.filter((entry) => entry.model === settings.model) : [];
    const best = candidates.sort((a, b) => matches(b) - matches(a) || (b.task === first.entry.task) - (a.task === first.entry.task))[0];
    if (best && best !== first.entry) first.choose(best);
  }

  function showLine() {
    for (const block of document.querySelectorAll(".block")) block.classList.toggle("chosen", block.dataset.line === chosen.line);
    element("line").value = chosen.line ?? "";
  }

  const fitsLine = (line, entry) => [line.constant, null].includes(entry.constant) && (line.order === null || entry.order === null || line.order === entry.order);
  const numbers = (count) => Array.from({ length: count }, (_, index) => [String(index), String(index)]);

  function options(field, pairs, value) {
    field.replaceChildren(...pairs.map(([key, text]) => new Option(text, key)));
    field.value = value;
    field.parentElement.hidden = pairs.length < 2;
  }

  // ---- Heads.

  const RAMP = () => (isDark() ? ["#1c2125", "#0072B2", "#bfe3ff"] : ["#ffffff", "#0072B2", "#00213a"]);
  const DIVERGING = () => (isDark() ? ["#56B4E9", "#2b3138", "#E69F00"] : ["#0072B2", "#f1f1f1", "#D55E00"]);
  const percent = (share) => (share === null ? "–" : `${(100 * share).toFixed(1)}\u00a0%`.replace("-", "−"));
  const MEASURES = { lambda: ["λ", ".3f"], rank: ["rank", "d"] };

  function rowsOf(entry, fraction) {
    const patterns = sets[entry.matrices]?.patterns;
    const replaced = entry.values.rank.length - (entry.kept[fraction] ?? 0);
    return entry.values.rank.map((rank, index) => ({
      layer: Math.floor(index / entry.heads),
      head: index % entry.heads,
      lambda: entry.values.lambda[index],
      rank: rank === null ? null : rank + 1,
      kept: rank !== null && rank >= replaced,
      pattern: patterns ? Object.keys(content.flags).filter((flag) => patterns[index][flag]).map((flag) => content.flags[flag]).join(", ") || "none of these" : "",
    }));
  }

  // λ starts at 0.5 and changes little, so colours show the direction of the change; maps side by side share a scale.
  function colour(entry, measure) {
    const [title, format] = MEASURES[measure];
    const legend = { title, format, tickCount: 4, gradientLength: Math.min(160, 24 * entry.layers) };
    if (measure === "rank") return { field: measure, type: "quantitative", scale: { range: "ramp", interpolate: "rgb", zero: false, nice: false }, legend };
    const farthest = Math.max(0.001, ...open().flatMap((pane) => pane.entry.values.lambda.map((value) => Math.abs((value ?? 0.5) - 0.5))));
    const scale = { domain: [0.5 - farthest, 0.5, 0.5 + farthest], range: DIVERGING(), interpolate: "rgb", nice: false };
    return { field: measure, type: "quantitative", scale, legend };
  }

  function about(entry, measure) {
    const known = entry.values.lambda.filter((value) => value !== null);
    if (measure === "lambda") return `λ from ${Math.min(...known).toFixed(3)} to ${Math.max(...known).toFixed(3)}; only the order matters. `;
    return measure === "rank" ? "Rank 1 is replaced first. " : "These heads have no order. ";
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

  const direction = (offset) => (offset === 0 ? "at the token itself" : `${counted(Math.abs(offset), "token")} ${offset > 0 ? "back" : "ahead"}`);

  function listHeads(pane) {
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
    table.tBodies[0].replaceChildren(...rowsOf(pane.entry).map((row, index) => {
      const line = document.createElement("tr");
      line.dataset.index = index;
      const link = document.createElement("a");
      link.href = address([pane.state(row.layer, row.head)]);
      link.textContent = row.head;
      link.ariaLabel = `layer ${row.layer}, head ${row.head}`;
      const cells = [row.layer, link, row.lambda === null ? "–" : row.lambda.toFixed(3), row.rank ?? "–", row.pattern];
      line.append(...cells.map((content, column) => {
        const cell = document.createElement("td");
        if (header[column] !== "pattern") cell.className = "number";
        cell.append(content);
        return cell;
      }));
      return line;
    }));
  }

  // A pane shows the map of all heads of an entry, and the matrix of one of them. The second pane is for comparisons.
  // Elements and parts of the address have the pane's number, which the first pane lacks.
  function newPane(number) {
    const at = (id) => element(id + number);
    const pane = { entry: entries[0], layer: 0, head: 0, fraction: "" };

    pane.state = (layer = pane.layer, head = pane.head) =>
      [["head", `${layer}.${head}`], ...VARIED.map((key) => [key, String(pane.entry[key])])].map(([key, value]) => [key + number, value]);

    pane.restore = (asked) => {
      const [layer, head] = (asked.get(`head${number}`) ?? "0.0").split(".").map((part) => Math.trunc(part) || 0);
      const fits = (entry) => VARIED.every((key) => String(entry[key]) === (asked.get(key + number) ?? String(entry[key])));
      pane.choose(entries.find(fits) ?? entries[0], layer, head);
    };

    pane.choose = (entry, layer = pane.layer, head = pane.head) => {
      pane.entry = entry;
      pane.layer = Math.max(0, Math.min(entry.layers - 1, layer));
      pane.head = Math.max(0, Math.min(entry.heads - 1, head));
      const ofModel = entries.filter((other) => other.model === entry.model);
      const ofTask = ofModel.filter((other) => other.task === entry.task);
      options(at("model"), unique(entries.map((other) => other.model)).map((name) => [name, name]), entry.model);
      options(at("task"), unique(ofModel.map((other) => other.task)).map((name) => [name, ofModel.find((other) => other.task === name).title]), entry.task);
      options(at("constants"), ofTask.map((other, index) => [String(index), other.words]), String(ofTask.indexOf(entry)));
      options(at("layer"), numbers(entry.layers), String(pane.layer));
      options(at("head"), numbers(entry.heads), String(pane.head));
      const total = entry.layers * entry.heads;
      const kept = Object.entries(entry.kept).map(([fraction, count]) => [fraction, `${fraction}: ${count} of ${total} heads`]);
      if (!(pane.fraction in entry.kept)) pane.fraction = "";
      options(at("kept"), [["", "none"], ...kept], pane.fraction);
      const measure = at("measure");
      for (const option of measure.options) option.disabled = entry.values[option.value].every((value) => value === null);
      if (measure.selectedOptions[0]?.disabled ?? true) measure.value = [...measure.options].find((option) => !option.disabled)?.value ?? "";
      measure.parentElement.hidden = !measure.value;
      drawMaps();
      pane.showHead();
      if (number) return;
      listHeads(pane);
      // highlight the chosen model in the figures
      const line = Object.keys(content.lines).find((name) => content.lines[name].model === entry.model && fitsLine(content.lines[name], entry));
      if (chosen.line !== null && line && line !== chosen.line) chooseLine(line);
    };

    pane.chooseHead = (layer, head) => {
      pane.layer = Math.max(0, Math.min(pane.entry.layers - 1, layer));
      pane.head = Math.max(0, Math.min(pane.entry.heads - 1, head));
      at("layer").value = pane.layer;
      at("head").value = pane.head;
      drawn.get(`grid${number}`)?.view.signal("layer", pane.layer).signal("head", pane.head).runAsync();
      pane.showHead();
    };

    pane.drawMap = async () => {
      const { entry } = pane;
      const measure = at("measure").value;
      const room = at("grid").clientWidth - MENU() - 110;
      const side = Math.max(12, Math.min(36, Math.floor(room / entry.heads)));
      const isChosen = "datum.layer === layer && datum.head === head";
      const axis = { labelAngle: 0, ticks: false, domain: false, grid: false, labelOverlap: true };
      const kept = pane.fraction ? `White dots: the ${entry.kept[pane.fraction]} heads kept at ${pane.fraction}. ` : "";
      at("grid-title").textContent = `${at("measure").selectedOptions[0]?.textContent ?? "Heads"}: ${entry.title}`;
      at("grid-note").textContent = `${about(entry, measure)}${kept}Arrow keys move between heads.`;
      const view = await draw(`grid${number}`, {
        data: { values: rowsOf(entry, pane.fraction) },
        params: [{ name: "layer", value: pane.layer }, { name: "head", value: pane.head }],
        width: { step: side },
        height: { step: Math.min(side, 28) },
        encoding: {
          x: { field: "head", type: "ordinal", title: "head", axis, scale: { paddingInner: 0.12 } },
          y: { field: "layer", type: "ordinal", title: "layer", axis, scale: { paddingInner: 0.12 } },
          tooltip: [
            { field: "layer" }, { field: "head" },
            { field: "lambda", type: "quantitative", title: "λ", format: ".3f" },
            { field: "rank" },
            { field: "pattern" },
          ],
        },
        layer: [
          {
            mark: { type: "rect", cornerRadius: 2, aria: false },
            encoding: {
              color: measure ? colour(entry, measure) : { value: isDark() ? "#2b3138" : "#f1f1f1" },
              stroke: { condition: { test: isChosen, value: isDark() ? "#ffffff" : "#000000" }, value: isDark() ? "#343a41" : "#dde1e5" },
              strokeWidth: { condition: { test: isChosen, value: 3 }, value: 0.5 },
            },
          },
          {
            transform: [{ filter: "datum.kept" }],
            mark: { type: "point", shape: "circle", filled: true, fill: "#ffffff", stroke: "#000000", opacity: 1, strokeWidth: 1.2, size: side * side * 0.12, aria: false },
          },
        ],
        config: { range: { ramp: RAMP() } },
      });
      view?.addEventListener("click", (_, item) => {
        if (item?.datum && "layer" in item.datum) visit(() => pane.chooseHead(item.datum.layer, item.datum.head));
      });
      view?.signal("layer", pane.layer).signal("head", pane.head).runAsync();
    };

    pane.drawMatrix = async (set, index) => {
      const n = set.slots.length;
      const step = 1 + Math.floor(n / 16);
      const special = set.slots.filter((slot) => slot in set.special);
      const hasRoom = (slot) => special.every((other) => Math.abs(other - slot) >= step || other === slot);
      const labelled = set.slots.filter((slot, place) => slot in set.special || (place % step === 0 && hasRoom(slot)));
      const axis = { values: labelled, labelAngle: 0, labelOverlap: false, ticks: false, domain: false, grid: false,
        labelExpr: `${JSON.stringify(set.special)}[datum.value] || datum.value` };
      const room = Math.min(420, at("matrix").clientWidth - MENU() - 115);
      const side = Math.max(1, Math.floor(room / n)) * n;
      const slots = (field, title, style) => ({ field, type: "ordinal", title, scale: { domain: set.slots }, axis: { ...axis, ...style } });
      await draw(`matrix${number}`, {
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
    };

    pane.showHead = () => {
      const { entry, layer, head, fraction } = pane;
      const index = layer * entry.heads + head;
      const row = rowsOf(entry, fraction)[index];
      const set = sets[entry.matrices];
      at("matrix-title").textContent = `${set ? "Constant matrix of layer" : "Layer"} ${layer}, head ${head}`;
      const sentences = [`Layer ${layer}, head ${head} on ${entry.title} (${entry.model}, ${entry.words}).`];
      if (row.lambda !== null) sentences.push(`λ ${row.lambda.toFixed(3)}.`);
      if (row.rank !== null) sentences.push(`Rank ${row.rank} of ${entry.layers * entry.heads}: rank 1 is replaced first.`);
      if (fraction) sentences.push(`At ${fraction}, it is ${row.kept ? "kept" : "replaced"}.`);
      if (set) {
        const measured = set.patterns[index];
        sentences.push(`Pattern: ${row.pattern}.`);
        sentences.push(`[CLS] gets ${percent(measured.first_mass)} of its attention, separators ${percent(measured.separator_mass)}` +
          (measured.offset === null ? "." : `; the strongest diagonal looks ${direction(measured.offset)}, ${measured.diagonal_lift.toFixed(1)} times an even share.`));
        pane.drawMatrix(set, index);
        const n = set.slots.length;
        at("slots").textContent = `Mean over ${counted(set.examples, "example")}` +
          (n < set.used ? `; the ${n} most used of ${counted(set.used, "used slot")} are drawn.` : ".") + " Colours follow the square root, so small entries are visible. Grey: no example has both slots.";
      } else {
        const id = `matrix${number}`;
        newest.set(id, (newest.get(id) || 0) + 1);
        drawn.get(id)?.finalize();
        drawn.delete(id);
        at("matrix").replaceChildren();
        at("slots").textContent = "What replaces attention here is not an average over texts, so there is no matrix to show.";
      }
      at("chosen").textContent = sentences.join(" ");
      if (number) return;
      for (const line of element("heads").tBodies[0].rows) line.setAttribute("aria-selected", String(line.dataset.index === String(index)));
    };

    for (const id of ["model", "task", "constants"]) {
      at(id).addEventListener("change", () => visit(() => {
        const ofModel = entries.filter((entry) => entry.model === at("model").value);
        const ofTask = ofModel.filter((entry) => entry.task === at("task").value);
        const wanted = id === "constants" ? ofTask[Number(at("constants").value)] : (ofTask.length ? ofTask : ofModel).find((entry) => entry.words === pane.entry.words);
        pane.choose(wanted || ofTask[0] || ofModel[0]);
      }));
    }
    at("measure").addEventListener("change", () => drawMaps());
    at("kept").addEventListener("change", () => { pane.fraction = at("kept").value; pane.drawMap(); pane.showHead(); });
    for (const id of ["layer", "head"]) {
      at(id).addEventListener("change", () => visit(() => pane.chooseHead(Number(at("layer").value), Number(at("head").value))));
    }
    at("grid").addEventListener("keydown", (event) => {
      const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!step) return;
      event.preventDefault();
      visit(() => pane.chooseHead(pane.layer + step[0], pane.head + step[1]), true);
    });
    return pane;
  }

  // ---- Addresses: `#head=2.4` is layer 2, head 4; other parts are there if entries differ in them.

  const VARIED = ["model", "task", "constant", "order"].filter((key) => unique(entries.map((entry) => entry[key])).length > 1);
  const panes = entries.length ? ["", "2"].map(newPane) : [];
  const isCompared = () => panes.length > 0 && !element("pane2").hidden;
  const open = () => panes.slice(0, isCompared() ? 2 : 1);
  const drawMaps = () => Promise.all(open().map((pane) => pane.drawMap()));
  const address = (states) => `#${new URLSearchParams(states.flat())}`;
  const here = () => address(open().map((pane) => pane.state()));

  function visit(change, replaces = false) {
    change();
    if (location.hash === here()) return;
    if (replaces) location.replace(here());
    else location.hash = here();
  }

  function compare(compared) {
    element("pane2").hidden = !compared;
    element("panes").classList.toggle("two", compared);
    element("compare").setAttribute("aria-pressed", String(compared));
  }

  // Show the heads in the address; return whether it has any.
  function restore() {
    const asked = new URLSearchParams(location.hash.slice(1));
    if (!panes.length || (location.hash && !asked.has("head"))) return false; // the address of a section
    compare(asked.has("head2"));
    for (const pane of open()) pane.restore(asked);
    return asked.has("head");
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

  async function copy(button) {
    const text = button.dataset.text ?? element(button.dataset.of).textContent;
    try {
      await navigator.clipboard.writeText(text);
    } catch { // browsers withhold the clipboard from some pages, for example without https
      const field = document.body.appendChild(document.createElement("textarea"));
      field.value = text;
      field.select();
      document.execCommand("copy");
      field.remove();
      button.focus();
    }
    element("status").textContent = `Copied: ${button.ariaLabel}`;
    button.dataset.label ??= button.textContent;
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = button.dataset.label; }, 1500);
  }

  // ---- Events.

  document.addEventListener("click", (event) => {
    const sorted = event.target.closest("th button");
    if (sorted) return sort(sorted.parentElement);
    const csv = event.target.closest("button.csv");
    if (csv) return download(csv.dataset.table);
    const copied = event.target.closest("button.copy");
    if (copied) return copy(copied);
    const row = event.target.closest("#heads tbody tr");
    if (!row) return;
    const { heads } = panes[0].entry;
    visit(() => panes[0].chooseHead(Math.floor(row.dataset.index / heads), row.dataset.index % heads));
  });
  element("line").addEventListener("change", (event) => chooseLine(event.target.value || null));
  element("compare")?.addEventListener("click", () => visit(() => {
    compare(!isCompared());
    const { entry, layer, head } = panes[0];
    const other = entries.find(({ model, task, words }) => model === entry.model && task !== entry.task && words === entry.words);
    if (isCompared()) panes[1].choose(other ?? entry, layer, head);
    panes[0].choose(entry);
  }));
  addEventListener("hashchange", () => {
    if (panes.length && location.hash !== here() && restore()) element("grid").scrollIntoView({ block: "nearest" });
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
    if (panes.length) drawMaps();
    for (const pane of open()) pane.showHead();
    return Promise.all(Object.keys(content.figures).map(drawFigure));
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
  const linked = restore();
  if (panes.length && location.hash && !linked) panes[0].choose(entries[0]); // the address is that of a section
  Promise.all(Object.keys(content.figures).map(drawFigure)).then(() => {
    if (linked) element("explorer").scrollIntoView();
    document.documentElement.dataset.drawn = "all";
  });
})();
