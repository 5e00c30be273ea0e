// Events, one at a time -> any state of the walk, and the outcome of each particle.
//
// State t is the canvas after t steps; step s turns state s into state s + 1. Rows are prompt * particles + particle.
// Numbers lie in typed arrays, and a copy of the state is kept every few steps, so that going back is quick.

const BUDGET = 96 << 20; // bytes of copies; above it, every other copy is dropped
const CHOICES = new Map([ // others as they are
  ["entropy", "path entropy"],
  ["likelihood", "log-probability"],
  ["auto", "surprise and a second look"],
  ["look", "a second look"],
]);

class Growing {
  constructor(kind) {
    this.data = new kind(1024);
    this.size = 0;
  }

  push(value) {
    if (this.size === this.data.length) {
      const wider = new this.data.constructor(2 * this.size);
      wider.set(this.data);
      this.data = wider;
    }
    this.data[this.size++] = value;
  }
}

// The contents of all rows: token, step that decided it (0: given, or masked) and the entropy it had then.
class Canvases {
  constructor(size) {
    this.step = 0;
    this.tokens = new Int32Array(size);
    this.when = new Int32Array(size);
    this.entropy = new Float32Array(size);
  }

  take(other) {
    this.step = other.step;
    this.tokens.set(other.tokens);
    this.when.set(other.when);
    this.entropy.set(other.entropy);
    return this;
  }
}

export class Trace {
  constructor(budget = BUDGET) {
    this.budget = budget;
  }

  add(event) {
    for (const [token, text] of event.words ?? []) this.words?.set(token, text);
    if (event.event === "start") this._start(event);
    else if (event.event === "step") this._step(event);
    else if (event.event === "end") this.end = event;
  }

  _start(event) {
    this.start = event;
    this.end = null;
    this.mask = event.mask;
    this.particles = event.particles;
    this.prompts = event.canvases.length;
    this.rows = this.prompts * this.particles;
    this.length = Math.max(...event.canvases.map((canvas) => canvas.length));
    this.words = new Map(event.words ?? []);
    this.steps = 0;
    this.most = 0; // the highest entropy of a decided position
    this.h = new Growing(Float32Array);
    this.ancestors = [];
    this.counts = []; // calls and evaluations after each step
    this.first = new Growing(Int32Array); // where the changes of a step begin
    this.first.push(0);
    this.cells = new Growing(Int32Array);
    this.tokens = new Growing(Int32Array);
    this.entropies = new Growing(Float32Array);
    const size = this.rows * this.length;
    this.given = new Uint8Array(size); // 0: was a hole; 1: given; 2: beyond the end of a shorter canvas
    this.last = new Canvases(size);
    this.cursor = new Canvases(size);
    this.spare = new Canvases(size);
    for (let row = 0; row < this.rows; row++) {
      const canvas = event.canvases[Math.floor(row / this.particles)];
      for (let column = 0; column < this.length; column++) {
        const cell = row * this.length + column;
        this.last.tokens[cell] = column < canvas.length ? canvas[column] : this.mask;
        this.given[cell] = column >= canvas.length ? 2 : canvas[column] === this.mask ? 0 : 1;
      }
    }
    this.cursor.take(this.last);
    this.every = 16;
    this.kept = [new Canvases(size).take(this.last)];
    this.lines = new Map();
    this.living = null;
  }

  _step(event) {
    for (const value of event.h) this.h.push(value ?? NaN);
    this.ancestors.push(event.ancestors ? Int32Array.from(event.ancestors) : null);
    this.counts.push([event.calls, event.evaluations]);
    for (const [row, column, token, entropy] of event.changes) {
      this.cells.push(row * this.length + column);
      this.tokens.push(token);
      this.entropies.push(entropy ?? NaN);
      if (entropy > this.most) this.most = entropy;
    }
    this.first.push(this.cells.size);
    this.steps++;
    this._advance(this.last);
    this.lines.clear();
    this.living = null;
    if (this.steps % this.every === 0) this._keep();
  }

  _keep() {
    this.kept.push(new Canvases(this.last.tokens.length).take(this.last));
    if (this.kept.length * this.last.tokens.length * 12 > this.budget && this.kept.length > 4) {
      this.every *= 2;
      this.kept = this.kept.filter((state) => state.step % this.every === 0);
    }
  }

  _advance(state) {
    const step = state.step;
    const from = this.ancestors[step];
    if (from) {
      this.spare.take(state);
      const wide = this.length;
      from.forEach((ancestor, row) => {
        if (ancestor === row) return;
        for (const part of ["tokens", "when", "entropy"]) {
          state[part].set(this.spare[part].subarray(ancestor * wide, (ancestor + 1) * wide), row * wide);
        }
      });
    }
    for (let place = this.first.data[step]; place < this.first.data[step + 1]; place++) {
      const cell = this.cells.data[place];
      const token = this.tokens.data[place];
      state.tokens[cell] = token;
      state.when[cell] = token === this.mask ? 0 : step + 1;
      state.entropy[cell] = this.entropies.data[place];
    }
    state.step = step + 1;
  }

  // The state after `step` steps; the next call overwrites it.
  at(step) {
    if (step === this.steps) return this.last;
    let best = null;
    for (const state of this.kept) if (state.step <= step) best = state;
    if (this.cursor.step > step || this.cursor.step < best.step) this.cursor.take(best);
    while (this.cursor.step < step) this._advance(this.cursor);
    return this.cursor;
  }

  // The rows of the lineage that ended in this row: [state] -> row.
  line(row) {
    if (!this.lines.has(row)) {
      const slots = new Int32Array(this.steps + 1);
      slots[this.steps] = row;
      for (let step = this.steps - 1; step >= 0; step--) slots[step] = this._parent(step, slots[step + 1]);
      this.lines.set(row, slots);
    }
    return this.lines.get(row);
  }

  _parent(step, row) {
    return this.ancestors[step] ? this.ancestors[step][row] : row;
  }

  // Which rows of each state have descendants at the end: [state * rows + row] -> 0 or 1.
  alive() {
    if (!this.living) {
      this.living = new Uint8Array((this.steps + 1) * this.rows);
      this.living.fill(1, this.steps * this.rows);
      for (let step = this.steps - 1; step >= 0; step--) {
        for (let row = 0; row < this.rows; row++) {
          if (this.living[(step + 1) * this.rows + row]) this.living[step * this.rows + this._parent(step, row)] = 1;
        }
      }
    }
    return this.living;
  }

  // State entropy before a step, in bits; NaN where nothing was masked.
  entropyAt(step, row) {
    return this.h.data[step * this.rows + row];
  }

  // The mean of the state entropies along a lineage: its path entropy, computed from the trace.
  meanEntropy(row) {
    const slots = this.line(row);
    let sum = 0;
    let count = 0;
    for (let step = 0; step < this.steps; step++) {
      const h = this.entropyAt(step, slots[step]);
      if (!Number.isNaN(h)) {
        sum += h;
        count++;
      }
    }
    return count ? sum / count : NaN;
  }

  // The chosen row of a prompt; null before the end.
  chosen(prompt) {
    return this.end ? prompt * this.particles + this.end.chosen[prompt] : null;
  }

  // The criterion of the choice, as text; "" if there is none or it is unknown.
  chosenBy() {
    const by = this.particles > 1 ? this.end?.choose : null;
    return by ? (CHOICES.get(by) ?? by) : "";
  }

  width(prompt) {
    return this.start.canvases[prompt].length;
  }

  word(token) {
    return this.words.get(token) ?? `⟨${token}⟩`;
  }

  // Whether a prompt is a Sudoku: 81 cells, all of them digits.
  isBoard(prompt) {
    if (this.width(prompt) !== 81 || !this.words.size) return false;
    for (const text of this.words.values()) if (!/^[1-9]$/.test(text)) return false;
    return true;
  }

  // The text of a row in a state, without its prompt; masked positions are ▒.
  text(state, row, prompt) {
    let text = "";
    const from = row * this.length;
    for (let column = this.start.given?.[prompt] ?? 0; column < this.width(prompt); column++) {
      const token = state.tokens[from + column];
      text += token === this.mask ? "▒" : this.word(token);
    }
    return text;
  }
}
