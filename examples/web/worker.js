// Runs the network beside the page, which stays responsive meanwhile.
//
// A classic worker, because LiteRT.js loads its runtime with importScripts, which module workers
// lack. It takes {kind: "open", file, report} and {kind: "classify", id, rgba, height, width}.

const wasm = new URL("litert/wasm/", self.location).href;
// Without this the runtime looks for its .wasm beside this script.
self.Module = { locateFile: (name) => wasm + name };

let parts; // the modules, once loaded
let network; // {compiled, model}
let queue = Promise.resolve(); // one message after the other: the runtime is not reentrant

self.onmessage = ({ data }) => {
  queue = queue.then(() => answer(data));
};

async function answer(message) {
  try {
    parts ??= load().catch((error) => {
      parts = undefined;
      throw error;
    });
    const modules = await parts;
    const result = message.kind === "open" ? await open(modules, message) : await classify(modules, message);
    self.postMessage({ kind: message.kind, id: message.id, ...result });
  } catch (error) {
    self.postMessage({ kind: "error", id: message.id, text: error.message });
  }
}

async function load() {
  const [litert, report, preprocess] = await Promise.all([
    import("./litert/index.js").catch(() => {
      throw new Error("LiteRT.js is not there: run npm install in the folder of this page.");
    }),
    import("./report.js"),
    import("./preprocess.js"),
  ]);
  await litert.loadLiteRt(wasm);
  return { litert, ...report, ...preprocess };
}

async function open({ litert, describe }, { file, report }) {
  const model = describe(report);
  // Named, because the default is WebGPU where a browser has it, with other rounding.
  const compiled = await litert.loadAndCompile(new Uint8Array(file), { accelerator: "wasm" });
  network?.compiled.delete();
  network = { compiled, model };
  // The first run prepares kernels and takes several times as long as the others.
  await run(litert, new Float32Array(model.size[0] * model.size[1] * model.channels));
  return { model };
}

async function classify({ litert, preprocess, withChannels, best }, { rgba, height, width }) {
  if (!network) throw new Error("No model is open yet.");
  const { channels, size, rule } = network.model;
  const start = performance.now();
  const data = withChannels(rgba, channels);
  const values = preprocess({ data, height, width, channels }, size, rule);
  const prepared = performance.now();
  const found = await run(litert, values);
  return { top: best(found, network.model), prepareMs: prepared - start, runMs: performance.now() - prepared };
}

/** The outputs of the network for one preprocessed picture. */
async function run(litert, values) {
  const { compiled, model } = network;
  const data = model.inputType === "uint8" ? Uint8Array.from(values, nearest) : values;
  const input = new litert.Tensor(data, [1, ...model.size, model.channels]);
  let outputs = {};
  try {
    outputs = await compiled.run({ [model.input]: input });
    return await outputs[model.output].data();
  } finally {
    input.delete();
    for (const output of Object.values(outputs)) output.delete();
  }
}

/** Halves to the even neighbour, as NumPy rounds. */
function nearest(value) {
  const low = Math.floor(value);
  if (value - low !== 0.5) return Math.round(value);
  return low % 2 === 0 ? low : low + 1;
}
