// Parts of every picture: a canvas in device pixels, the colours of the page, axes.

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

export const printer = { on: false }; // whether pictures are for paper, which has more pixels than a plain screen

// A cleared canvas, sized in CSS pixels.
export function surface(canvas, wide, high) {
  const ratio = Math.min(Math.max(window.devicePixelRatio || 1, printer.on ? 2 : 1), 3);
  const [across, down] = [Math.max(1, Math.round(wide * ratio)), Math.max(1, Math.round(high * ratio))];
  if (canvas.width !== across || canvas.height !== down) {
    canvas.width = across;
    canvas.height = down;
    canvas.style.width = `${wide}px`;
    canvas.style.aspectRatio = `${wide} / ${high}`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, wide, high);
  return context;
}

const NAMES = ["ink", "soft", "line", "paper", "panel", "chosen", "alive", "dead", "masked", "given", "wrong"];

// The colours of the page as they are now: light, dark or printed.
export function theme(element) {
  const style = getComputedStyle(element);
  const colours = Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  return { ...colours, sans: style.getPropertyValue("--sans").trim(), mono: style.getPropertyValue("--mono").trim() };
}

// Round values on an axis from 0 to `most`, about `many` of them.
export function ticks(most, many) {
  const raw = most / many;
  const power = 10 ** Math.floor(Math.log10(raw));
  const unit = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= raw * 0.999);
  const found = [];
  for (let place = 0; place * unit <= most * 1.0001; place++) found.push(Number((place * unit).toPrecision(6)));
  return found;
}

const RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹";

// Ticks with their labels, and the unit: tiny values have their power of ten in the unit, so that labels stay short.
export function scaled(most, many, unit) {
  const power = most < 0.01 ? Math.floor(Math.log10(most)) : 0;
  const labels = ticks(most, many).map((tick) => [tick, String(Number((tick / 10 ** power).toPrecision(3)))]);
  const raised = String(power).replace("-", "⁻").replace(/\d/g, (digit) => RAISED[digit]);
  return [labels, power ? `10${raised} ${unit}` : unit];
}

export function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  return value !== 0 && Math.abs(value) < 0.001 ? value.toExponential(1) : value.toFixed(3);
}
