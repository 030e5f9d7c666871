// Softmax scores and Token Choice in JavaScript, on the published inputs: an example of a program checked through files.
//
//     node readers/routers.mjs . out          (in an unpacked archive; writes out/token_choice/tied.safetensors etc.)
//     moespec conformance check out --algorithm softmax_affinity token_choice
import { cases, need, readCase, VectorError, writeResults } from "./moespec_vectors.mjs";

function softmax(logits) {
  const experts = logits.shape[2];
  const scores = new Float64Array(logits.data.length);
  for (let row = 0; row < scores.length; row += experts) {
    const own = logits.data.subarray(row, row + experts);
    const largest = Math.max(...own);
    const powers = own.map((logit) => Math.exp(logit - largest));
    const total = powers.reduce((sum, power) => sum + power, 0);
    scores.set(powers.map((power) => power / total), row);
  }
  return { dtype: "F64", shape: logits.shape, data: scores };
}

// slots[g, e, c] is the token in slot c of expert e, or `tokens` if it is empty. A stage is one choice of every token.
function tokenChoice(scores, order, keep, options) {
  const [groups, tokens, experts] = scores.shape;
  const { capacity, choices, tries = choices, hold = false } = options;
  const byToken = options.slot_order === "token";
  const shape = [groups, experts, capacity];
  const slots = new Float64Array(groups * experts * capacity).fill(tokens);
  for (let g = 0; g < groups; g++) {
    const filled = new Array(experts).fill(0);
    const found = new Array(tokens).fill(0);
    const ranked = Array.from({ length: tokens }, (_, token) => {
      const row = scores.data.subarray((g * tokens + token) * experts, (g * tokens + token + 1) * experts);
      return [...row.keys()].sort((a, b) => row[b] - row[a] || a - b); // ties: lower index first
    });
    for (let step = 0; step < tokens * tries; step++) {
      const stage = byToken ? step % tries : Math.floor(step / tokens);
      const place = byToken ? Math.floor(step / tries) : step % tokens;
      const token = order ? order.data[g * tokens + place] : place;
      const made = !keep || keep.data[(g * tokens + token) * keep.shape[2] + stage] !== 0;
      const expert = ranked[token][stage];
      if (found[token] === choices || (!made && !hold) || filled[expert] === capacity) continue;
      if (made) slots[(g * experts + expert) * capacity + filled[expert]] = token;
      found[token] += made ? 1 : 0;
      filled[expert]++;
    }
  }
  return { dtype: "I32", shape, data: slots };
}

// Error, multi-call and gradient cases, normalised weights and other functions are not implemented and get no file.
function run(vector) {
  const stages = need(vector.path, vector.manifest, "stages", "array");
  const [stage] = stages;
  const options = need(vector.path, stage, "options", "object");
  if (vector.manifest.expect || vector.manifest.gradients || stages.length > 1 || options.normalize) return null;
  if (!["softmax_affinity", "token_choice"].includes(stage.call)) return null;
  if (stage.call === "softmax_affinity") return { [`${stage.name}/scores`]: softmax(vector.argument(stage, "logits")) };
  const scores = vector.argument(stage, "scores");
  if (scores?.shape.length !== 3) throw new VectorError(`${vector.path}: has no scores (groups, tokens, experts)`);
  const weights = vector.argument(stage, "combine_scores") ?? scores;
  const slots = tokenChoice(scores, vector.argument(stage, "order"), vector.argument(stage, "keep"), options);
  const [, tokens, experts] = scores.shape;
  const capacity = slots.shape[2];
  const held = slots.data.map((token, i) => {
    const group = Math.floor(i / (experts * capacity));
    return token === tokens ? 0 : weights.data[(group * tokens + token) * experts + (Math.floor(i / capacity) % experts)];
  });
  return { [`${stage.name}/slots`]: slots, [`${stage.name}/weights`]: { dtype: "F64", shape: slots.shape, data: held } };
}

const [root, out] = process.argv.slice(2);
try {
  if (!out) throw new VectorError("usage: node routers.mjs ROOT OUT");
  for (const algorithm of ["softmax_affinity", "token_choice"])
    for (const name of cases(root, algorithm)) {
      const vector = readCase(root, `${algorithm}/${name}`);
      const results = run(vector);
      if (results) writeResults(out, vector.id, results);
    }
} catch (error) {
  if (!(error instanceof VectorError)) throw error;
  console.error(error.message);
  process.exitCode = 1;
}
