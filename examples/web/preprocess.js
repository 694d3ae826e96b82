// From the pixels of a picture to the input of the network, as keras_vit does it: the arithmetic of
// keras_vit/layers/preprocessor.py in float32 (Math.fround), operation by operation, so that where a
// rule drops fractions afterwards no grey level differs.

const f = Math.fround;

// The original checkpoints' rule. A report names only what differs from it.
export const DEFAULTS = {
  resize: "stretch",
  method: "bilinear",
  antialias: false,
  resize_to: null,
  truncate: false,
  mean: [127.5],
  std: [127.5],
  rounded: false,
};

/**
 * RGBA pixels -> grey or RGB, as bytes.
 *
 * @param {Uint8ClampedArray} rgba four bytes a pixel; alpha is ignored, so compose it before.
 * @param {number} channels 1 (ITU-R 601 luma, as Pillow computes it) or 3.
 * @returns {Uint8Array} height * width * channels
 */
export function withChannels(rgba, channels) {
  const count = rgba.length / 4;
  const out = new Uint8Array(count * channels);
  for (let i = 0; i < count; i++) {
    const [r, g, b] = [rgba[4 * i], rgba[4 * i + 1], rgba[4 * i + 2]];
    if (channels === 1) {
      out[i] = (r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16;
    } else {
      out[3 * i] = r;
      out[3 * i + 1] = g;
      out[3 * i + 2] = b;
    }
  }
  return out;
}

/**
 * An image of any size -> what the network takes.
 *
 * @param {{data: Uint8Array, height: number, width: number, channels: number}} image
 * @param {[number, number]} size height and width of the network's input
 * @param {object} rule fields as in DEFAULTS
 * @returns {Float32Array} height * width * channels, normalised
 */
export function preprocess(image, size, rule) {
  const how = { ...DEFAULTS, ...rule };
  const { channels } = image;
  const [height, width] = resizedSize(image, size, how);
  if (height < size[0] || width < size[1]) {
    throw new Error(
      `A picture of ${image.height}x${image.width} becomes ${height}x${width}, too small for the ` +
        `central ${size[0]}x${size[1]}: take a larger one.`,
    );
  }
  let pixels = Float32Array.from(image.data);
  if (height !== image.height || width !== image.width) {
    let slack = 0;
    if (how.method === "bilinear" && !how.antialias) {
      pixels = bilinear(pixels, image, height, width);
    } else if (how.method === "area") {
      pixels = area(pixels, image, height, width);
    } else {
      pixels = byMatrices(pixels, image, height, width, how);
      slack = 1e-3; // absorbs the rounding of sums: a flat area of 200 could come out as 199
    }
    if (how.truncate) {
      pixels = pixels.map((v) => Math.floor(Math.min(Math.max(v + slack, 0), 255)));
    } else if (how.rounded) {
      pixels = pixels.map(toByte);
    }
  }
  const top = Math.floor((height - size[0]) / 2);
  const left = Math.floor((width - size[1]) / 2);
  const out = new Float32Array(size[0] * size[1] * channels);
  const [mean, std] = [how.mean.map(f), how.std.map(f)];
  let i = 0;
  for (let y = top; y < top + size[0]; y++) {
    for (let x = left; x < left + size[1]; x++) {
      for (let c = 0; c < channels; c++) {
        const k = mean.length === 1 ? 0 : c;
        out[i++] = f(pixels[(y * width + x) * channels + c] - mean[k]) / std[k];
      }
    }
  }
  return out;
}

/** [height, width] after resizing and before the central crop. */
function resizedSize(image, size, how) {
  if (how.resize === "none") return [image.height, image.width];
  if (how.resize === "stretch") return how.resize_to ? [how.resize_to, how.resize_to] : size;
  const short = how.resize_to || Math.min(...size);
  const [high, wide] = size.map((side) => (short * side) / Math.min(...size));
  const ratio = Math.max(high / image.height, wide / image.width);
  return [halfToEven(image.height * ratio), halfToEven(image.width * ratio)];
}

function halfToEven(value) {
  const low = Math.floor(value);
  if (value - low !== 0.5) return Math.round(value);
  return low % 2 === 0 ? low : low + 1;
}

const toByte = (value) => Math.floor(f(Math.min(Math.max(value, 0), 255) + 0.5));

/** Between four neighbours, edges repeated; along x first. */
function bilinear(pixels, { height, width, channels }, newHeight, newWidth) {
  const rows = neighbours(height, newHeight);
  const columns = neighbours(width, newWidth);
  const out = new Float32Array(newHeight * newWidth * channels);
  const between = (a, b, weight) => f(a + f(f(b - a) * weight));
  let i = 0;
  for (const [above, below, down] of rows) {
    for (const [left, right, across] of columns) {
      for (let c = 0; c < channels; c++) {
        const at = (y, x) => pixels[(y * width + x) * channels + c];
        const top = between(at(above, left), at(above, right), across);
        const bottom = between(at(below, left), at(below, right), across);
        out[i++] = between(top, bottom, down);
      }
    }
  }
  return out;
}

/** For each new pixel: the indices around its centre, and the weight of the second. */
function neighbours(old, count) {
  const scale = f(f(old) / f(count));
  const clip = (index) => Math.min(Math.max(index, 0), old - 1);
  return Array.from({ length: count }, (_, i) => {
    const centre = f(f(f(i + 0.5) * scale) - 0.5);
    const low = Math.floor(centre);
    return [clip(low), clip(Math.ceil(centre)), f(centre - low)];
  });
}

/** Means of the cells under each new pixel. */
function area(pixels, { height, width, channels }, newHeight, newWidth) {
  const rows = cells(height, newHeight);
  const columns = cells(width, newWidth);
  const scale = f(f(f(height) / f(newHeight)) * f(f(width) / f(newWidth)));
  const factor = f(1 / scale);
  const out = new Float32Array(newHeight * newWidth * channels);
  let i = 0;
  for (const row of rows) {
    for (const column of columns) {
      for (let c = 0; c < channels; c++) {
        let mean = 0;
        for (const [y, down] of row) {
          let across = 0;
          for (const [x, weight] of column) {
            across = f(across + f(pixels[(y * width + x) * channels + c] * weight));
          }
          mean = f(mean + f(across * down));
        }
        out[i++] = f(mean * factor);
      }
    }
  }
  return out;
}

/** For each new pixel: [cell, how much of it] of all cells it covers. */
function cells(old, count) {
  const scale = f(f(old) / f(count));
  return Array.from({ length: count }, (_, i) => {
    const [start, end] = [f(i * scale), f(f(i + 1) * scale)];
    const found = [];
    for (let cell = Math.floor(start); cell < Math.ceil(end); cell++) {
      const cut = f(cell + 1) > end ? scale : f(f(cell + 1) - start);
      const inside = f(cell + 1) > end ? f(end - cell) : 1;
      found.push([Math.min(Math.max(cell, 0), old - 1), cell < start ? cut : inside]);
    }
    return found;
  });
}

/** Resampling as two sums of products, along x and then along y. */
function byMatrices(pixels, { height, width, channels }, newHeight, newWidth, how) {
  const columns = kernels(width, newWidth, how);
  const rows = kernels(height, newHeight, how);
  let across = new Float32Array(height * newWidth * channels);
  let i = 0;
  for (let y = 0; y < height; y++) {
    for (const column of columns) {
      for (let c = 0; c < channels; c++) {
        let sum = 0;
        for (const [x, weight] of column) sum += pixels[(y * width + x) * channels + c] * weight;
        across[i++] = sum;
      }
    }
  }
  if (how.rounded) across = across.map(toByte); // Pillow keeps 8 bits between the two
  const out = new Float32Array(newHeight * newWidth * channels);
  i = 0;
  for (const row of rows) {
    for (let x = 0; x < newWidth * channels; x++) {
      let sum = 0;
      for (const [y, weight] of row) sum += across[y * newWidth * channels + x] * weight;
      out[i++] = sum;
    }
  }
  return out;
}

/** For each new pixel: [old pixel, weight] of all that count. */
function kernels(old, count, { method, antialias }) {
  const scale = f(f(old) / f(count));
  const stretch = antialias ? Math.max(scale, 1) : 1;
  return Array.from({ length: count }, (_, i) => {
    const centre = f(f(f(i + 0.5) * scale) - 0.5);
    const found = [];
    let total = 0;
    const reach = Math.ceil(2 * stretch) + 1;
    const last = Math.min(old - 1, Math.floor(centre) + reach);
    for (let cell = Math.max(0, Math.floor(centre) - reach); cell <= last; cell++) {
      const weight = kernel(f(Math.abs(f(centre - cell)) / stretch), method);
      if (weight !== 0) found.push([cell, weight]);
      total = f(total + weight);
    }
    return found.map(([cell, weight]) => [cell, f(weight / total)]);
  });
}

function kernel(x, method) {
  if (method === "bilinear") return Math.max(f(1 - x), 0);
  if (x <= 1) return f(f(f(f(f(1.5 * x) - 2.5) * x) * x) + 1);
  return x < 2 ? f(f(f(f(f(f(-0.5 * x) + 2.5) * x) - 4) * x) + 2) : 0;
}
