// The pictures: step × position heat map, layer × head grid, sinks through time. Each knows its size, draws itself with any
// pen, and can say what lies under a point. They hold no state of their own: `panel` has the view, its field and the app.

function numberText(value) {
  if (!Number.isFinite(value)) return "–";
  if (value >= 100) return value.toFixed(0);
  return value >= 10 ? value.toFixed(1) : value.toFixed(2);
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

class Picture {
  constructor(panel) {
    this.panel = panel;
    this.canvas = null; // set when the card is built
  }

  size() {
    return [Math.max(240, this.canvas?.clientWidth || 640), this.height()];
  }

  // Frame, tick labels, axis names. box: [x, y, w, h]; first of x and y at the given edge.
  axes(pen, [x, y, w, h], xs, ys, xName, yName, yUp = false) {
    const { ink, soft, line } = palette();
    pen.rect(x - 0.5, y - 0.5, w + 1, h + 1, null, line);
    for (const [at, label] of xs) pen.text(x + at * w, y + h + 15 + this.below, label, { fill: soft, anchor: "middle" });
    for (const [at, label] of ys) pen.text(x - 6, y + (yUp ? 1 - at : at) * h + 4, label, { fill: soft, anchor: "end" });
    pen.text(x + w / 2, y + h + 31 + this.below, xName, { fill: ink, anchor: "middle" });
    pen.text(13, y + h / 2, yName, { fill: ink, anchor: "middle", turn: -Math.PI / 2 });
  }

  legend(pen, right, y, top, name) {
    const { soft } = palette(), wide = 132, x = right - wide;
    const colours = ramp();
    const bar = raster(256, 1, (pixels) => pixels.set(colours.packed)); // ticks stand where shade() puts their values
    pen.image(bar, x, y, wide, 8);
    const scale = (value) => x + (wide * shade(value, top)) / 255;
    for (const tick of ticks(top)) pen.text(scale(tick), y + 19, String(tick), { fill: soft, size: 10, anchor: "middle" });
    pen.text(x - 8, y + 8, name, { fill: soft, size: 10.5, anchor: "end" });
  }

  // A line that can be seen on any colour of the ramp.
  halo(pen, points) {
    pen.lines(points, palette().surface, 3.4);
    pen.lines(points, palette().path, 1.7);
  }

  get below() { return 0; }
}

class HeatMap extends Picture {
  title = "Received attention by step and position";
  height() { return Math.round(Math.min(460, Math.max(280, this.panel.view.T * 3 + 110))); }
  get below() { return 14; }
  box([w, h]) { return [50, 32, w - 62, h - 32 - 52]; }

  paint() {
    const { view, field, top } = this.panel, keys = view.realKeys, colours = ramp();
    const blank = packedColour(palette().blank), none = packedColour(palette().page);
    const of = new Uint32Array(256);
    for (let code = 0; code < LEFT_OUT; code++) of[code] = colours.packed[shade(field.values[code], top)];
    of[LEFT_OUT] = blank;
    of[MISSING] = none;
    this.image = raster(keys.length, view.T, (pixels) => {
      for (let t = 0, i = 0; t < view.T; t++) for (const k of keys) pixels[i++] = of[field.codes[t * view.K + k]];
    });
    this.strip = raster(keys.length, 1, (pixels) => {
      keys.forEach((k, i) => {
        const value = field.average[k];
        pixels[i] = Number.isFinite(value) ? colours.packed[shade(value, top)] : none;
      });
    });
  }

  draw(pen, w, h) {
    const { view, field, top } = this.panel, box = this.box([w, h]), [x, y, bw, bh] = box;
    const { soft } = palette(), many = view.realKeys.length;
    pen.image(this.image, x, y, bw, bh);
    pen.image(this.strip, x, y + bh + 4, bw, 8);
    pen.text(x - 6, y + bh + 12, "mean", { fill: soft, size: 10, anchor: "end" });
    const first = view.position[view.realKeys[0]];
    const xs = axisTicks(many - 1, bw / 60).map((p) => [(p + 0.5) / many, String(p + first)]);
    const ys = axisTicks(view.T - 1, bh / 28).map((t) => [(t + 0.5) / view.T, String(view.steps[t])]);
    this.axes(pen, box, xs, ys, "position", "step");
    const prompt = view.realKeys.findIndex((k) => !(view.flag[k] & PROMPT));
    if (prompt > 0) pen.lines([[x + (bw * prompt) / many, y], [x + (bw * prompt) / many, y + bh + 12]], soft, 1, [3, 3]);
    if (field.path)
      for (const part of pathParts(view, field.path))
        this.halo(pen, part.flatMap(([t, i]) => [[x + (bw * (i + 0.5)) / many, y + (bh * t) / view.T],
          [x + (bw * (i + 0.5)) / many, y + (bh * (t + 1)) / view.T]]));
    this.legend(pen, w - 12, 6, top, "received, uniform = 1");
    pen.text(x, 16, this.panel.selectionText(), { fill: palette().ink, size: 12, weight: 600 });
  }

  // The boxes of the marks that follow step and key: [x, y, width, height], or null.
  marks([w, h], step, key) {
    const { view } = this.panel, [x, y, bw, bh] = this.box([w, h]);
    const many = view.realKeys.length, row = Math.max(2, bh / view.T), at = view.indexOf(key);
    return [[x - 1, y + (bh * (step + 0.5)) / view.T - row / 2 - 1, bw + 2, row + 2],
      at < 0 ? null : [x + (bw * (at + 0.5)) / many - 0.5, y, 1, bh + 13]];
  }

  locate(px, py, w, h) {
    const { view } = this.panel, [x, y, bw, bh] = this.box([w, h]);
    const at = Math.floor(((px - x) / bw) * view.realKeys.length), step = Math.floor(((py - y) / bh) * view.T);
    if (at < 0 || at >= view.realKeys.length || step < 0 || py > y + bh + 14) return null;
    if (step >= view.T) return { key: view.realKeys[at], average: true };
    return { step, key: view.realKeys[at] };
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
  height() { return 372; }
  box([w, h]) { return [50, 32, w - 62, h - 32 - 40]; }

  paint() {
    const { view, field } = this.panel, keys = view.realKeys, colours = ramp();
    this.most = 1;
    for (const count of field.counts) if (count > this.most) this.most = count;
    if (!field.mean) return;
    this.image = raster(view.T, keys.length, (pixels) => {
      keys.forEach((k, i) => {
        for (let t = 0; t < view.T; t++) {
          const count = field.counts[t * view.K + k];
          if (count) pixels[(keys.length - 1 - i) * view.T + t] = colours.packed[Math.max(56, shade(count, this.most))];
        }
      });
    });
  }

  draw(pen, w, h) {
    const { view, field, top } = this.panel, box = this.box([w, h]), [x, y, bw, bh] = box;
    const many = view.realKeys.length, colours = ramp(), { ink, raised } = palette();
    pen.rect(x, y, bw, bh, raised);
    if (field.mean) {
      pen.image(this.image, x, y, bw, bh);
      const unit = this.panel.score.sinks_of === "heads" ? "heads that call it a sink" : "layers whose mean is a sink";
      this.legend(pen, w - 12, 6, this.most, unit);
    } else {
      const index = new Map(view.realKeys.map((k, i) => [k, i])), thick = Math.max(4, Math.min(9, bh / many));
      for (const one of field.residences) {
        const mid = y + bh - (bh * (index.get(one.key) + 0.5)) / many;
        const from = x + (bw * one.start) / view.T, wide = (bw * (one.stop - one.start + 1)) / view.T;
        pen.rect(from, mid - thick / 2, wide, thick, colours.css[Math.max(60, shade(one.strength, top))]);
      }
      for (const part of pathParts(view, field.path))
        this.halo(pen, part.flatMap(([t, i]) => [0, 1].map((d) =>
          [x + (bw * (t + d)) / view.T, y + bh - (bh * (i + 0.5)) / many])));
      this.legend(pen, w - 12, 6, top, "mean strength of a stay");
    }
    const first = view.position[view.realKeys[0]];
    const xs = axisTicks(view.T - 1, bw / 60).map((t) => [(t + 0.5) / view.T, String(view.steps[t])]);
    const ys = axisTicks(many - 1, bh / 30).map((p) => [(p + 0.5) / many, String(p + first)]);
    this.axes(pen, box, xs, ys, "step", "position", true);
    const what = field.mean ? "where heads have sinks" : "residences (bars) and path of the strongest (line)";
    pen.text(x, 16, what, { fill: ink, size: 12, weight: 600 });
  }

  marks([w, h], step, key) {
    const { view } = this.panel, [x, y, bw, bh] = this.box([w, h]);
    const many = view.realKeys.length, at = view.indexOf(key);
    return [[x + (bw * (step + 0.5)) / view.T - 1, y, 2, bh],
      at < 0 ? null : [x, y + bh - (bh * (at + 0.5)) / many - 0.5, bw, 1]];
  }

  locate(px, py, w, h) {
    const { view } = this.panel, [x, y, bw, bh] = this.box([w, h]);
    const step = Math.floor(((px - x) / bw) * view.T), at = Math.floor((1 - (py - y) / bh) * view.realKeys.length);
    if (step < 0 || step >= view.T || at < 0 || at >= view.realKeys.length) return null;
    return { step, key: view.realKeys[at] };
  }
}

class Grid extends Picture {
  title = "Strength of each head’s main sink, averaged over steps";
  height() { return Math.min(440, Math.max(200, this.panel.view.L * 22 + 84)); }
  box([w, h]) {
    const { L, H } = this.panel.view, side = Math.min(64, (w - 108) / H, (h - 80) / L);
    const wide = Math.max(side * H, Math.min(w - 108, side * H * 2.2));
    return [96, 32, wide, (h - 80)];
  }

  paint() {
    this.most = 1;
    for (const value of this.panel.strength) if (value > this.most) this.most = value;
  }

  draw(pen, w, h) {
    const { view, strength } = this.panel, [x, y, bw, bh] = this.box([w, h]), colours = ramp();
    const { ink, soft, line, raised } = palette(), ch = bh / view.L, cw = bw / view.H, gap = cw > 6 && ch > 6 ? 1 : 0;
    for (let l = 0; l < view.L; l++) {
      pen.rect(46, y + l * ch, 44 - gap, ch - gap, raised, ch > 12 ? line : null);
      if (ch > 12) pen.text(68, y + (l + 0.5) * ch + 4, "mean", { fill: soft, size: 10, anchor: "middle" });
      for (let hd = 0; hd < view.H; hd++) {
        const value = strength[l * view.H + hd], colour = shade(value, this.most);
        pen.rect(x + hd * cw, y + l * ch, cw - gap, ch - gap, colours.css[colour]);
        if (cw > 30 && ch > 15)
          pen.text(x + (hd + 0.5) * cw, y + (l + 0.5) * ch + 4, numberText(value), { fill: colours.ink[colour], size: 10, anchor: "middle" });
      }
    }
    for (const l of axisTicks(view.L - 1, bh / 16)) pen.text(40, y + (l + 0.5) * ch + 4, String(view.layers[l]), { fill: soft, anchor: "end" });
    if (view.heads.length)
      for (const i of axisTicks(view.H - 1, bw / 26)) pen.text(x + (i + 0.5) * cw, y + bh + 15, String(view.heads[i]), { fill: soft, anchor: "middle" });
    pen.text(x + bw / 2, y + bh + 31, view.heads.length ? "head" : "mean of heads", { fill: ink, anchor: "middle" });
    pen.text(13, y + bh / 2, "layer", { fill: ink, anchor: "middle", turn: -Math.PI / 2 });
    this.legend(pen, w - 12, 6, this.most, "");
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
