// One trace on the page: its tokens, heat map, grid, sinks through time, who looks at whom, and tables of numbers.

function element(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value != null && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((one) => one != null)); // strings become text nodes, never markup
  return node;
}

const EXPLAINED = {
  Tokens: "The tokens that go into this step. The colour is the attention that a token receives, relative to uniform attention: at 1 it gets what it would if every query looked at all its keys equally. In causal and block diffusion models, and beside them, it is the share of a query’s attention, in causal ones of the distant queries. Select a token to see whom it looks at.",
  "Step × position": "Each row is a step, each column a position; the colour is received attention (1 = uniform, or % of a query’s attention). A dark column is a key that many queries look at. Small squares mark where a step writes a token; the solid line is where the answer begins, dashed lines end its blocks; the strip below is the average over steps.",
  "Layer × head": "For every head, the received attention of its strongest key in each step, averaged over the steps. A maximum over many keys is above uniform even without sinks: about twice for mild noise over 100 keys. Choose a head to see it in all pictures.",
  "Sinks through time": "A sink is a key that receives more than the mean of the others plus ε in one head and step; in causal and block diffusion models one that distant queries give more than distance alone can explain, by more than ε / 64 of their attention. Keys with too few distant queries behind them are unknown, and blank. For means the colour counts the heads that call a position a sink; for one head each bar is a stay of a sink, its colour the mean strength, and the line follows the strongest.",
  "Who looks at whom": "Attention between single tokens in this step, relative to uniform attention: at 4 a query gives a key four times what it would give if it looked at all its keys equally.",
  Numbers: "received: attention relative to uniform, or in % of a query’s attention, of the chosen layer and head or their mean. sink in: how many heads call it a sink in this step. to the learned sink: the newest query’s attention that goes to no token. gate: its mean over the channels of a head. strength: mean received attention of a stay. Scores are stored in 8 bits; the line at the top says how exact that is.",
  Change: "First trace minus second, of received attention, position by position and step by step. Blue is less, orange is more. A difference between two generations mixes the direct effect of a policy with all that followed from other tokens being written.",
};
let explainCount = 0;

// A button that opens a sentence on what a card shows; returns [button, paragraph].
function explanation(title) {
  const id = `sinkscope-explain-${explainCount++}`, text = element("p", { class: "explain", id, hidden: true }, EXPLAINED[title] ?? "");
  const button = element("button", { type: "button", class: "ask", "aria-label": `what ${title} shows`, "aria-expanded": "false", "aria-controls": id,
    onclick: () => { text.hidden = !text.hidden; button.setAttribute("aria-expanded", String(!text.hidden)); } }, "?");
  return [button, text];
}

class Panel {
  constructor(app, view, id) {
    this.app = app;
    this.view = view;
    this.id = id;
    this.hovered = null;
    this.relations = null;
    this.tokens = new Tokens(this);
    this.heat = new HeatMap(this);
    this.grid = new Grid(this);
    this.sinks = new Sinks(this);
    this.map = new AttentionMap(this);
    this.note = element("p", { class: "note" });
    this.build();
    this.listenTokens();
  }

  get pictures() { return [this.heat, this.grid, this.sinks, this.map]; }
  get step() { return this.app.stepIn(this.view); }
  get score() { return this.view.score(this.app.state.score); }

  build() {
    this.nowTable = this.table("The strongest keys of this step", ["position", "token", "received", "sink in"]);
    this.stayTable = this.table("Where sinks stay", ["position", "token", "steps", "strength", "end"]);
    const shares = Object.keys(this.view.shares);
    this.shareTable = shares.length ? this.table("Heads of the selection in this step", ["layer", "head", ...shares]) : null;
    this.fromTable = this.table("looks at", ["position", "token", "× uniform"]);
    this.toTable = this.table("is looked at by", ["position", "token", "× uniform"]);
    this.relationNote = element("p", { class: "note" });
    this.leaps = ["back", "on"].map((way) => element("button", { type: "button", class: "leap", hidden: true, "data-way": way,
      onclick: (event) => this.app.set({ step: this.app.at(Number(event.target.dataset.step)) }) }));
    const map = this.pictureCard("Who looks at whom", this.map, "wide", "query by key map of this step; arrow keys move the selected token");
    this.mapFrame = map.querySelector(".frame");
    this.mapSaves = map.querySelector(".saves");
    map.append(element("div", { class: "relation" }, this.mapFrame,
      element("div", {}, this.relationNote, element("p", { class: "leaps" }, ...this.leaps), element("div", { class: "pair" }, this.fromTable.node, this.toTable.node))));
    this.root = element("section", { class: "panel", "aria-label": `trace ${this.view.name}` },
      this.header(),
      element("div", { class: this.view.L > 16 ? "cards deep" : "cards" },
        this.card("Tokens", this.tokens, "wide", this.tokens.box, this.tokens.fold, this.tokenKey()),
        this.pictureCard("Step × position", this.heat, "main", "step by position heat map; arrow keys move step and position"),
        this.pictureCard("Layer × head", this.grid, "side", "layer by head grid; arrow keys choose layer and head, Escape the mean of all"),
        this.pictureCard("Sinks through time", this.sinks, "main", "sinks through time; arrow keys move step and position"),
        this.card("Numbers", null, "side tables", this.nowTable.node, this.stayTable.node,
          ...(this.shareTable ? [this.shareTable.node] : [])),
        map));
  }

  header() {
    const { view } = this, [shown, many] = view.samples;
    const sizes = `${view.T} steps, ${view.L} layers${view.heads.length ? ` × ${view.H} heads` : " (means over heads)"}`;
    const facts = [["recorded", sizes], ...view.facts.filter(([key]) => key !== "recorded"),
      ...(many > 1 ? [["sample", `${view.sample} (${shown} of ${many} embedded)`]] : [])];
    const first = new Set(["recorded", "policy", "tokens", "sample"]);
    const list = (pairs) => element("dl", {}, ...pairs.map(([key, value]) => element("div", {}, element("dt", {}, key), element("dd", {}, value))));
    return element("header", { class: "about" }, element("h2", {}, view.name), list(facts.filter(([key]) => first.has(key))),
      element("details", {}, element("summary", {}, "about this trace"), list(facts.filter(([key]) => !first.has(key))), this.note));
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
      element("span", {}, element("i", { class: "token sink" }, "a"), ` sink: above ${view.scores[0].distance ? "at least" : "about"} ${amountText(view.scores[0].above, view.scores[0])}`),
      ...(view.scores[0].unknown ? [element("span", {}, element("i", { class: "token unknown" }, "a"), " unknown whether a sink: too few distant queries")] : []),
      ...(view.masked_keys ? [element("span", {}, element("i", { class: "token hidden-key" }, "a"), " masked by the policy")] : []));
  }

  saveButtons(picture) {
    const name = () => `sinkscope-${picture.constructor.name.toLowerCase()}-${this.id}-step${this.view.steps[this.step]}`;
    return element("span", { class: "saves" },
      element("button", { type: "button", "aria-label": `save ${picture.title} as SVG`, onclick: () => saveSvg(picture, name()) }, "SVG"),
      element("button", { type: "button", "aria-label": `save ${picture.title} as PNG`, onclick: () => savePng(picture, name()) }, "PNG"));
  }

  card(title, picture, size, ...content) {
    const [ask, text] = explanation(title);
    return element("div", { class: `card ${size}` },
      element("div", { class: "head" }, element("h3", {}, title), ask, picture ? this.saveButtons(picture) : null), text, ...content);
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
    else this.app.set(at.average || "target" in at ? { key: at.key } : { step: this.app.at(this.view.steps[at.step]), key: at.key });
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
    } else if (picture === this.map) this.app.set({ key: this.neighbour(way[0] + way[1]) });
    else this.app.set({ step: this.app.state.step + way[1], key: this.neighbour(way[0]) });
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
    const name = `layer ${view.layers[Math.min(layer, view.L - 1)]}`;
    return head < 0 || !view.heads.length ? `${name}, mean of its heads` : `${name}, head ${view.heads[Math.min(head, view.H - 1)]}`;
  }

  async load() {
    const { view } = this, layer = Math.min(this.app.state.layer, view.L - 1), head = Math.min(this.app.state.head, view.H - 1);
    const field = await view.field(this.score.name, layer, head);
    const [strength, kinds, relations] = await Promise.all(
      [view.get(this.score.strength), view.get(this.score.head_kinds), view.relations(layer, head)]);
    this.shares = await Promise.all(Object.values(view.shares).map((one) => view.get(one)));
    this.strength = strength.array;
    this.kinds = kinds.array;
    this.relations = relations;
    this.field = field;
    return field;
  }

  // The end of each colour scale that this panel needs; the app shares the largest among panels.
  tops(field) {
    let top = 2, strength = 1;
    const seen = new Uint8Array(256);
    for (const code of field.codes) seen[code] = 1;
    for (let code = 0; code < LEFT_OUT; code++) if (seen[code]) top = Math.max(top, field.values[code]);
    for (const value of this.strength) if (value > strength) strength = value;
    return { top, strength, most: field.mean ? this.sinks.strongest : 1, look: this.lookEnd() };
  }

  lookEnd() {
    const { maps, by } = this.relations ?? {};
    return Math.max(2, ...[maps, by].filter(Boolean).map((one) => one.values[LEFT_OUT - 1]));
  }

  // Everything that a new selection, size or theme changes.
  draw(field, { top, strength, most, look }) {
    Object.assign(this, { field, top, strengthTop: strength, most, lookTop: look });
    this.note.textContent = this.noteText(field);
    this.mapFrame?.toggleAttribute("hidden", !this.relations?.maps);
    this.mapSaves?.toggleAttribute("hidden", !this.relations?.maps);
    this.mapFrame?.parentNode.classList.toggle("mapped", !!this.relations?.maps);
    for (const picture of this.pictures) this.redrawPicture(picture);
    this.mapStep = this.step;
    this.fillStays();
    this.update(true);
  }

  redrawPicture(picture) {
    picture.paint();
    const [w, h] = picture.size();
    picture.canvas.style.height = `${h}px`;
    picture.drawn = [w, h];
    picture.draw(new CanvasPen(picture.canvas, w, h, Math.min(2, devicePixelRatio || 1)), w, h);
  }

  noteText(field) {
    const { view, score, app } = this, error = `±${(100 * field.error).toFixed(1)} % of 1 + value`;
    const named = field.mean ? "" : view.kinds[this.kinds[app.state.layer * view.H + app.state.head]];
    const kind = !named ? "" : named === "none" ? " This head has no sinks." : ` This head’s sinks: ${named}.`;
    const gone = score.residences_left_out;
    const dropped = !field.mean && gone ? ` The ${gone.toLocaleString("en")} shortest and weakest stays of the trace are not in the page.` : "";
    return field.partial
      ? `Of this head the page holds the ${view.strongest} strongest keys of each step and the average over time (strip below the heat map); pale cells are weaker keys that are not in the page. Embed it in full with --heads ${view.layers[app.state.layer]}:${view.heads[app.state.head]}. Scores are stored in 8 bits, ${error}; strengths of stays and of heads are exact.${kind}${dropped}`
      : `Scores are stored in 8 bits, ${error}; sinks (ε = ${view.epsilon}) are found from the exact ones, and strengths of stays and of heads are exact.${kind}${dropped}`;
  }

  // What a new step changes.
  update(fresh = false) {
    if (!this.field) return;
    const { step } = this;
    if (this.relations?.maps && step !== this.mapStep) { this.redrawPicture(this.map); this.mapStep = step; }
    this.tokens.update(step, fresh);
    this.pointers();
    this.fillNow(step);
    if (this.shareTable) this.fillShares(step);
    this.fillRelations();
  }

  get pointed() { return this.hovered?.key ?? this.app.state.key; }

  pointers() {
    const key = this.pointed;
    this.tokens.mark(key);
    for (const picture of this.pictures) {
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

  hoverChanged() {
    this.pointers();
    if (this.app.state.show && this.relations) this.tokens.update(this.step, false);
    this.fillRelations();
  }

  // ---- who looks at whom

  colouredBy() {
    const { show } = this.app.state;
    if (!show || !this.relations || this.pointed < 0) return this.field?.signed ? "how much more they receive" : "received attention";
    return show === "from" ? "what the selected token looks at" : "who looks at the selected token";
  }

  // Float [K]: how much the selected token looks at each key ("from"), or each query at it ("to"); null: colour by received.
  lookedAt(step, way = this.app.state.show, key = this.pointed) {
    const { view } = this, known = this.relations?.of(step);
    if (!way || !known || key < 0 || key >= view.K || !(view.flag[step * view.K + key] & REAL)) return null;
    const row = new Float32Array(view.K).fill(NaN);
    if (!known.exact) {
      const codes = way === "from" ? known.at(view.kindOf(step, key), step) : null;
      for (const other of view.realKeys)
        row[other] = known.values[codes ? codes[other] : known.at(view.kindOf(step, other), step)[key]];
      return row;
    }
    const codes = known.at(step);
    for (const other of view.realKeys) row[other] = known.values[codes[way === "from" ? key * view.K + other : other * view.K + key]];
    return row;
  }

  fillRelations() {
    if (!this.fromTable) return;
    const { relations, view, step, pointed: key } = this, known = relations?.of(step);
    const mapped = [...(relations?.maps?.slots.keys() ?? [])], steps = mapped.map((i) => view.steps[i]);
    const level = { mean: "mean of all layers and heads", layer: "mean of the layer’s heads", head: "this head" }[known?.level];
    const elsewhere = mapped.length ? `Maps were recorded of ${steps.length > 6 ? `${steps.length} steps` : `step ${steps.join(", ")}`}, not of this one.` : "";
    this.relationNote.textContent = !relations
      ? "This trace holds neither attention maps nor attention by class of query, so single tokens cannot be told apart. Add the map of a step: sinkscope trace TRACE --maps-at STEP; or record with --by-query."
      : known?.exact ? `Exact, from the attention map of this step: ${level}.`
      : known ? `By class of query (mask, written, prompt), not by single query: ${level}. Tokens of one class share their values.${elsewhere && ` ${elsewhere}`}`
      : elsewhere;
    const near = { back: Math.max(...mapped.filter((i) => i < step)), on: Math.min(...mapped.filter((i) => i > step)) };
    for (const button of this.leaps) {
      const to = near[button.dataset.way];
      button.hidden = !Number.isFinite(to);
      if (!button.hidden) { button.dataset.step = view.steps[to]; button.textContent = `go to step ${view.steps[to]}`; }
    }
    const there = known && key >= 0 && key < view.K && view.flag[step * view.K + key] & REAL;
    for (const [table, way, words] of [[this.fromTable, "from", "looks at"], [this.toTable, "to", "is looked at by"]]) {
      table.node.hidden = !relations;
      const name = there ? `Position ${view.position[key]} ${this.shortText(step, key)} ${words}` : `Select a token: it ${words}`;
      if (table.node.caption.textContent !== name) table.node.caption.textContent = name;
      const row = there ? this.lookedAt(step, way, key) : null;
      const order = row ? view.realKeys.filter((k) => Number.isFinite(row[k])).sort((a, b) => row[b] - row[a]).slice(0, 8) : [];
      this.fill(table, order.map((k) => ({ key: k, cells: [String(view.position[k]), this.shortText(step, k), numberText(row[k])] })));
    }
  }

  // ---- tables of numbers

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

  // Attention to learned sinks and gates: the heads of the chosen layer, or of all, that have most in this step.
  fillShares(step) {
    const { view } = this, { layer, head, key } = this.app.state, found = [];
    for (let i = 0; i < view.L * view.H; i++) {
      const l = Math.floor(i / view.H), h = i % view.H;
      if ((layer >= 0 && l !== layer) || (layer >= 0 && head >= 0 && h !== head)) continue;
      const values = this.shares.map((one) => one.values[one.array[i * view.T + step]]);
      if (values.some(Number.isFinite)) found.push({ l, h, values });
    }
    found.sort((a, b) => (b.values[0] || 0) - (a.values[0] || 0));
    this.fill(this.shareTable, found.slice(0, 8).map(({ l, h, values }) => ({ key, cells: [
      String(view.layers[l]), view.heads.length ? String(view.heads[h]) : "mean",
      ...values.map((value) => (Number.isFinite(value) ? `${(100 * value).toFixed(1)} %` : "–"))] })));
  }

  shortText(step, key) {
    const flag = this.view.flag[step * this.view.K + key];
    if (flag & MASKED) return "mask";
    return flag & REAL ? visible(this.view.text(step, key), 14).replace(/^ +$/, "␣") || "∅" : "–";
  }

  sinkText(i) {
    const { field } = this, count = field.counts[i];
    if (this.score.above === null) return "unknown";
    if (!field.mean) return count ? "this head" : "–";
    return field.outOf ? `${count} of ${field.outOf}` : String(count);
  }

  fillStays() {
    const { view, field } = this;
    if (!field.mean) {
      const longest = [...field.residences].sort((a, b) => (b.stop - b.start - (a.stop - a.start)) || b.strength - a.strength);
      this.setStayHead("Residences of this head (steps in a row in which a key is its sink), longest first", "steps", "strength", "end");
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
      return `layer ${view.layers[at.layer]}, head ${view.heads[at.head]} · strongest key ${amountText(this.strength[i], this.score)} · ${view.kinds[this.kinds[i]] === "none" ? "no sinks" : view.kinds[this.kinds[i]]}`;
    }
    const place = `position ${view.position[at.key]}`;
    if ("target" in at) {
      const row = this.lookedAt(this.step, "from", at.key), step = this.step;
      return `step ${view.steps[step]} · ${place} ${this.shortText(step, at.key)} looks at position ${view.position[at.target]} ${this.shortText(step, at.target)} · ${numberText(row?.[at.target])}× uniform`;
    }
    if (at.average) return `${place} · average over steps ${amountText(field.average[at.key], this.score)}`;
    const i = at.step * view.K + at.key, flag = view.flag[i];
    if (!(flag & REAL)) return `step ${view.steps[at.step]} · ${place} · not there yet`;
    const text = flag & MASKED ? "mask" : quoted(view.text(at.step, at.key));
    const code = field.codes[i];
    const value = code < LEFT_OUT ? amountText(field.values[code], this.score) : code === LEFT_OUT ? "not among the strongest 8" : "too few distant queries";
    const sink = code === MISSING || this.score.above === null ? "unknown whether a sink" : field.mean ? `sink in ${this.sinkText(i)} ${this.score.sinks_of === "heads" ? "heads" : "layers"}` : field.counts[i] ? "sink" : "no sink";
    const more = [flag & PROMPT ? "prompt" : "answer", flag & DECIDED ? "written in this step" : "",
      field.hidden?.[i] ? `masked by the policy in ${field.hidden[i]} heads` : ""].filter(Boolean).join(", ");
    return `step ${view.steps[at.step]} · ${place} · ${text} · ${value} · ${sink} · ${more}`;
  }
}
