// A request -> the same decode as a shell command and as Python.

// By kind: [the command of `unmask`, the argument of `decode` in Python].
function asked(given) {
  if ("puzzle" in given) return ["solve", `canvas=${given.kind}.canvas(${given.kind}.parse(${quoted(given.puzzle)}))`];
  if ("canvas" in given) return ["generate", `canvas=${quoted(given.canvas)}`];
  if ("messages" in given) return ["generate", quoted(given.messages)];
  return ["generate", quoted(given.prompt)];
}

// The command; `recipe` is that of the first event, so it holds the server's defaults, too.
export function shell(given, model, recipe) {
  const words = ["unmask", asked(given)[0]];
  if ("canvas" in given) words.push(`--canvas=${bare(given.canvas)}`);
  const own = "puzzle" in given && model.id === given.kind; // `solve` takes the bundled one by itself
  if (!own) words.push("--model", bare(model.id));
  if (model.unmask.device !== "cpu") words.push("--device", bare(model.unmask.device));
  if ("messages" in given) words.push("--chat");
  for (const one of [given.matches ?? []].flat()) words.push(`--matches=${bare(one)}`);
  words.push("--recipe", "none"); // the flags are all: nothing of the model's default recipe
  for (const [name, value] of Object.entries(recipe)) {
    const flag = name.replaceAll("_", "-");
    if (typeof value === "boolean") words.push(value ? `--${flag}` : `--no-${flag}`);
    else words.push(`--${flag}`, bare(String(value)));
  }
  const last = given.puzzle ?? given.messages?.at(-1).content ?? given.prompt ?? given.canvas;
  if (!("canvas" in given)) words.push("--", bare(last));
  return last === "-" ? `printf %s - | ${words.join(" ")}` : words.join(" "); // alone it stands for standard input
}

export function python(given, model, recipe) {
  const settings = Object.entries(recipe).map(([name, value]) => `${name}=${literal(value)}`);
  const bound = given.matches === undefined ? "" : `matches=${quoted(given.matches)}, `;
  const where = model.unmask.device === "cpu" ? "" : `, ${quoted(model.unmask.device)}`;
  return [
    `from unmask import Recipe, ${"puzzle" in given ? `${given.kind}, ` : ""}decode, load`,
    "",
    `model = load(${quoted(model.id)}${where})`,
    `recipe = Recipe(${settings.join(", ")})`,
    `result = decode(model, ${asked(given)[1]}, ${bound}recipe=recipe, trace="path.jsonl")`,
    "print(result.text)",
    "print(result.path_entropy)  # bits",
    "",
  ].join("\n");
}

function literal(value) {
  if (typeof value === "boolean") return value ? "True" : "False";
  return typeof value === "string" ? quoted(value) : JSON.stringify(value);
}

const hex = (letter, digits) => letter.charCodeAt(0).toString(16).padStart(digits, "0");

// A value of Python; JSON leaves some control characters as they are.
function quoted(value) {
  return JSON.stringify(value).replace(/[\x7f-\x9f\u2028\u2029]/g, (letter) => `\\u${hex(letter, 4)}`);
}

// A word, quoted for a shell. Control characters are escaped: a terminal would act on them when the command is pasted.
function bare(text) {
  if (/^[\w.,:/@%+=-]+$/.test(text)) return text;
  if (!/[\x00-\x1f\x7f-\x9f]/.test(text)) return `'${text.replaceAll("'", "'\\''")}'`;
  const escaped = text
    .replace(/[\\']/g, "\\$&")
    .replaceAll("\n", "\\n")
    .replace(/[\x00-\x1f\x7f]/g, (letter) => `\\x${hex(letter, 2)}`)
    .replace(/[\x80-\x9f]/g, (letter) => `\\u${hex(letter, 4)}`);
  return `$'${escaped}'`;
}
