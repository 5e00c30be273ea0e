// The input: a text, a Sudoku on an editable board, or a countdown problem; and examples of each.

import { make } from "./draw.js";
import { clashes } from "./replay.js";

const KINDS = {
  text: {
    label: "Prompt",
    note: "The model continues it. With [MASK] or [MASK*8] in it, the holes are filled instead.",
    examples: {
      "a story": "Once upon a time",
      Lily: "One day, a little girl named Lily",
      "a word problem": "Tom has 5 apples. Mia has 3 more apples than Tom. How many apples does Mia have?",
      "fill holes": "Once upon a time, there was a[MASK*4] who liked to[MASK*6].",
    },
  },
  sudoku: {
    label: "Sudoku as text",
    note: "81 characters, a dot or 0 for a blank.",
    examples: {
      "26 clues": "070000028053000000000005901006000010080003009004800000002006400000130600040250000",
      "30 clues": "530070000600195000098000060800060003400803001700020006060000280000419005000080079",
      "17 clues": "000000010400000000020000000000050407008000300001090000300400200050100000000806000",
    },
  },
  countdown: {
    label: "Numbers, and the target last",
    note: "Three to five numbers from 1 to 99 make the target, each used once.",
    examples: { "three numbers": "15,44,79,50", "four numbers": "3,7,25,50,96", "five numbers": "2,5,9,31,48,73" },
  },
};

export function kindOf(model) {
  return model.unmask.puzzle ?? "text";
}

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
    const examples = Object.entries(this.about.examples).map(([name, example]) =>
      make("button", { type: "button", onclick: () => this._example(example) }, name),
    );
    this.element = make("div", { class: `given ${this.kind}` });
    this.element.append(
      ...(this.board ? [this.board.element] : []),
      make("label", { for: "given" }, this.about.label),
      this.control,
      make("p", { class: "note", id: "given-about" }, this.about.note),
      ...(model.unmask.chat ? [make("label", {}, this.chat, "as a message of a chat")] : []),
      make("p", { class: "examples" }, make("span", {}, "Examples:"), ...examples),
    );
    this.set(Object.values(this.about.examples)[0]);
  }

  get text() {
    return this.control.value;
  }

  set(text) {
    this.control.value = text;
    this.board?.show(text);
  }

  // The fields of a request.
  fields() {
    const { text } = this;
    if (this.kind !== "text") return { puzzle: text.trim() };
    if (/\[MASK(\*\d{1,18})?\]/.test(text)) return { canvas: text };
    return this.chat.checked ? { messages: [{ role: "user", content: text }] } : { prompt: text };
  }

  _typed() {
    this.board?.show(this.text);
    this.change();
  }

  _drawn(cells) {
    this.control.value = cells;
    this.change();
  }

  _example(text) {
    this.set(text);
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
