// The pictures: step × position heat map, layer × head grid, sinks through time, query × key map. Time runs downwards in all
// that have it. Each knows its size, draws itself with any pen, and can say what lies under a point. They hold no state of
// their own: `panel` has the view, its field and the app.

function numberText(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 100) return value.toFixed(0);
  return size >= 10 ? value.toFixed(1) : value.toFixed(2);
}

// A score in words: a multiple of uniform attention, or percent of a query’s.
function amountText(value, score) {
  return `${numberText(value ?? NaN)}${score.unit.startsWith("%") ? " " : ""}${score.unit}`;
}

function signedText(value) {
  return Number.isFinite(value) ? `${value < 0 ? "−" : "+"}${numberText(Math.abs(value))}` : "–";
}

// Round tick values, at most `most` of them, from 0 to last.
function axisTicks(last, most) {
  const steps = [1, 2, 4, 5, 8, 10, 16, 20, 25, 32, 50, 64, 100, 128, 200, 256, 512, 1000, 1024, 2048, 5000, 10000];
  const step = steps.find((one) => last / one <= most) ?? Math.ceil(last / most);
  const found = [];
  for (let at = 0; at <= last; at += step) found.push(at);
  return found;
}

function raster(width, height, paint) {
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, width);
  canvas.height = Math.max(1, height);
  const image = new ImageData(canvas.width, canvas.height);
  paint(new Uint32Array(image.data.buffer));
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

const NARROW = 560; // pixels under which title and legend stand one below the other

class Picture {
  constructor(panel) {
    this.panel = panel;
    this.canvas = null; // set when the card is built
  }

  size() {
    return [Math.max(240, this.canvas?.clientWidth || 640), this.height()];
  }

  get narrow() { return (this.canvas?.clientWidth || 640) < NARROW; }
  get above() { return this.narrow ? 58 : 32; }
  get below() { return 0; }

  // Frame, tick labels, axis names. box: [x, y, w, h].
  axes(pen, [x, y, w, h], xs, ys, xName, yName) {
    const { ink, soft, line } = palette();
    pen.rect(x - 0.5, y - 0.5, w + 1, h + 1, null, line);
    for (const [at, label] of xs) pen.text(x + at * w, y + h + 15 + this.below, label, { fill: soft, anchor: "middle" });
    for (const [at, label] of ys) pen.text(x - 6, y + at * h + 4, label, { fill: soft, anchor: "end" });
    pen.text(x + w / 2, y + h + 31 + this.below, xName, { fill: ink, anchor: "middle" });
    pen.text(13, y + h / 2, yName, { fill: ink, anchor: "middle", turn: -Math.PI / 2 });
  }

  // Positions to the right, steps downwards.
  timeAxes(pen, box) {
    const { view } = this.panel, many = view.realKeys.length, first = view.position[view.realKeys[0]];
    this.axes(pen, box, axisTicks(many - 1, box[2] / 60).map((p) => [(p + 0.5) / many, String(p + first)]),
      axisTicks(view.T - 1, box[3] / 28).map((t) => [(t + 0.5) / view.T, String(view.steps[t])]), "position", "step");
  }

  heading(pen, w, text, top, name, signed = false) {
    pen.text(this.narrow ? 12 : 50, 16, text, { fill: palette().ink, size: 12, weight: 600 });
    this.legend(pen, w - 12, this.narrow ? 26 : 6, top, name, signed);
  }

  legend(pen, right, y, top, name, signed = false) {
    const { soft } = palette(), wide = 132, x = right - wide;
    const bar = raster(256, 1, (pixels) => pixels.set(ramp(signed).packed)); // ticks stand where shade() puts their values
    pen.image(bar, x, y, wide, 8);
    const scale = (value) => x + (wide * (signed ? shadeSigned(value, top) : shade(value, top))) / 255;
    for (const tick of signed ? signedTicks(top) : ticks(top))
      pen.text(scale(tick), y + 19, String(tick).replace("-", "−"), { fill: soft, size: 10, anchor: "middle" });
    pen.text(x - 8, y + 8, name, { fill: soft, size: 10.5, anchor: "end" });
  }

  // A line that can be seen on any colour of the ramp.
  halo(pen, points) {
    pen.lines(points, palette().surface, 3.4);
    pen.lines(points, palette().path, 1.7);
  }

  // Where the answer begins and where its blocks end.
  boundaries(pen, [x, y, bw, bh]) {
    const { view } = this.panel, many = view.realKeys.length, { soft } = palette();
    const prompt = view.realKeys.findIndex((k) => !(view.flag[k] & PROMPT));
    if (prompt < 0) return;
    const line = (at, dash) => pen.lines([[x + (bw * at) / many, y], [x + (bw * at) / many, y + bh]], soft, 1, dash);
    if (prompt > 0) line(prompt, []);
    if (view.block > 0) for (let at = prompt + view.block; at < many; at += view.block) line(at, [2, 4]);
  }

  // The marks that follow step and key: [x, y, width, height], or null; steps downwards and positions to the right.
  marks([w, h], step, key) {
    const { view } = this.panel, [x, y, bw, bh] = this.box([w, h]);
    const many = view.realKeys.length, row = Math.max(2, bh / view.T), at = view.indexOf(key);
    return [[x - 1, y + (bh * (step + 0.5)) / view.T - row / 2 - 1, bw + 2, row + 2],
      at < 0 ? null : [x + (bw * (at + 0.5)) / many - 0.5, y, 1, bh + (this.below ? 13 : 0)]];
  }

  locate(px, py, w, h) {
    const { view } = this.panel, [x, y, bw, bh] = this.box([w, h]);
    const at = Math.floor(((px - x) / bw) * view.realKeys.length), step = Math.floor(((py - y) / bh) * view.T);
    if (at < 0 || at >= view.realKeys.length || step < 0 || py > y + bh + (this.below ? 14 : 0)) return null;
    if (step >= view.T) return this.below ? { key: view.realKeys[at], average: true } : null;
    return { step, key: view.realKeys[at] };
  }
}

class HeatMap extends Picture {
  title = "Received attention by step and position";
  height() { return Math.round(Math.min(460, Math.max(280, this.panel.view.T * 3 + 110))); }
  get below() { return 14; }
  box([w, h]) { return [50, this.above, w - 62, h - this.above - 52]; }

  paint() {
    const { view, field, top } = this.panel, keys = view.realKeys, colours = ramp(field.signed);
    const blank = packedColour(palette().blank), none = packedColour(palette().page);
    const of = new Uint32Array(256);
    for (let code = 0; code < LEFT_OUT; code++) of[code] = colours.packed[shadeOf(field, field.values[code], top)];
    of[LEFT_OUT] = blank;
    of[MISSING] = none;
    this.image = raster(keys.length, view.T, (pixels) => {
      for (let t = 0, i = 0; t < view.T; t++) for (const k of keys) pixels[i++] = of[field.codes[t * view.K + k]];
    });
    this.strip = raster(keys.length, 1, (pixels) => {
      keys.forEach((k, i) => {
        const value = field.average[k];
        pixels[i] = Number.isFinite(value) ? colours.packed[shadeOf(field, value, top)] : none;
      });
    });
  }

  draw(pen, w, h) {
    const { view, field, top } = this.panel, box = this.box([w, h]), [x, y, bw, bh] = box;
    const { soft } = palette(), many = view.realKeys.length;
    pen.image(this.image, x, y, bw, bh);
    pen.image(this.strip, x, y + bh + 4, bw, 8);
    pen.text(x - 6, y + bh + 12, "mean", { fill: soft, size: 10, anchor: "end" });
    this.timeAxes(pen, box);
    this.boundaries(pen, box);
    this.decided(pen, box);
    if (field.path)
      for (const part of pathParts(view, field.path))
        this.halo(pen, part.flatMap(([t, i]) => [[x + (bw * (i + 0.5)) / many, y + (bh * t) / view.T],
          [x + (bw * (i + 0.5)) / many, y + (bh * (t + 1)) / view.T]]));
    this.heading(pen, w, this.panel.selectionText(), top, field.signed ? "difference" : this.panel.score.unit.startsWith("%") ? this.panel.score.unit : "received, uniform = 1", field.signed);
  }

  // A dot where a step writes a token, large enough to be seen and never larger than its cell by much.
  decided(pen, [x, y, bw, bh]) {
    const { view } = this.panel, many = view.realKeys.length, { surface, accent } = palette();
    const side = Math.max(2.4, Math.min(5, bh / view.T, bw / many));
    for (let t = 0; t < view.T; t++)
      view.realKeys.forEach((key, i) => {
        if (!(view.flag[t * view.K + key] & DECIDED)) return;
        const cx = x + (bw * (i + 0.5)) / many, cy = y + (bh * (t + 0.5)) / view.T;
        pen.rect(cx - side / 2 - 0.7, cy - side / 2 - 0.7, side + 1.4, side + 1.4, surface);
        pen.rect(cx - side / 2, cy - side / 2, side, side, accent);
      });
  }
}

// The path cut where the head has no sink: lists of [step, index of the key].
function pathParts(view, path) {
  const parts = [], index = new Map(view.realKeys.map((k, i) => [k, i]));
  let part = null;
  path.forEach((key, t) => {
    if (key < 0 || !index.has(key)) { part = null; return; }
    if (!part) parts.push((part = []));
    part.push([t, index.get(key)]);
  });
  return parts;
}

class Sinks extends Picture {
  title = "Sinks through time";
  height() { return Math.round(Math.min(500, Math.max(420, this.panel.view.T * 3 + 110))); }
  box([w, h]) { return [50, this.above, w - 62, h - this.above - 40]; }

  // The largest count of heads, for a scale that panels share.
  get strongest() {
    let most = 1;
    for (const count of this.panel.field.counts) if (count > most) most = count;
    return most;
  }

  paint() {
    const { view, field, most } = this.panel, keys = view.realKeys, colours = ramp();
    if (!field.mean) return;
    this.image = raster(keys.length, view.T, (pixels) => {
      for (let t = 0, i = 0; t < view.T; t++)
        for (const k of keys) {
          const count = field.counts[t * view.K + k];
          pixels[i++] = count ? colours.packed[Math.max(56, shade(count, most))] : 0;
        }
    });
  }

  draw(pen, w, h) {
    const { view, field, top, most } = this.panel, box = this.box([w, h]), [x, y, bw, bh] = box;
    const many = view.realKeys.length, colours = ramp();
    pen.rect(x, y, bw, bh, palette().raised);
    if (field.mean) {
      pen.image(this.image, x, y, bw, bh);
      const unit = this.panel.score.sinks_of === "heads" ? "heads" : "layers whose mean is a sink";
      this.heading(pen, w, "where heads have sinks", most, unit);
    } else {
      const index = new Map(view.realKeys.map((k, i) => [k, i])), thick = Math.max(4, Math.min(9, bw / many));
      for (const one of field.residences) {
        const mid = x + (bw * (index.get(one.key) + 0.5)) / many;
        const from = y + (bh * one.start) / view.T, high = (bh * (one.stop - one.start + 1)) / view.T;
        pen.rect(mid - thick / 2, from, thick, high, colours.css[Math.max(60, shade(one.strength, top))]);
      }
      for (const part of pathParts(view, field.path))
        this.halo(pen, part.flatMap(([t, i]) => [0, 1].map((d) =>
          [x + (bw * (i + 0.5)) / many, y + (bh * (t + d)) / view.T])));
      this.heading(pen, w, this.narrow ? "stays and path" : "stays (bars) and path of the strongest (line)", top, "strength");
    }
    this.timeAxes(pen, box);
    this.boundaries(pen, box);
  }
}

class Grid extends Picture {
  title = "Strength of each head’s main sink, averaged over steps";
  height() { return Math.min(720, Math.max(200, this.panel.view.L * 22 + 84)); }
  box([w, h]) {
    const { L, H } = this.panel.view, side = Math.min(64, (w - 108) / H, (h - 80) / L);
    const wide = Math.max(side * H, Math.min(w - 108, side * H * 2.2));
    return [96, 32, wide, (h - 80)];
  }

  paint() {}

  draw(pen, w, h) {
    const { view, strength, strengthTop, field } = this.panel, [x, y, bw, bh] = this.box([w, h]), colours = ramp(field.signed);
    const { ink, soft, line, raised } = palette(), ch = bh / view.L, cw = bw / view.H, gap = cw > 6 && ch > 6 ? 1 : 0;
    const say = field.signed ? signedText : numberText;
    for (let l = 0; l < view.L; l++) {
      pen.rect(46, y + l * ch, 44 - gap, ch - gap, raised, ch > 12 ? line : null);
      if (ch > 12) pen.text(68, y + (l + 0.5) * ch + 4, "mean", { fill: soft, size: 10, anchor: "middle" });
      for (let hd = 0; hd < view.H; hd++) {
        const value = strength[l * view.H + hd], colour = shadeOf(field, value, strengthTop);
        if (!Number.isFinite(value)) continue;
        pen.rect(x + hd * cw, y + l * ch, cw - gap, ch - gap, colours.css[colour]);
        if (cw > 34 && ch > 15)
          pen.text(x + (hd + 0.5) * cw, y + (l + 0.5) * ch + 4, say(value), { fill: colours.ink[colour], size: 10, anchor: "middle" });
      }
    }
    for (const l of axisTicks(view.L - 1, bh / 16)) pen.text(40, y + (l + 0.5) * ch + 4, String(view.layers[l]), { fill: soft, anchor: "end" });
    if (view.heads.length)
      for (const i of axisTicks(view.H - 1, bw / 26)) pen.text(x + (i + 0.5) * cw, y + bh + 15, String(view.heads[i]), { fill: soft, anchor: "middle" });
    pen.text(x + bw / 2, y + bh + 31, view.heads.length ? "head" : "mean of heads", { fill: ink, anchor: "middle" });
    pen.text(13, y + bh / 2, "layer", { fill: ink, anchor: "middle", turn: -Math.PI / 2 });
    this.legend(pen, w - 12, 6, strengthTop, "", field.signed);
    pen.text(68, 18, "all", { fill: ink, size: 11, weight: 600, anchor: "middle" });
    pen.rect(46, 5, 44, 19, null, line);
  }

  marks([w, h]) {
    const { view, app } = this.panel, { layer, head } = app.state, [x, y, bw, bh] = this.box([w, h]);
    const ch = bh / view.L, cw = bw / view.H;
    const at = layer < 0 ? [46, 5, 44, 19] : head < 0 || !view.heads.length ? [46, y + layer * ch, 44, ch]
      : [x + head * cw, y + layer * ch, cw, ch];
    return [[at[0] - 2, at[1] - 2, at[2] + 3, at[3] + 3], null];
  }

  locate(px, py, w, h) {
    const { view } = this.panel, [x, y, bw, bh] = this.box([w, h]);
    if (py < y - 2) return px < 100 ? { layer: -1, head: -1 } : null;
    const layer = Math.floor(((py - y) / bh) * view.L);
    if (layer < 0 || layer >= view.L || px > x + bw) return null;
    if (px < x || !view.heads.length) return { layer, head: -1 };
    return { layer, head: Math.min(view.H - 1, Math.floor(((px - x) / bw) * view.H)) };
  }
}

// The attention map of one step: queries downwards, keys to the right.
class AttentionMap extends Picture {
  title = "Attention of every query to every key in one step";
  height() { return Math.min(460, Math.max(260, (this.canvas?.clientWidth || 400) * 0.8 + 30)); }
  box([w, h]) { return [50, this.above, w - 62, h - this.above - 40]; }
  get known() { return this.panel.relations?.of(this.panel.step); }
  get shown() { return this.known?.exact; }

  paint() {
    if (!this.shown) return;
    const { view, step, lookTop: top } = this.panel, { known } = this, keys = view.realKeys, colours = ramp(), codes = known.at(step);
    const of = new Uint32Array(256), none = packedColour(palette().page);
    for (let code = 0; code < LEFT_OUT; code++) of[code] = colours.packed[shade(known.values[code], top)];
    of[LEFT_OUT] = of[MISSING] = none;
    this.image = raster(keys.length, keys.length, (pixels) => {
      let i = 0;
      for (const query of keys) for (const key of keys) pixels[i++] = of[codes[query * view.K + key]];
    });
  }

  draw(pen, w, h) {
    if (!this.shown) {
      pen.text(w / 2, h / 2, "no map was recorded of this step", { fill: palette().soft, size: 12, anchor: "middle" });
      return;
    }
    const { view, lookTop: top, step } = this.panel, box = this.box([w, h]), many = view.realKeys.length, first = view.position[view.realKeys[0]];
    pen.image(this.image, ...box);
    const tick = (room) => axisTicks(many - 1, room).map((p) => [(p + 0.5) / many, String(p + first)]);
    this.axes(pen, box, tick(box[2] / 60), tick(box[3] / 28), "key", "query");
    this.heading(pen, w, `step ${view.steps[step]}`, top, "× uniform");
  }

  marks([w, h], step, key) {
    const { view } = this.panel, [x, y, bw, bh] = this.box([w, h]), many = view.realKeys.length, at = view.indexOf(key);
    if (at < 0 || !this.shown) return [null, null];
    const row = Math.max(2, bh / many);
    return [[x - 1, y + (bh * (at + 0.5)) / many - row / 2 - 1, bw + 2, row + 2], [x + (bw * (at + 0.5)) / many - 0.5, y, 1, bh]];
  }

  locate(px, py, w, h) {
    const { view } = this.panel, [x, y, bw, bh] = this.box([w, h]), many = view.realKeys.length;
    const query = Math.floor(((py - y) / bh) * many), key = Math.floor(((px - x) / bw) * many);
    if (!this.shown || query < 0 || query >= many || key < 0 || key >= many) return null;
    return { key: view.realKeys[query], target: view.realKeys[key] };
  }
}
