// The whole walk -> two pictures over the same steps: the state entropy of every particle, and their ancestry.

import { scaled, surface, ticks } from "./draw.js";

const LEFT = 46;
const RIGHT = 10;
const TOP = 10;
const BOTTOM = 34;

// Three kinds of line: dropped paths, paths that reached the end, and the chosen path.
const KINDS = [
  { colour: "dead", width: 1, alpha: 1 },
  { colour: "alive", width: 1.2, alpha: 0.75 },
  { colour: "chosen", width: 3, alpha: 1 },
];

class Plot {
  constructor(canvas) {
    this.canvas = canvas;
    this.layer = document.createElement("canvas"); // all but the cursor
  }

  // Draw everything that does not depend on the step shown.
  draw(scene) {
    const { trace, wide, colours } = scene;
    this.wide = wide;
    this.high = this.height(scene);
    const context = surface(this.layer, wide, this.high);
    this.x = (state) => LEFT + (state / Math.max(trace.steps, 1)) * (wide - LEFT - RIGHT);
    this.steps = trace.steps;
    context.font = `12px ${colours.sans}`;
    this.axis(context, scene);
    if (!trace.steps) return;
    const line = trace.line(scene.row);
    const alive = trace.alive();
    context.lineJoin = "round";
    KINDS.forEach((kind, place) => {
      context.strokeStyle = colours[kind.colour];
      context.globalAlpha = trace.particles > 16 && place === 1 ? 0.45 : kind.alpha;
      context.lineWidth = kind.width;
      context.beginPath();
      this.trails(context, scene, (state, row) => {
        const mine = line[state] === row ? 2 : alive[state * trace.rows + row] ? 1 : 0;
        return mine === place;
      });
      context.stroke();
    });
    context.globalAlpha = 1;
  }

  axis(context, { trace, wide, colours }) {
    context.fillStyle = colours.soft;
    context.textAlign = "center";
    context.textBaseline = "alphabetic";
    for (const tick of ticks(Math.max(trace.steps, 1), Math.max(2, Math.floor(wide / 110)))) {
      if (Number.isInteger(tick)) context.fillText(tick, this.x(tick), this.high - BOTTOM + 16);
    }
    context.fillText("step", (LEFT + wide - RIGHT) / 2, this.high - 4);
  }

  upright(context, text, colours) {
    context.save();
    context.translate(12, (TOP + this.high - BOTTOM) / 2);
    context.rotate(-Math.PI / 2);
    context.textAlign = "center";
    context.fillStyle = colours.soft;
    context.fillText(text, 0, 0);
    context.restore();
  }

  // The picture with a line at the state shown.
  point(state, colours) {
    if (!this.x) return;
    const context = surface(this.canvas, this.wide, this.high);
    context.drawImage(this.layer, 0, 0, this.wide, this.high);
    context.strokeStyle = colours.ink;
    context.lineWidth = 1;
    context.setLineDash([3, 3]);
    context.beginPath();
    context.moveTo(this.x(state), TOP - 6);
    context.lineTo(this.x(state), this.high - BOTTOM + 2);
    context.stroke();
    context.setLineDash([]);
  }

  // The state at a place of the picture.
  stateAt(x) {
    const share = (x - LEFT) / (this.wide - LEFT - RIGHT);
    return Math.round(Math.min(1, Math.max(0, share)) * this.steps);
  }
}

export class Curves extends Plot {
  height({ wide }) {
    return Math.max(190, Math.min(280, wide * 0.5));
  }

  axis(context, scene) {
    super.axis(context, scene);
    const { trace, prompt, wide, colours } = scene;
    this.most = 0;
    for (let step = 0; step < trace.steps; step++) {
      for (let particle = 0; particle < trace.particles; particle++) {
        const h = trace.entropyAt(step, prompt * trace.particles + particle);
        if (h > this.most) this.most = h;
      }
    }
    this.most = this.most || 1;
    const room = this.high - TOP - BOTTOM;
    this.y = (bits) => TOP + (1 - bits / this.most) * room;
    context.strokeStyle = colours.line;
    context.lineWidth = 1;
    context.textAlign = "right";
    const [labels, unit] = scaled(this.most, 4, "bits");
    for (const [tick, label] of labels) {
      const y = Math.round(this.y(tick)) + 0.5;
      context.beginPath();
      context.moveTo(LEFT, y);
      context.lineTo(wide - RIGHT, y);
      context.stroke();
      context.fillText(label, LEFT - 6, y + 4);
    }
    this.upright(context, `state entropy, ${unit}`, colours);
  }

  // Each state entropy is joined to that of its ancestor.
  trails(context, { trace, prompt }, wanted) {
    const from = prompt * trace.particles;
    for (let row = from; row < from + trace.particles && trace.steps === 1; row++) { // a mark, as there is no line yet
      if (!wanted(0, row)) continue;
      context.moveTo(this.x(0), this.y(trace.entropyAt(0, row)));
      context.lineTo(this.x(0) + 6, this.y(trace.entropyAt(0, row)));
    }
    for (let step = 1; step < trace.steps; step++) {
      for (let row = from; row < from + trace.particles; row++) {
        if (!wanted(step, row)) continue;
        const parent = trace.ancestors[step - 1] ? trace.ancestors[step - 1][row] : row;
        const [before, after] = [trace.entropyAt(step - 1, parent), trace.entropyAt(step, row)];
        if (Number.isNaN(before) || Number.isNaN(after)) continue;
        context.moveTo(this.x(step - 1), this.y(before));
        context.lineTo(this.x(step), this.y(after));
      }
    }
  }
}

export class Genealogy extends Plot {
  height({ trace, wide }) {
    return Math.max(120, Math.min(420, trace.particles * (trace.particles > 24 ? 6 : 22) + TOP + BOTTOM, wide));
  }

  axis(context, scene) {
    super.axis(context, scene);
    const { trace, prompt, colours } = scene;
    const room = this.high - TOP - BOTTOM;
    const from = prompt * trace.particles;
    this.y = (row) => TOP + ((row - from + 0.5) / trace.particles) * room;
    context.textAlign = "right";
    const each = Math.ceil((trace.particles * 14) / room);
    for (let particle = 0; particle < trace.particles; particle += each) {
      context.fillText(particle, LEFT - 8, this.y(from + particle) + 4);
    }
    this.upright(context, "particle", colours);
    context.strokeStyle = colours.line;
    context.lineWidth = 1;
    context.beginPath();
    trace.ancestors.forEach((ancestors, step) => {
      if (!ancestors || trace.steps > 200) return;
      context.moveTo(this.x(step + 0.5), TOP);
      context.lineTo(this.x(step + 0.5), this.high - BOTTOM);
    });
    context.stroke();
  }

  // From state to state; a copy leaves its ancestor's line.
  trails(context, { trace, prompt }, wanted) {
    const from = prompt * trace.particles;
    for (let row = from; row < from + trace.particles; row++) {
      for (let state = 1; state <= trace.steps; state++) {
        if (!wanted(state, row)) continue;
        const ancestors = trace.ancestors[state - 1];
        const parent = ancestors ? ancestors[row] : row;
        context.moveTo(this.x(state - 1), this.y(parent));
        if (parent === row) { // a straight part in one stroke
          while (state < trace.steps && wanted(state + 1, row) && this._straight(trace, state, row)) state++;
        }
        context.lineTo(this.x(state), this.y(row));
      }
    }
  }

  _straight(trace, state, row) {
    return !trace.ancestors[state] || trace.ancestors[state][row] === row;
  }
}
