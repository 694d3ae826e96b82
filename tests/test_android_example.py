"""examples/android: its plain Kotlin, compiled and run on three photographs, against Python."""

import json
import re
import runpy
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

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
JAVA = shutil.which("java")
COMPILER = "kotlin-compiler@2.4.20"
clients = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("clients.py"))))
INPUT = clients.INPUT
LABELS = ("a b", 'quoted "one"', "back\\slash", "naïve ½ 龍", "e/f", "tab\tno", "g")
LOGITS = (0.5, -1.0, 3.0, 0.5, 2.0, 1.0, -4.0)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The command that runs the compiled Kotlin."""
    if not JAVA:
        pytest.skip("java is not installed (Debian: default-jre-headless)")
    folder = tmp_path_factory.mktemp("kotlin")
    clients.npm_install(folder, "--ignore-scripts", "--no-package-lock", COMPILER)
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


def report_of(channels=3, rule=None, output="probabilities", activation=None, **changes):
    """The text of a report, as far as the app reads it."""
    card = Card(variant="V", tag="t", preprocessing=rule).to_dict() if rule else None
    report = clients.report_dict(
        (1, *INPUT, channels), output=output, classes=LABELS, card=card, activation=activation, **changes
    )  # fmt: skip
    return json.dumps(report, indent=1, ensure_ascii=channels == 1) + "\n"


@pytest.mark.full
def test_preprocessing_in_kotlin_is_that_of_python(program, tmp_path):
    jobs, wanted = [], {}
    for k, image in enumerate(clients.photographs().values()):
        height, width = image.shape[:2]
        # Rows of a camera end in bytes that belong to no pixel.
        rows = np.full((height, 4 * width + 12), 77, np.uint8)
        rows[:, : 4 * width] = np.dstack([image, np.full((height, width), 255)]).reshape(height, -1)
        (tmp_path / f"{k}.rgba").write_bytes(rows.astype(np.uint8).tobytes())
        for rule_name, rule in clients.RULES.items():
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
                wanted[name] = rule_name, preprocess(read, INPUT, rule)
    found = run(program, tmp_path, jobs)
    assert found.keys() == wanted.keys() and not [v for v in found.values() if v[0][0] == "error"]
    for name, (rule_name, expected) in wanted.items():
        tensor = np.fromfile(tmp_path / f"{name}.f32", "<f4").reshape(expected.shape)
        clients.check_tensor(tensor, expected, rule_name, name)


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
