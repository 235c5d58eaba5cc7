// The tokens of one step as text. Token text is untrusted: it reaches the page through textContent alone, control and
// direction marks are spelled out, and long tokens are cut for the eye (the details show more).

const LONGEST = 24;
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
      const chip = element("span", { class: "token", role: "option", id: `${panel.id}-token-${i}` });
      const gap = document.createTextNode("");
      this.box.append(chip, gap);
      if (i > 0 && view.flag[view.realKeys[i - 1]] & PROMPT && !(view.flag[key] & PROMPT)) {
        const rule = element("span", { class: "boundary", "aria-hidden": "true" }, "answer");
        chip.before(rule);
      }
      return { chip, gap, key, text: -1, look: "", colour: -1 };
    });
    this.byChip = new Map(this.chips.map((one) => [one.chip, one]));
    this.active = null;
  }

  keyOf(target) {
    return this.byChip.get(target)?.key ?? -1;
  }

  // Writes only what changed: a step of a diffusion model changes few texts and some colours.
  update(step, fresh) {
    const { view, field, top } = this.panel, colours = ramp(), from = step * view.K;
    const shades = this.shadesOf(field, top, fresh);
    const above = 1 + view.epsilon;
    for (const one of this.chips) {
      const i = from + one.key, flag = view.flag[i], code = field.codes[i], text = view.token[i];
      if (text !== one.text || fresh) {
        one.text = text;
        this.write(one, view.texts[text], flag);
      }
      const sink = field.mean ? field.values[code] > above : field.counts[i] > 0;
      const look = `token${flag & REAL ? "" : " absent"}${flag & MASKED ? " mask" : ""}${flag & DECIDED ? " decided" : ""}${
        sink ? " sink" : ""}${code === LEFT_OUT ? " unknown" : ""}${field.taken?.[i] ? " taken" : ""}`;
      if (look !== one.look) one.chip.className = one.look = look;
      const colour = code < LEFT_OUT ? shades[code] : -1;
      if (colour !== one.colour || fresh) {
        one.colour = colour;
        one.chip.style.backgroundColor = colour < 0 ? "" : colours.css[colour];
        const ink = colour < 0 ? "" : colours.ink[colour];
        if (ink !== one.ink) one.chip.style.color = one.ink = ink;
      }
    }
    this.step = step;
    this.box.setAttribute("aria-label", `tokens that go into step ${view.steps[step]}, coloured by received attention`);
  }

  shadesOf(field, top, fresh) {
    if (fresh || this.shadesFor !== field) {
      this.shadesFor = field;
      // An eighth of the colours: the eye sees no difference, and fewer tokens change from step to step.
      this.shades = Array.from(field.values, (value) => (Number.isFinite(value) ? Math.min(255, Math.round(shade(value, top) / 8) * 8) : -1));
    }
    return this.shades;
  }

  write(one, text, flag) {
    const masked = flag & MASKED;
    one.chip.textContent = masked ? "" : visible(text) || "∅";
    if (masked) one.chip.setAttribute("aria-label", "mask"); else one.chip.removeAttribute("aria-label");
    one.gap.data = !masked && flag & REAL && text.includes("\n") ? "\n" : "";
  }

  mark(key) {
    const chip = this.chips.find((one) => one.key === key)?.chip ?? null;
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
      if (!(this.panel.view.flag[i] & REAL)) continue;
      const text = this.panel.view.flag[i] & MASKED ? "" : visible(this.panel.view.texts[one.text]);
      const wide = Math.max(12, ruler.measureText(text).width + 6);
      if (x + wide > width - 12) { x = 12; y += 22; }
      placed.push({ one, text, x, y, wide, masked: this.panel.view.flag[i] & MASKED });
      x += wide + 2;
      if (one.gap.data) { x = 12; y += 22; }
    }
    return { placed, height: y + 20 };
  }

  draw(pen, width) {
    const colours = ramp(), { ink, soft } = palette(), { view, top } = this.panel;
    pen.text(12, 20, `${view.name}: step ${view.steps[this.step]}, ${this.panel.selectionText()}`, { fill: ink, size: 12, weight: 600 });
    this.legend(pen, width - 12, 10, top, "");
    for (const { one, text, x, y, wide, masked } of this.layout(width).placed) {
      pen.rect(x, y - 13, wide, 18, one.colour < 0 ? null : colours.css[one.colour], masked ? soft : null);
      pen.text(x + 3, y, text, { fill: one.colour < 0 ? ink : colours.ink[one.colour], size: 12, mono: true });
    }
  }
}
