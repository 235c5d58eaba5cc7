// Reading what the page embeds: base64 → inflate → typed arrays, each when it is first needed.
// Scores are one byte each: value = exp(code · scale) − 1; 254 = not embedded, 255 = no such key, or one that cannot be judged.

const LEFT_OUT = 254;
const MISSING = 255;
const REAL = 1, MASKED = 2, DECIDED = 4, PROMPT = 8;

function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

async function inflate(text) {
  const stream = new Blob([bytesOf(text)]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function join16(bytes, signed) {
  const many = bytes.length / 2;
  const found = new Uint16Array(many);
  for (let i = 0; i < many; i++) found[i] = bytes[i] | (bytes[many + i] << 8);
  return signed ? new Int16Array(found.buffer) : found;
}

// The value of each code, and NaN for the two that have none.
function valuesOf(scale) {
  const values = new Float32Array(256);
  for (let code = 0; code < LEFT_OUT; code++) values[code] = Math.expm1(code * scale);
  values[LEFT_OUT] = values[MISSING] = NaN;
  return values;
}

async function unpack(packed) {
  const bytes = await inflate(packed.data);
  packed.data = null; // the text is not needed again, and it is large
  const found = { shape: packed.shape, error: packed.error ?? 0 };
  if (packed.kind === "u16" || packed.kind === "i16") found.array = join16(bytes, packed.kind === "i16");
  else if (packed.kind === "f32") found.array = new Float32Array(bytes.buffer);
  else found.array = bytes;
  if (packed.kind === "coded") found.values = valuesOf(packed.scale);
  return found;
}

// One trace and sample. Arrays unpack once; `field` gives the step × key scores of a selection.
class View {
  constructor(data) {
    Object.assign(this, data);
    this.T = data.steps.length;
    this.K = data.keys;
    this.L = data.layers.length;
    this.H = Math.max(1, data.heads.length);
    this.realKeys = [];
    for (let k = 0; k < this.K; k++) if (data.position[k] >= 0) this.realKeys.push(k);
    this.place = new Map(this.realKeys.map((k, i) => [k, i]));
    this.cache = new Map();
    this.fields = new Map();
  }

  get(packed) {
    if (!packed) return Promise.resolve(null);
    if (!this.cache.has(packed)) this.cache.set(packed, unpack(packed));
    return this.cache.get(packed);
  }

  async open() {
    const [tokens, flags] = await Promise.all([this.get(this.tokens), this.get(this.flags)]);
    this.token = tokens.array;
    this.flag = flags.array;
    return this;
  }

  score(name) {
    return this.scores.find((one) => one.name === name) ?? this.scores[0];
  }

  indexOf(key) {
    return this.place.get(key) ?? -1;
  }

  text(step, key) {
    return this.texts[this.token[step * this.K + key]];
  }

  // layer, head: indices, or −1 for the mean. Everything the pictures need to draw this selection.
  async field(name, layer, head) {
    const score = this.score(name);
    const id = `${score.name}/${layer}/${head}`;
    if (!this.fields.has(id)) {
      if (this.fields.size > 24) this.fields.delete(this.fields.keys().next().value);
      this.fields.set(id, await this.makeField(score, layer, head));
    }
    return this.fields.get(id);
  }

  async makeField(score, layer, head) {
    const size = this.T * this.K;
    const hidden = layer < 0 ? null : (await this.get(this.masked_keys))?.array.subarray(layer * size, (layer + 1) * size);
    if (layer >= 0 && head >= 0 && this.heads.length) return { hidden, ...(await this.headField(score, layer, head)) };
    const [scores, sinks] = await Promise.all([
      this.get(layer < 0 ? score.mean : score.layers),
      this.get(layer < 0 ? score.sinks_total : score.sinks),
    ]);
    const cut = layer < 0 ? [0, size] : [layer * size, (layer + 1) * size];
    const field = {
      codes: scores.array.subarray(...cut), values: scores.values, error: scores.error,
      counts: sinks.array.subarray(...cut), hidden,
      outOf: score.head_count * (layer < 0 ? this.L : 1), partial: false, mean: true,
    };
    field.average = this.averageOf(field);
    return field;
  }

  async headField(score, layer, head) {
    const at = layer * this.H + head, size = this.T * this.K;
    const full = score.full[`${layer}:${head}`];
    const [average, path, columns, strength] = await Promise.all(
      [score.average, score.path, score.residences, score.residence_strength].map((one) => this.get(one)));
    const mean = new Float32Array(this.K);
    for (let k = 0; k < this.K; k++) mean[k] = average.values[average.array[at * this.K + k]];
    const field = { average: mean, averageError: average.error, outOf: 1, mean: false, partial: !full };
    field.path = path.array.subarray(at * this.T, (at + 1) * this.T);
    field.residences = residencesOf(columns.array, strength.array, layer, head);
    field.counts = new Uint8Array(size);
    for (const one of field.residences)
      for (let t = one.start; t <= one.stop; t++) field.counts[t * this.K + one.key] = 1;
    if (full) {
      const scores = await this.get(full);
      return Object.assign(field, { codes: scores.array, values: scores.values, error: scores.error });
    }
    const [keys, top, layers] = await Promise.all([score.top_keys, score.top_values, score.layers].map((one) => this.get(one)));
    const many = top.shape[3];
    field.codes = new Uint8Array(size);
    for (let i = 0; i < size; i++) field.codes[i] = layers.array[layer * size + i] === MISSING ? MISSING : LEFT_OUT;
    for (let t = 0; t < this.T; t++)
      for (let i = 0; i < many; i++) {
        const from = (at * this.T + t) * many + i;
        if (top.array[from] !== MISSING) field.codes[t * this.K + keys.array[from]] = top.array[from];
      }
    return Object.assign(field, { values: top.values, error: top.error });
  }

  // Who looks at whom for a selection: {maps, by, of(step)}, where `of` gives the map of a step where one was recorded, else the
  // classes of query, else null. null: neither was recorded.
  async relations(layer, head) {
    const [maps, by] = await Promise.all([this.mapRelations(layer, head), this.classRelations(layer)]);
    return maps || by ? { maps, by, of: (step) => (maps?.slots.has(step) ? maps : by) } : null;
  }

  // {exact, level, slots: step → place among the maps, at(step) → codes [Q, K], values}
  async mapRelations(layer, head) {
    const { maps } = this;
    if (!maps) return null;
    const level = layer < 0 ? "mean" : head >= 0 && this.heads.length && (maps.heads || maps.full[`${layer}:${head}`]) ? "head"
      : maps.layers ? "layer" : "mean";
    const full = level === "head" ? maps.full[`${layer}:${head}`] : null;
    const packed = await this.get(full ?? { mean: maps.mean, layer: maps.layers, head: maps.heads }[level]);
    const size = this.K * this.K, many = maps.steps.length;
    const from = full || level === "mean" ? 0 : (level === "layer" ? layer : layer * this.H + head) * many * size;
    const slots = new Map(maps.steps.map((step, slot) => [step, slot]));
    return { exact: true, level, slots, values: packed.values,
      at: (step) => packed.array.subarray(from + slots.get(step) * size, from + (slots.get(step) + 1) * size) };
  }

  // {level, at(kind, step) → codes [K], values}
  async classRelations(layer) {
    const { by } = this;
    if (!by) return null;
    const level = layer >= 0 && by.layers ? "layer" : "mean", size = this.T * this.K;
    const packed = await this.get(level === "layer" ? by.layers : by.mean);
    const from = level === "layer" ? layer * by.kinds.length * size : 0;
    return { exact: false, level, values: packed.values,
      at: (kind, step) => packed.array.subarray(from + (kind * this.T + step) * this.K, from + (kind * this.T + step + 1) * this.K) };
  }

  // The class of a query, as an index of `by.kinds`: masked, decided, prompt.
  kindOf(step, key) {
    const flag = this.flag[step * this.K + key];
    return this.by.kinds.indexOf(flag & PROMPT ? "prompt" : flag & MASKED ? "masked" : "decided");
  }

  averageOf(field) {
    const sum = new Float64Array(this.K), many = new Uint32Array(this.K);
    for (let t = 0, i = 0; t < this.T; t++)
      for (let k = 0; k < this.K; k++, i++) {
        const code = field.codes[i];
        if (code < LEFT_OUT) { sum[k] += field.values[code]; many[k]++; }
      }
    return Float32Array.from(sum, (value, k) => (many[k] ? value / many[k] : NaN));
  }
}

// Columns layer, head, key, start, stop, fate, sorted by layer and head: those of one head.
function residencesOf(columns, strength, layer, head) {
  const many = columns.length / 6, found = [];
  const rank = (i) => columns[i] * 65536 + columns[many + i], wanted = layer * 65536 + head;
  let low = 0, high = many;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rank(middle) < wanted) low = middle + 1; else high = middle;
  }
  for (let i = low; i < many && rank(i) === wanted; i++)
    found.push({
      key: columns[2 * many + i], start: columns[3 * many + i], stop: columns[4 * many + i],
      fate: columns[5 * many + i], strength: strength[i],
    });
  return found;
}
