// Examples: an input, settings that suit it, and what is seen there; each for the models that can take it. Those with
// `more` stand beside the input of their kind alone.

const BLOCKWISE = ["sdar", "llada2", "fast-dllm-v2"]; // samplers of families that know nothing but blocks

const EXAMPLES = [
  {
    name: "Sudoku",
    kind: "sudoku",
    given: "072000000000002086600085300000300000580600090300008100007530000100000000000001950",
    note:
      "Picked because one path fails on seed 1 and auto with 8 paths does not. " +
      "On the seeds 3 to 20 one path solves it 7 times of 18, auto 14 times.",
  },
  {
    name: "30 clues",
    kind: "sudoku",
    more: true,
    given: "530070000600195000098000060800060003400803001700020006060000280000419005000080079",
    note: "One path is enough for this one.",
  },
  {
    name: "17 clues",
    kind: "sudoku",
    more: true,
    given: "000000010400000000020000000000050407008000300001090000300400200050100000000806000",
    note: "No Sudoku with one solution has fewer clues.",
  },
  {
    name: "Story",
    kind: "text",
    given: "Once upon a time",
    length: 48,
    note: "The beginning of a story, by the model's default recipe.",
  },
  {
    name: "Word problem",
    kind: "text",
    given:
      "Ben has 27 shells. Mia has twice as many shells as Ben. Sam has 20 more shells than Mia. " +
      "How many shells does Sam have?",
    length: 64,
    note: "The model writes each step of the calculation. Look where the state entropy is high.",
  },
  {
    name: "Fill holes",
    kind: "text",
    given: "Once upon a time, there was a[MASK*3] who liked to[MASK*4]. One day,[MASK*12]. They were happy.",
    note: "The text around the holes is given, before and after them.",
  },
  {
    name: "Fill a form",
    kind: "text",
    given: "Ben has 12 red shells and 30 blue shells. Red:[MASK*2] Blue:[MASK*2] More of them are[MASK*2].",
    matches: [" [0-9]{1,3}", " [0-9]{1,3}", " (red|blue)"],
    note: "Each hole has a form that it must match: numbers, and one of two words. The order is free.",
  },
  {
    name: "Block by block",
    kind: "text",
    fits: ({ recipe }) => recipe.attention === "block" || BLOCKWISE.includes(recipe.sampler),
    given: "One day, a little dog",
    length: 48,
    recipe: ({ recipe }) => (recipe.attention === "block" ? { sampler: "fast-dllm", block_length: 8 } : {}),
    note:
      "Block-causal: a block sees itself and what stands before it. " +
      "A step writes all positions of a block that are sure enough.",
  },
  {
    name: "Countdown",
    kind: "countdown",
    given: "3,7,25,50,96",
    note: "Four numbers make the last one, each used once.",
  },
  {
    name: "five numbers",
    kind: "countdown",
    more: true,
    given: "2,5,9,31,48,73",
    note: "Five numbers make the last one, each used once.",
  },
];

export function kindOf(model) {
  return model.unmask.puzzle ?? "text";
}

// Whether a model can take an example.
export function fits(example, model) {
  return example.kind === kindOf(model) && (example.fits?.(model.unmask) ?? true);
}

// The examples that one of the models can take.
export function examplesOf(models) {
  return EXAMPLES.filter((example) => models.some((model) => fits(example, model)));
}

// The one that a model begins with.
export function firstOf(model) {
  return EXAMPLES.find((example) => fits(example, model));
}
