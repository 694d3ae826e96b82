"""examples/web: its JavaScript in Node.js, and the whole page in headless Chromium, against Python."""

import dataclasses
import functools
import http.server
import json
import math
import os
import runpy
import shutil
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit import export
from keras_vit.card import Card, Preprocessing
from keras_vit.data.images import read_image
from keras_vit.export.report import report_path
from keras_vit.layers.preprocessor import preprocess

# Exports need TensorFlow, and the rest does not depend on the backend.
pytestmark = pytest.mark.tf_only

WEB = Path(__file__).parent.parent / "examples" / "web"
NODE = shutil.which("node")
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
clients = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("clients.py"))))
needs_node = pytest.mark.skipif(not NODE, reason="Node.js is not installed (Debian: nodejs)")
PLAYWRIGHT = "playwright-core@1.65.1"
SIZES = ((37, 53), (200, 41), (28, 31), (480, 640))  # pictures: smaller, tall, as large, a photo
INPUT = clients.INPUT


def node(script, *arguments, cwd, timeout=60):
    """What an ES module prints; `arguments` are in process.argv from 2 on."""
    path = Path(cwd) / "script.mjs"
    path.write_text(script, "utf-8")
    done = subprocess.run([NODE, path, *arguments], capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def picture(height, width, seed=0):
    """A smooth picture with noise and hard edges (height, width, 3)."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    waves = np.stack([np.sin(y / 7 + k) + np.cos(x / (5 + k)) for k in range(3)], -1)
    image = 127 + 50 * waves + rng.normal(scale=12, size=waves.shape)
    image[height // 3 : height // 2, width // 4 : width // 2] = rng.integers(0, 256, 3)
    return np.clip(image, 0, 255).astype(np.uint8)


PREPROCESS = """
import { readFileSync, writeFileSync } from "node:fs";
const [module, folder] = process.argv.slice(2);
const { preprocess, withChannels } = await import(module);
for (const [i, job] of JSON.parse(readFileSync(folder + "/jobs.json")).entries()) {
  const rgba = new Uint8ClampedArray(readFileSync(`${folder}/${job.picture}.rgba`));
  const data = withChannels(rgba, job.channels);
  writeFileSync(`${folder}/${i}.f32`, preprocess({ ...job, data }, job.size, job.rule));
}
"""


@needs_node
def test_preprocessing_in_javascript_is_that_of_python(tmp_path):
    jobs, expected = [], []
    for k, (height, width) in enumerate(SIZES):
        image = picture(height, width, seed=k)
        rgba = np.dstack([image, np.full((height, width), 255, np.uint8)])
        (tmp_path / f"{k}.rgba").write_bytes(rgba.tobytes())
        for name, rule in clients.RULES.items():
            for channels in (1, 3):
                if len(rule.mean) > channels:
                    continue
                # As a report has it: only what differs from the default.
                card = Card(variant="x", tag="y", preprocessing=rule).to_dict()
                jobs.append(
                    dict(picture=k, height=height, width=width, channels=channels, size=INPUT,
                         rule=card.get("preprocessing", {}))
                )  # fmt: skip
                read = read_image(Image.fromarray(image), channels)
                expected.append((name, preprocess(read, INPUT, rule)))
    assert any(job["rule"] == {} for job in jobs), "the defaults of the example are not tried"
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    node(PREPROCESS, (WEB / "preprocess.js").as_uri(), str(tmp_path), cwd=tmp_path)
    for i, (name, wanted) in enumerate(expected):
        found = np.fromfile(tmp_path / f"{i}.f32", np.float32).reshape(wanted.shape)
        clients.check_tensor(found, wanted, name, str(jobs[i]))


DESCRIBE = """
import { readFileSync } from "node:fs";
const [module, path] = process.argv.slice(2);
const { describe, best } = await import(module);
const { report, outputs } = JSON.parse(readFileSync(path));
const found = {};
try {
  found.model = describe(report);
  found.top = outputs.map((row) => best(Float32Array.from(row), found.model));
} catch (error) {
  found.error = error.message;
}
console.log(JSON.stringify(found));
"""
CLASSES = clients.CLASSES


def described(tmp_path, outputs=(), **report):
    (tmp_path / "in.json").write_text(
        json.dumps({"report": clients.report_dict(**report), "outputs": outputs})
    )
    return json.loads(
        node(DESCRIBE, (WEB / "report.js").as_uri(), str(tmp_path / "in.json"), cwd=tmp_path)
    )


@needs_node
def test_the_report_says_what_the_page_needs(tmp_path):
    rule = Preprocessing(truncate=True, mean=(1.0, 2.0, 3.0), std=(4.0, 5.0, 6.0))
    card = Card(variant="V", tag="t", preprocessing=rule).to_dict()
    shape = (1, 20, 28, 3)
    model = described(tmp_path, shape=shape, card=card)["model"]
    assert (model["name"], model["size"], model["channels"]) == ("V@t", [20, 28], 3)
    assert model["rule"] == json.loads(json.dumps(dataclasses.asdict(rule)))
    pixels = described(tmp_path, shape=shape, card=card, dtype="uint8")["model"]
    assert pixels["rule"] == {**model["rule"], "mean": [0], "std": [1]}
    # A model without a card has the default rule, the same here and there.
    bare = described(tmp_path)["model"]
    assert bare["rule"] == json.loads(json.dumps(dataclasses.asdict(Preprocessing())))
    assert bare["name"] == "x.tflite" and bare["labels"] == list(CLASSES)


@needs_node
def test_the_best_classes_are_those_of_python(tmp_path):
    logits = [0.5, -1.0, 3.0, 0.5, 2.0, 1.0, -4.0]
    rows = [logits, [800.0, 0.0, 801.0, 0.0, 0.0, 0.0, 0.0]]
    softmax = np.exp(np.array(rows) - np.max(rows, 1, keepdims=True))
    softmax /= softmax.sum(1, keepdims=True)
    for output, activation, wanted in (
        ("probabilities", None, np.array(rows)),
        ("logits", None, softmax),
        ("logits", "sigmoid", 1 / (1 + np.exp(-np.array(rows)))),
    ):
        found = described(tmp_path, rows, output=output, activation=activation)["top"]
        for top, row in zip(found, wanted, strict=True):
            order = np.argsort(-row, kind="stable")[:5]  # as predict_images: ties by index
            assert [p["index"] for p in top] == order.tolist()
            assert [p["label"] for p in top] == [CLASSES[i] for i in order]
            np.testing.assert_allclose([p["probability"] for p in top], row[order], rtol=1e-12)


@needs_node
@pytest.mark.parametrize(
    ("report", "said"),
    [
        ({"shape": (8, 28, 28, 1)}, "8 images at once"),
        ({"shape": (None, 28, 28, 1)}, "any number of images"),
        ({"shape": (1, 28, 28, 4)}, "4 channels"),
        ({"dtype": "int8"}, "takes int8"),
        ({"output": "features"}, "gives features"),
    ],
)
def test_files_the_page_cannot_run_are_refused_with_a_sentence(tmp_path, report, said):
    found = described(tmp_path, **report)
    assert said in found["error"] and "model" not in found


def test_the_page_asks_no_other_host_and_has_its_texts():
    page = (WEB / "index.html").read_text("utf-8")
    assert "http:" not in page and "https:" not in page and "connect-src" not in page
    assert 'lang="en"' in page and 'for="picture"' in page and 'role="status"' in page
    assert "prefers-color-scheme: dark" in (WEB / "style.css").read_text("utf-8")
    assert "litert/" in (WEB / ".gitignore").read_text().split()
    assert not list(WEB.glob("package-lock.json"))


DRIVE = """
import { chromium } from "playwright-core";
import { readFileSync } from "node:fs";
const { executable, profile, address, pictures, broken, dark } = JSON.parse(process.argv[2]);
const context = await chromium.launchPersistentContext(profile, {
  executablePath: executable,
  headless: true,
  colorScheme: dark ? "dark" : "light",
  args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"],
});
const told = { errors: [], hosts: [], failed: [], pictures: [] };
try {
  const page = await context.newPage();
  page.on("pageerror", (error) => told.errors.push(String(error)));
  context.on("request", (request) => told.hosts.push(new URL(request.url()).host));
  context.on("requestfailed", (request) => told.failed.push(request.url()));
  await page.goto(address);
  const status = page.locator("#status");
  const settled = async () => {
    await page.waitForFunction(() => {
      const { textContent, dataset } = document.getElementById("status");
      return dataset.state === "failed" || !/^(Loading|Looking)/.test(textContent);
    }, null, { timeout: 60000 });
    return { text: await status.textContent(), state: await status.getAttribute("data-state") };
  };
  told.opened = await settled();
  told.title = await page.locator("#model").textContent();
  if (told.opened.state === "fine") {
    await page.keyboard.press("Tab");
    told.focus = await page.evaluate(() => document.activeElement.id);
    for (const [i, path] of pictures.entries()) {
      const name = path.split("/").at(-1);
      if (i === 0) {
        const bytes = [...readFileSync(path)];
        await page.evaluate(([data, name]) => {
          const transfer = new DataTransfer();
          transfer.items.add(new File([new Uint8Array(data)], name));
          document.body.dispatchEvent(
            new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true }));
        }, [bytes, name]);
      } else {
        await page.locator("#picture").setInputFiles(path);
      }
      const answer = await settled();
      const rows = await page.locator("#results li").evaluateAll((all) => all.map((row) => ({
        index: Number(row.dataset.index),
        label: row.querySelector("span").textContent,
        probability: Number(row.querySelector("data").value),
      })));
      told.pictures.push({
        ...answer, rows,
        alt: await page.locator("#preview").getAttribute("alt"),
        times: await page.locator("#times").textContent(),
      });
    }
    await page.locator("#picture").setInputFiles(broken);
    told.broken = await settled();
    told.background = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  }
} finally {
  await context.close();
}
console.log(JSON.stringify(told));
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """(folder of the page with LiteRT.js, folder with the browser's driver)."""
    for found, what in ((NODE, "Node.js (Debian: nodejs)"), (CHROMIUM, "chromium")):
        if not found:
            pytest.skip(f"{what} is not installed")
    folder, driver = tmp_path_factory.mktemp("web"), tmp_path_factory.mktemp("driver")
    ignored = shutil.ignore_patterns("node_modules", "litert", "*.tflite*")
    shutil.copytree(WEB, folder, dirs_exist_ok=True, ignore=ignored)
    clients.npm_install(folder)
    clients.npm_install(driver, "--ignore-scripts", "--no-package-lock", PLAYWRIGHT)
    return folder, driver


@pytest.fixture(scope="module")
def served(site):
    """The address of the page, by Python's http.server."""
    handler = functools.partial(QuietHandler, directory=str(site[0]))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A garment as it is, one enlarged and tinted, a rotated JPEG, and three photographs."""
    folder = tmp_path_factory.mktemp("pictures")
    with np.load(Path(keras_vit.__file__).parent / "data" / "fashion_mnist" / "subset.npz") as file:
        garments = file["test_images"][:3]
    Image.fromarray(garments[0]).save(folder / "a.png")
    large = Image.fromarray(garments[1]).resize((150, 210), Image.Resampling.BICUBIC)
    tinted = np.stack([np.asarray(large) * s for s in (1.0, 0.8, 0.6)], -1).astype(np.uint8)
    Image.fromarray(tinted).save(folder / "b.png")
    exif = Image.Exif()
    exif[274] = 6  # stored on its side
    side = Image.fromarray(garments[2]).convert("RGB").rotate(90, expand=True)
    side.save(folder / "d.jpg", quality=95, exif=exif)
    names = ["a.png", "b.png", "d.jpg"]
    for name, pixels in clients.photographs().items():
        names.append(f"{name} & co.png")
        Image.fromarray(pixels).save(folder / names[-1])
    return [folder / name for name in names]


def drive(site, address, tmp_path, pictures, dark=False):
    driver = site[1]
    (tmp_path / "broken.png").write_text("no picture")
    how = {
        "executable": CHROMIUM, "profile": str(tmp_path / "profile"), "address": address,
        "pictures": [str(p) for p in pictures], "broken": str(tmp_path / "broken.png"), "dark": dark,
    }  # fmt: skip
    return json.loads(node(DRIVE, json.dumps(how), cwd=driver, timeout=300))


@pytest.mark.full
@pytest.mark.parametrize(
    ("mode", "input_type", "dark"),
    [("float32", "float32", False), ("float32", "uint8", True), ("dynamic_int8", "float32", False)],
)
def test_the_page_in_chromium_says_what_python_says(
    site, served, pictures, tmp_path, mode, input_type, dark
):
    model = keras_vit.load("ViT-Mini/4@fashion_mnist")
    file = site[0] / "model.tflite"
    options = {} if input_type == "float32" else {"input": input_type}
    quantize = None if mode == "float32" else mode
    export.litert(model, file, quantize=quantize, force=True, **options)
    assert report_path(file).is_file()
    told = drive(site, served, tmp_path, pictures, dark)
    assert told["opened"] == {"text": "Ready. Choose a picture.", "state": "fine"}, told
    assert not told["errors"] and not told["failed"]
    assert set(told["hosts"]) - {""} == {served.split("/")[2]}, "the page asks another host"
    assert told["title"] == "ViT-Mini/4@fashion_mnist, 10 classes, 28×28 pixels"
    assert told["focus"] == "picture", "the first Tab does not reach the field"
    wanted = model.predict_images(pictures)
    for path, found, top in zip(pictures, told["pictures"], wanted, strict=True):
        assert found["state"] == "fine" and found["text"].startswith(f"{top[0][0]}, "), found
        assert found["alt"] == f"The picture {path.name}" and " ms" in found["times"]
        rows = [(row["label"], row["index"], row["probability"]) for row in found["rows"]]
        assert len(rows) == 5 and rows == sorted(rows, key=lambda row: -row[2])
        assert rows[0][:2] == top[0][:2], path.name
        exact = mode == "float32" and path.suffix == ".png"
        if exact:
            assert [row[:2] for row in rows] == [row[:2] for row in top], path.name
            # Two engines, float32: relative, so that small probabilities count as well; of pixels
            # rounded to grey levels 1/127.5 apart as much.
            for (*_, found_p), (*_, wanted_p) in zip(rows, top, strict=True):
                assert abs(math.log(found_p / wanted_p)) < (
                    1e-3 if input_type == "float32" else 0.1
                )
        else:
            # Kernels of dynamic int8 differ by engine, and decoders of JPEG by grey levels.
            by_index = {index: p for _, index, p in top}
            for _, index, p in rows:
                if index in by_index:
                    assert abs(p - by_index[index]) < 0.05, path.name
    assert told["broken"]["state"] == "failed" and "no picture" in told["broken"]["text"]
    assert told["background"] == ("rgb(23, 23, 26)" if dark else "rgb(255, 255, 255)")


@pytest.mark.full
def test_a_missing_model_is_said(site, served, pictures, tmp_path):
    for file in site[0].glob("model.tflite*"):
        os.remove(file)
    told = drive(site, served, tmp_path, pictures)
    assert told["opened"]["state"] == "failed"
    assert "model.tflite" in told["opened"]["text"] and "README" in told["opened"]["text"]
