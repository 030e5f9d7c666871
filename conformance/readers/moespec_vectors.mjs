// Read the vectors of moespec and write results, in Node 18 or later. One file, without dependencies.
//
//     for (const name of cases(root, "token_choice")) {
//       const vector = readCase(root, `token_choice/${name}`);
//       const scores = vector.named("scores"); // { dtype, shape, data }, row-major
//       ...
//       writeResults(out, vector.id, { "token_choice/slots": { dtype: "I32", shape, data } });
//     }
//
// `root` is the folder with `suite.json` and `vectors`: an unpacked archive, or `conformance` in the repository or the package.
// VectorError names a missing or damaged file. Checksums are not verified.
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";

export class VectorError extends Error {}

const DTYPES = { float32: "F32", float64: "F64", int32: "I32", bool: "BOOL" };
const WIDTHS = { F32: 4, F64: 8, I32: 4, BOOL: 1 };

function check(right, where, what) {
  if (!right) throw new VectorError(`${where}: ${what}`);
}

function bytesOf(path) {
  try {
    return readFileSync(path);
  } catch (error) {
    throw new VectorError(`${path}: cannot be read (${error.code})`);
  }
}

function parsed(where, bytes) {
  try {
    return JSON.parse(bytes.toString("utf8"));
  } catch (error) {
    throw new VectorError(`${where}: no JSON (${error.message.replace(/\s+/g, " ")})`);
  }
}

/** The member of an object. It must have this type: object, array, string, number. */
export function need(where, object, name, type) {
  const found = object !== null && typeof object === "object" && Object.hasOwn(object, name) ? object[name] : undefined;
  const kind = Array.isArray(found) ? "array" : found === null ? "null" : typeof found;
  check(found !== undefined, where, `'${name}' is missing`);
  check(kind === type, where, `'${name}' is of the type ${kind}, expected ${type}`);
  return found;
}

/** The names of the cases of an algorithm, in order. */
export function cases(root, algorithm) {
  const path = join(root, "suite.json");
  const all = need(path, parsed(path, bytesOf(path)), "algorithms", "object");
  return Object.keys(need(path, need(path, all, algorithm, "object"), "sha256", "object"));
}

/** The case `algorithm/name`. */
export function readCase(root, id) {
  const path = join(root, "vectors", `${id}.json`);
  const manifest = parsed(path, bytesOf(path));
  check(manifest?.constructor === Object, path, "expected a JSON object");
  return new Case(id, path, manifest);
}

class Case {
  constructor(id, path, manifest) {
    Object.assign(this, { id, path, manifest, beside: path.replace(/json$/, "safetensors"), tensors: null });
  }

  /** An array by name: an input, an expected result such as `token_choice/slots` or `gradient/scores`, or `probe`; else null. */
  named(name) {
    const { inputs, stages, gradients } = this.manifest;
    if (Object.hasOwn(inputs ?? {}, name)) return this.entry(inputs[name]);
    if (name === "probe" && gradients) return this.entry(gradients.probe);
    const [stage, ...rest] = name.split("/");
    const results = stage === "gradient" ? gradients?.wrt : (stages ?? []).find((each) => each?.name === stage)?.outputs;
    return Object.hasOwn(results ?? {}, rest.join("/")) ? this.entry(results[rest.join("/")]) : null;
  }

  /** The input that a stage's argument refers to; null if there is none. */
  argument(stage, name) {
    const reference = need(this.path, stage, "arguments", "object")[name];
    return typeof reference === "string" ? this.named(reference) : null;
  }

  /** The array of a manifest entry with `dtype`, `shape` and either `data` or `tensor`. */
  entry(entry) {
    const dtype = DTYPES[need(this.path, entry, "dtype", "string")];
    check(dtype, this.path, `unknown dtype '${entry.dtype}'`);
    const shape = need(this.path, entry, "shape", "array");
    check(shape.every((size) => Number.isInteger(size) && size >= 0), this.path, "a shape is a list of counts");
    const count = shape.reduce((product, size) => product * size, 1);
    check(count <= 2 ** 27, this.path, "a shape is too large");
    if (!Object.hasOwn(entry, "data")) return { dtype, shape, data: this.tensor(entry, dtype, shape, count) };
    const data = new Float64Array(count);
    const filled = this.flatten(entry.data, shape, 0, data, 0);
    check(filled === count, this.path, "the data of an array do not have its shape");
    return { dtype, shape, data };
  }

  flatten(value, shape, axis, data, at) {
    if (axis < shape.length) {
      const right = Array.isArray(value) && value.length === shape[axis];
      check(right, this.path, "the data of an array do not have its shape");
      for (const each of value) at = this.flatten(each, shape, axis + 1, data, at);
      return at;
    }
    const named = { nan: NaN, inf: Infinity, "-inf": -Infinity }[value]; // in error cases
    check(named !== undefined || ["number", "boolean"].includes(typeof value), this.path, "an entry is no number");
    data[at] = named ?? Number(value);
    return at + 1;
  }

  tensor(entry, dtype, shape, count) {
    const where = this.beside;
    if (this.tensors === null) {
      const bytes = bytesOf(where);
      const length = bytes.length >= 8 ? Number(bytes.readBigUInt64LE()) : Infinity;
      check(length <= bytes.length - 8, where, "the file ends in its header");
      this.tensors = { header: parsed(where, bytes.subarray(8, 8 + length)), bytes: bytes.subarray(8 + length) };
    }
    const key = need(this.path, entry, "tensor", "string");
    const found = need(where, this.tensors.header, key, "object");
    check(need(where, found, "dtype", "string") === dtype, where, `${key}: another dtype than in the manifest`);
    const [from, to] = need(where, found, "data_offsets", "array");
    const right = [from, to].every(Number.isInteger) && from >= 0 && to <= this.tensors.bytes.length;
    check(right && to - from === count * WIDTHS[dtype], where, `${key}: its bytes are not there, or not as many as its shape needs`);
    const bytes = this.tensors.bytes.subarray(from, to);
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    const read = { F32: "getFloat32", F64: "getFloat64", I32: "getInt32", BOOL: "getUint8" }[dtype];
    return Float64Array.from({ length: count }, (_, i) => view[read](i * WIDTHS[dtype], true));
  }
}

/** Write the results of a case by name, such as `token_choice/slots` or `gradient/scores`, to OUT/<algorithm>/<case>.safetensors. */
export function writeResults(out, id, results) {
  const header = {};
  let size = 0;
  for (const [name, { dtype, shape, data }] of Object.entries(results)) {
    const count = shape.reduce((product, each) => product * each, 1);
    check(dtype in WIDTHS, name, `dtype '${dtype}': expected ${Object.keys(WIDTHS).join(", ")}`);
    check(data.length === count, name, `${data.length} numbers, and the shape has ${count}`);
    header[name] = { dtype, shape, data_offsets: [size, (size += count * WIDTHS[dtype])] };
  }
  let text = JSON.stringify(header);
  text += " ".repeat((8 - (text.length % 8)) % 8);
  const file = Buffer.alloc(8 + text.length + size);
  file.writeBigUInt64LE(BigInt(text.length));
  file.write(text, 8, "latin1");
  const view = new DataView(file.buffer, file.byteOffset + 8 + text.length);
  for (const [name, { dtype, data }] of Object.entries(results)) {
    const write = { F32: "setFloat32", F64: "setFloat64", I32: "setInt32", BOOL: "setUint8" }[dtype];
    data.forEach((value, i) => view[write](header[name].data_offsets[0] + i * WIDTHS[dtype], value, true));
  }
  const path = join(out, `${id}.safetensors`);
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, file);
}
