// What the page has to know of a model, from the report that keras-vit writes beside it.

import { DEFAULTS } from "./preprocess.js";

/**
 * @param {object} report the JSON of `model.tflite.json`
 * @returns {{name: string, size: [number, number], channels: number, input: string, inputType: string,
 *   output: string, rule: object, labels: string[], sigmoid: boolean}}
 */
export function describe(report) {
  if (report.format !== "litert") {
    throw new Error(`The report is of ${report.format}, expected one of a .tflite file.`);
  }
  const { inputs, outputs } = report.signatures.serving_default;
  const [[input, [shape, inputType]]] = Object.entries(inputs);
  const [output] = Object.keys(outputs);
  const { card, spec } = report.source;
  if (shape[0] !== 1) {
    throw new Error(`This file takes ${shape[0] ?? "any number of"} images at once: export it with --batch 1.`);
  }
  if (!["float32", "uint8"].includes(inputType)) {
    throw new Error(`This file takes ${inputType}, the page gives float32 or uint8: export it with one of them.`);
  }
  if (![1, 3].includes(shape[3])) {
    throw new Error(`This file takes ${shape[3]} channels, pictures have 1 or 3.`);
  }
  if (!["probabilities", "logits"].includes(output)) {
    throw new Error(`This file gives ${output}: export it with --output probabilities.`);
  }
  const rule = { ...DEFAULTS, ...(card?.preprocessing ?? {}) };
  if (inputType === "uint8") Object.assign(rule, { mean: [0], std: [1] }); // the file normalises
  return {
    name: card ? `${card.variant}@${card.tag}` : report.artifact,
    size: [shape[1], shape[2]],
    channels: shape[3],
    input,
    inputType,
    output,
    rule,
    labels: report.class_names,
    sigmoid: spec.classifier_activation === "sigmoid",
  };
}

/**
 * The best classes, best first, the first of equals first.
 *
 * @param {Float32Array} outputs of the network
 * @param {{output: string, sigmoid: boolean, labels: string[]}} model
 * @param {number} count how many
 * @returns {{label: string, index: number, probability: number}[]}
 */
export function best(outputs, model, count = 5) {
  let values = Array.from(outputs);
  if (model.output === "logits") {
    if (model.sigmoid) {
      values = values.map((v) => 1 / (1 + Math.exp(-v)));
    } else {
      const largest = values.reduce((a, b) => Math.max(a, b));
      const exponentials = values.map((v) => Math.exp(v - largest));
      const sum = exponentials.reduce((a, b) => a + b);
      values = exponentials.map((v) => v / sum);
    }
  }
  return values
    .map((probability, index) => ({ label: model.labels[index] ?? `class ${index}`, index, probability }))
    .sort((a, b) => b.probability - a.probability || a.index - b.index)
    .slice(0, count);
}
