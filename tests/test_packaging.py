"""What setup.py packs, what an installation makes importable, and what it depends on."""

import importlib.metadata
import os
import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
import setuptools

import keras_vit
import keras_vit.export
import keras_vit.zoo

ROOT = Path(__file__).parent.parent
DISTRIBUTION = "keras-vit-zoo"
FOLDERS = {
    "keras_vit": Path(keras_vit.__path__[0]),
    "keras_vit.zoo": Path(keras_vit.zoo.__path__[0]),
    "keras_vit.export": Path(keras_vit.export.__path__[0]),
}


@pytest.fixture(scope="module")
def arguments():
    """The arguments setup.py gives to setuptools.setup."""
    seen, original, folder = {}, setuptools.setup, os.getcwd()
    setuptools.setup = lambda **given: seen.update(given)
    os.chdir(ROOT)  # where pip runs setup.py
    try:
        file = ROOT / "setup.py"
        space = {"__file__": str(file), "__name__": "setup"}
        exec(compile(file.read_text("utf-8"), str(file), "exec"), space)
    finally:
        setuptools.setup = original
        os.chdir(folder)
    return seen


def installed_files():
    """(package, path inside it) of every file of the installed package but compiled ones."""
    for package, folder in FOLDERS.items():
        for file in folder.rglob("*"):
            inner = file.relative_to(folder)
            nested = package == "keras_vit" and inner.parts[0] in ("zoo", "export")
            if file.is_file() and "__pycache__" not in inner.parts and not nested:
                yield package, inner


@pytest.fixture
def packages(arguments):
    """The packages setup.py finds; it finds them in the checkout, so a wheel's run has none."""
    if not (ROOT / "zoo").is_dir():
        pytest.skip("no checkout here: .ci/check_wheel.py has compared the wheel with the tree")
    return set(arguments["packages"])


def test_every_folder_with_code_is_a_package(packages):
    for package, inner in installed_files():
        if inner.suffix == ".py":
            assert ".".join((package, *inner.parts[:-1])) in packages


def test_packages_stand_under_one_name(packages):
    assert {p.split(".")[0] for p in packages} == {"keras_vit"}
    assert {"keras_vit", "keras_vit.zoo", "keras_vit.export", "keras_vit.layers"} <= packages


def test_every_data_file_is_packed(arguments):
    patterns = [
        (package, pattern)
        for package, listed in arguments["package_data"].items()
        for pattern in listed
    ]
    left_out = []
    for package, inner in installed_files():
        if inner.suffix == ".py":
            continue
        full = f"{package.replace('.', '/')}/{inner.as_posix()}"
        if not any(fnmatch(full, f"{p.replace('.', '/')}/{pattern}") for p, pattern in patterns):
            left_out.append(full)
    assert not left_out, f"setup.py's package_data leaves out {left_out}"


# A file of each, because others (tf2onnx) do install a folder `tests`.
@pytest.mark.parametrize(
    "name", ["zoo.api", "export.litert", "tests.test_packaging", "benchmarks.table"]
)
def test_folders_are_not_importable_by_their_own_name(name, tmp_path):
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"import {name}"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert re.search(rf"No module named '{name.partition('.')[0]}[.']", done.stderr)


@pytest.mark.parametrize("name", ["keras_vit.zoo", "keras_vit.export", "keras_vit.cli"])
def test_parts_are_importable_from_any_folder(name, tmp_path):
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"import {name}"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_version_is_the_same_everywhere(arguments):
    version = keras_vit.__version__
    assert arguments["version"] == version
    assert importlib.metadata.version(DISTRIBUTION) == version
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_tensorflow_is_no_hard_dependency():
    # tensorflow and tensorflow-tpu install the same folder, and pip lets them: the user chooses.
    needs = importlib.metadata.requires(DISTRIBUTION) or []
    base = [re.split(r"[<>=!~ ;\[]", need)[0] for need in needs if "extra ==" not in need]
    assert not {"tensorflow", "tensorflow-cpu", "jax", "torch", "tensorflow-addons"} & set(base)
    assert {"keras", "numpy", "wrapt"} <= set(base)


def test_the_documented_extras_exist(arguments):
    assert {
        "tf",
        "export",
        "tfds",
        "tpu",
        "tpu-plan",
        "plots",
        "dev",
        "bench",
        "gs",
        "real",
        "onnx",
        "mediapipe",
        "all",
    } == set(arguments["extras_require"])


def test_the_command_runs_from_any_folder(tmp_path):
    command = Path(sys.executable).with_name("keras-vit")
    done = subprocess.run([command, "--help"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in ("list", "info", "predict", "finetune", "evaluate", "convert", "export", "doctor"):
        assert name in done.stdout


def test_licences_and_notices_are_packed(arguments):
    assert arguments["license_files"] == ["LICENSE", "NOTICE"]
    assert "Apache License" in (ROOT / "LICENSE").read_text("utf-8")
    notice = (ROOT / "NOTICE").read_text("utf-8")
    for words in ("WordNet", "Princeton University", "Zalando SE", "MIT License", "Ross Wightman"):
        assert words in notice


def test_ruff_and_pytest_are_as_strict_as_documented():
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]
    assert tools["pytest"]["ini_options"]["filterwarnings"][0] == "error"
    assert "S101" in tools["ruff"]["lint"]["select"]
