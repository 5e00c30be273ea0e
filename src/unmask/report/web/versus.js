// Two outcomes -> what is said of them: by what their recipes chose by, and what each cost.

import { short } from "./draw.js";

// By the name of the choice: what is compared, its unit, and whether more of it is better.
const MEASURES = {
  surprise: ["surprise", "nats a position", false],
  auto: ["surprise", "nats a position", false],
  look: ["second look", "nats a position", false],
  entropy: ["path entropy", "bits", false],
  likelihood: ["log-probability", "nats", true],
};

export function versus(a, b) {
  const counted = (one) => one.evaluations.toLocaleString("en");
  const said = [...solved(a, b), ...measured(a, b), `Evaluations: A ${counted(a)}, B ${counted(b)}.`];
  if (a.text === b.text) said.push("Both give the same answer.");
  return said.join(" ");
}

function solved(a, b) {
  if (a.right === null || b.right === null) return [];
  if (a.right === b.right) return [a.right ? "Both solve it." : "Neither solves it."];
  return [a.right ? "Recipe A solves it, B does not." : "Recipe B solves it, A does not."];
}

// A sentence for each measure that a recipe chose by; path entropy where none chose by a number.
function measured(a, b) {
  const choices = [["A", a.choice], ["B", b.choice]].filter(([, choice]) => choice);
  const others = choices.filter(([, choice]) => !(choice in MEASURES));
  const names = [...new Set(choices.map(([, choice]) => choice))].filter((choice) => choice in MEASURES);
  const sentences = (names.length ? names : ["entropy"]).map((name) => {
    const who = choices.filter(([, choice]) => choice === name).map(([letter]) => letter);
    return sentence(name, who, a.figures[name], b.figures[name]);
  });
  return [...others.map(([who, choice]) => `${who} chose by ${choice}.`), ...sentences.filter(Boolean)];
}

function sentence(name, who, a, b) {
  if (typeof a !== "number" || typeof b !== "number") return "";
  const [measure, unit, more] = MEASURES[name];
  const by = who.length ? `, which ${who.join(" and ")} chose by` : "";
  if (a === b) return `Both have the same ${measure}${by}: ${short(a)} ${unit}.`;
  const [low, high] = [Math.min(a, b), Math.max(a, b)];
  const [first, last] = more ? [high, low] : [low, high];
  const numbers = `${short(first)} against ${short(last)} ${unit}`;
  return `Recipe ${first === a ? "A" : "B"} has the ${more ? "higher" : "lower"} ${measure}${by}: ${numbers}.`;
}
