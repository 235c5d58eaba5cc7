// The difference of two traces: the numbers, and the panel that shows them.

// What one selection shows more (or less) in one trace than in another: a field on the steps and keys of the first, in which
// codes stand for signed values. Steps are compared by their number, keys by their position.
function differenceOf(view, field, other, against) {
  const size = view.T * view.K, raw = new Float32Array(size).fill(NaN), codes = new Uint8Array(size).fill(MISSING);
  const keyAt = new Map(other.realKeys.map((key) => [other.position[key], key]));
  const stepAt = new Map(other.steps.map((number, place) => [number, place]));
  let top = 1;
  for (let t = 0; t < view.T; t++)
    for (const key of view.realKeys) {
      const i = t * view.K + key, step = stepAt.get(view.steps[t]), twin = keyAt.get(view.position[key]);
      const a = field.codes[i], b = step === undefined || twin === undefined ? MISSING : against.codes[step * other.K + twin];
      if (a === MISSING || b === MISSING) continue;
      codes[i] = LEFT_OUT;
      if (a === LEFT_OUT || b === LEFT_OUT) continue;
      raw[i] = field.values[a] - against.values[b];
      top = Math.max(top, Math.abs(raw[i]));
    }
  // Codes are spaced as the colours are: finely around zero.
  const values = new Float32Array(256).fill(NaN), end = Math.log1p(top);
  for (let code = 0; code < LEFT_OUT; code++) {
    const part = (code - 126) / 126;
    values[code] = Math.sign(part) * Math.expm1(Math.min(1, Math.abs(part)) * end);
  }
  for (let i = 0; i < size; i++)
    if (Number.isFinite(raw[i])) codes[i] = 126 + Math.round((126 * Math.sign(raw[i]) * Math.log1p(Math.abs(raw[i]))) / end);
  const made = { codes, values, raw, counts: new Uint8Array(size), signed: true, mean: true, partial: false, outOf: 0, top,
    error: field.error + against.error };
  made.average = view.averageOf(made);
  return made;
}

// What the first trace shows more, or less, than the second.
class DifferencePanel extends Panel {
  constructor(app, first, second) {
    super(app, first.view, "d");
    this.first = first;
    this.second = second;
    this.root.setAttribute("aria-label", "difference of the two traces");
  }

  get pictures() { return [this.heat, this.grid]; }

  build() {
    this.nowTable = this.table("The largest changes of this step", ["position", "token", "change", "from → to"]);
    this.title = element("h2", {});
    this.root = element("section", { class: "panel difference" },
      element("header", { class: "about" }, this.title, this.note),
      element("div", { class: "cards" },
        this.card("Tokens", this.tokens, "wide", this.tokens.box, this.tokens.fold),
        this.pictureCard("Step × position", this.heat, "main", "difference by step and position; arrow keys move step and position"),
        element("div", { class: "side stack" },
          this.pictureCard("Layer × head", this.grid, "side", "difference of each head's main sink; arrow keys choose layer and head"),
          this.card("Change", null, "side tables", this.nowTable.node))));
  }

  async load() {
    const { first, second } = this;
    this.field = differenceOf(first.view, first.field, second.view, second.field);
    const same = first.view.L === second.view.L && first.view.H === second.view.H;
    this.strength = Float32Array.from(first.strength, (value, i) => (same ? value - second.strength[i] : NaN));
    return this.field;
  }

  tops(field) {
    const strength = this.strength.reduce((most, value) => (Math.abs(value) > most ? Math.abs(value) : most), 1);
    return { top: field.top, strength, most: 1, look: 1 };
  }

  noteText() {
    const [a, b] = [this.first.view, this.second.view];
    this.title.textContent = `${this.app.nameOf(a)} minus ${this.app.nameOf(b)}`;
    const other = b.realKeys.some((key, i) => b.flag[key] & PROMPT && a.realKeys[i] !== undefined && b.text(0, key) !== a.text(0, a.realKeys[i]));
    const both = a.steps.filter((number) => b.steps.includes(number)).length;
    const steps = a.T === both && b.T === both ? "" : ` The traces have ${a.T} and ${b.T} steps; they are compared by number, and ${both} were recorded in both.`;
    const heads = a.L === b.L && a.H === b.H ? "" : " The models have other numbers of layers or heads: heads are not compared.";
    return `Received attention, first minus second, one colour scale for all.${other ? " The prompts differ: positions are compared by their number." : ""}${steps}${heads}`;
  }

  fillStays() {}
  fillRelations() {}
  lookedAt() { return null; }

  fillNow(step) {
    const { view, field } = this, from = step * view.K;
    const order = view.realKeys.filter((key) => Number.isFinite(field.raw[from + key]))
      .sort((a, b) => Math.abs(field.raw[from + b]) - Math.abs(field.raw[from + a])).slice(0, 8);
    const part = (panel, key) => {
      const twin = panel.view.realKeys.find((k) => panel.view.position[k] === view.position[key]);
      return numberText(panel.field.values[panel.field.codes[panel.view.steps.indexOf(view.steps[step]) * panel.view.K + twin]]);
    };
    this.fill(this.nowTable, order.map((key) => ({ key, cells: [String(view.position[key]), this.shortText(step, key),
      signedText(field.raw[from + key]), `${part(this.second, key)} → ${part(this.first, key)}`] })));
  }

  describe(at) {
    const { view, field } = this;
    if ("layer" in at) {
      if (at.head < 0) return at.layer < 0 ? "mean of all layers and heads" : `layer ${view.layers[at.layer]}, mean of its heads`;
      return `layer ${view.layers[at.layer]}, head ${view.heads[at.head]} · main sink ${signedText(this.strength[at.layer * view.H + at.head])}`;
    }
    const place = `position ${view.position[at.key]}`;
    if (at.average) return `${place} · average change ${signedText(field.average[at.key])}`;
    const i = at.step * view.K + at.key, text = view.flag[i] & MASKED ? "mask" : quoted(view.text(at.step, at.key));
    const alone = !this.second.view.steps.includes(view.steps[at.step]);
    const value = alone ? "not known: the other trace has no such step"
      : field.codes[i] === LEFT_OUT ? "not among the strongest 8 of both" : signedText(field.raw[i]);
    return `step ${view.steps[at.step]} · ${place} · ${text} · change ${value}`;
  }
}
