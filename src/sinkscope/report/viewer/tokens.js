// The tokens of one step as text. Token text is untrusted: it reaches the page through textContent alone, control and
// direction marks are spelled out, and long tokens are cut for the eye (the details show more).

const LONGEST = 24;
const FOLD = 4; // this many equal tokens of an answer in a row are shown as one
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\uffff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

function visible(text, most = LONGEST) {
  const cut = text.length > most ? `${text.slice(0, most)}…` : text;
  return cut.replace(HIDDEN, (mark) => {
    if (mark === "\n") return "⏎";
    if (mark === "\t") return "⇥";
    if (mark === "\ufffd") return mark;
    return `⟨U+${mark.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}

// For sentences: in quotes, spaces visible.
function quoted(text) {
  const more = text.length > 200 ? ` (${text.length.toLocaleString("en")} characters)` : "";
  return `“${visible(text, 200)}”${more}`;
}

class Tokens extends Picture {
  title = "Tokens of a step, coloured by received attention";

  constructor(panel) {
    super(panel);
    const { view } = panel;
    this.box = element("div", { class: "tokens", role: "listbox", tabindex: "0", "aria-label": "tokens" });
    this.chips = view.realKeys.map((key, i) => {
      const chip = element("span", { class: "token", role: "option", id: `${panel.id}-token-${i}`, "aria-label": "token" });
      const gap = document.createTextNode("");
      this.box.append(chip, gap);
      if (i > 0 && view.flag[view.realKeys[i - 1]] & PROMPT && !(view.flag[key] & PROMPT)) {
        const rule = element("span", { class: "boundary", "aria-hidden": "true" }, "answer");
        chip.before(rule);
      }
      return { chip, gap, key, text: -1, look: "", colour: -1, run: null };
    });
    this.byChip = new Map(this.chips.map((one) => [one.chip, one]));
    this.active = null;
    this.found = [];
    this.unfolded = false;
    this.fold = element("button", { type: "button", class: "fold", hidden: true, "aria-pressed": "false",
      onclick: () => { this.unfolded = !this.unfolded; this.update(this.step, true); } });
  }

  keyOf(target) {
    return this.byChip.get(target)?.key ?? -1;
  }

  // Writes only what changed: a step of a diffusion model changes few texts and some colours.
  update(step, fresh) {
    const { view, field, top, lookTop } = this.panel, colours = ramp(field.signed), from = step * view.K;
    const shades = this.shadesOf(field, top, fresh), row = this.panel.lookedAt(step), plain = row ? ramp() : colours;
    const above = this.panel.score.above ?? Infinity;
    let moved = fresh;
    for (const one of this.chips) {
      const text = view.token[from + one.key], flag = view.flag[from + one.key] & (MASKED | REAL);
      if (text === one.text && flag === one.flag && !fresh) continue;
      one.text = text;
      one.flag = flag;
      moved = true;
      this.write(one, view.texts[text], flag);
    }
    if (moved) this.foldRuns(from);
    if (moved || this.wanted !== this.panel.app.state.find) this.search(from);
    for (const one of this.chips) {
      const i = from + one.key, flag = view.flag[i], code = field.codes[i];
      let colour = row ? this.rowShade(row[one.key], lookTop) : code < LEFT_OUT ? shades[code] : -1;
      if (one.run?.head === one) for (const other of one.run.rest) {
        const more = row ? this.rowShade(row[other.key], lookTop) : shades[field.codes[from + other.key]] ?? -1;
        if (field.signed ? Math.abs(more - 128) > Math.abs(colour - 128) && more >= 0 : more > colour) colour = more;
      }
      const sink = field.signed ? false : field.mean ? field.values[code] > above : field.counts[i] > 0;
      const look = `token${flag & REAL ? "" : " absent"}${flag & MASKED ? " mask" : ""}${flag & DECIDED ? " decided" : ""}${
        sink ? " sink" : ""}${code === MISSING && flag & REAL && !row ? " unknown" : ""}${field.hidden?.[i] ? " hidden-key" : ""}${
        one.run && one.run.head !== one ? " folded" : ""}${one.match ? " match" : ""}`;
      if (look !== one.look) one.chip.className = one.look = look;
      if (colour !== one.colour || fresh) {
        one.colour = colour;
        one.chip.style.backgroundColor = colour < 0 ? "" : plain.css[colour];
        const ink = colour < 0 ? "" : plain.ink[colour];
        if (ink !== one.ink) one.chip.style.color = one.ink = ink;
      }
    }
    this.step = step;
    const label = `tokens that go into step ${view.steps[step]}, coloured by ${this.panel.colouredBy()}`;
    if (this.label !== label) this.box.setAttribute("aria-label", (this.label = label));
  }

  shadesOf(field, top, fresh) {
    if (fresh || this.shadesFor !== field) {
      this.shadesFor = field;
      // An eighth of the colours: the eye sees no difference, and fewer tokens change from step to step.
      this.shades = Array.from(field.values, (value) => (Number.isFinite(value) ? Math.min(255, Math.round(shadeOf(field, value, top) / 8) * 8) : -1));
    }
    return this.shades;
  }

  rowShade(value, top) {
    return Number.isFinite(value) ? Math.min(255, Math.round(shade(value, top) / 8) * 8) : -1;
  }

  write(one, text, flag) {
    const masked = flag & MASKED;
    one.chip.textContent = masked ? "" : visible(text) || "∅";
    const label = masked ? "mask" : visible(text).trim() ? "" : "white space"; // what no letter says
    if (label) one.chip.setAttribute("aria-label", label); else one.chip.removeAttribute("aria-label");
    one.gap.data = !masked && flag & REAL && text.includes("\n") ? "\n" : "";
  }

  // Runs of equal tokens in the answer, as the end tokens behind it are, become one token with a count.
  foldRuns(from) {
    const { view } = this.panel;
    let run = [], folded = 0;
    const close = () => {
      const held = run.length >= FOLD && !this.unfolded ? { head: run[0], rest: run.slice(1) } : null;
      if (run.length >= FOLD) folded += run.length - 1;
      for (const one of run) {
        const was = one.run?.head === one;
        one.run = held;
        if (held?.head === one || was) this.count(one);
      }
      run = [];
    };
    for (const one of this.chips) {
      const flag = view.flag[from + one.key];
      const plain = flag & REAL && !(flag & (MASKED | PROMPT));
      if (run.length && (!plain || run[0].text !== one.text)) close();
      if (plain) run.push(one);
      else if (one.run) { const was = one.run.head === one; one.run = null; if (was) this.count(one); }
    }
    close();
    this.fold.hidden = !folded;
    this.fold.textContent = this.unfolded ? "fold repeated tokens" : `${folded} repeated tokens folded: show`;
    this.fold.setAttribute("aria-pressed", String(this.unfolded));
  }

  count(one) {
    this.write(one, this.panel.view.texts[one.text], one.flag);
    if (one.run?.head !== one || one.flag & MASKED) return;
    one.chip.textContent += ` ×${one.run.rest.length + 1}`;
    one.chip.setAttribute("aria-label", `${visible(this.panel.view.texts[one.text])}, ${one.run.rest.length + 1} times`);
  }

  // Marks the tokens that contain what is searched for.
  search(from) {
    const wanted = (this.wanted = this.panel.app.state.find), { view } = this.panel, lower = wanted.toLowerCase();
    this.found = [];
    for (const one of this.chips) {
      const flag = view.flag[from + one.key];
      one.match = !!wanted && !!(flag & REAL) && !(flag & MASKED) && view.texts[one.text].toLowerCase().includes(lower);
      if (one.match) this.found.push(one.key);
    }
  }

  mark(key) {
    const at = this.panel.view.indexOf(key), found = at < 0 ? null : this.chips[at];
    const chip = (found?.run ? found.run.head : found)?.chip ?? null;
    if (chip === this.active) return;
    this.active?.removeAttribute("aria-selected");
    chip?.setAttribute("aria-selected", "true");
    if (chip) this.box.setAttribute("aria-activedescendant", chip.id); else this.box.removeAttribute("aria-activedescendant");
    this.active = chip;
  }

  // As a picture: words wrapped by their measured widths.
  size() {
    const width = Math.max(320, this.box.clientWidth || 640);
    return [width, this.layout(width).height];
  }

  layout(width) {
    const ruler = document.createElement("canvas").getContext("2d"), placed = [];
    ruler.font = `12px ${MONO}`;
    let x = 12, y = 52;
    for (const one of this.chips) {
      const i = this.step * this.panel.view.K + one.key;
      if (!(this.panel.view.flag[i] & REAL) || (one.run && one.run.head !== one)) continue;
      const text = this.panel.view.flag[i] & MASKED ? "" : one.chip.textContent;
      const wide = Math.max(12, ruler.measureText(text).width + 6);
      if (x + wide > width - 12) { x = 12; y += 22; }
      placed.push({ one, text, x, y, wide, masked: this.panel.view.flag[i] & MASKED });
      x += wide + 2;
      if (one.gap.data) { x = 12; y += 22; }
    }
    return { placed, height: y + 20 };
  }

  draw(pen, width) {
    const { view, field } = this.panel, row = this.panel.lookedAt(this.step), top = row ? this.panel.lookTop : this.panel.top, signed = field.signed && !row;
    const colours = ramp(signed), { ink, soft } = palette();
    pen.text(12, 20, `${view.name}: step ${view.steps[this.step]}, ${this.panel.selectionText()}`, { fill: ink, size: 12, weight: 600 });
    this.legend(pen, width - 12, 10, top, "", signed);
    for (const { one, text, x, y, wide, masked } of this.layout(width).placed) {
      pen.rect(x, y - 13, wide, 18, one.colour < 0 ? null : colours.css[one.colour], masked ? soft : null);
      pen.text(x + 3, y, text, { fill: one.colour < 0 ? ink : colours.ink[one.colour], size: 12, mono: true });
    }
  }
}
