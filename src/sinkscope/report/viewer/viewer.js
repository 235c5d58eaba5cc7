// The page: shared state (step, layer, head, scores, key, which traces), controls, keyboard, and the address that keeps it.

class Viewer {
  constructor(root, data) {
    this.root = root;
    this.views = data.views.map((one) => new View(one));
    this.keepsAddress = root.dataset.address !== "off";
    this.state = { a: 0, b: data.compare ?? -1, step: Number.MAX_SAFE_INTEGER, layer: -1, head: -1, score: "", key: -1, show: "", diff: 0, find: "" };
    this.panels = [];
    this.playing = 0;
    this.wish = 0; // counts requests, so that a slow one cannot overwrite a later one
    this.hosted = root.dataset.host === "on" && parent !== window;
    this.readAddress(); // without a step in it the view opens at the last one, where everything is decided
    this.build();
    this.ready = this.show();
    if (data.live) this.followLive(data.live);
  }

  nameOf(view) {
    return view.samples[1] > 1 || this.views.filter((one) => one.name === view.name).length > 1
      ? `${view.name}${view.policy ? `, ${view.policy}` : ""}, sample ${view.sample}` : view.name;
  }

  build() {
    const button = (label, text, act) => element("button", { type: "button", "aria-label": label, title: label, onclick: act }, text);
    const choice = (label, change) => element("select", { "aria-label": label, onchange: (event) => change(event.target.value) });
    this.slider = element("input", { type: "range", min: "0", step: "1", class: "scrubber", "aria-label": "step",
      oninput: (event) => this.set({ step: Number(event.target.value) }) });
    this.count = element("output", { class: "count" });
    this.play = button("play", "▶", () => this.toggle());
    this.layer = choice("layer", (value) => this.set({ layer: Number(value), head: Number(value) < 0 ? -1 : this.state.head }));
    this.head = choice("head", (value) => this.set({ head: Number(value) }));
    this.scores = choice("scores", (value) => this.set({ score: value }));
    this.first = choice("trace", (value) => this.set({ a: Number(value) }));
    this.second = choice("compare with", (value) => this.set({ b: Number(value), diff: Number(value) < 0 ? 0 : this.state.diff }));
    this.mode = choice("compared as", (value) => this.set({ diff: Number(value) }));
    this.mode.append(element("option", { value: 0 }, "side by side"), element("option", { value: 1 }, "with difference"));
    this.colour = choice("tokens coloured by", (value) => this.set({ show: value }));
    for (const [value, text] of [["", "received"], ["from", "what it looks at"], ["to", "who looks at it"]])
      this.colour.append(element("option", { value }, text));
    this.search = element("input", { type: "search", class: "find", placeholder: "find a token", "aria-label": "find a token",
      oninput: (event) => this.set({ find: event.target.value.slice(0, 100) }),
      onkeydown: (event) => { if (event.key === "Enter") { this.nextMatch(event.shiftKey ? -1 : 1); event.preventDefault(); } } });
    this.matches = element("output", { class: "matches" });
    this.tip = element("div", { class: "tip", hidden: true });
    this.live = element("p", { class: "live", role: "status", "aria-live": "polite" });
    this.place = element("div", { class: "panels" });
    const field = (name, ...controls) => element("label", { class: "field" }, element("span", {}, name), ...controls);
    this.scoreField = field("scores", this.scores);
    this.firstField = field("trace", this.first);
    this.secondField = field("beside it", this.second);
    this.modeField = field("as", this.mode);
    this.colourField = field("tokens", this.colour);
    this.copied = element("textarea", { class: "copied", readonly: true, hidden: true, rows: "5", "aria-label": "copied text" });
    const bar = element("div", { class: "bar", role: "toolbar", "aria-label": "what is shown" },
      element("div", { class: "scrub" }, button("step back", "‹", () => this.set({ step: this.state.step - 1 })), this.play,
        button("step forward", "›", () => this.set({ step: this.state.step + 1 })), this.slider, this.count),
      element("div", { class: "fields" }, field("layer", this.layer), field("head", this.head), this.scoreField, this.colourField, this.firstField, this.secondField, this.modeField,
        element("span", { class: "field" }, this.search, this.matches),
        element("span", { class: "field copies" }, button("copy Python", "copy Python", () => this.copy(this.python())),
          this.keepsAddress ? button("copy address", "copy address", () => this.copy(this.address())) : null)));
    this.root.append(bar, this.copied, this.live, this.place, this.tip);
    this.listViews();
    (this.root.dataset.keys === "inside" ? this.root : document).addEventListener("keydown", (event) => this.key(event));
    addEventListener("hashchange", () => { if (this.readAddress()) this.ready = this.show(); });
    if (this.hosted) addEventListener("message", (event) => { if (event.source === parent) this.follow(event.data?.sinkscope); });
    let width = 0;
    new ResizeObserver(([entry]) => {
      if (Math.abs(entry.contentRect.width - width) > 1) { width = entry.contentRect.width; this.redraw(); }
    }).observe(this.place);
    for (const query of [prefersDark, printing]) query.addEventListener("change", () => this.redraw());
    addEventListener("beforeprint", () => { paper = true; this.redraw(); });
    addEventListener("afterprint", () => { paper = false; this.redraw(); });
  }

  listViews() {
    const options = () => this.views.map((view, i) => element("option", { value: i }, this.nameOf(view)));
    this.first.replaceChildren(...options());
    this.second.replaceChildren(element("option", { value: -1 }, "nothing"), ...options());
    this.firstField.hidden = this.secondField.hidden = this.views.length < 2;
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(SELECT|INPUT|TEXTAREA)$/.test(event.target.tagName)) return;
    if (event.key === " " && event.target.tagName === "BUTTON") return;
    const { step } = this.state, last = this.last;
    const act = { ArrowLeft: () => this.set({ step: step - 1 }), ArrowRight: () => this.set({ step: step + 1 }),
      Home: () => this.set({ step: 0 }), End: () => this.set({ step: last }), " ": () => this.toggle() }[event.key];
    if (!act) return;
    act();
    event.preventDefault();
  }

  // The numbers of all steps that a shown trace has; `state.step` is a place among them, and each trace shows its last step up to it.
  get timeline() {
    const shown = this.shown;
    if (this.timelineOf?.length !== shown.length || shown.some((view, i) => this.timelineOf[i] !== view)) {
      this.timelineOf = shown;
      this.numbers = [...new Set(shown.flatMap((view) => view.steps))].sort((a, b) => a - b);
      this.slots = new Map(shown.map((view) => [view, this.numbers.map((number) => {
        const later = view.steps.findIndex((one) => one > number);
        return Math.max(0, (later < 0 ? view.T : later) - 1);
      })]));
    }
    return this.numbers;
  }

  get last() { return this.timeline.length - 1; }
  at(number) { return this.timeline.indexOf(number); }
  stepIn(view) { return this.slots.get(view)?.[Math.min(this.state.step, this.last)] ?? 0; }
  get shown() { return [this.state.a, this.state.b].filter((i) => i >= 0).map((i) => this.views[i]); }

  // The one way to change anything.
  set(change) {
    const before = { ...this.state }, state = Object.assign(this.state, change);
    this.clamp();
    const changed = Object.keys(state).filter((key) => state[key] !== before[key]);
    if (!changed.length) return;
    this.writeAddress();
    if (this.hosted) parent.postMessage({ sinkscope: { ...state } }, "*");
    const small = new Set(["step", "key", "find", "show"]);
    if (changed.some((key) => !small.has(key))) this.ready = this.show();
    else this.stepSoon(changed.includes("key") || !this.playing);
  }

  // Where the window around this one wants to go; only what is part of the state.
  follow(wish) {
    const given = Object.entries(wish ?? {}).filter(([name, value]) => name in this.state && typeof value === typeof this.state[name]);
    if (given.length) this.set(Object.fromEntries(given));
  }

  clamp() {
    const { state, views } = this;
    const whole = (value, low, high) => Math.max(low, Math.min(high, Number.isInteger(value) ? value : low));
    state.a = whole(state.a, 0, views.length - 1);
    state.b = whole(state.b, -1, views.length - 1);
    const shown = this.shown;
    state.layer = whole(state.layer, -1, Math.max(...shown.map((view) => view.L)) - 1);
    state.head = state.layer < 0 ? -1 : whole(state.head, -1, Math.max(...shown.map((view) => view.heads.length)) - 1);
    state.step = whole(state.step, 0, this.last);
    state.key = whole(state.key, -1, Math.max(...shown.map((view) => view.K)) - 1);
    state.diff = state.diff === 1 && state.b >= 0 ? 1 : 0;
    if (!["from", "to"].includes(state.show)) state.show = "";
    if (!shown.some((view) => view.scores.slice(1).some((one) => one.name === state.score))) state.score = "";
  }

  stepSoon(speak) {
    this.speak = this.speak || speak;
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = 0;
      this.drawStep();
      if (this.speak) this.announce();
      this.speak = false;
    });
  }

  drawStep() {
    for (const panel of this.panels) panel.update();
    this.showStep();
  }

  showStep() {
    const { step } = this.state, text = `step ${this.timeline[step]} of ${this.timeline[this.last]}`;
    this.slider.value = step;
    this.slider.setAttribute("aria-valuetext", text);
    this.count.textContent = text;
    this.colour.value = this.state.show;
    if (document.activeElement !== this.search) this.search.value = this.state.find;
    const found = this.panels[0]?.tokens.found ?? [], at = found.indexOf(this.state.key);
    this.matches.textContent = !this.state.find ? "" : found.length ? `${at < 0 ? "" : `${at + 1} of `}${found.length}` : "none";
  }

  // The next token of the first trace that contains what is searched for.
  nextMatch(by) {
    const found = this.panels[0]?.tokens.found ?? [], at = found.indexOf(this.state.key);
    if (found.length) this.set({ key: found[(at < 0 ? (by > 0 ? 0 : -1) : at + by + found.length) % found.length] ?? found[0] });
  }

  address() {
    return `${location.href.split("#")[0]}#${this.addressText()}`;
  }

  // The selection as a line for a notebook.
  python() {
    const { state } = this, view = this.shown[0], panel = this.panels[0];
    const at = [`sample=${view.sample}`, `step=${view.steps[panel.step]}`];
    let mean = `.mean(["layer", "head"])`;
    if (state.layer >= 0) { at.push(`layer=${view.layers[Math.min(state.layer, view.L - 1)]}`); mean = `.mean("head")`; }
    if (state.layer >= 0 && state.head >= 0 && view.heads.length) { at.push(`head=${view.heads[Math.min(state.head, view.H - 1)]}`); mean = ""; }
    if (!view.heads.length) mean = state.layer < 0 ? `.mean("layer")` : "";
    const key = state.key >= 0 && state.key < view.K ? `\nreceived.sel(key=${state.key})  # position ${view.position[state.key]}` : "";
    return `import sinkscope as ss\n\ntrace = ss.Trace.open(${JSON.stringify(view.file || "trace.zarr.zip")})\n`
      + `received = trace.dataset[${JSON.stringify(panel.score.name)}].sel(${at.join(", ")})${mean}${key}\n`;
  }

  // To the clipboard where the browser allows it; the text is shown as well, so that it can always be taken by hand.
  async copy(text) {
    this.copied.hidden = false;
    this.copied.value = text;
    this.copied.rows = Math.min(7, text.split("\n").length);
    let done = true;
    try { await navigator.clipboard.writeText(text); } catch { done = false; }
    if (!done) { this.copied.focus(); this.copied.select(); }
    this.live.textContent = done ? "copied" : "select the text and copy it";
  }

  announce() {
    const said = this.panels.filter((panel) => panel.field && this.state.key >= 0 && this.state.key < panel.view.K)
      .map((panel) => panel.describe({ step: panel.step, key: this.state.key }));
    this.live.textContent = said.join(" — ");
  }

  // ---- a generation that is still going on: asks for what has been recorded since, and stays at the newest step if it was there

  async followLive(address) {
    let known = this.views[0].T, pause = 500;
    for (;;) {
      await new Promise((done) => setTimeout(done, pause));
      let answer;
      try { answer = await (await fetch(`${address}?steps=${known}`, { cache: "no-store" })).json(); } catch {
        this.say("the generation cannot be reached any more; this is what had been recorded");
        return;
      }
      pause = Math.max(300, Math.min(5000, answer.wait ?? 500));
      if (answer.views) {
        known = answer.views[0].steps.length;
        await this.replace(answer.views);
      }
      this.say(answer.finished ? `finished after ${known} steps${answer.file ? `; the trace is ${answer.file}` : ""}` : `recording: ${known} steps so far`);
      if (answer.finished) return;
    }
  }

  say(text) {
    this.status ??= element("p", { class: "status" });
    if (!this.status.isConnected) this.place.before(this.status);
    this.status.textContent = text;
  }

  // Other data of the same generation; what is selected stays selected.
  async replace(views) {
    const atEnd = this.state.step >= this.last;
    this.views = views.map((one) => new View(one));
    this.listViews();
    if (atEnd) this.state.step = this.last;
    this.panels = [];
    await (this.ready = this.show());
  }

  // After a change of trace, layer, head or scores.
  async show() {
    const wish = ++this.wish;
    this.clamp();
    const shown = this.shown;
    await Promise.all(shown.map((view) => view.open()));
    if (wish !== this.wish) return;
    if (this.panels.length !== shown.length + this.state.diff || shown.some((view, i) => this.panels[i].view !== view)) {
      this.panels = shown.map((view, i) => new Panel(this, view, "ab"[i]));
      if (this.state.diff) this.panels.push(new DifferencePanel(this, ...this.panels));
      this.place.replaceChildren(...[...this.panels.slice(shown.length), ...this.panels.slice(0, shown.length)].map((panel) => panel.root));
      this.place.classList.toggle("two", shown.length === 2);
    }
    this.fillChoices();
    const fields = await Promise.all(this.panels.slice(0, shown.length).map((panel) => panel.load()));
    if (this.state.diff) fields.push(await this.panels[shown.length].load());
    if (wish !== this.wish) return;
    this.fields = fields;
    this.redraw();
    this.announce();
    this.root.dataset.ready = "yes";
  }

  redraw() {
    if (!this.fields || this.fields.length !== this.panels.length) return;
    const shared = (kind) => {
      const own = this.panels.map((panel, i) => (!!this.fields[i].signed === kind ? panel.tops(this.fields[i]) : null)).filter(Boolean);
      return Object.fromEntries(["top", "strength", "most", "look"].map((name) => [name, Math.max(...own.map((tops) => tops[name]))]));
    };
    const tops = { false: shared(false), true: shared(true) }; // one colour scale for all traces, one for the difference
    this.panels.forEach((panel, i) => panel.draw(this.fields[i], tops[!!this.fields[i].signed]));
    this.showStep();
  }

  fillChoices() {
    const { state } = this, shown = this.shown, deepest = shown.reduce((a, b) => (b.L > a.L ? b : a));
    const widest = shown.reduce((a, b) => (b.heads.length > a.heads.length ? b : a));
    const fill = (select, pairs, value) => {
      select.replaceChildren(...pairs.map(([key, text]) => element("option", { value: key }, text)));
      select.value = String(value);
    };
    fill(this.layer, [[-1, "mean"], ...deepest.layers.map((label, i) => [i, String(label)])], state.layer);
    fill(this.head, [[-1, "mean"], ...widest.heads.map((label, i) => [i, String(label)])], state.head);
    this.head.disabled = state.layer < 0 || !widest.heads.length;
    const usual = [...new Set(shown.map((view) => view.scores[0].title))].join(" / ");
    const names = new Map(shown.flatMap((view) => view.scores.slice(1).map((one) => [one.name, one.title])));
    fill(this.scores, [["", usual], ...names], state.score);
    this.scoreField.hidden = !names.size;
    this.first.value = String(state.a);
    this.second.value = String(state.b);
    this.mode.value = String(state.diff);
    this.modeField.hidden = state.b < 0;
    this.colourField.hidden = !shown.some((view) => view.maps || view.by);
    this.slider.max = String(this.last);
    this.slider.value = String(state.step);
  }

  hover(panel, at, event) {
    for (const one of this.panels) one.hovered = one === panel && at && "key" in at ? at : null;
    this.tip.hidden = !at || !event;
    if (at && event) {
      this.tip.textContent = panel.describe(at);
      const wide = Math.min(360, innerWidth - 24);
      this.tip.style.left = `${Math.max(8, Math.min(event.clientX + 14, innerWidth - wide - 12))}px`;
      this.tip.style.top = `${event.clientY + 18 + (event.clientY > innerHeight - 90 ? -86 : 0)}px`;
    }
    panel.field && panel.hoverChanged();
  }

  toggle() {
    if (this.playing) { clearInterval(this.playing); this.playing = 0; }
    else {
      if (this.state.step >= this.last) this.set({ step: 0 });
      this.playing = setInterval(() => {
        if (this.state.step >= this.last) this.toggle(); else this.set({ step: this.state.step + 1 });
      }, Math.max(33, Math.min(150, 12_000 / (this.last + 1))));
    }
    this.play.textContent = this.playing ? "❚❚" : "▶";
    this.play.setAttribute("aria-label", this.playing ? "pause" : "play");
  }

  // Written a little later: browsers refuse an address that changes with every frame.
  writeAddress() {
    if (!this.keepsAddress) return;
    clearTimeout(this.addressTimer);
    this.addressTimer = setTimeout(() => history.replaceState(null, "", `#${this.addressText()}`), 250);
  }

  addressText() {
    const { a, b, step, layer, head, score, key, show, diff, find } = this.state;
    const parts = { step, layer, head, key, score, a, b, show, diff: diff || "", find };
    return Object.entries(parts).filter(([, value]) => value !== -1 && value !== "").map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&");
  }

  readAddress() {
    if (!this.keepsAddress || location.hash.length < 2) return false;
    const given = new URLSearchParams(location.hash.slice(1)), found = { layer: -1, head: -1, key: -1, b: -1, diff: 0, show: "", find: "" };
    for (const name of ["a", "b", "step", "layer", "head", "key", "diff"])
      if (/^-?\d{1,9}$/.test(given.get(name) ?? "")) found[name] = Number(given.get(name));
    for (const name of ["score", "show", "find"]) if (given.get(name)) found[name] = given.get(name).slice(0, 100);
    Object.assign(this.state, found);
    return true;
  }
}

// data: the parsed JSON, or an element that holds it as text.
function mount(root, data) {
  const parsed = data instanceof Element ? JSON.parse(data.textContent) : data;
  if (data instanceof Element) data.textContent = "";
  const viewer = new Viewer(root, parsed);
  root.sinkscope = viewer;
  return viewer;
}

for (const root of document.querySelectorAll("[data-sinkscope]")) {
  const data = document.getElementById(root.dataset.sinkscope);
  if (data) mount(root, data);
}
