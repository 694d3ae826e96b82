"""examples/android: its plain Kotlin, compiled and run on three photographs, against Python."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from keras_vit.card import Card, Preprocessing
from keras_vit.data.images import read_image
from keras_vit.layers.preprocessor import preprocess

# On one backend: nothing of it depends on it.
pytestmark = pytest.mark.tf_only

ANDROID = Path(__file__).parent.parent / "examples" / "android"
VISION = ANDROID / "vision" / "src"
JAVA, NPM = shutil.which("java"), shutil.which("npm")
COMPILER = "kotlin-compiler@2.4.20"
RULES = {
    "google": Preprocessing(),
    "big_vision": Preprocessing(truncate=True),
    "larger_then_cropped": Preprocessing(resize_to=40, rounded=True),
    "shorter_side": Preprocessing("shorter_side", resize_to=32),
    "shorter_side_area": Preprocessing("shorter_side", "area", resize_to=30, truncate=True),
    "timm_bicubic": Preprocessing(
        "shorter_side", "bicubic", True, 32, mean=(120.0, 110.0, 100.0), std=(60.0, 61.0, 62.0)
    ),
    "pillow_bicubic": Preprocessing("shorter_side", "bicubic", True, 36, rounded=True),
    "pillow_bilinear": Preprocessing("shorter_side", "bilinear", True, 33, rounded=True),
    "plain_bicubic": Preprocessing(method="bicubic", truncate=True),
    "crop_only": Preprocessing("none"),
}
EXACT = {"google", "big_vision", "larger_then_cropped", "shorter_side", "shorter_side_area",
         "crop_only"}  # fmt: skip
INPUT = (28, 24)
LABELS = ("a b", 'quoted "one"', "back\\slash", "naïve ½ 龍", "e/f", "tab\tno", "g")
LOGITS = (0.5, -1.0, 3.0, 0.5, 2.0, 1.0, -4.0)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The command that runs the compiled Kotlin."""
    for found, what in ((JAVA, "java (Debian: default-jdk-headless)"), (NPM, "npm (Debian: npm)")):
        if not found:
            pytest.skip(f"{what} is not installed")
    folder = tmp_path_factory.mktemp("kotlin")
    done = subprocess.run(
        [NPM, "install", "--no-audit", "--no-fund", "--prefer-offline", "--fetch-retries=1", "--ignore-scripts", "--no-package-lock", COMPILER],
        cwd=folder, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(
            f"npm cannot install {COMPILER} (no network?): {' '.join(done.stderr.split())[:120]}"
        )
    home = folder / "node_modules" / "kotlin-compiler"
    done = subprocess.run(
        [
            JAVA, "-Xmx512M", "-cp", home / "lib" / "kotlin-compiler.jar",
            "org.jetbrains.kotlin.cli.jvm.K2JVMCompiler", "-kotlin-home", home, "-Werror",
            "-jvm-target", "17", "-d", folder / "classes", *sorted(VISION.rglob("*.kt")),
        ],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    library = home / "lib" / "kotlin-stdlib.jar"
    return [JAVA, "-cp", f"{folder / 'classes'}:{library}", "kerasvit.vision.CompareKt"]


def run(program, folder, jobs):
    """Name of a job -> its lines, each a list of fields."""
    (folder / "jobs.json").write_text(json.dumps(jobs), "utf-8")
    done = subprocess.run([*program, folder], capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    found = {}
    for line in done.stdout.decode("utf-8").splitlines():
        name, *rest = line.split("\t", 3)
        found.setdefault(name, []).append(rest)
    return found


def photographs():
    """Three photographs of scikit-image where it is installed, or three made pictures."""
    try:
        from skimage import data

        found = [data.astronaut(), data.chelsea(), data.coffee()]
    except Exception:  # not installed, or its files are not there
        rng = np.random.default_rng(5)
        found = []
        for height, width in ((512, 512), (300, 451), (400, 600)):
            y, x = np.mgrid[:height, :width]
            waves = np.stack([np.sin(y / 17 + k) + np.cos(x / (9 + k)) for k in range(3)], -1)
            noisy = 127 + 50 * waves + rng.normal(scale=12, size=waves.shape)
            found.append(np.clip(noisy, 0, 255).astype(np.uint8))
    return found


def report_of(channels=3, rule=None, output="probabilities", activation=None, **changes):
    """The text of a report, as far as the app reads it."""
    card = Card(variant="V", tag="t", preprocessing=rule).to_dict() if rule else None
    report = {
        "format": "litert",
        "artifact": "x.tflite",
        "size": 1.5e6,
        "baseline": None,
        "source": {"spec": {"classifier_activation": activation}, "card": card},
        "class_names": LABELS,
        "signatures": {
            "serving_default": {
                "inputs": {"images": [[1, *INPUT, channels], "float32"]},
                "outputs": {output: [[1, len(LABELS)], "float32"]},
            }
        },
    }
    return json.dumps({**report, **changes}, indent=1, ensure_ascii=channels == 1) + "\n"


@pytest.mark.full
def test_preprocessing_in_kotlin_is_that_of_python(program, tmp_path):
    jobs, wanted = [], {}
    for k, image in enumerate(photographs()):
        height, width = image.shape[:2]
        # Rows of a camera end in bytes that belong to no pixel.
        rows = np.full((height, 4 * width + 12), 77, np.uint8)
        rows[:, : 4 * width] = np.dstack([image, np.full((height, width), 255)]).reshape(height, -1)
        (tmp_path / f"{k}.rgba").write_bytes(rows.astype(np.uint8).tobytes())
        for rule_name, rule in RULES.items():
            for channels in (1, 3):
                if len(rule.mean) > channels:
                    continue
                name = f"{rule_name}-{k}-{channels}"
                (tmp_path / f"{name}.json").write_text(report_of(channels, rule), "utf-8")
                jobs.append(
                    dict(name=name, report=f"{name}.json", rgba=f"{k}.rgba", height=height,
                         width=width, row_stride=rows.shape[1], outputs=LOGITS)
                )  # fmt: skip
                read = read_image(Image.fromarray(image), channels)
                wanted[name] = rule_name, rule, preprocess(read, INPUT, rule)
    found = run(program, tmp_path, jobs)
    assert found.keys() == wanted.keys() and not [v for v in found.values() if v[0][0] == "error"]
    for name, (rule_name, rule, expected) in wanted.items():
        tensor = np.fromfile(tmp_path / f"{name}.f32", "<f4").reshape(expected.shape)
        if rule_name in EXACT:
            np.testing.assert_array_equal(tensor, expected, err_msg=name)
            continue
        # Sums of products in another order; where they are rounded afterwards, a tie may fall to
        # the other side: one grey level, which is 1/127.5.
        difference = np.abs(tensor - expected)
        if rule.rounded or rule.truncate:
            assert difference.max() <= 1.01 / 127.5, name
            assert (difference > 1e-5).mean() < 3e-3, name
        else:
            assert difference.max() < 1e-5, name


@pytest.mark.full
def test_labels_and_best_classes_in_kotlin_are_those_of_python(program, tmp_path):
    logits = np.array(LOGITS)
    softmax = np.exp(logits) / np.exp(logits).sum()
    cases = {
        "probabilities": (report_of(), LOGITS, logits),
        "softmax": (report_of(output="logits"), LOGITS, softmax),
        "large": (report_of(output="logits"), tuple(logits + 5000), softmax),
        "sigmoid": (report_of(output="logits", activation="sigmoid"), LOGITS,
                    1 / (1 + np.exp(-logits))),
        "escaped": (report_of(1), LOGITS, logits),
    }  # fmt: skip
    refused = {
        "features": (report_of(output="features"), "gives features"),
        "four": (report_of(channels=4), "4 channels"),
        "saved_model": (report_of(format="tf_saved_model"), "of tf_saved_model"),
        "uint8": (report_of().replace('"float32"', '"uint8"', 1), "takes uint8"),
        "batch": (report_of().replace("      1,\n", "      8,\n", 1), "8 images at once"),
        "cut": (report_of()[:-40], "no JSON"),
        "deep": ("[" * 5000, "no JSON"),
        "other": ("{}", "report"),
        "list": ("[1, 2]", "no report"),
        "small": (report_of(rule=Preprocessing("none")), "too small"),
    }
    image = np.zeros((9, 7, 4), np.uint8)
    (tmp_path / "x.rgba").write_bytes(image.tobytes())
    jobs = []
    for name, (report, *rest) in {**cases, **refused}.items():
        (tmp_path / f"{name}.json").write_text(report, "utf-8")
        outputs = [float(v) for v in rest[0]] if name in cases else LOGITS
        jobs.append(dict(name=name, report=f"{name}.json", rgba="x.rgba", height=9, width=7,
                         row_stride=28, outputs=outputs))  # fmt: skip
    found = run(program, tmp_path, jobs)
    for name, (_, _, wanted) in cases.items():
        order = np.argsort(-wanted, kind="stable")[:5]  # as predict_images: ties by index
        assert [int(index) for index, _, _ in found[name]] == order.tolist(), name
        assert [label for *_, label in found[name]] == [LABELS[i] for i in order], name
        np.testing.assert_allclose(
            [float(p) for _, p, _ in found[name]], wanted[order], rtol=1e-12, err_msg=name
        )
    for name, (_, said) in refused.items():
        ((kind, sentence),) = found[name]
        assert kind == "error" and said in sentence and sentence.endswith("."), (name, sentence)


def test_only_the_app_has_imports_of_android_and_the_readme_says_what_is_not_compiled():
    plain = [path.read_text("utf-8") for path in VISION.rglob("*.kt")]
    assert len(plain) == 6
    imports = {line for text in plain for line in re.findall(r"^import (.*)", text, re.M)}
    assert all(line.startswith(("kotlin.", "java.")) for line in imports)
    app = "".join(path.read_text("utf-8") for path in (ANDROID / "app").rglob("*.kt"))
    assert "com.google.ai.edge.litert" in app and "androidx.camera" in app
    assert "has not been compiled" in (ANDROID / "README.md").read_text("utf-8")
