// Pictures are drawn with a pen: one writes on a canvas, the other writes SVG, so that what is saved is what is seen.

const FONT = "ui-sans-serif, system-ui, 'Helvetica Neue', Arial, sans-serif";
const MONO = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace";

class CanvasPen {
  constructor(canvas, width, height, ratio) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    this.ctx = canvas.getContext("2d");
    this.ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.ctx.clearRect(0, 0, width, height);
  }

  rect(x, y, w, h, fill, stroke) {
    if (fill) { this.ctx.fillStyle = fill; this.ctx.fillRect(x, y, w, h); }
    if (stroke) { this.ctx.strokeStyle = stroke; this.ctx.lineWidth = 1; this.ctx.strokeRect(x, y, w, h); }
  }

  lines(points, stroke, width, dash = []) {
    this.ctx.beginPath();
    points.forEach(([x, y], i) => (i ? this.ctx.lineTo(x, y) : this.ctx.moveTo(x, y)));
    this.ctx.strokeStyle = stroke;
    this.ctx.lineWidth = width;
    this.ctx.lineJoin = "round";
    this.ctx.setLineDash(dash);
    this.ctx.stroke();
    this.ctx.setLineDash([]);
  }

  text(x, y, text, { fill, size = 11, anchor = "start", mono = false, weight = 400, turn = 0 }) {
    this.ctx.save();
    this.ctx.translate(x, y);
    this.ctx.rotate(turn);
    this.ctx.font = `${weight} ${size}px ${mono ? MONO : FONT}`;
    this.ctx.fillStyle = fill;
    this.ctx.textAlign = anchor === "middle" ? "center" : anchor;
    this.ctx.fillText(text, 0, 0);
    this.ctx.restore();
  }

  image(canvas, x, y, w, h) {
    this.ctx.imageSmoothingEnabled = w < canvas.width || h < canvas.height;
    this.ctx.drawImage(canvas, x, y, w, h);
  }
}

class SvgPen {
  constructor(width, height, title) {
    this.space = "http://www.w3.org/2000/svg";
    this.root = this.make("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img" }, null);
    this.make("title", {}).textContent = title;
  }

  make(name, attributes, parent = this.root) {
    const node = document.createElementNS(this.space, name);
    for (const [key, value] of Object.entries(attributes)) if (value != null) node.setAttribute(key, value);
    parent?.append(node);
    return node;
  }

  rect(x, y, width, height, fill, stroke) {
    this.make("rect", { x, y, width, height, fill: fill ?? "none", stroke });
  }

  lines(points, stroke, width, dash = []) {
    const path = points.map(([x, y]) => `${+x.toFixed(2)},${+y.toFixed(2)}`).join(" ");
    this.make("polyline", { points: path, fill: "none", stroke, "stroke-width": width, "stroke-linejoin": "round",
      "stroke-dasharray": dash.length ? dash.join(" ") : null });
  }

  text(x, y, text, { fill, size = 11, anchor = "start", mono = false, weight = 400, turn = 0 }) {
    const node = this.make("text", { x, y, fill, "font-size": size, "font-family": mono ? MONO : FONT,
      "font-weight": weight === 400 ? null : weight, "text-anchor": anchor, "xml:space": mono ? "preserve" : null,
      transform: turn ? `rotate(${(turn * 180) / Math.PI} ${x} ${y})` : null });
    node.textContent = text;
  }

  image(canvas, x, y, width, height) {
    this.make("image", { x, y, width, height, href: canvas.toDataURL("image/png"), preserveAspectRatio: "none",
      "image-rendering": "pixelated" });
  }

  toString() {
    return new XMLSerializer().serializeToString(this.root);
  }
}

function offer(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

// picture: {title, size() → [width, height], draw(pen, width, height)}
function saveSvg(picture, name) {
  const [width, height] = picture.size();
  const pen = new SvgPen(width, height, picture.title);
  pen.rect(0, 0, width, height, palette().surface);
  picture.draw(pen, width, height);
  offer(`${name}.svg`, new Blob([pen.toString()], { type: "image/svg+xml" }));
}

function savePng(picture, name) {
  const [width, height] = picture.size();
  const canvas = document.createElement("canvas");
  const pen = new CanvasPen(canvas, width, height, 2);
  pen.rect(0, 0, width, height, palette().surface);
  picture.draw(pen, width, height);
  canvas.toBlob((blob) => offer(`${name}.png`, blob), "image/png");
}
