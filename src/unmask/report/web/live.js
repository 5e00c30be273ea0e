// The live page: the input, one recipe or two, and their walks as they happen.

import { Column } from "./column.js";
import { make } from "./draw.js";
import { examplesOf, firstOf, fits } from "./examples.js";
import { Given } from "./given.js";
import { versus } from "./versus.js";
import { Fault, Wire } from "./wire.js";

const SHARED = ["model", "given", "seed", "length", "chat", "matches"]; // names in the address, beside those of recipes
const SEARCH = { search: "auto", particles: 8 }; // unless the server's flags or the model's recipe name another
const IDLE = [
  "Pick an example or write your own, then Decode.",
  "Every path starts from the same masks and fills them step by step.",
  "The page returns the path that the model was surest of. Replay it, and all others.",
];
const wire = new Wire();
const byId = (id) => document.getElementById(id);

class Live {
  constructor(models, catalog) {
    this.models = models;
    this.catalog = catalog;
    const names = models.map((model) => make("option", { value: model.id }, model.id));
    this.model = make("select", { id: "model", onchange: () => this._another() }, ...names);
    this.length = make("input", { id: "length", type: "text", inputmode: "numeric", onchange: () => this.note() });
    this.seed = make("input", { id: "seed", type: "text", inputmode: "numeric", onchange: () => this.note() });
    this.seed.value = "1";
    this.columns = ["A", "B"].map((letter) => new Column(letter, catalog, wire, () => this.note()));
    this.go = make("button", { type: "submit", class: "go", form: "desk" }, "Decode");
    this.halt = make("button", { type: "button", disabled: "", onclick: () => this.stop() }, "Stop");
    this.twin = make("button", { type: "button", onclick: () => this.compare(!this.two) });
    this.verdict = make("p", { class: "versus", role: "status", hidden: "" });
    this.two = false;
    this._build();
    this._read();
    window.addEventListener("hashchange", () => location.hash !== this.written && this._read());
    document.addEventListener("keydown", (event) => this._key(event));
  }

  _build() {
    const pick = make("div", { class: "pick" }, make("label", { for: "model" }, "Model"), this.model);
    const top = make("div", { class: "top" }, make("div", { class: "bar" }, pick, this.go, this.halt), byId("fault"));
    const [a, b] = this.columns;
    this.desk = make("form", { id: "desk", class: "desk", novalidate: "" }, ...this._examples(), this._ask());
    this.desk.append(a.form.element, b.form.element, this.twin);
    this.desk.addEventListener("submit", (event) => {
      event.preventDefault();
      this.run();
    });
    const cells = Array.from({ length: 12 }, () => make("i"));
    const strip = make("div", { class: "strip", "aria-hidden": "true" }, ...cells);
    this.idle = make("div", { class: "idle" }, strip, make("ol", {}, ...IDLE.map((text) => make("li", {}, text))));
    this.results = make("div", { class: "results" }, this.idle, this.verdict, a.result, b.result);
    byId("page").append(top, this.desk, this.results);
  }

  // Buttons for the examples, and what there is to see in the current one.
  _examples() {
    this.examples = examplesOf(this.models).map((example) => {
      const button = make("button", { type: "button", onclick: () => this.pick(example) }, example.name);
      return { example, button };
    });
    const row = (name, more) => {
      const these = this.examples.filter((one) => Boolean(one.example.more) === more);
      return make("div", { class: "examples", role: "group", "aria-label": name }, ...these.map((one) => one.button));
    };
    this.others = row("More of them", true);
    this.about = make("p", { class: "note about", role: "status" });
    return [row("Examples", false), this.about];
  }

  // The input, its length and its seed.
  _ask() {
    const dice = make("button", { type: "button", "aria-label": "another seed", title: "another seed" }, "⚄");
    dice.addEventListener("click", () => {
      this.seed.value = String(crypto.getRandomValues(new Uint32Array(1))[0] % 100000);
      this.note();
    });
    const field = (text, id, ...controls) => make("div", {}, make("label", { for: id }, text), ...controls);
    this.place = make("div");
    this.long = field("Positions to generate", "length", this.length);
    const shared = make("div", { class: "shared" }, this.long, field("Seed", "seed", this.seed, dice));
    return make("fieldset", { class: "ask" }, make("legend", {}, "Input"), this.place, this.others, shared);
  }

  // --- choices ---

  get chosen() {
    return this.models.find((model) => model.id === this.model.value);
  }

  // Another model: its own kind of question, and settings that suit it.
  _another(example = firstOf(this.chosen)) {
    this.stop();
    this.given = new Given(this.chosen, () => this.note());
    this.place.replaceChildren(this.given.element);
    this.given.set(example.given);
    this.given.bind((example.matches ?? []).join("\n"));
    const usual = this.chosen.unmask.recipe;
    this.length.value = (this.chosen.id === "text" ? example.length : undefined) ?? usual.length ?? "";
    const [a, b] = this.columns;
    for (const column of this.columns) column.form.suit(usual);
    a.form.set({ ...this._usual(), ...example.recipe?.(this.chosen.unmask) });
    b.form.set(this._other());
    for (const column of this.columns) column.result.hidden = true;
    this.verdict.hidden = true;
    this.idle.hidden = false;
    this.note();
  }

  // Set everything as an example has it: with the current model, if that can take it.
  pick(example) {
    if (!fits(example, this.chosen)) this.model.value = this.models.find((model) => fits(example, model)).id;
    this.seed.value = "1";
    tell("");
    this._another(example);
  }

  // The settings that hold for the model where a request gives none, with a search and paths that differ.
  _usual() {
    const rest = { ...this.chosen.unmask.recipe };
    delete rest.length;
    delete rest.seed;
    if (this.catalog.usual.search !== undefined || (rest.search ?? "vanilla") !== "vanilla") return rest;
    const still = this.catalog.usual.temperature === undefined && !rest.temperature && !rest.select_temperature;
    return { ...rest, ...SEARCH, ...(still && { temperature: 1 }) };
  }

  // The second recipe: the first without its search, or with one.
  _other() {
    const { search, ...first } = this.columns[0].form.texts();
    const own = this.catalog.searches.flatMap((one) => one.settings.map((setting) => setting.name));
    const rest = Object.fromEntries(Object.entries(first).filter(([name]) => !own.includes(name)));
    return search === "vanilla" ? { ...rest, ...SEARCH } : { ...rest, search: "vanilla" };
  }

  compare(two) {
    this.two = two;
    const [, b] = this.columns;
    if (two) b.form.set(this._other());
    this._twin();
    this.note();
    if (two) b.form.search.focus();
  }

  _twin() {
    document.body.classList.toggle("two", this.two);
    const [, b] = this.columns;
    b.form.element.hidden = !this.two;
    for (const { form } of this.columns) form.legend.textContent = this.two ? `Recipe ${form.letter}` : "Recipe";
    this.twin.textContent = this.two ? "Only one recipe" : "Compare with another recipe";
    if (this.two) return;
    b.stop();
    b.result.hidden = true;
    this.verdict.hidden = true;
  }

  // --- the address ---

  // Keep everything in the address, so that a page can be shared.
  note() {
    const { kind } = this.given;
    const mine = (example) => example.kind === kind && example.given === this.given.text;
    for (const { example, button } of this.examples) {
      button.setAttribute("aria-pressed", String(mine(example)));
      button.hidden = Boolean(example.more) && example.kind !== kind;
    }
    this.about.textContent = this.examples.find((one) => mine(one.example))?.example.note ?? "";
    const canvas = "canvas" in this.given.fields();
    this.long.hidden = this.given.kind !== "text" || canvas;
    const found = new URLSearchParams({ model: this.model.value, given: this.given.text, seed: this.seed.value });
    if (!this.long.hidden) found.set("length", this.length.value);
    if (this.chosen.unmask.chat) found.set("chat", this.given.chat.checked);
    if (this.given.kind === "text" && this.given.matches.value) found.set("matches", this.given.matches.value);
    for (const column of this.columns.slice(0, this.two ? 2 : 1)) {
      const letter = column.letter.toLowerCase();
      for (const [name, text] of Object.entries(column.form.texts())) found.set(`${letter}.${name}`, text);
    }
    this.written = `#${found}`;
    history.replaceState(null, "", this.written);
  }

  _read() {
    const found = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
    const recipes = { a: {}, b: {} };
    const dropped = [];
    for (const [name, text] of Object.entries(found)) {
      const [letter, setting] = name.split(/\.(.*)/s);
      if (setting && Object.hasOwn(recipes, letter)) recipes[letter][setting] = text;
      else if (!SHARED.includes(name)) dropped.push(name);
    }
    if (this.models.some((model) => model.id === found.model)) this.model.value = found.model;
    else if (found.model) dropped.push("model");
    this.two = Object.keys(recipes.b).length > 0;
    this._twin();
    const wanted = { ...recipes }; // the first note() rewrites the address
    this._another();
    if (found.given !== undefined) this.given.set(found.given);
    if (found.seed !== undefined) this.seed.value = found.seed;
    if (found.length !== undefined) this.length.value = found.length;
    if (found.chat !== undefined) this.given.chat.checked = found.chat === "true";
    if (found.matches !== undefined && this.given.kind === "text") this.given.bind(found.matches);
    else if (found.matches !== undefined) dropped.push("matches");
    const chats = this.chosen.unmask.chat && ["true", "false"].includes(found.chat);
    if (found.chat !== undefined && !chats) dropped.push("chat");
    for (const column of this.columns) {
      const letter = column.letter.toLowerCase();
      if (!Object.keys(wanted[letter]).length) continue;
      dropped.push(...column.form.set(wanted[letter]).map((name) => `${letter}.${name}`));
    }
    this.note();
    if (found.length !== undefined && this.long.hidden) dropped.push("length");
    tell(lost(dropped.map((name) => [name, found[name]])));
  }

  // --- decoding ---

  _requests() {
    const whole = (control, name) => {
      const number = Number(control.value);
      if (control.value.trim() && Number.isSafeInteger(number)) return number;
      const most = Number.isInteger(number) && control.value.trim() ? " of at most 15 digits" : "";
      throw new Fault(`the ${name} is ${control.value.trim() || "missing"}: give a whole number${most}`);
    };
    const fields = { model: this.model.value, ...this.given.fields(), seed: whole(this.seed, "seed") };
    if (!this.long.hidden && this.length.value.trim()) fields.length = whole(this.length, "number of positions");
    const many = this.columns.slice(0, this.two ? 2 : 1);
    return many.map((column) => [column, { ...column.form.values(), ...fields }]);
  }

  async run() {
    tell("");
    this.verdict.hidden = true;
    let place = -1; // of the recipe that failed
    try {
      const requests = this._requests();
      this._busy(true);
      const given = { kind: this.given.kind, ...this.given.fields() };
      const [model, address] = [this.chosen, this.written.slice(1)];
      this._look();
      const walks = requests.map(([column, body]) => column.run(body, given, model, address));
      for (const walk of walks) walk.catch(() => this.stop()); // with one refused there is nothing to compare
      const ends = await Promise.allSettled(walks);
      place = ends.findIndex((end) => end.status === "rejected");
      if (place >= 0) throw ends[place].reason;
      if (ends.length === 2 && ends.every((end) => end.value)) this._versus(...ends.map((end) => end.value));
    } catch (error) {
      if (!(error instanceof Fault)) throw error;
      this._failed(error, this.columns[place] ?? this.columns.find((column) => column.letter === error.letter));
    } finally {
      if (!this.columns.some((column) => column.running)) this._busy(false);
    }
  }

  // One line that says what failed, and the field at fault.
  _failed(error, column) {
    tell(error.message);
    this.idle.hidden = this.columns.some((one) => !one.result.hidden);
    if (error.status === 401) askForToken();
    else if (error.setting) column?.form.point(error.setting);
  }

  // Bring the place where the walks are drawn into view, unless it is there.
  _look() {
    this.idle.hidden = true;
    const { top } = this.results.getBoundingClientRect();
    if (top >= 0 && top < window.innerHeight / 3) return;
    const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.results.scrollIntoView({ block: "start", behavior: still ? "instant" : "smooth" });
  }

  stop() {
    for (const column of this.columns) column.stop();
  }

  _busy(on) {
    this.go.disabled = on;
    this.halt.disabled = !on;
    if (!on && document.activeElement === document.body) this.go.focus({ preventScroll: true });
  }

  _versus(a, b) {
    this.verdict.textContent = versus(a, b);
    this.verdict.hidden = false;
  }

  _key(event) {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !this.go.disabled) {
      event.preventDefault();
      this.run();
    } else if (event.key === "Escape" && !this.halt.disabled) this.stop();
    else if (event.target === document.body && !this.columns[0].result.hidden) this.columns[0].key(event);
  }
}

// One line that names the unknown settings of an address; "" if there are none.
function lost(pairs) {
  const all = pairs.map(([name, text]) => `${name}=${text.length > 40 ? `${text.slice(0, 39)}…` : text}`);
  if (all.length) return `dropped from the address, as there is no use for it here: ${all.join(", ")}`;
  const asked = [...new URLSearchParams(location.search).keys()];
  const mine = asked.filter((name) => SHARED.includes(name) || /^[ab]\./.test(name));
  return mine.length ? `dropped from the address: ${mine.join(", ")}, as settings stand after a #, not after a ?` : "";
}

// Show an error in one line, or clear it.
function tell(text) {
  byId("fault").textContent = text;
  byId("fault").hidden = !text;
}

function askForToken() {
  byId("key").hidden = false;
  byId("token").focus();
}

async function open() {
  try {
    const [models, catalog] = await Promise.all([wire.get("/v1/models"), wire.get("/v1/recipes")]);
    byId("key").hidden = true;
    tell("");
    byId("page").hidden = false;
    if (!window.unmask) window.unmask = new Live(models.data, catalog); // for the console
  } catch (error) {
    tell(error.message);
    if (error.status === 401) askForToken();
  }
}

byId("key").addEventListener("submit", (event) => {
  event.preventDefault();
  wire.use(byId("token").value.trim());
  open();
});
if (document.documentElement.dataset.token === "yes" && !wire.token) askForToken();
else open();
