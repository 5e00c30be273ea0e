// The input: a text, a Sudoku on an editable board, or a countdown problem.

import { make } from "./draw.js";
import { kindOf } from "./examples.js";
import { clashes } from "./replay.js";

const KINDS = {
  text: {
    label: "Prompt",
    note: "The model continues it. With [MASK] or [MASK*8] in it, the holes are filled instead.",
  },
  sudoku: { label: "Sudoku as text", note: "81 characters, a dot or 0 for a blank." },
  countdown: {
    label: "Numbers, and the target last",
    note: "Three to five numbers from 1 to 99 make the target, each used once.",
  },
};

export class Given {
  constructor(model, change) {
    this.model = model;
    this.kind = kindOf(model);
    this.about = KINDS[this.kind];
    this.change = change;
    const text = { id: "given", spellcheck: "false", autocomplete: "off", "aria-describedby": "given-about" };
    const tag = this.kind === "countdown" ? "input" : "textarea";
    this.control = make(tag, { ...text, rows: this.kind === "sudoku" ? 3 : 4, oninput: () => this._typed() });
    this.board = this.kind === "sudoku" ? new Board((cells) => this._drawn(cells)) : null;
    this.chat = make("input", { type: "checkbox", id: "chat", onchange: change });
    this.chat.checked = model.unmask.chat;
    this.element = make("div", { class: `given ${this.kind}` });
    const written = [make("label", { for: "given" }, this.about.label), this.control];
    written.push(make("p", { class: "note", id: "given-about" }, this.about.note));
    if (this.board) {
      this.written = make("details", {}, make("summary", {}, "As text"), ...written);
      this.element.append(this.board.element, this.written);
    } else this.element.append(...written);
    if (model.unmask.chat) this.element.append(make("label", {}, this.chat, "as a message of a chat"));
    const plain = { rows: 1, spellcheck: "false", autocomplete: "off" };
    const bound = { id: "form-text", "aria-describedby": "matches-about", ...plain };
    this.matches = make("textarea", { ...bound, oninput: () => change() });
    if (this.kind === "text") this.element.append(this._form());
  }

  // What the text must be, folded while it is empty.
  _form() {
    const note = "A regular expression that the whole text matches; one on each line for several holes.";
    const about = make("p", { class: "note", id: "matches-about" }, note);
    const summary = make("summary", {}, "Form of the text");
    this.form = make("details", {}, summary, make("label", { for: "form-text" }, "Must match"), this.matches, about);
    return this.form;
  }

  get text() {
    return this.control.value;
  }

  // Set the patterns, one a line.
  bind(text) {
    this.matches.value = text;
    if (this.form) this.form.open = text !== "";
  }

  set(text) {
    this.control.value = text;
    this.board?.show(text);
    if (this.board && signs(text).length !== 81) this.written.open = true; // the board does not show all of it
  }

  // The fields of a request.
  fields() {
    const { text } = this;
    if (this.kind !== "text") return { puzzle: text.trim() };
    const lines = this.matches.value.split("\n").filter((line) => line !== "");
    const bound = lines.length ? { matches: lines.length > 1 ? lines : lines[0] } : {};
    if (/\[MASK(\*\d{1,18})?\]/.test(text)) return { canvas: text, ...bound };
    if (this.chat.checked) return { messages: [{ role: "user", content: text }], ...bound };
    return { prompt: text, ...bound };
  }

  _typed() {
    this.board?.show(this.text);
    this.change();
  }

  _drawn(cells) {
    this.control.value = cells;
    this.change();
  }
}

// 81 editable cells. Tab skips them; arrows move between them.
class Board {
  constructor(change) {
    this.change = change;
    this.cells = Array.from({ length: 81 }, (_, place) => this._cell(place));
    this.element = make("div", { class: "cells", role: "group", "aria-label": "Sudoku; arrows go from cell to cell" });
    this.element.append(...this.cells);
    this.element.addEventListener("paste", (event) => this._paste(event));
  }

  _cell(place) {
    const name = `row ${Math.floor(place / 9) + 1}, column ${(place % 9) + 1}`;
    const plain = { type: "text", inputmode: "numeric", autocomplete: "off", "aria-label": name };
    const cell = make("input", { ...plain, tabindex: place ? -1 : 0 });
    cell.addEventListener("keydown", (event) => this._key(event, place));
    cell.addEventListener("focus", () => {
      for (const other of this.cells) other.tabIndex = other === cell ? 0 : -1;
      cell.select();
    });
    cell.addEventListener("input", () => {
      const digit = cell.value.replace(/[^1-9]/g, "").slice(-1); // the last one that was typed
      const on = digit || /[0 .]/.test(cell.value);
      cell.value = digit;
      if (on) this.cells[Math.min(80, place + 1)].focus();
      this._changed();
    });
    return cell;
  }

  _key(event, place) {
    const [row, column] = [Math.floor(place / 9), place % 9];
    const moves = {
      ArrowLeft: column > 0 ? -1 : 8,
      ArrowRight: column < 8 ? 1 : -8,
      ArrowUp: row > 0 ? -9 : 72,
      ArrowDown: row < 8 ? 9 : -72,
      Backspace: place > 0 && !this.cells[place].value ? -1 : 0,
    };
    if (!(event.key in moves) || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    event.preventDefault();
    this.cells[place + moves[event.key]].focus();
    if (event.key !== "Backspace") return;
    this.cells[place + moves[event.key]].value = "";
    this._changed();
  }

  _paste(event) {
    const text = event.clipboardData.getData("text");
    if (signs(text).length < 2) return;
    event.preventDefault();
    this.show(text);
    this.change(text.trim());
  }

  _changed() {
    this._mark();
    this.change(this.cells.map((cell) => cell.value || ".").join(""));
  }

  // Fill the cells from a text; the rest of it is dropped.
  show(text) {
    const found = signs(text);
    this.cells.forEach((cell, place) => (cell.value = /[1-9]/.test(found[place]) ? found[place] : ""));
    this._mark();
  }

  // Cells that repeat a digit of their row, column or box.
  _mark() {
    const wrong = clashes(this.cells.map((cell) => Number(cell.value || 0)), 0);
    this.cells.forEach((cell, place) => cell.setAttribute("aria-invalid", wrong.has(place)));
  }
}

function signs(text) {
  return text.replace(/[\s|+-]/g, "");
}
