// A number from 0 to 1 -> a colour. Lightness only ever rises or falls along a scale, so that it reads without
// colour vision and in grey.

const LEVELS = 256;

// OKLCH (lightness 0 to 1, chroma, hue in degrees) -> sRGB from 0 to 1; values outside are colours no screen has.
function oklch(lightness, chroma, hue) {
  const a = chroma * Math.cos((hue * Math.PI) / 180);
  const b = chroma * Math.sin((hue * Math.PI) / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
  return linear.map((v) => (v <= 0.0031308 ? 12.92 * v : 1.055 * v ** (1 / 2.4) - 0.055));
}

function between(stops, at) {
  const place = at * (stops.length - 1);
  const left = Math.min(Math.floor(place), stops.length - 2);
  return stops[left] + (stops[left + 1] - stops[left]) * (place - left);
}

function makeScale({ lightness, chroma, hue }) {
  const packed = new Uint32Array(LEVELS); // as ImageData holds it: alpha, blue, green, red
  const css = [];
  const ink = [];
  const luminance = new Float32Array(LEVELS);
  for (let level = 0; level < LEVELS; level++) {
    const at = level / (LEVELS - 1);
    let colour = null;
    for (let c = between(chroma, at); ; c -= 0.005) {
      colour = oklch(between(lightness, at), Math.max(c, 0), between(hue, at));
      if (c <= 0 || colour.every((v) => v >= -0.001 && v <= 1.001)) break;
    }
    const [r, g, b] = colour.map((v) => Math.round(255 * Math.min(1, Math.max(0, v))));
    packed[level] = ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
    css.push(`rgb(${r} ${g} ${b})`);
    luminance[level] = [r, g, b].reduce((sum, v, i) => sum + [0.2126, 0.7152, 0.0722][i] * (v / 255) ** 2.2, 0);
    ink.push(luminance[level] > 0.2 ? "#111" : "#fff"); // the better of the two contrasts
  }
  return { packed, css, ink, luminance };
}

export const SCALES = {
  step: makeScale({ lightness: [0.34, 0.62, 0.93], chroma: [0.13, 0.11, 0.15], hue: [285, 195, 105] }),
  entropy: makeScale({ lightness: [0.96, 0.74, 0.36], chroma: [0.035, 0.14, 0.13], hue: [95, 50, 5] }),
};

export function levelOf(value, most) {
  return most > 0 && value > 0 ? Math.min(LEVELS - 1, Math.round((value / most) * (LEVELS - 1))) : 0;
}

export function gradient(kind) {
  const stops = [];
  for (let level = 0; level < LEVELS; level += 15) stops.push(SCALES[kind].css[level]);
  return `linear-gradient(to right, ${stops.join(", ")})`;
}
