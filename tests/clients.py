"""What the tests of clients share: rules of preprocessing, photographs, what npm installs."""

import json
import shutil
import subprocess

import numpy as np
import pytest

from keras_vit.card import Preprocessing

NPM = shutil.which("npm")
# Every rule that a card can have, and some of them twice: with and without rounding to grey levels.
RULES = {
    "google": Preprocessing(),
    "big_vision": Preprocessing(truncate=True),
    "larger_then_cropped": Preprocessing(resize_to=40, rounded=True),
    "shorter_side": Preprocessing("shorter_side", resize_to=32),
    "shorter_side_area": Preprocessing("shorter_side", "area", resize_to=30, truncate=True),
    "area": Preprocessing(method="area"),
    "timm_bicubic": Preprocessing(
        "shorter_side", "bicubic", True, 32, mean=(120.0, 110.0, 100.0), std=(60.0, 61.0, 62.0)
    ),
    "pillow_bicubic": Preprocessing("shorter_side", "bicubic", True, 36, rounded=True),
    "pillow_bilinear": Preprocessing("shorter_side", "bilinear", True, 33, rounded=True),
    "plain_bicubic": Preprocessing(method="bicubic", truncate=True),
    "crop_only": Preprocessing("none"),
}
# Those that a client repeats bit for bit; the others are sums of products in another order.
EXACT = {"google", "big_vision", "larger_then_cropped", "shorter_side", "shorter_side_area", "area",
         "crop_only"}  # fmt: skip
INPUT = (28, 24)  # (H, W) the rules are tried at
CLASSES = tuple("abcdefg")
PHOTOGRAPHS = ("astronaut", "chelsea", "coffee")


def check_tensor(found: np.ndarray, wanted: np.ndarray, name: str, what: str) -> None:
    """Asserts that a client's input tensor is that of Python by the rule of this name."""
    rule = RULES[name]
    if name in EXACT:
        np.testing.assert_array_equal(found, wanted, err_msg=what)
        return
    # Where sums are rounded afterwards, a tie may fall to the other side: one grey level, 1/127.5.
    difference = np.abs(found - wanted)
    if rule.rounded or rule.truncate:
        assert difference.max() <= 1.01 / 127.5, what
        assert (difference > 1e-5).mean() < 3e-3, what
    else:
        assert difference.max() < 1e-5, what


def photographs(names: tuple[str, ...] = PHOTOGRAPHS) -> dict[str, np.ndarray]:
    """Photographs in scikit-image's package (none is downloaded): name -> uint8 (height, width, 3).

    `astronaut` is by NASA and in the public domain, `chelsea` (a cat, by Stefan van der Walt) and
    `coffee` (by Rachel Michetti) are CC0.
    """
    data = pytest.importorskip("skimage.data", reason="scikit-image is not installed: extra [dev]")
    return {name: getattr(data, name)() for name in names}


def npm_install(folder, *arguments: str) -> None:
    """Installs packages into a folder, or skips the test and says why."""
    if not NPM:
        pytest.skip("npm is not installed (Debian: npm)")
    done = subprocess.run(
        [NPM, "install", "--no-audit", "--no-fund", "--prefer-offline", "--fetch-retries=1", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    if done.returncode:
        said = " ".join(done.stderr.split())[:120]
        pytest.skip(f"npm cannot install {' '.join(arguments[-1:])} (no network?): {said}")


def report_dict(
    shape=(1, 28, 28, 1), dtype="float32", output="probabilities", classes=CLASSES,
    card=None, activation=None, **changes,
):  # fmt: skip
    """The parts of an export's report that clients read, as plain values."""
    report = {
        "format": "litert",
        "artifact": "x.tflite",
        "size": 1.5e6,
        "baseline": None,
        "source": {"spec": {"classifier_activation": activation}, "card": card},
        "class_names": classes,
        "signatures": {
            "serving_default": {
                "inputs": {"images": [shape, dtype]},
                "outputs": {output: [[1, len(classes)], "float32"]},
            }
        },
    }
    return json.loads(json.dumps({**report, **changes}))
