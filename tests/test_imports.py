"""Imports point one way only, lazy ones included, and importing the package stays cheap."""

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import keras_vit

# A part may import parts of its own row and of the rows above it, never of those below.
ROWS = (
    ("spec", "card", "layers", "models", "data", "posemb", "stepping", "model"),
    ("zoo",),
    ("train", "transfer", "pretext", "results", "analysis", "studies"),
    ("export",),
    ("cli", "__main__"),
)
ROW_OF = {part: row for row, parts in enumerate(ROWS) for part in parts}
TENSORFLOW = ("tensorflow", "ai_edge_litert", "ai_edge_quantizer")
# The places that may name TensorFlow or what needs it; everything else goes through keras.ops.
# model.py asks it for devices when it compiles, stepping.py has a step for each backend, cli reports
# its version; studies lowers TensorFlow's step for TPUs.
MAY_USE_TENSORFLOW = (
    "data",
    "export",
    "model",
    "stepping",
    "train.distribute_tf",
    "train.distribute_jax",
    "train.placement",
    "studies",
    "cli",
)


def modules() -> dict[str, Path]:
    """Every module of the installed package: dotted name -> file."""
    found = {}
    for package in ("keras_vit", "keras_vit.zoo", "keras_vit.export"):
        root = Path(next(iter(importlib.import_module(package).__path__)))
        for file in root.rglob("*.py"):
            inner = file.relative_to(root).with_suffix("").parts
            inner = inner[:-1] if inner[-1] == "__init__" else inner
            found[".".join((package, *inner))] = file
    return found


def imported(tree: ast.AST) -> list[tuple[int, str]]:
    """(line, dotted name) of every import statement and importlib call, at whatever depth.

    A name taken from the facade counts as imported from its home.
    """
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            for alias in node.names:
                home = keras_vit._HOMES.get(alias.name) if base == "keras_vit" else None
                names.append((node.lineno, f"{home or base}.{alias.name}"))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            first = node.args[0]
            if isinstance(first, ast.Constant):
                names.append((node.lineno, str(first.value)))
    return names


def part_of(name: str) -> str | None:
    """The part of keras_vit a dotted name belongs to."""
    pieces = name.split(".")
    return pieces[1] if pieces[0] == "keras_vit" and len(pieces) > 1 else None


def may_use_tensorflow(name: str) -> bool:
    """Whether a module is one of the places, or inside one."""
    inner = name.removeprefix("keras_vit.")
    return any(inner == place or inner.startswith(f"{place}.") for place in MAY_USE_TENSORFLOW)


def wrong_imports(name: str, source: str) -> list[str]:
    """What a module imports against the order."""
    part = part_of(name)
    if part is None:  # the facade itself: its table of homes is lazy and may name every part
        return []
    problems = []
    if part not in ROW_OF:
        return [f"{name}: {part} has no place in the order of imports"]
    for line, target in imported(ast.parse(source)):
        where = f"{name}:{line} imports {target}"
        if target.startswith("."):
            problems.append(f"{where}: relative, but imports are absolute")
        elif target in ("keras_vit", "keras_vit.__version__"):
            if target == "keras_vit":
                problems.append(f"{where}: the facade hides which part is used")
        elif (other := part_of(target)) is not None and ROW_OF.get(other, 99) > ROW_OF[part]:
            problems.append(f"{where}: {part} stands before {other}")
        elif target.split(".")[0] in TENSORFLOW and not may_use_tensorflow(name):
            problems.append(f"{where}: only {MAY_USE_TENSORFLOW} may name TensorFlow")
    return problems


def test_every_import_points_one_way():
    problems = [
        p for name, file in modules().items() for p in wrong_imports(name, file.read_text())
    ]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("keras_vit.spec", "from keras_vit.zoo.names import resolve"),
        ("keras_vit.model", "def f():\n    from keras_vit import export"),
        ("keras_vit.model", "def f():\n    from keras_vit import load"),
        ("keras_vit.zoo.api", "import keras_vit.train.run"),
        ("keras_vit.train.run", "import importlib\nimportlib.import_module('keras_vit.export')"),
        ("keras_vit.export.litert", "from keras_vit.cli import main"),
        ("keras_vit.layers.norm", "import tensorflow as tf"),
        ("keras_vit.train.run", "import tensorflow as tf"),
        ("keras_vit.layers.norm", "from .common import PACKAGE"),
        ("keras_vit.train.run", "import keras_vit"),
        ("keras_vit.strange", "import os"),
    ],
)
def test_the_walker_sees_a_wrong_import(name, source):
    assert wrong_imports(name, source)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("keras_vit.cli.main", "from keras_vit import export, load, __version__"),
        ("keras_vit.zoo.api", "from keras_vit.model import VisionModel"),
        ("keras_vit.export.litert", "import tensorflow as tf"),
    ],
)
def test_the_walker_passes_a_right_import(name, source):
    assert not wrong_imports(name, source)


def test_the_parts_that_exist_were_walked():
    walked = {part_of(name) for name in modules()}
    assert {"spec", "layers", "models", "model", "data", "zoo", "train", "export", "cli"} <= walked


def python(code: str, **environment: str) -> subprocess.CompletedProcess:
    # -P keeps the working directory off the path, as an installed program has it.
    return subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_importing_the_package_loads_no_framework():
    done = python(
        "import sys, keras_vit\n"
        "heavy = {'keras', 'tensorflow', 'jax', 'torch', 'PIL', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert 'load' in dir(keras_vit)"
    )
    assert done.returncode == 0, done.stderr


def test_card_stays_a_function_after_its_namesake_module_is_imported():
    done = python(
        "import keras_vit.model\n"
        "from keras_vit.card import Card\n"
        "assert callable(keras_vit.card) and isinstance(Card, type)"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("part", ["keras_vit.layers", "keras_vit.models", "keras_vit.data.batches"])
def test_any_part_may_be_imported_first_and_registers_the_model(part):
    done = python(
        f"import {part}, keras\nassert keras.saving.get_registered_object('keras_vit>VisionModel')",
        KERAS_BACKEND="tensorflow",
    )
    assert done.returncode == 0, done.stderr[-2000:]


BLOCK = """
import sys
for name in ("tensorflow_addons", "tf_keras", "jax", "torch", "scipy"):
    sys.modules[name] = None
"""
RUN_A_MODEL = """
import keras, numpy as np, keras_vit
spec = keras_vit.ViTSpec(
    image_size=(8, 8), patch_size=(4, 4), hidden_size=8, mlp_dim=16, num_heads=2, num_layers=1,
    num_classes=3,
)
model = keras_vit.VisionModel(spec)
assert keras.__version__.startswith("3."), keras.__version__
assert np.shape(model(np.zeros((2, 8, 8, 3), "float32"))) == (2, 3)
"""


@pytest.mark.case("K01")
def test_a_model_runs_with_other_frameworks_blocked():
    # scipy is blocked before TensorFlow is imported, so nothing of the path may lean on it.
    done = python(BLOCK + RUN_A_MODEL, KERAS_BACKEND="tensorflow")
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.case("K02")
def test_the_legacy_keras_switch_changes_nothing():
    done = python(RUN_A_MODEL, KERAS_BACKEND="tensorflow", TF_USE_LEGACY_KERAS="1")
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.case("K02")
def test_an_unknown_backend_is_one_clear_error():
    done = python("import keras_vit; keras_vit.VisionModel", KERAS_BACKEND="theano")
    assert done.returncode != 0
    assert "theano" in done.stderr.strip().splitlines()[-1]
