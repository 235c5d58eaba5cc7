// One trace on the page: its tokens, heat map, grid, sinks through time, and two tables of numbers.

function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value != null && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((one) => one != null)); // strings become text nodes, never markup
  return node;
}

class Panel {
  constructor(app, view, id) {
    this.app = app;
    this.view = view;
    this.id = id;
    this.hovered = null;
    this.tokens = new Tokens(this);
    this.heat = new HeatMap(this);
    this.grid = new Grid(this);
    this.sinks = new Sinks(this);
    this.note = element("p", { class: "note" });
    this.nowTable = this.table("The strongest keys of this step", ["position", "token", "received", "sink in"]);
    this.stayTable = this.table("Where sinks stay", ["position", "token", "steps", "strength", "end"]);
    this.root = element("section", { class: "panel", "aria-label": `trace ${view.name}` },
      this.header(),
      element("div", { class: "cards" },
        this.card("Tokens", this.tokens, "wide", this.tokens.box, this.tokenKey()),
        this.pictureCard("Step × position", this.heat, "main", "step by position heat map; arrow keys move step and position"),
        this.pictureCard("Layer × head", this.grid, "side", "layer by head grid; arrow keys choose layer and head, Escape the mean of all"),
        this.pictureCard("Sinks through time", this.sinks, "main", "sinks through time; arrow keys move step and position"),
        element("div", { class: "card side tables" }, this.nowTable.node, this.stayTable.node)));
    this.listenTokens();
  }

  get step() { return Math.min(this.app.state.step, this.view.T - 1); }
  get score() { return this.view.score(this.app.state.score); }

  header() {
    const { view } = this, [shown, many] = view.samples;
    const sizes = `${view.T} steps, ${view.L} layers${view.heads.length ? ` × ${view.H} heads` : " (means over heads)"}`;
    const facts = [["recorded", sizes], ...view.facts.filter(([key]) => key !== "recorded"),
      ...(many > 1 ? [["sample", `${view.sample} (${shown} of ${many} embedded)`]] : [])];
    return element("header", { class: "about" }, element("h2", {}, view.name),
      element("dl", {}, ...facts.map(([key, value]) => element("div", {}, element("dt", {}, key), element("dd", {}, value)))),
      this.note);
  }

  table(caption, columns) {
    const body = element("tbody");
    const node = element("table", {}, element("caption", {}, caption),
      element("thead", {}, element("tr", {}, ...columns.map((name) => element("th", { scope: "col" }, name)))), body);
    return { node, body, head: node.querySelectorAll("th"), rows: [], columns: columns.length };
  }

  fill(table, rows) {
    while (table.rows.length < rows.length) {
      const cells = Array.from({ length: table.columns }, () => element("td"));
      const line = element("tr", {}, ...cells);
      line.addEventListener("pointerenter", () => this.app.hover(this, { step: this.step, key: Number(line.dataset.key) }));
      line.addEventListener("pointerleave", () => this.app.hover(this, null));
      line.addEventListener("click", () => this.app.set({ key: Number(line.dataset.key) }));
      table.rows.push({ line, cells });
      table.body.append(line);
    }
    table.rows.forEach(({ line, cells }, i) => {
      line.hidden = i >= rows.length;
      if (line.hidden) return;
      line.dataset.key = rows[i].key;
      rows[i].cells.forEach((text, j) => { if (cells[j].textContent !== text) cells[j].textContent = text; });
    });
  }

  tokenKey() {
    const { view } = this;
    const masks = view.causal ? [] : [element("span", {}, element("i", { class: "token mask" }), " mask")];
    return element("p", { class: "key", "aria-hidden": "true" }, ...masks,
      element("span", {}, element("i", { class: "token decided" }, "a"), " written in this step"),
      element("span", {}, element("i", { class: "token sink" }, "a"), ` sink: above about ${+(1 + view.epsilon).toFixed(2)}× uniform`),
      ...(view.taken ? [element("span", {}, element("i", { class: "token taken" }, "a"), " taken by the policy")] : []));
  }

  saveButtons(picture) {
    const name = () => `sinkscope-${picture.constructor.name.toLowerCase()}-${this.id}-step${this.view.steps[this.step]}`;
    return element("span", { class: "saves" },
      element("button", { type: "button", "aria-label": `save ${picture.title} as SVG`, onclick: () => saveSvg(picture, name()) }, "SVG"),
      element("button", { type: "button", "aria-label": `save ${picture.title} as PNG`, onclick: () => savePng(picture, name()) }, "PNG"));
  }

  card(title, picture, size, ...content) {
    return element("div", { class: `card ${size}` },
      element("div", { class: "head" }, element("h3", {}, title), this.saveButtons(picture)), ...content);
  }

  pictureCard(title, picture, size, label) {
    picture.canvas = element("canvas", { class: "base", "aria-hidden": "true" });
    picture.marked = [element("i", { class: "mark" }), element("i", { class: "mark" })];
    picture.front = element("div", { class: "front", tabindex: "0", role: "application", "aria-label": label }, ...picture.marked);
    const frame = element("div", { class: "frame" }, picture.canvas, picture.front);
    const point = (event) => {
      const edge = picture.front.getBoundingClientRect(), [w, h] = picture.size();
      return picture.locate(event.clientX - edge.left, event.clientY - edge.top, w, h);
    };
    let held = false;
    picture.front.addEventListener("pointermove", (event) => {
      const at = point(event);
      this.app.hover(this, at, event);
      if (held && at) this.choose(at);
    });
    picture.front.addEventListener("pointerdown", (event) => {
      held = picture !== this.grid;
      if (held) picture.front.setPointerCapture(event.pointerId);
      const at = point(event);
      if (at) this.choose(at);
    });
    picture.front.addEventListener("pointerup", () => { held = false; });
    picture.front.addEventListener("pointerleave", () => this.app.hover(this, null));
    picture.front.addEventListener("keydown", (event) => this.pictureKey(event, picture));
    return this.card(title, picture, size, frame);
  }

  choose(at) {
    if ("layer" in at) this.app.set(at);
    else this.app.set(at.average ? { key: at.key } : { step: at.step, key: at.key });
  }

  pictureKey(event, picture) {
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    const { state } = this.app, { view } = this;
    if (picture === this.grid && event.key === "Escape") this.app.set({ layer: -1, head: -1 });
    else if (!way) return;
    else if (picture === this.grid) {
      const layer = Math.max(-1, Math.min(view.L - 1, state.layer + way[1]));
      const head = view.heads.length ? Math.max(-1, Math.min(view.H - 1, state.head + way[0])) : -1;
      this.app.set({ layer, head: layer < 0 ? -1 : head });
    } else {
      const [dx, dy] = picture === this.heat ? way : [-way[1], way[0]];
      this.app.set({ step: this.step + dy, key: this.neighbour(dx) });
    }
    event.preventDefault();
    event.stopPropagation();
  }

  neighbour(by) {
    const keys = this.view.realKeys, at = keys.indexOf(this.app.state.key);
    if (!by) return this.app.state.key;
    return keys[Math.max(0, Math.min(keys.length - 1, at < 0 ? 0 : at + by))];
  }

  listenTokens() {
    const { box } = this.tokens;
    box.addEventListener("pointerover", (event) => {
      const key = this.tokens.keyOf(event.target);
      this.app.hover(this, key < 0 ? null : { step: this.step, key }, event);
    });
    box.addEventListener("pointerleave", () => this.app.hover(this, null));
    box.addEventListener("click", (event) => {
      const key = this.tokens.keyOf(event.target);
      if (key >= 0) this.app.set({ key: key === this.app.state.key ? -1 : key });
    });
    box.addEventListener("keydown", (event) => {
      const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!way) return;
      this.app.set({ key: this.neighbour(way) });
      event.preventDefault();
      event.stopPropagation();
    });
  }

  selectionText() {
    const { layer, head } = this.app.state, { view } = this;
    if (layer < 0) return view.heads.length ? "mean of all layers and heads" : "mean of all layers";
    const name = `layer ${view.layers[layer]}`;
    return head < 0 || !view.heads.length ? `${name}, mean of its heads` : `${name}, head ${view.heads[head]}`;
  }

  async load() {
    const { layer, head } = this.app.state, { view } = this;
    const field = await view.field(this.score.name, Math.min(layer, view.L - 1), Math.min(head, view.H - 1));
    const [strength, kinds] = await Promise.all([view.get(this.score.strength), view.get(this.score.head_kinds)]);
    this.strength = strength.array;
    this.kinds = kinds.array;
    return field;
  }

  strongestValue(field) {
    let top = 0;
    const seen = new Uint8Array(256);
    for (const code of field.codes) seen[code] = 1;
    for (let code = 0; code < LEFT_OUT; code++) if (seen[code]) top = Math.max(top, field.values[code]);
    return top;
  }

  // Everything that a new selection, size or theme changes. top: end of the colour scale, shared by the panels.
  draw(field, top) {
    this.field = field;
    this.top = Math.max(2, top);
    const error = `±${(100 * field.error).toFixed(1)} % of 1 + value`;
    const named = field.mean ? "" : this.view.kinds[this.kinds[this.app.state.layer * this.view.H + this.app.state.head]];
    const kind = !named ? "" : named === "none" ? " This head has no sinks." : ` This head’s sinks: ${named}.`;
    const gone = this.score.residences_left_out;
    const dropped = !field.mean && gone ? ` The ${gone.toLocaleString("en")} shortest and weakest stays of the trace are not in the page.` : "";
    this.note.textContent = field.partial
      ? `Of this head the page holds the ${this.view.strongest} strongest keys of each step and the average over time (strip below the heat map); pale cells are weaker keys that are not in the page. Embed it in full with --heads ${this.view.layers[this.app.state.layer]}:${this.view.heads[this.app.state.head]}. Scores are stored in 8 bits, ${error}; strengths of stays and of heads are exact.${kind}${dropped}`
      : `Scores are stored in 8 bits, ${error}; sinks (ε = ${this.view.epsilon}) are found from the exact ones, and strengths of stays and of heads are exact.${kind}${dropped}`;
    for (const picture of [this.heat, this.grid, this.sinks]) {
      picture.paint();
      const [w, h] = picture.size();
      picture.canvas.style.height = `${h}px`;
      picture.drawn = [w, h];
      picture.draw(new CanvasPen(picture.canvas, w, h, Math.min(2, devicePixelRatio || 1)), w, h);
    }
    this.fillStays();
    this.update(true);
  }

  // What a new step changes.
  update(fresh = false) {
    if (!this.field) return;
    const { step, view } = this;
    this.tokens.update(step, fresh);
    this.pointers();
    this.fillNow(step);
  }

  pointers() {
    const key = this.hovered?.key ?? this.app.state.key;
    this.tokens.mark(key);
    for (const picture of [this.heat, this.grid, this.sinks]) {
      if (!picture.drawn) continue;
      // Moved elements, not a canvas drawn again: this runs in every frame of a scrub.
      picture.marks(picture.drawn, this.step, key).forEach((box, i) => {
        const { style } = picture.marked[i], text = box ? box.map((one) => +one.toFixed(1)).join() : "";
        if (picture.marked[i].dataset.box === text) return;
        picture.marked[i].dataset.box = text;
        style.display = box ? "block" : "none";
        if (!box) return;
        style.transform = `translate(${box[0]}px, ${box[1]}px)`;
        style.width = `${box[2]}px`;
        style.height = `${box[3]}px`;
      });
    }
  }

  fillNow(step) {
    const { view, field } = this, from = step * view.K, found = [];
    for (const key of view.realKeys) {
      const code = field.codes[from + key];
      if (code >= LEFT_OUT) continue;
      if (found.length === 8 && code <= found[7].code) continue;
      const at = found.findIndex((one) => one.code < code);
      found.splice(at < 0 ? found.length : at, 0, { key, code });
      if (found.length > 8) found.pop();
    }
    this.fill(this.nowTable, found.map(({ key, code }) => ({
      key, cells: [String(view.position[key]), this.shortText(step, key), numberText(field.values[code]), this.sinkText(from + key)],
    })));
  }

  shortText(step, key) {
    const flag = this.view.flag[step * this.view.K + key];
    if (flag & MASKED) return "mask";
    return flag & REAL ? visible(this.view.text(step, key), 14).replace(/^ +$/, "␣") || "∅" : "–";
  }

  sinkText(i) {
    const { field } = this, count = field.counts[i];
    if (!field.mean) return count ? "this head" : "–";
    return field.outOf ? `${count} of ${field.outOf}` : String(count);
  }

  fillStays() {
    const { view, field } = this;
    if (!field.mean) {
      const longest = [...field.residences].sort((a, b) => (b.stop - b.start - (a.stop - a.start)) || b.strength - a.strength);
      this.setStayHead("Residences of this head, longest first", "steps", "strength", "end");
      this.fill(this.stayTable, longest.slice(0, 8).map((one) => ({ key: one.key, cells: [
        String(view.position[one.key]), this.shortText(one.stop, one.key), `${view.steps[one.start]}–${view.steps[one.stop]}`,
        numberText(one.strength), view.fates[one.fate]] })));
      return;
    }
    const total = new Float64Array(view.K), steps = new Uint32Array(view.K), peak = new Uint32Array(view.K);
    for (let t = 0, i = 0; t < view.T; t++)
      for (let k = 0; k < view.K; k++, i++) {
        const count = field.counts[i];
        if (count) { total[k] += count; steps[k]++; if (count > peak[k]) peak[k] = count; }
      }
    const order = view.realKeys.filter((k) => total[k]).sort((a, b) => total[b] - total[a]).slice(0, 8);
    this.setStayHead("Positions that are sinks most, over all steps", "in steps", "mean heads", "most heads");
    this.fill(this.stayTable, order.map((k) => ({ key: k, cells: [String(view.position[k]), this.shortText(view.T - 1, k),
      `${steps[k]} of ${view.T}`, numberText(total[k] / view.T), String(peak[k])] })));
  }

  setStayHead(caption, ...names) {
    this.stayTable.node.caption.textContent = caption;
    names.forEach((name, i) => { this.stayTable.head[i + 2].textContent = name; });
  }

  // One sentence about a point, for the tooltip and the screen reader.
  describe(at) {
    const { view, field } = this;
    if ("layer" in at) {
      if (at.layer < 0) return "mean of all layers and heads";
      if (at.head < 0) return `layer ${view.layers[at.layer]}, mean of its heads`;
      const i = at.layer * view.H + at.head;
      return `layer ${view.layers[at.layer]}, head ${view.heads[at.head]} · main sink ${numberText(this.strength[i])}× uniform · ${view.kinds[this.kinds[i]] === "none" ? "no sinks" : view.kinds[this.kinds[i]]}`;
    }
    const place = `position ${view.position[at.key]}`;
    if (at.average) return `${place} · average over steps ${numberText(field.average[at.key])}× uniform`;
    const i = at.step * view.K + at.key, flag = view.flag[i];
    if (!(flag & REAL)) return `step ${view.steps[at.step]} · ${place} · not there yet`;
    const text = flag & MASKED ? "mask" : quoted(view.text(at.step, at.key));
    const code = field.codes[i];
    const value = code < LEFT_OUT ? `${numberText(field.values[code])}× uniform` : code === LEFT_OUT ? "not among the strongest 8" : "no score yet";
    const sink = field.mean ? `sink in ${this.sinkText(i)} ${this.score.sinks_of === "heads" ? "heads" : "layers"}` : field.counts[i] ? "sink" : "no sink";
    const more = [flag & PROMPT ? "prompt" : "answer", flag & DECIDED ? "written in this step" : "",
      field.taken?.[i] ? `taken by the policy in ${field.taken[i]} heads` : ""].filter(Boolean).join(", ");
    return `step ${view.steps[at.step]} · ${place} · ${text} · ${value} · ${sink} · ${more}`;
  }
}
