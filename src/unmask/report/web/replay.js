// A state of the walk -> pictures: one path as text or as a Sudoku, and all particles side by side.

import { levelOf, SCALES } from "./palette.js";
import { surface } from "./draw.js";

const LINE = 26; // height of a line of text
const SIZE = 15; // of its letters

// The level of a cell on the colour scale; -1 if masked, -2 if given.
function shade(trace, state, cell, colouring) {
  if (state.tokens[cell] === trace.mask) return -1;
  if (trace.given[cell]) return -2;
  if (colouring === "step") return levelOf(state.when[cell], trace.steps);
  return levelOf(state.entropy[cell], trace.most);
}

// The visible form of a token: line ends and other control characters become symbols.
function visible(text) {
  return text
    .replace(/\r?\n/g, "↵")
    .replace(/\t/g, "⇥")
    .replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g, "·");
}

// --- one path as text ------------------------------------------------------------------------------------------------

// The place of each token in the last state of the path, so that nothing moves during the replay.
export function layout(context, trace, row, prompt, wide) {
  const many = trace.width(prompt);
  const [x, y, w] = [new Float32Array(many), new Float32Array(many), new Float32Array(many)];
  const [from, widths, hole] = [row * trace.length, new Map(), context.measureText("mmm").width];
  let [across, down] = [0, 0];
  for (let column = 0; column < many; column++) {
    const token = trace.last.tokens[from + column];
    if (!widths.has(token)) {
      const width = token === trace.mask ? hole : context.measureText(visible(trace.word(token))).width;
      widths.set(token, Math.min(Math.max(width, 6) + 2, wide));
    }
    const given = trace.given[from + column] === 1; // drawn without a box, together with its neighbours
    w[column] = widths.get(token) - (given ? 2 : 0);
    if (across + w[column] > wide && across > 0) [across, down] = [0, down + LINE];
    [x[column], y[column]] = [across, down];
    across += w[column] + (given ? 0 : 1);
    if (trace.word(token).endsWith("\n") && token !== trace.mask) [across, down] = [0, down + LINE];
  }
  return { x, y, w, high: down + LINE };
}

export function drawText(canvas, { trace, state, slot, wide, colours, colouring, places }) {
  const context = surface(canvas, wide, places.high);
  context.font = textFont(colours);
  context.textBaseline = "middle";
  const from = slot * trace.length;
  const scale = SCALES[colouring];
  for (let column = 0; column < places.x.length; column++) {
    const cell = from + column;
    const level = shade(trace, state, cell, colouring);
    const [x, y, w] = [places.x[column], places.y[column], places.w[column]];
    if (level !== -2) {
      context.fillStyle = level === -1 ? colours.masked : scale.css[level];
      context.fillRect(x, y + 2, w, LINE - 4);
    }
    if (level === -1) continue;
    context.fillStyle = level === -2 ? colours.given : scale.ink[level];
    const [inset, room] = level === -2 ? [0, w + 1] : [1, w - 1];
    context.fillText(visible(trace.word(state.tokens[cell])), x + inset, y + LINE / 2 + 0.5, room);
    if (state.when[cell] === state.step && state.step > 0 && level !== -2) {
      context.fillStyle = colours.chosen; // decided just now
      context.fillRect(x, y + LINE - 3, w, 2);
    }
  }
}

export function textFont(colours) {
  return `${SIZE}px ${colours.sans}`;
}

// --- Sudokus ---------------------------------------------------------------------------------------------------------

const UNITS = [];
for (let i = 0; i < 9; i++) {
  const [row, column, box] = [[], [], []];
  for (let j = 0; j < 9; j++) {
    row.push(9 * i + j);
    column.push(9 * j + i);
    box.push(27 * Math.floor(i / 3) + 3 * (i % 3) + 9 * Math.floor(j / 3) + (j % 3));
  }
  UNITS.push(row, column, box);
}

// The cells of a board that repeat a digit of their row, column or box.
export function clashes(tokens, mask) {
  const found = new Set();
  for (const unit of UNITS) {
    const seen = new Map();
    for (const cell of unit) {
      if (tokens[cell] === mask) continue;
      if (seen.has(tokens[cell])) found.add(cell).add(seen.get(tokens[cell]));
      else seen.set(tokens[cell], cell);
    }
  }
  return found;
}

function board(context, { trace, state, colours, colouring }, slot, left, top, size) {
  const side = size / 9;
  const from = slot * trace.length;
  const wrong = clashes(state.tokens.subarray(from, from + 81), trace.mask);
  const scale = SCALES[colouring];
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (const given of [true, false]) {
    context.font = `${given ? "bold " : ""}${(side * 0.66).toFixed(1)}px ${colours.sans}`; // set twice, not 81 times
    for (let place = 0; place < 81; place++) {
      const level = shade(trace, state, from + place, colouring);
      if ((level === -2) !== given) continue;
      const [x, y] = [left + (place % 9) * side, top + Math.floor(place / 9) * side];
      context.fillStyle = given ? colours.panel : level === -1 ? colours.masked : scale.css[level];
      context.fillRect(x, y, side, side);
      if (level === -1) continue;
      context.fillStyle = given ? colours.given : scale.ink[level];
      context.fillText(trace.word(state.tokens[from + place]), x + side / 2, y + side * 0.54);
      const fresh = state.step > 0 && state.when[from + place] === state.step;
      if (fresh && !given) ring(context, colours.chosen, x, y, side);
    }
  }
  context.fillStyle = colours.wrong;
  for (const place of wrong) {
    const [x, y] = [left + (place % 9) * side, top + Math.floor(place / 9) * side];
    context.beginPath(); // a corner, seen without colour too
    context.moveTo(x + side, y);
    context.lineTo(x + side, y + side * 0.36);
    context.lineTo(x + side * 0.64, y);
    context.fill();
  }
  lines(context, colours, left, top, size);
}

function ring(context, colour, x, y, side) {
  const thick = Math.max(1.2, side * 0.07);
  context.strokeStyle = colour;
  context.lineWidth = thick;
  context.strokeRect(x + thick, y + thick, side - 2 * thick, side - 2 * thick);
}

function lines(context, colours, left, top, size) {
  for (const heavy of [false, true]) {
    context.beginPath();
    for (let place = 0; place <= 9; place++) {
      if ((place % 3 === 0) !== heavy) continue;
      const at = (place * size) / 9;
      context.moveTo(left + at, top);
      context.lineTo(left + at, top + size);
      context.moveTo(left, top + at);
      context.lineTo(left + size, top + at);
    }
    context.strokeStyle = heavy ? colours.ink : colours.line;
    context.lineWidth = heavy ? Math.max(1, size / 220) : 0.5;
    context.stroke();
  }
}

export function drawBoard(canvas, scene) {
  const size = Math.min(scene.wide, 360) - 4;
  const context = surface(canvas, size + 4, size + 4);
  board(context, scene, scene.slot, 2, 2, size);
}

// --- all particles ---------------------------------------------------------------------------------------------------

const LABEL = 18;

// The number of boards in a row, and their size.
function crowd(wide, many) {
  const least = many > 16 ? 92 : 128;
  const across = Math.max(1, Math.min(many, Math.floor(wide / least)));
  return { across, each: Math.min(200, wide / across), down: Math.ceil(many / across) };
}

export function drawBoards(canvas, scene) {
  const { trace, prompt, wide, colours, chosen, slot } = scene;
  const { across, each, down } = crowd(wide, trace.particles);
  const context = surface(canvas, wide, down * (each + LABEL));
  for (let particle = 0; particle < trace.particles; particle++) {
    const row = prompt * trace.particles + particle;
    const [x, y] = [(particle % across) * each, Math.floor(particle / across) * (each + LABEL)];
    const size = each - 12;
    board(context, scene, row, x + 4, y + LABEL, size);
    if (row === slot) {
      context.strokeStyle = row === chosen ? colours.chosen : colours.ink;
      context.lineWidth = 3;
      context.strokeRect(x + 2, y + LABEL - 2, size + 4, size + 4);
    }
    label(context, scene, row, particle, x + 4, y + LABEL / 2, size);
  }
}

function label(context, { colours, chosen, trace, state }, row, particle, x, y, room) {
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillStyle = row === chosen ? colours.chosen : colours.ink;
  context.font = `${row === chosen ? "bold " : ""}12px ${colours.sans}`;
  context.fillText(`${row === chosen ? "▶ " : ""}${particle}`, x, y);
  const h = state.step < trace.steps ? trace.entropyAt(state.step, row) : NaN;
  if (Number.isNaN(h) || room < 80) return;
  context.textAlign = "right";
  context.fillStyle = colours.soft;
  context.font = `11px ${colours.sans}`;
  context.fillText(`h ${h.toFixed(2)}`, x + room, y);
}

const GUTTER = 34;

// Every particle is a line of cells, one for each column of the text.
export function drawStrips(canvas, scene) {
  const { trace, state, prompt, wide, colours, colouring, chosen, slot, memo } = scene;
  const [many, columns] = [trace.particles, trace.width(prompt)];
  const each = stripHeight(many);
  const context = surface(canvas, wide, many * each);
  memo.image ??= document.createElement("canvas");
  if (memo.image.width !== columns || memo.image.height !== many) {
    [memo.image.width, memo.image.height] = [columns, many];
    memo.pixels = null;
  }
  const inner = memo.image.getContext("2d");
  memo.pixels ??= inner.createImageData(columns, many);
  const bytes = new Uint32Array(memo.pixels.data.buffer);
  const [masked, given] = [pack(inner, colours.masked), pack(inner, colours.dead)];
  const packed = SCALES[colouring].packed;
  for (let particle = 0; particle < many; particle++) {
    const from = (prompt * many + particle) * trace.length;
    for (let column = 0; column < columns; column++) {
      const level = shade(trace, state, from + column, colouring);
      bytes[particle * columns + column] = level === -1 ? masked : level === -2 ? given : packed[level];
    }
  }
  inner.putImageData(memo.pixels, 0, 0);
  context.imageSmoothingEnabled = (wide - GUTTER) * (window.devicePixelRatio || 1) < columns;
  context.drawImage(memo.image, GUTTER, 0, wide - GUTTER, many * each);
  for (let particle = 0; particle < many; particle++) {
    const row = prompt * many + particle;
    if (each >= 11) {
      context.fillStyle = colours.panel;
      context.fillRect(GUTTER, particle * each + each - 1, wide - GUTTER, 1);
    }
    const named = each >= 11 || row === slot || row === chosen || particle % 8 === 0;
    const marked = [slot, chosen].filter((other) => other !== null);
    const near = each < 11 && !marked.includes(row) && marked.some((other) => Math.abs(other - row) < 2);
    if (named && !near) label(context, scene, row, particle, 0, Math.max(7, (particle + 0.5) * each), 0);
  }
  const place = slot - prompt * many;
  context.strokeStyle = slot === chosen ? colours.chosen : colours.ink;
  context.lineWidth = 2;
  context.strokeRect(GUTTER - 1, place * each - 1, wide - GUTTER, each + 1);
}

function stripHeight(many) {
  return many > 24 ? 7 : many > 1 ? 16 : 22;
}

function pack(context, colour) {
  const before = context.fillStyle;
  context.fillStyle = colour;
  const hex = context.fillStyle;
  context.fillStyle = before;
  const [r, g, b] = [1, 3, 5].map((from) => parseInt(hex.slice(from, from + 2), 16));
  return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
}

// The particle at a place of the picture of all particles; -1 for none.
export function particleAt(trace, isBoard, wide, x, y) {
  if (!isBoard) return Math.min(trace.particles - 1, Math.max(0, Math.floor(y / stripHeight(trace.particles))));
  const { across, each } = crowd(wide, trace.particles);
  const particle = Math.floor(y / (each + LABEL)) * across + Math.floor(x / each);
  return x < across * each && particle < trace.particles ? particle : -1;
}
