// The page: takes a picture by drop, by file dialogue or from the clipboard, and shows the answer.

const MODEL = "model.tflite";
const MAX_PIXELS = 100_000_000;

const [status, results, preview, times, title] = ["status", "results", "preview", "times", "model"].map((id) =>
  document.getElementById(id),
);
const drop = document.getElementById("drop");
const picture = document.getElementById("picture");
const worker = new Worker("worker.js");
let ready = false;
let current = 0; // number of the picture asked for last; answers to earlier ones are dropped
let address; // of the preview

function say(text, failed = false) {
  status.textContent = text;
  status.dataset.state = failed ? "failed" : "fine";
}

async function openModel() {
  try {
    const [file, report] = await Promise.all([
      fetched(MODEL).then((answer) => answer.arrayBuffer()),
      fetched(`${MODEL}.json`).then((answer) => answer.json()),
    ]);
    worker.postMessage({ kind: "open", file, report }, [file]);
  } catch (error) {
    say(error.message, true);
  }
}

async function fetched(name) {
  const answer = await fetch(name).catch(() => undefined);
  if (!answer?.ok) {
    throw new Error(`${name} is not there: export a model into the folder of this page, as its README says.`);
  }
  return answer;
}

worker.onerror = (event) => say(`The worker failed: ${event.message ?? "it could not be loaded"}.`, true);
worker.onmessage = ({ data }) => {
  if (data.kind === "error") {
    if (data.id === undefined || data.id === current) say(data.text, true);
  } else if (data.kind === "open") {
    ready = true;
    title.textContent = `${data.model.name}, ${data.model.labels.length} classes, ${data.model.size.join("×")} pixels`;
    picture.disabled = false;
    say("Ready. Choose a picture.");
  } else if (data.id === current) {
    show(data);
  }
};

async function classify(file) {
  const id = ++current;
  if (!ready) return say("The model is not ready yet.", true);
  say(`Looking at ${file.name} …`);
  results.replaceChildren();
  times.textContent = "";
  try {
    const { data, height, width } = await pixels(file);
    if (id !== current) return;
    URL.revokeObjectURL(address);
    address = URL.createObjectURL(file);
    preview.src = address;
    preview.alt = `The picture ${file.name}`;
    preview.hidden = false;
    worker.postMessage({ kind: "classify", id, rgba: data, height, width }, [data.buffer]);
  } catch (error) {
    if (id === current) say(error.message, true);
  }
}

/** The picture upright (EXIF), in the numbers of its file (no colour management), on white. */
async function pixels(file) {
  const bitmap = await createImageBitmap(file, {
    imageOrientation: "from-image",
    colorSpaceConversion: "none",
  }).catch(() => {
    throw new Error(`${file.name} is no picture that this browser can read.`);
  });
  const { height, width } = bitmap;
  try {
    if (height * width > MAX_PIXELS) {
      throw new Error(`${file.name} has ${height}×${width} pixels, more than this page takes.`);
    }
    // In memory, not on a graphics card, whose rounding may differ.
    const canvas = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
    canvas.fillStyle = "white";
    canvas.fillRect(0, 0, width, height);
    canvas.drawImage(bitmap, 0, 0);
    return canvas.getImageData(0, 0, width, height);
  } finally {
    bitmap.close();
  }
}

function show({ top, prepareMs, runMs }) {
  const percent = new Intl.NumberFormat("en", { style: "percent", minimumFractionDigits: 1 });
  const rows = top.map(({ label, index, probability }) => {
    const row = document.createElement("li");
    const name = document.createElement("span");
    const share = document.createElement("data");
    const bar = document.createElement("meter");
    row.dataset.index = index;
    name.textContent = label; // as text: labels come from a file
    share.value = probability;
    share.textContent = percent.format(probability);
    bar.value = probability;
    bar.setAttribute("aria-hidden", "true"); // says what the number says
    row.append(name, share, bar);
    return row;
  });
  results.replaceChildren(...rows);
  times.textContent = `Preprocessing ${prepareMs.toFixed(1)} ms, network ${runMs.toFixed(1)} ms, in one thread.`;
  say(`${top[0].label}, ${percent.format(top[0].probability)}.`);
}

picture.addEventListener("change", () => {
  if (picture.files.length) classify(picture.files[0]);
  picture.value = ""; // the same file can be chosen again
});
// On the whole window: a picture dropped beside the field must not replace the page.
for (const kind of ["dragover", "dragleave", "drop"]) {
  window.addEventListener(kind, (event) => {
    event.preventDefault();
    drop.classList.toggle("over", kind === "dragover");
  });
}
window.addEventListener("drop", ({ dataTransfer }) => {
  if (dataTransfer.files.length) classify(dataTransfer.files[0]);
});
window.addEventListener("paste", ({ clipboardData }) => {
  if (clipboardData.files.length) classify(clipboardData.files[0]);
});

openModel();
