// The server's catalog -> a form for one recipe: sampler, search, and only the settings that they take.

import { make } from "./draw.js";
import { Fault } from "./wire.js";

const PLAIN = ["temperature", "top_k", "top_p"]; // general settings that are always shown
const APART = ["length", "seed"]; // shared by both recipes

export class Form {
  constructor(letter, catalog, change) {
    this.letter = letter;
    this.catalog = catalog;
    this.change = change;
    this.usual = catalog.usual; // settings that hold where a field is empty
    this.known = {}; // all values that were set, also those that the current sampler or search does not take
    this.sampler = this._chooser("sampler", catalog.samplers);
    this.search = this._chooser("search", catalog.searches);
    this.parts = { sampler: make("div", { class: "fields" }), search: make("div", { class: "fields" }) };
    this.fields = new Map();
    const general = catalog.general.filter((one) => !APART.includes(one.name));
    const plain = general.filter((one) => PLAIN.includes(one.name)).map((one) => this._field(one));
    const rare = general.filter((one) => !PLAIN.includes(one.name)).map((one) => this._field(one));
    this.general = new Set(catalog.general.map((one) => one.name));
    this.more = make("details", {}, make("summary", {}, "more settings"), make("div", { class: "fields" }, ...rare));
    this.element = make(
      "fieldset",
      { class: "recipe" },
      make("legend", {}, `Recipe ${letter}`),
      this._group("sampler", this.sampler),
      this._group("search", this.search),
      make("div", { class: "group" }, make("div", { class: "fields" }, ...plain), this.more),
    );
    this._show();
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
    this.more.open ||= [...this.more.querySelectorAll("input, select")].some((control) => control.value);
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
      else control.placeholder = empty || about.unset;
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
    if (!Number.isFinite(number)) throw new Fault(`${name} of recipe ${this.letter} is ${text}: give a number`);
    if (about.kind === "int" && !Number.isSafeInteger(number)) {
      throw new Fault(`${name} of recipe ${this.letter} is ${text}: give a whole number`);
    }
    return number;
  }

  // --- controls ---

  _chooser(name, entries) {
    const options = entries.map((entry) => make("option", { value: entry.name }, entry.name));
    const control = make("select", { id: `${this.letter}-${name}`, onchange: () => this._show(true) }, ...options);
    control.value = this.catalog.usual[name] ?? entries[0].name;
    return control;
  }

  _group(name, control) {
    const label = make("label", { class: "main", for: control.id }, name);
    const about = make("p", { class: "note", id: `${control.id}-about` });
    control.setAttribute("aria-describedby", about.id);
    return make("div", { class: "group" }, make("div", { class: "pick" }, label, control), about, this.parts[name]);
  }

  // What an empty field means: a setting of a sampler or search holds only with this one.
  _empty(about, kind = null) {
    const mine = kind === null || this.usual[kind] === undefined || this.usual[kind] === this[kind].value;
    const standing = (mine ? this.usual[about.name] : undefined) ?? about.default;
    return standing === null || standing === "" || standing?.length === 0 ? "" : String(standing);
  }

  _field(about, kind = null) {
    const id = `${this.letter}-${about.name}`;
    const empty = this._empty(about, kind);
    const shared = { id, name: about.name, title: about.help, onchange: () => this._kept(about.name) };
    const choices = about.kind === "bool" ? ["true", "false"] : about.choices;
    const control = choices
      ? make("select", shared, make("option", { value: "" }, empty || "–"), ...choices.map(option))
      : make("input", { ...shared, type: "text", inputmode: about.kind === "list" ? "text" : "decimal" });
    if (!choices) control.placeholder = empty || about.unset;
    control.value = this.known[about.name] ?? "";
    this.fields.set(about.name, { about, control });
    return make("label", { for: id }, make("span", {}, about.name.replaceAll("_", " ")), control);
  }

  _kept(name) {
    this.known[name] = this.fields.get(name).control.value;
    this.change();
  }

  // The settings of the current sampler and search, with their earlier values.
  _show(changed = false) {
    const { catalog, known } = this;
    for (const name of this.fields.keys()) if (!this.general.has(name)) this.fields.delete(name);
    for (const [kind, entries] of [["sampler", catalog.samplers], ["search", catalog.searches]]) {
      const entry = entries.find((one) => one.name === this[kind].value);
      this.parts[kind].replaceChildren(...entry.settings.map((one) => this._field(one, kind)));
      this.parts[kind].previousSibling.textContent = entry.summary;
    }
    for (const [name, { control }] of this.fields) if (known[name] !== undefined) control.value = known[name];
    if (changed) this.change();
  }
}

function option(value) {
  return make("option", { value }, value);
}
