// One recipe: its form, its walk as it happens, and its result.

import { make, short } from "./draw.js";
import { Form } from "./form.js";
import { mount } from "./views.js";
import { python, shell } from "./words.js";

const ENDED = { end: "an end token", stop: "a stop string", length: "its length" };
const LEAST = 150; // milliseconds between two announcements to screen readers

export class Column {
  constructor(letter, catalog, wire, change) {
    this.letter = letter;
    this.wire = wire;
    this.form = new Form(letter, catalog, change);
    this.status = make("p", { class: "status", role: "status" });
    this.answer = make("div", { class: "outcome", hidden: "" });
    this.copied = make("span", { class: "soft", role: "status" });
    this.texts = {};
    for (const kind of ["shell", "python", "link"]) this.texts[kind] = make("pre", { tabindex: 0 });
    this.same = make("details", {}, make("summary", {}, "The same from a shell, from Python and as a link"));
    this.same.append(...Object.values(this.texts));
    this.actions = make(
      "div",
      { class: "actions" },
      button("Copy the link", () => this._copy("link")),
      button("Copy the command", () => this._copy("shell")),
      button("Copy as Python", () => this._copy("python")),
      button("Download the trace", () => this._download()),
      this.copied,
    );
    this.root = make("div", { hidden: "" });
    const below = make("div", { class: "along" }, this.actions, this.same); // below the picture, which comes first
    this.view = mount(this.root, { title: false, below });
    const heading = make("h2", { class: "letter" }, `Recipe ${letter}`);
    this.result = make("section", { class: "result", hidden: "", "aria-label": `Result of recipe ${letter}` });
    this.result.append(heading, make("div", { class: "summary" }, this.status, this.answer), this.root);
    this.result.addEventListener("keydown", (event) => this.key(event));
  }

  get running() {
    return Boolean(this.abort);
  }

  // Decode and show the walk; returns its outcome, or null if it was stopped. Faults are thrown.
  async run(request, given, model, address) {
    this.stop();
    this.abort = new AbortController();
    const mine = this.abort;
    Object.assign(this, { lines: [], outcome: null, model, given, address });
    for (const part of [this.answer, this.root]) part.hidden = true;
    this.result.hidden = false;
    this._say("waiting for the server …");
    try {
      for await (const [event, line] of this.wire.events(request, mine.signal)) this._hear(event, line);
      if (!this.outcome) this._say("the stream ended before the walk did");
    } catch (error) {
      if (error.name !== "AbortError") {
        this._say(this.lines.length ? `unfinished: it failed after step ${this.view.trace.steps}` : "");
        this.result.hidden = !this.lines.length;
        if (error.line && this.lines.length) this.lines.push(error.line); // a downloaded trace then holds the error
        throw error;
      }
      this._say(this.lines.length ? `stopped after step ${this.view.trace.steps}` : "stopped");
    } finally {
      if (this.abort === mine) this.abort = null;
    }
    return this.outcome;
  }

  stop() {
    this.abort?.abort();
    this.abort = null;
  }

  _hear(event, line) {
    this.lines.push(line);
    if (event.event === "start") {
      this.said = 0; // the first step is announced at once
      this.root.hidden = false;
      this.texts.shell.textContent = shell(this.given, this.model, event.recipe);
      this.texts.python.textContent = python(this.given, this.model, event.recipe);
      this.texts.link.textContent = this._link(event.recipe);
    }
    this.view.add(event);
    if (event.event === "end") return this._ended(event);
    if (event.event === "start" || performance.now() - this.said < LEAST) return undefined;
    this.said = performance.now();
    const { steps, counts } = this.view.trace;
    return this._say(`decoding: step ${steps}, ${counts.at(-1)[1][0].toLocaleString("en")} evaluations`);
  }

  _ended(event) {
    const chosen = event.chosen[0];
    const fault = event.faults ? event.faults[chosen] : undefined;
    this.outcome = {
      text: event.answers?.[chosen] ?? event.texts[chosen],
      figures: {
        entropy: event.path_entropy[chosen],
        surprise: event.surprise?.[chosen],
        likelihood: event.log_prob[chosen],
        look: event.look?.[chosen] ?? undefined,
        auto: event.surprise?.[chosen],
      },
      choice: this.view.trace.particles > 1 ? event.choose : null, // null: there was nothing to choose from
      evaluations: event.evaluations[0],
      seconds: event.seconds,
      verdict: verdict(fault, event.strange),
      right: fault === undefined ? null : fault === null,
    };
    this._say("");
    const { evaluations, seconds } = this.outcome;
    const { entropy, likelihood, surprise, look } = this.outcome.figures;
    const by = this.view.trace.chosenBy();
    const figures = {
      ...(by && { "chosen by": by }),
      ...(by.includes("surprise") && { surprise: `${short(surprise)} nats a position` }),
      ...(look !== undefined && { "second look": `${short(look)} nats a position` }),
      "path entropy": `${short(entropy)} bits`,
      "log-probability": `${short(likelihood)} nats`,
      ...(event.finish && this.given.kind === "text" && { "ended by": ENDED[event.finish[chosen]] }),
      evaluations: evaluations.toLocaleString("en"),
      steps: String(event.steps[chosen]),
      seconds: seconds.toFixed(2),
    };
    const pairs = Object.entries(figures).map(([name, value]) =>
      make("div", {}, make("dt", {}, name), make("dd", {}, value)),
    );
    this.answer.replaceChildren(...this._words(), make("dl", { class: "figures" }, ...pairs));
    this.answer.hidden = false;
  }

  // The answer as text; a Sudoku is in the picture below.
  _words() {
    const { text, verdict: said, right } = this.outcome;
    const judged = said ? [make("p", { class: right ? "verdict right" : "verdict wrong" }, said)] : [];
    const long = this.given.kind === "sudoku" ? "code" : "p";
    const scrolls = { tabindex: 0, role: "group", "aria-label": "answer" };
    return [...judged, make(long, { class: "answer", ...(long === "p" && scrolls) }, text)];
  }

  _say(text) {
    this.status.textContent = text;
    this.status.hidden = !text;
  }

  // --- copying and saving ---

  // The page's address when it was decoded, and the server's defaults, from the recipe of the first event.
  _link(recipe) {
    const found = new URLSearchParams(this.address);
    for (const [name, value] of Object.entries(recipe)) {
      const key = `${this.letter.toLowerCase()}.${name}`;
      if (this.form.fields.has(name) && !found.has(key)) found.set(key, String(value));
    }
    return `${location.origin}${location.pathname}#${found}`;
  }

  async _copy(kind) {
    try {
      await navigator.clipboard.writeText(this.texts[kind].textContent);
      this._told("copied");
    } catch {
      this.same.open = true; // pages without TLS may not copy: show the text instead
      getSelection().selectAllChildren(this.texts[kind]);
      this._told("selected: copy it with your keyboard");
    }
  }

  _told(text) {
    this.copied.textContent = text;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => (this.copied.textContent = ""), 4000);
  }

  _download() {
    const address = URL.createObjectURL(new Blob([`${this.lines.join("\n")}\n`], { type: "application/x-ndjson" }));
    const { seed, search } = JSON.parse(this.lines[0]).recipe;
    const name = `unmask-${this.model.id}-${search}-${seed ?? 0}.jsonl`.replace(/[^\w.-]+/g, "_");
    make("a", { href: address, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  }

  // The keys of the replay; a button keeps its blank, the slider and the lists their arrows.
  key(event) {
    const busy = event.target.closest("input, select, summary, pre");
    const pressed = event.key === " " && event.target.closest("button");
    if (!event.defaultPrevented && !busy && !pressed && this.view.key(event)) event.preventDefault();
  }
}

function verdict(fault, strange) {
  if (fault === undefined) return "";
  if (fault !== null) return `not solved: ${fault}`;
  return strange ? `solved; the puzzle ${strange}` : "solved";
}

function button(text, press) {
  return make("button", { type: "button", onclick: press }, text);
}
