// The server's catalog -> a form for one recipe: sampler, search, and only the settings that they take.

import { make } from "./draw.js";
import { Fault } from "./wire.js";

const COUNTS = ["particles", "beams", "candidates"]; // beside the search; all other settings are folded
const PLAIN = ["temperature", "top_k", "top_p"]; // general settings at the top of the fold
const APART = ["length", "seed"]; // shared by both recipes
const UNSET = { auto: "default", off: "off" }; // what an empty field without a value means; the help says more

export class Form {
  constructor(letter, catalog, change) {
    this.letter = letter;
    this.catalog = catalog;
    this.change = change;
    this.usual = catalog.usual; // settings that hold where a field is empty
    this.known = {}; // all values that were set, also those that the current sampler or search does not take
    this.fields = new Map();
    this.general = new Set(catalog.general.map((one) => one.name));
    this.sampler = this._chooser("sampler", catalog.samplers);
    this.search = this._chooser("search", catalog.searches);
    this.parts = {};
    for (const part of ["counts", "search", "sampler"]) this.parts[part] = make("div", { class: "fields" });
    this.notes = {};
    for (const kind of ["search", "sampler"]) {
      this.notes[kind] = make("p", { class: "note", id: `${letter}-${kind}-about` });
      this[kind].setAttribute("aria-describedby", this.notes[kind].id);
    }
    this.legend = make("legend", {}, "Recipe");
    this.chosen = make("span", { class: "chosen" });
    this.fold = make("details", { class: "fold" }, make("summary", {}, "Settings ", this.chosen), ...this._folded());
    this.element = make("fieldset", { class: "recipe" }, this.legend);
    const search = make("div", { class: "pick" }, make("label", { for: this.search.id }, "search"), this.search);
    this.element.append(make("div", { class: "first" }, search, this.parts.counts), this.notes.search, this.fold);
    this._show();
  }

  // The settings of experts, in groups.
  _folded() {
    const general = this.catalog.general.filter((one) => !APART.includes(one.name));
    const fields = (these) => make("div", { class: "fields" }, ...these.map((one) => this._field(one)));
    const plain = fields(general.filter((one) => PLAIN.includes(one.name)));
    this.rare = make("span", { class: "chosen" });
    this.more = make("details", { class: "more" }, make("summary", {}, "more settings ", this.rare));
    this.more.append(fields(general.filter((one) => !PLAIN.includes(one.name))));
    const sampler = make("div", { class: "pick" }, make("label", { for: this.sampler.id }, "sampler"), this.sampler);
    return [
      make("div", { class: "group" }, sampler, this.notes.sampler, this.parts.sampler),
      make("div", { class: "group" }, plain),
      make("div", { class: "group" }, this.parts.search),
      make("div", { class: "group" }, this.more),
    ];
  }

  // --- values ---

  // The settings that are set; the server fills in the others.
  values() {
    const found = { sampler: this.sampler.value, search: this.search.value };
    for (const [name, field] of this.fields) {
      const text = field.control.value.trim();
      if (text !== "") found[name] = this._value(field.about, text);
    }
    return found;
  }

  // The same as text, with values that cannot be sent.
  texts() {
    const found = { sampler: this.sampler.value, search: this.search.value };
    for (const [name, { control }] of this.fields) if (control.value.trim()) found[name] = control.value.trim();
    return found;
  }

  // Set only these settings, given as text; returns the names that are unknown here or have an unknown value.
  set(texts) {
    const { sampler, search, ...rest } = texts;
    const strange = [];
    for (const [kind, name] of [["sampler", sampler], ["search", search]]) {
      const known = [...this[kind].options].some((one) => one.value === name);
      if (known) this[kind].value = name;
      else if (name !== undefined) strange.push(kind);
    }
    this.known = Object.fromEntries(Object.entries(rest).map(([name, value]) => [name, String(value)]));
    for (const { control } of this.fields.values()) control.value = "";
    this._show();
    const taken = (name) => this.fields.get(name)?.control.value === this.known[name];
    return [...strange, ...Object.keys(rest).filter((name) => !taken(name))];
  }

  // Another model: what holds where a field is empty.
  suit(recipe) {
    this.usual = recipe;
    for (const [name, { about, control }] of this.fields) {
      if (!this.general.has(name)) continue;
      const empty = this._empty(about);
      if (control.tagName === "SELECT") control.options[0].textContent = empty || "–";
      else control.placeholder = empty || UNSET[about.unset];
    }
    this._show();
  }

  _value(about, text) {
    if (about.kind === "bool") return text === "true";
    if (about.kind === "str") return text;
    if (about.kind === "list") {
      const parts = text.split(",").map((part) => part.trim());
      return parts.filter(Boolean).map((part) => (/^-?\d{1,15}$/.test(part) ? Number(part) : part));
    }
    const [number, name] = [Number(text), about.name.replaceAll("_", " ")];
    const whole = about.kind === "int";
    if (Number.isFinite(number) && (!whole || Number.isSafeInteger(number))) return number;
    const wanted = whole && Number.isFinite(number) ? "a whole number" : "a number";
    const fault = new Fault(`${name} of recipe ${this.letter} is ${text}: give ${wanted}`);
    throw Object.assign(fault, { setting: about.name, letter: this.letter });
  }

  // --- controls ---

  _chooser(name, entries) {
    const options = entries.map((entry) => make("option", { value: entry.name }, entry.name));
    const control = make("select", { id: `${this.letter}-${name}`, onchange: () => this._show(true) }, ...options);
    control.value = this.catalog.usual[name] ?? entries[0].name;
    return control;
  }

  // What an empty field means: a setting of a sampler or search holds only with this one.
  _empty(about, kind = null) {
    const mine = kind === null || this.usual[kind] === undefined || this.usual[kind] === this[kind].value;
    const standing = (mine ? this.usual[about.name] : undefined) ?? about.default;
    return standing === null || standing === "" || standing?.length === 0 ? "" : String(standing);
  }

  // A setting: its name, a button that shows its help, and its control.
  _field(about, kind = null) {
    const [id, name] = [`${this.letter}-${about.name}`, about.name.replaceAll("_", " ")];
    const empty = this._empty(about, kind);
    const shared = { id, name: about.name, "aria-describedby": `${id}-help`, onchange: () => this._kept(about.name) };
    const choices = about.kind === "bool" ? ["true", "false"] : about.choices;
    const control = choices
      ? make("select", shared, make("option", { value: "" }, empty || "–"), ...choices.map(option))
      : make("input", { ...shared, type: "text", inputmode: about.kind === "list" ? "text" : "decimal" });
    if (!choices) control.placeholder = empty || UNSET[about.unset];
    control.value = this.known[about.name] ?? "";
    this.fields.set(about.name, { about, control });
    const help = make("p", { class: "note", id: `${id}-help`, hidden: "" }, about.help);
    const ask = make("button", { type: "button", class: "help", "aria-label": `help on ${name}` }, "?");
    ask.setAttribute("aria-expanded", "false");
    ask.setAttribute("aria-controls", help.id);
    const field = make("div", { class: "field" }, make("label", { for: id }, name), ask, control, help);
    ask.addEventListener("click", () => {
      help.hidden = !help.hidden;
      field.classList.toggle("open", !help.hidden);
      ask.setAttribute("aria-expanded", String(!help.hidden));
    });
    return field;
  }

  _kept(name) {
    const { control } = this.fields.get(name);
    control.removeAttribute("aria-invalid");
    this.known[name] = control.value;
    this._tell();
    this.change();
  }

  // The field of a setting that was refused: shown, and with the focus.
  point(name) {
    const field = this.fields.get(name);
    if (!field) return;
    for (const fold of [this.more, this.fold]) if (fold.contains(field.control)) fold.open = true;
    field.control.setAttribute("aria-invalid", "true");
    field.control.focus();
  }

  // The settings of the current sampler and search, with their earlier values.
  _show(changed = false) {
    const { catalog, known, parts } = this;
    for (const name of this.fields.keys()) if (!this.general.has(name)) this.fields.delete(name);
    for (const [kind, entries] of [["sampler", catalog.samplers], ["search", catalog.searches]]) {
      const entry = entries.find((one) => one.name === this[kind].value);
      const own = (part) => entry.settings.filter((one) => COUNTS.includes(one.name) === (part === "counts"));
      if (kind === "search") parts.counts.replaceChildren(...own("counts").map((one) => this._field(one, kind)));
      parts[kind].replaceChildren(...own(kind).map((one) => this._field(one, kind)));
      parts[kind].parentElement.hidden = kind === "search" && !own(kind).length;
      this.notes[kind].textContent = entry.summary;
    }
    for (const [name, { control }] of this.fields) if (known[name] !== undefined) control.value = known[name];
    this._tell();
    if (changed) this.change();
  }

  // What is set inside the folds, beside their names.
  _tell() {
    const rest = this.texts();
    const inside = (name) => this.more.contains(this.fields.get(name).control);
    const words = (names) => names.map((name) => `${name.replaceAll("_", " ")} ${rest[name]}`);
    const set = Object.keys(rest).filter((name) => this.fields.has(name) && !COUNTS.includes(name));
    this.chosen.textContent = [rest.sampler, ...words(set)].join(", ");
    this.rare.textContent = words(set.filter(inside)).join(", ");
  }
}

function option(value) {
  return make("option", { value }, value);
}
