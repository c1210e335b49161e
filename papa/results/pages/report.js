"use strict";
// The map of heads: a button for each head, coloured by its λ, and the matrix that replaces the chosen head.
(() => {
  const { maps, matrices } = JSON.parse(document.getElementById("content").textContent);
  if (!maps.length) return;
  const element = (id) => document.getElementById(id);
  const numbers = (count) => [...Array(count).keys()];
  const GREY = [200, 200, 200];
  const RAMP = [[255, 255, 255], [0, 114, 178], [0, 33, 58]]; // from no attention to the highest
  let map = maps[0];
  let chosen = 0; // layer * heads + head

  function cell(tag, content, scope) {
    const made = document.createElement(tag);
    made.append(content);
    if (scope) made.scope = scope;
    return made;
  }

  const words = (index) => {
    const weight = map.weights?.[index];
    const head = `Layer ${Math.floor(index / map.heads)}, head ${index % map.heads}`;
    return weight === undefined ? head : `${head}: λ ${weight.toFixed(3)}`;
  };

  // λ may differ little between heads, so colours run from the smallest λ to the largest.
  function button(index, least, most) {
    const made = document.createElement("button");
    made.type = "button";
    made.ariaLabel = made.title = words(index);
    made.dataset.index = index;
    if (map.weights) {
      const share = (2 * map.weights[index] - least - most) / Math.max(most - least, 1e-9);
      made.style.background = `color-mix(in srgb, var(--${share < 0 ? "low" : "high"}) ${Math.abs(100 * share)}%, var(--even))`;
    }
    return made;
  }

  function showMap() {
    map = maps[element("choice").value];
    const [least, most] = ["min", "max"].map((end) => Math[end](...(map.weights ?? [])));
    const row = (cells) => {
      const made = document.createElement("tr");
      made.append(...cells);
      return made;
    };
    element("map").replaceChildren(
      row([cell("td", "layer \\ head"), ...numbers(map.heads).map((head) => cell("th", head, "col"))]),
      ...numbers(map.layers).map((layer) => row([
        cell("th", layer, "row"),
        ...numbers(map.heads).map((head) => cell("td", button(layer * map.heads + head, least, most))),
      ])),
    );
    const [low, , high] = element("scale").children;
    element("scale").hidden = element("range").hidden = !map.weights;
    low.textContent = least.toFixed(3);
    high.textContent = most.toFixed(3);
    element("range").textContent = `λ started at 0.5 for every head and ended between ${low.textContent} and ${high.textContent}.` +
      (Math.max(most - 0.5, 0.5 - least) <= 0.1 ? " That is little after few steps, so the order of heads with a similar λ is uncertain." : "");
    choose(Math.min(chosen, map.layers * map.heads - 1));
  }

  function choose(index, focused = false) {
    chosen = index;
    for (const head of element("map").querySelectorAll("button")) {
      const isChosen = Number(head.dataset.index) === index;
      head.tabIndex = isChosen ? 0 : -1; // one stop for the tab key; arrows move between heads
      head.ariaPressed = isChosen;
      if (isChosen && focused) head.focus();
    }
    showMatrix();
  }

  const mixed = (from, to, share) => from.map((value, place) => value + (to[place] - value) * share);
  const colour = (share) => (share < 0.5 ? mixed(RAMP[0], RAMP[1], 2 * share) : mixed(RAMP[1], RAMP[2], 2 * share - 1));
  const NEVER = 255; // no example has both slots; other bytes are square roots of shares of the largest entry, times 254

  function entries() {
    const set = matrices[map.matrices];
    const size = set.slots.length ** 2;
    set.bytes ??= Uint8Array.from(atob(set.cells), (character) => character.charCodeAt(0));
    return set.bytes.subarray(chosen * size, (chosen + 1) * size);
  }

  function showMatrix() {
    const set = matrices[map.matrices];
    const canvas = element("matrix");
    canvas.hidden = !set;
    element("cell").textContent = "";
    if (!set) {
      element("chosen").textContent = `${words(chosen)}. What replaces its attention is not an average over texts.`;
      return;
    }
    const n = set.slots.length;
    canvas.width = canvas.height = n;
    const image = new ImageData(n, n);
    entries().forEach((byte, place) => image.data.set([...(byte === NEVER ? GREY : colour(byte / 254)), 255], 4 * place));
    canvas.getContext("2d").putImageData(image, 0, 0);
    const special = set.special.join(", ");
    element("chosen").textContent = `${words(chosen)}. Mean attention over ${set.examples.toLocaleString("en")} examples in ` +
      `${n} slots (${set.slots[0]} to ${set.slots[n - 1]}), without those that few examples use; the largest entry is ${set.largest[chosen]}. ` +
      `${special ? `Slots with a special token: ${special}. ` : ""}Colours follow the square root; grey: no example has both slots.`;
  }

  function showCell(event) {
    const set = matrices[map.matrices];
    const n = set.slots.length;
    const box = element("matrix").getBoundingClientRect();
    const place = (at, start, length) => Math.max(0, Math.min(n - 1, Math.floor((n * (at - start)) / length)));
    const [query, key] = [place(event.clientY, box.top, box.height), place(event.clientX, box.left, box.width)];
    const byte = entries()[query * n + key];
    const mean = byte === NEVER ? "no example has both" : ((byte / 254) ** 2 * set.largest[chosen]).toFixed(4);
    element("cell").textContent = `Query slot ${set.slots[query]}, key slot ${set.slots[key]}: ${mean}`;
  }

  element("choice").addEventListener("change", showMap);
  element("matrix").addEventListener("pointermove", showCell);
  element("map").addEventListener("click", (event) => {
    const head = event.target.closest("button");
    if (head) choose(Number(head.dataset.index));
  });
  element("map").addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    const within = (value, count) => Math.max(0, Math.min(count - 1, value));
    const layer = within(Math.floor(chosen / map.heads) + step[0], map.layers);
    choose(layer * map.heads + within((chosen % map.heads) + step[1], map.heads), true);
  });
  showMap();
})();
