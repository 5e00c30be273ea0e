// The live page: the input, one recipe or two, and their walks as they happen.

import { Column } from "./column.js";
import { make, short } from "./draw.js";
import { Given } from "./given.js";
import { Fault, Wire } from "./wire.js";

const SHARED = ["model", "given", "seed", "length", "chat"]; // names in the address, beside those of recipes
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
    this.go = make("button", { type: "submit", class: "go" }, "Decode");
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
    const dice = make("button", { type: "button", "aria-label": "another seed", title: "another seed" }, "⚄");
    dice.addEventListener("click", () => {
      this.seed.value = String(crypto.getRandomValues(new Uint32Array(1))[0] % 100000);
      this.note();
    });
    const field = (text, id, ...controls) => make("div", {}, make("label", { for: id }, text), ...controls);
    this.place = make("div");
    this.long = field("Positions to generate", "length", this.length);
    const shared = make("div", { class: "shared" }, this.long, field("Seed", "seed", this.seed, dice));
    const ask = make("fieldset", { class: "ask" }, make("legend", {}, "What is decoded"));
    ask.append(make("div", { class: "pick" }, make("label", { for: "model", class: "main" }, "model"), this.model));
    ask.append(this.place, shared);
    const [a, b] = this.columns;
    this.desk = make("form", { class: "desk", novalidate: "" }, ask, a.form.element, b.form.element);
    this.desk.append(make("div", { class: "bar" }, this.go, this.halt, this.twin));
    this.desk.addEventListener("submit", (event) => {
      event.preventDefault();
      this.run();
    });
    this.results = make("div", { class: "results" }, this.verdict, a.result, b.result);
    byId("page").append(this.desk, byId("fault"), this.results);
  }

  // --- choices ---

  get chosen() {
    return this.models.find((model) => model.id === this.model.value);
  }

  // Another model: its own kind of question, and settings that suit it.
  _another(recipe = null) {
    this.stop();
    this.given = new Given(this.chosen, () => this.note());
    this.place.replaceChildren(this.given.element);
    this.length.value = this.chosen.unmask.recipe.length ?? "";
    const [a, b] = this.columns;
    for (const column of this.columns) column.form.suit(this.chosen.unmask.recipe);
    a.form.set(recipe ?? this._usual());
    b.form.set(this._other());
    for (const column of this.columns) column.result.hidden = true;
    this.verdict.hidden = true;
    this.note();
  }

  // The settings that hold for the model where a request gives none.
  _usual() {
    const rest = { ...this.chosen.unmask.recipe };
    delete rest.length;
    delete rest.seed;
    return rest;
  }

  // The second recipe: the first without its search, or with one.
  _other() {
    const { search, ...first } = this.columns[0].form.texts();
    const own = this.catalog.searches.flatMap((one) => one.settings.map((setting) => setting.name));
    const rest = Object.fromEntries(Object.entries(first).filter(([name]) => !own.includes(name)));
    return search === "vanilla" ? { ...rest, search: "smc", particles: 8 } : { ...rest, search: "vanilla" };
  }

  compare(two) {
    this.two = two;
    const [, b] = this.columns;
    if (two) b.form.set(this._other());
    this._twin();
    this.note();
    if (two) b.form.sampler.focus();
  }

  _twin() {
    document.body.classList.toggle("two", this.two);
    const [, b] = this.columns;
    b.form.element.hidden = !this.two;
    this.twin.textContent = this.two ? "Only one recipe" : "Compare with another recipe";
    if (this.two) return;
    b.stop();
    b.result.hidden = true;
    this.verdict.hidden = true;
  }

  // --- the address ---

  // Keep everything in the address, so that a page can be shared.
  note() {
    const canvas = "canvas" in this.given.fields();
    this.long.hidden = this.given.kind !== "text" || canvas;
    const found = new URLSearchParams({ model: this.model.value, given: this.given.text, seed: this.seed.value });
    if (!this.long.hidden) found.set("length", this.length.value);
    if (this.chosen.unmask.chat) found.set("chat", this.given.chat.checked);
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
    try {
      const requests = this._requests();
      this._busy(true);
      const given = { kind: this.given.kind, ...this.given.fields() };
      const model = this.chosen;
      const ends = await Promise.allSettled(requests.map(([column, body]) => column.run(body, given, model)));
      const failed = ends.findIndex((end) => end.status === "rejected");
      if (failed >= 0) throw ends[failed].reason;
      if (ends.length === 2 && ends.every((end) => end.value)) this._versus(...ends.map((end) => end.value));
    } catch (error) {
      if (!(error instanceof Fault)) throw error;
      tell(error.message);
      if (error.status === 401) askForToken();
    } finally {
      if (!this.columns.some((column) => column.running)) this._busy(false);
    }
  }

  stop() {
    for (const column of this.columns) column.stop();
  }

  _busy(on) {
    this.go.disabled = on;
    this.halt.disabled = !on;
    if (!on && document.activeElement === document.body) this.go.focus({ preventScroll: true });
  }

  // Which of the two has the lower path entropy, and the cost of each.
  _versus(a, b) {
    const [low, high] = a.entropy <= b.entropy ? [a, b] : [b, a];
    const who = low === a ? "A" : "B";
    const compared = `${short(low.entropy)} against ${short(high.entropy)} bits`;
    const sure = a.entropy === b.entropy
      ? `Both recipes have the path entropy ${short(a.entropy)} bits.`
      : `Recipe ${who} has the lower path entropy: ${compared}.`;
    const cost = `Evaluations: A ${a.evaluations.toLocaleString("en")}, B ${b.evaluations.toLocaleString("en")}.`;
    const equal = a.text === b.text ? " Both give the same answer." : "";
    this.verdict.textContent = `${sure} ${cost}${equal}`;
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
