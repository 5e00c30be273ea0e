// The packed trace inside a report -> its views.

import { mount } from "./views.js";

const SLICE = 100; // milliseconds of reading before the page may redraw

async function unpacked(text) {
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let place = 0; place < letters.length; place++) bytes[place] = letters.charCodeAt(place);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return (await new Response(stream).text()).split("\n").filter(Boolean);
}

async function open() {
  const root = document.getElementById("views");
  if (typeof DecompressionStream === "undefined") {
    root.textContent = "This browser is too old to unpack the report: it needs one of 2023 or later.";
    return;
  }
  const view = mount(root, { title: false });
  const lines = await unpacked(document.getElementById("trace").textContent);
  let since = performance.now();
  for (const line of lines) {
    view.add(JSON.parse(line));
    if (performance.now() - since < SLICE) continue;
    await new Promise((resume) => setTimeout(resume));
    since = performance.now();
  }
  document.addEventListener("keydown", (event) => {
    // a button keeps its blank, the slider and the lists their arrows; elsewhere the keys move the replay
    const busy = event.target.closest("input, select") || (event.key === " " && event.target.closest("button"));
    if (!event.defaultPrevented && !busy && view.key(event)) event.preventDefault();
  });
  window.unmask = view; // for the console
}

open();
