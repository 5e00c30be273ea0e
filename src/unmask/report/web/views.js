// Events -> all views of a walk. `mount(element)` gives a view; `view.add(event)` takes a start, the
// steps and the end one at a time while they happen, `view.addAll(events)` takes a whole trace.

import { make, printer, short, surface, theme } from "./draw.js";
import { gradient } from "./palette.js";
import { build } from "./parts.js";
import { drawBoard, drawBoards, drawStrips, drawText, layout, particleAt, textFont } from "./replay.js";
import { particlesOf, settings } from "./table.js";
import { Trace } from "./trace.js";

const WHOLE = 12000; // milliseconds that a replay takes at speed 1, if it has many steps
const SLOWEST = 250; // milliseconds for a step, if it has few

export function mount(element, options = {}) {
  return new View(element, options);
}

class View {
  constructor(element, { title = true, below = null } = {}) {
    this.element = element;
    this.trace = new Trace();
    this.step = 0;
    this.prompt = 0;
    this.selected = null; // the row that the user selected
    this.colouring = "step";
    this.playing = false;
    this.follows = true; // whether new steps are shown as they come
    this.memo = {};
    this.parts = build(this, title, below);
    [this.curves, this.genealogy] = this.parts.plots;
    this._button();
    this._listen();
    this.frame = 0;
    this.again = () => this.refresh();
    this.sizes = new ResizeObserver(() => this._wide() !== this.drawnWide && this.refresh());
    this.sizes.observe(this.parts.body);
    this.dark = window.matchMedia("(prefers-color-scheme: dark)");
    this.dark.addEventListener("change", this.again);
    this.printing = (event) => this._paper(event.type === "beforeprint");
    for (const when of ["beforeprint", "afterprint"]) window.addEventListener(when, this.printing);
  }

  remove() {
    this.pause();
    cancelAnimationFrame(this.frame);
    this.sizes.disconnect();
    this.dark.removeEventListener("change", this.again);
    for (const when of ["beforeprint", "afterprint"]) window.removeEventListener(when, this.printing);
    this.element.replaceChildren();
  }

  // --- events ---

  add(event) {
    this.trace.add(event);
    if (event.event === "start") this._started();
    else if (this.follows) this.step = this.trace.steps;
    this.refresh();
  }

  addAll(events) {
    for (const event of events) this.add(event);
  }

  _started() {
    this.step = 0;
    this.prompt = 0;
    this.selected = null;
    this.follows = true;
    const { start, prompts } = this.trace;
    this.parts.title.textContent = start.model;
    this.parts.prompt.replaceChildren(
      ...Array.from({ length: prompts }, (_, place) => make("option", { value: place }, String(place + 1))),
    );
    this.parts.prompt.parentElement.hidden = prompts < 2;
  }

  // --- actions of the user ---

  go(step) {
    this.step = Math.min(this.trace.steps, Math.max(0, step));
    this.follows = this.step === this.trace.steps;
    this.refresh(false);
  }

  play() {
    if (!this.trace.steps) return;
    if (this.step >= this.trace.steps) this.go(0);
    this.playing = true;
    this._button();
    const each = Math.min(SLOWEST, WHOLE / this.trace.steps) / Number(this.parts.speed.value);
    const [from, began] = [this.step, performance.now()];
    const tick = (now) => {
      if (!this.playing) return;
      this.go(from + Math.max(0, Math.floor((now - began) / each)));
      if (this.step < this.trace.steps) this.timer = requestAnimationFrame(tick);
      else this.pause();
    };
    this.timer = requestAnimationFrame(tick);
  }

  pause() {
    this.playing = false;
    cancelAnimationFrame(this.timer);
    this._button();
    this.refresh(false);
  }

  toggle() {
    this[this.playing ? "pause" : "play"]();
  }

  select(row) {
    this.selected = row;
    this.parts.table.mark(row);
    this.refresh();
  }

  colour(kind) {
    this.colouring = kind;
    this.parts.colour.value = kind;
    this.refresh(false);
  }

  // Handle a key; returns whether it had an effect.
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.trace.start) return false;
    const far = event.shiftKey ? Math.max(2, Math.round(this.trace.steps / 10)) : 1;
    const moves = { ArrowLeft: -far, ArrowRight: far };
    const others = { ArrowUp: -1, ArrowDown: 1 }; // without focus they scroll the page
    const ends = { Home: 0, End: this.trace.steps };
    if (event.key === " ") this.toggle();
    else if (event.key in moves || event.key in ends) {
      if (this.playing) this.pause();
      this.go(event.key in ends ? ends[event.key] : this.step + moves[event.key]);
    } else if (event.key in others && event.target === this.parts.crowd) this._next(others[event.key]);
    else if (event.key === "c") this.colour(this.colouring === "step" ? "entropy" : "step");
    else return false;
    return true;
  }

  _next(by) {
    const [from, many] = [this.prompt * this.trace.particles, this.trace.particles];
    this.select(from + ((this._row() - from + by + many) % many));
  }

  // The row whose path is shown: the selected one, else the chosen one, else the first.
  _row() {
    return this.selected ?? this.trace.chosen(this.prompt) ?? this.prompt * this.trace.particles;
  }

  // Where the chosen path is in the state shown; null before the end.
  _chosenNow() {
    const chosen = this.trace.chosen(this.prompt);
    return chosen === null ? null : this.trace.line(chosen)[this.step];
  }

  // --- pictures ---

  // Draw at the next frame; `all`: also the parts that do not depend on the step.
  refresh(all = true) {
    this.stale ||= all;
    if (this.frame || !this.trace.start) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this._paint(this.stale);
    });
  }

  // Draw for paper, or for the screen again; a printer does not wait for the next frame.
  _paper(on) {
    printer.on = on;
    this.element.classList.toggle("paper", on);
    if (this.trace.start) this._paint(true);
  }

  _wide() {
    return Math.floor(this.parts.body.clientWidth);
  }

  _paint(all) {
    const { trace, parts, prompt } = this;
    this.stale = false;
    const wide = (this.drawnWide = this._wide());
    if (!wide) return;
    const [row, state, isBoard] = [this._row(), trace.at(this.step), trace.isBoard(prompt)];
    const slot = trace.line(row)[this.step];
    const colours = theme(this.element);
    const shared = { trace, state, prompt, row, slot, chosen: this._chosenNow(), colours, memo: this.memo };
    const scene = { ...shared, colouring: this.colouring, wide };
    parts.both.classList.toggle("board", isBoard);
    if (isBoard) {
      drawBoard(parts.one, { ...scene, wide: Math.floor(parts.one.parentElement.clientWidth) });
      drawBoards(parts.all, { ...scene, wide: Math.floor(parts.all.parentElement.clientWidth) });
    } else {
      scene.wide = Math.floor(parts.one.parentElement.clientWidth);
      drawText(parts.one, { ...scene, places: this._places(scene) });
      drawStrips(parts.all, { ...scene, wide: Math.floor(parts.all.parentElement.clientWidth) });
    }
    if (all) this._still(scene);
    for (const plot of [this.curves, this.genealogy]) plot.point(this.step, colours);
    this._say(scene);
  }

  _places(scene) {
    const key = `${scene.row} ${scene.wide} ${this.trace.steps} ${scene.colours.sans}`;
    if (this.memo.key !== key || this.memo.start !== this.trace.start) {
      const context = surface(document.createElement("canvas"), 1, 1);
      context.font = textFont(scene.colours);
      const places = layout(context, this.trace, scene.row, this.prompt, scene.wide);
      Object.assign(this.memo, { key, places, start: this.trace.start });
    }
    return this.memo.places;
  }

  // The parts that change only with the walk, the selected path or the window.
  _still(scene) {
    const { trace, parts } = this;
    for (const plot of [this.curves, this.genealogy]) {
      plot.draw({ ...scene, wide: Math.floor(plot.canvas.parentElement.clientWidth) });
    }
    parts.table.fill(trace, particlesOf(trace, this.prompt), scene.row);
    parts.table.element.classList.toggle("many", trace.particles > 16);
    const pairs = settings(trace, this.prompt);
    parts.settings.replaceChildren(
      ...pairs.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))),
    );
    const copies = trace.ancestors.some(Boolean);
    parts.family.textContent = copies
      ? "A line is a particle; where it is copied over another, the copy leaves its ancestor's line."
      : "Nothing was copied on this walk: every particle is its own ancestor.";
  }

  // All texts: beside the pictures, and for screen readers.
  _say(scene) {
    const { trace, parts, prompt } = this;
    const particle = scene.row - prompt * trace.particles;
    parts.slider.max = trace.steps;
    parts.slider.value = this.step;
    parts.slider.setAttribute("aria-valuetext", `step ${this.step} of ${trace.steps}`);
    const h = this.step < trace.steps ? trace.entropyAt(this.step, scene.slot) : NaN;
    parts.count.textContent = `step ${this.step} of ${trace.steps}`;
    parts.now.textContent = Number.isNaN(h) ? "" : `h ${short(h)} bits`;
    const by = trace.chosenBy();
    const best = scene.row === trace.chosen(prompt) ? `, chosen${by && ` by ${by}`}` : "";
    parts.caption.textContent = `Path of particle ${particle}${best}`;
    parts.legend.style.background = gradient(this.colouring);
    const byStep = this.colouring === "step";
    parts.low.textContent = byStep ? "step 1" : "0";
    parts.high.textContent = byStep ? `step ${trace.steps}` : `${short(trace.most)} bits`;
    if (this.playing) return; // too fast to read
    const text = trace.text(scene.state, scene.slot, prompt);
    parts.one.textContent = text; // inside a canvas: for screen readers
    parts.one.setAttribute("aria-label", `Particle ${particle} at step ${this.step} of ${trace.steps}: ${text}`);
    const all = trace.particles === 1 ? "The only particle" : `All ${trace.particles} particles`;
    parts.all.setAttribute("aria-label", `${all} at step ${this.step}`);
  }

  // --- the page ---

  _button() {
    this.parts.play.textContent = this.playing ? "❚❚" : "▶";
    this.parts.play.setAttribute("aria-label", this.playing ? "pause" : "play");
  }

  // Show another prompt of the batch.
  look(place) {
    this.prompt = place;
    this.selected = null;
    this.refresh();
  }

  _listen() {
    const { parts, curves, genealogy } = this;
    for (const plot of [curves, genealogy]) {
      plot.canvas.addEventListener("pointerdown", (event) => this.go(plot.stateAt(event.offsetX)));
      plot.canvas.addEventListener("pointermove", (event) => event.buttons && this.go(plot.stateAt(event.offsetX)));
    }
    parts.all.addEventListener("click", (event) => {
      const [wide, isBoard] = [parts.all.clientWidth, this.trace.isBoard(this.prompt)];
      const particle = particleAt(this.trace, isBoard, wide, event.offsetX, event.offsetY);
      if (particle >= 0) this._descendant(this.prompt * this.trace.particles + particle);
    });
    parts.slider.addEventListener("input", () => {
      if (this.playing) this.pause();
      this.go(Number(parts.slider.value));
    });
    // the slider has arrows and ends of its own; a blank on it plays
    parts.slider.addEventListener("keydown", (event) => {
      if (event.key !== " ") return;
      event.preventDefault();
      event.stopPropagation();
      this.toggle();
    });
  }

  // Show a path that goes through this row of the state shown: the chosen one, if it does; a dropped one has none.
  _descendant(row) {
    const from = this.prompt * this.trace.particles;
    const rows = Array.from({ length: this.trace.particles }, (_, particle) => from + particle);
    const through = rows.filter((last) => this.trace.line(last)[this.step] === row);
    const chosen = this.trace.chosen(this.prompt);
    if (through.length) this.select(through.includes(chosen) ? chosen : through[0]);
    else this.parts.caption.textContent = `Particle ${row - from} of this step was dropped: it leads to no answer`;
  }
}
