// The end of a walk -> a table of its particles, and its settings.

import { make, short } from "./draw.js";
import { clashes } from "./replay.js";

const COLUMNS = [
  { name: "particle", key: (one) => one.particle, number: true },
  { name: "path entropy", key: (one) => one.entropy, number: true },
  { name: "log p", key: (one) => one.other ?? -Infinity, number: true, title: "log-probability, in nats" },
  { name: "look", key: (one) => one.look ?? Infinity, number: true, title: "at a second look, in nats a position" },
  { name: "steps", key: (one) => one.steps, number: true },
  { name: "began as", key: (one) => one.origin, number: true },
  { name: "answer", key: (one) => one.answer, number: false },
];

// The figures of each particle of a prompt; before the end, those so far.
export function particlesOf(trace, prompt) {
  const from = prompt * trace.particles;
  const all = Array.from({ length: trace.particles }, (_, particle) => {
    const row = from + particle;
    const tokens = trace.last.tokens.subarray(row * trace.length, row * trace.length + 81);
    return {
      row,
      particle,
      entropy: trace.end?.path_entropy?.[row] ?? trace.meanEntropy(row),
      other: (bySurprise(trace) ? trace.end.surprise : trace.end?.log_prob)?.[row], // nats; undefined in older traces
      look: trace.end?.look?.[row] ?? undefined,
      steps: trace.end?.steps?.[row] ?? trace.steps,
      origin: trace.line(row)[0] - from,
      answer: trace.end?.answers?.[row] ?? trace.end?.texts?.[row] ?? trace.text(trace.last, row, prompt),
      fault: trace.end?.faults?.[row], // null: the answer is right; undefined: unknown
      wrong: trace.isBoard(prompt) ? clashes(tokens, trace.mask).size : null,
      open: tokens.includes(trace.mask),
      chosen: row === trace.chosen(prompt),
    };
  });
  return trace.end ? all.filter((one) => one.steps || one.chosen) : all; // without those that a stop left out
}

// Whether the table shows the surprise of particles instead of their log-probability.
export function bySurprise(trace) {
  return ["surprise", "auto", "look"].includes(trace.end?.choose) && trace.end.surprise !== undefined;
}

export class Table {
  constructor(select) {
    this.select = select;
    this.sorted = { column: 0, down: false };
    this.body = make("tbody");
    this.heads = COLUMNS.map((column, place) => {
      const about = { type: "button", title: column.title, onclick: () => this.sort(place) };
      const button = make("button", about, column.name);
      return make("th", { scope: "col", class: column.number ? "number" : null }, button);
    });
    const head = make("thead", {}, make("tr", {}, make("th", { scope: "col" }, hidden("chosen")), ...this.heads));
    this.element = make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table of particles" });
    this.element.append(make("table", {}, head, this.body));
  }

  sort(column) {
    this.sorted = { column, down: this.sorted.column === column && !this.sorted.down };
    if (this.rows) this.fill(this.trace, this.rows, this.selected);
  }

  fill(trace, rows, selected) {
    this.trace = trace;
    this.rows = rows;
    this.selected = selected;
    this.logged = rows.some((one) => one.other !== undefined);
    this.element.classList.toggle("logged", this.logged);
    const logged = this.heads[COLUMNS.findIndex((column) => column.name === "log p")];
    logged.hidden = !this.logged;
    logged.firstChild.textContent = bySurprise(trace) ? "surprise" : "log p";
    logged.firstChild.title = bySurprise(trace) ? "in nats a position" : "log-probability, in nats";
    this.looked = rows.some((one) => one.look !== undefined);
    this.heads[COLUMNS.findIndex((column) => column.name === "look")].hidden = !this.looked;
    const { column, down } = this.sorted;
    const key = COLUMNS[column].key;
    const order = (a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : a.row - b.row);
    const sorted = [...rows].sort((a, b) => (down ? order(b, a) : order(a, b)));
    this.heads.forEach((head, place) => {
      if (place === column) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    const focused = document.activeElement?.closest("tr")?.dataset.row; // keep the keyboard focus
    const mine = this.body.contains(document.activeElement);
    this.body.replaceChildren(...sorted.map((one) => this._row(one, selected)));
    if (mine) this.body.querySelector(`tr[data-row="${focused}"] button`)?.focus();
  }

  mark(selected) {
    this.selected = selected;
    for (const row of this.body.children) {
      const mine = Number(row.dataset.row) === selected;
      row.classList.toggle("selected", mine);
      row.querySelector("button").setAttribute("aria-pressed", mine);
    }
  }

  _row(one, selected) {
    const mine = one.row === selected;
    const show = { type: "button", "aria-pressed": mine, "aria-label": `show particle ${one.particle}` };
    const button = make("button", show, String(one.particle));
    const mark = one.chosen ? ["▶", hidden("chosen")] : [];
    const row = make(
      "tr",
      { "data-row": one.row, onclick: () => this.select(one.row) },
      make("td", {}, ...mark),
      make("td", { class: "number" }, button),
      make("td", { class: "number" }, short(one.entropy)),
      make("td", { class: "number", hidden: this.logged ? null : "" }, short(one.other)),
      make("td", { class: "number", hidden: this.looked ? null : "" }, short(one.look)),
      make("td", { class: "number" }, String(one.steps)),
      make("td", { class: "number" }, String(one.origin)),
      make("td", { class: "answer" }, ...answer(one)),
    );
    row.classList.toggle("chosen", one.chosen);
    row.classList.toggle("selected", mine);
    return row;
  }
}

function answer(one) {
  const judged = (wrong, state) => make("span", { class: wrong ? "verdict wrong" : "verdict" }, state);
  if (one.wrong !== null) {
    const state = one.wrong ? `${one.wrong} cells clash` : one.open ? "open" : "no clash";
    return [judged(one.wrong, state), make("code", {}, one.answer)];
  }
  const text = one.answer.replace(/▒{7,}/g, "▒▒▒…▒▒▒"); // shorten long runs of masks
  return one.fault === undefined ? [text] : [judged(one.fault, one.fault ?? "right"), text];
}

function hidden(text) {
  return make("span", { class: "hidden" }, text);
}

// Settings and counters as pairs of name and value.
export function settings(trace, prompt) {
  const { start, end } = trace;
  const last = trace.counts.at(-1);
  const pairs = [["model", start.model], ["seed", start.seeds?.[prompt]], ["particles", start.particles]];
  for (const [name, value] of Object.entries(start.recipe ?? {})) {
    const told = name === "choose" && trace.chosenBy(); // stands below, in words
    if (!told && !["seed", "particles"].includes(name)) pairs.push([name.replaceAll("_", " "), value]);
  }
  pairs.push(["steps taken", trace.steps]);
  pairs.push(["calls", end?.calls?.[prompt] ?? last?.[0]?.[prompt]]);
  pairs.push(["evaluations", end?.evaluations?.[prompt] ?? last?.[1]?.[prompt]]);
  pairs.push(["rows computed", end?.rows?.[prompt]]);
  if (end) {
    if (trace.chosenBy()) pairs.push(["chosen by", trace.chosenBy()]);
    pairs.push(["lineages left", end.lineages?.[prompt]]);
    if (end.log_evidence?.[prompt]) pairs.push(["log evidence, nats", short(end.log_evidence[prompt])]);
    if (typeof end.seconds === "number") pairs.push(["seconds", end.seconds.toFixed(2)]);
  }
  const known = pairs.filter(([, value]) => value !== undefined && value !== null);
  return known.map(([name, value]) => [name, String(value)]);
}
