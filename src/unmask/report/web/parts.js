// The empty page of a view: its controls, canvases, table and texts, by name.

import { Curves, Genealogy } from "./curves.js";
import { make } from "./draw.js";
import { Table } from "./table.js";

const SPEEDS = [[0.25, "¼ ×"], [0.5, "½ ×"], [1, "1 ×"], [2, "2 ×"], [4, "4 ×"]];
const COLOURINGS = [["step", "step revealed"], ["entropy", "entropy"]];
const SIGNS = { masked: "masked", new: "decided in this step", clash: "clash" };
const KEYS = { chosen: "the path shown", alive: "reached the end", dead: "dropped" };

// Build the page in the view's element; its controls call the view. `below` stands below the pictures.
export function build(view, title, below) {
  const parts = {
    title: make("h2", { class: "model" }),
    play: make("button", { type: "button", class: "play", onclick: () => view.toggle() }),
    slider: make("input", { type: "range", min: 0, max: 0, step: 1, value: 0, "aria-label": "step" }),
    count: make("output", { class: "count", "aria-live": "off" }),
    now: make("span", { class: "now" }),
    caption: make("h3"),
    legend: make("span", { class: "scale" }),
    low: make("span"),
    high: make("span"),
    one: picture("one path"),
    all: picture("all particles"),
    family: make("p", { class: "note" }),
    settings: make("dl", { class: "settings" }),
    table: new Table((row) => view.select(row)),
    speed: choice(SPEEDS, () => view.playing && view.play()),
    colour: choice(COLOURINGS, (kind) => view.colour(kind)),
    prompt: choice([], (place) => view.look(Number(place))),
    plots: [
      new Curves(picture("State entropy of every particle, step by step")),
      new Genealogy(picture("Which particle each particle was copied from")),
    ],
  };
  parts.speed.value = "1";
  parts.body = make("div", { class: "body" });
  parts.body.append(
    make("section", { class: "replay", "aria-label": "Replay" }, ...controls(parts), pictures(parts)),
    ...(below ? [below] : []),
    make(
      "div",
      { class: "plots" },
      section("State entropy", make("div", {}, parts.plots[0].canvas), kinds()),
      section("Genealogy", make("div", {}, parts.plots[1].canvas), parts.family),
    ),
    section("Particles", parts.table.element),
    section("Settings", parts.settings),
  );
  view.element.classList.add("unmask");
  view.element.replaceChildren(...(title ? [parts.title] : []), parts.body);
  return parts;
}

function controls(parts) {
  const fields = { "colour by": parts.colour, speed: parts.speed, prompt: parts.prompt };
  const labels = Object.entries(fields).map(([text, control]) => make("label", {}, make("span", {}, text), control));
  const signs = Object.keys(SIGNS).map((kind) => sign(`key ${kind}`, SIGNS[kind]));
  const legend = make("span", { class: "legend" }, parts.low, parts.legend, parts.high, ...signs);
  return [
    make("div", { class: "controls" }, parts.play, parts.slider, parts.count, parts.now),
    make("div", { class: "choices" }, ...labels, legend),
  ];
}

function pictures(parts) {
  const one = make("div", { class: "one", tabindex: 0, role: "region", "aria-label": "path" }, parts.one);
  const about = "all particles; up and down choose one";
  parts.crowd = make("div", { class: "all", tabindex: 0, role: "group", "aria-label": about }, parts.all);
  const all = make("div", {}, make("h3", {}, "All particles"), parts.crowd);
  parts.both = make("div", { class: "both" }, make("div", {}, parts.caption, one), all);
  return parts.both;
}

function picture(text) {
  return make("canvas", { role: "img", "aria-label": text });
}

function choice(values, change) {
  const options = values.map(([value, text]) => make("option", { value }, text));
  return make("select", { onchange: (event) => change(event.target.value) }, ...options);
}

function section(text, ...children) {
  return make("section", {}, make("h2", {}, text), ...children);
}

function sign(kind, text) {
  return make("span", { class: kind }, make("i", {}), text);
}

function kinds() {
  return make("p", { class: "note" }, ...Object.keys(KEYS).map((kind) => sign(`key line ${kind}`, KEYS[kind])));
}
