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
    this.root = make("div", { hidden: "" });
    this.view = mount(this.root, { title: false });
    this.copied = make("span", { class: "soft", role: "status" });
    this.texts = { shell: make("pre", { tabindex: 0 }), python: make("pre", { tabindex: 0 }) };
    this.same = make("details", { hidden: "" }, make("summary", {}, "The same from a shell and from Python"));
    this.same.append(this.texts.shell, this.texts.python);
    this.actions = make(
      "div",
      { class: "actions", hidden: "" },
      button("Copy the command", () => this._copy("shell")),
      button("Copy as Python", () => this._copy("python")),
      button("Download the trace", () => this._download()),
      this.copied,
    );
    const heading = make("h2", { class: "letter" }, `Recipe ${letter}`);
    this.result = make("section", { class: "result", hidden: "", "aria-label": `Result of recipe ${letter}` });
    this.result.append(heading, this.status, this.answer, this.actions, this.same, this.root);
    this.result.addEventListener("keydown", (event) => this.key(event));
  }

  get running() {
    return Boolean(this.abort);
  }

  // Decode and show the walk; returns the end event, or null if it was stopped. Faults are thrown.
  async run(request, given, model) {
    this.stop();
    this.abort = new AbortController();
    const mine = this.abort;
    Object.assign(this, { lines: [], outcome: null, model, given });
    for (const part of [this.answer, this.actions, this.same, this.root]) part.hidden = true;
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
      for (const part of [this.actions, this.same, this.root]) part.hidden = false;
      this.texts.shell.textContent = shell(this.given, this.model, event.recipe);
      this.texts.python.textContent = python(this.given, this.model, event.recipe);
    }
    this.view.add(event);
    if (event.event === "end") return this._ended(event);
    if (event.event === "start" || performance.now() - this.said < LEAST) return undefined;
    this.said = performance.now();
    return this._say(`decoding: step ${this.view.trace.steps}`);
  }

  _ended(event) {
    const chosen = event.chosen[0];
    const fault = event.faults ? event.faults[chosen] : undefined;
    this.outcome = {
      text: event.answers?.[chosen] ?? event.texts[chosen],
      entropy: event.path_entropy[chosen],
      evaluations: event.evaluations[0],
      seconds: event.seconds,
      verdict: verdict(fault, event.strange),
      right: fault === undefined ? null : fault === null,
    };
    this._say("");
    const { entropy, evaluations, seconds } = this.outcome;
    const by = this.view.trace.chosenBy();
    const figures = {
      "path entropy": `${short(entropy)} bits`,
      "log-probability": `${short(event.log_prob[chosen])} nats`,
      ...(by && { "chosen by": by }),
      ...(by === "surprise" && { surprise: `${short(event.surprise[chosen])} nats a position` }),
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
    const before = this.given.prompt ? [make("span", { class: "soft" }, this.given.prompt)] : [];
    const long = this.given.kind === "sudoku" ? "code" : "p";
    return [...judged, make(long, { class: "answer" }, ...before, text)];
  }

  _say(text) {
    this.status.textContent = text;
    this.status.hidden = !text;
  }

  // --- copying and saving ---

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
