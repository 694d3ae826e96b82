"""Shared set-up: the backend, what a run leaves out, and a count of every skip at the end."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
# Where libtpu is installed, JAX would look for a TPU first.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# No test asks the network; those of downloads have a server of their own.
os.environ["HF_HUB_OFFLINE"] = "1"
# Before Keras is imported, so that no file of the user decides what the tests run on.
BACKEND = os.environ["KERAS_BACKEND"]

# Files whose tests touch neither Keras nor a backend: once, on TensorFlow, is enough.
BACKEND_FREE = {
    "test_augreg.py",
    "test_batches.py",
    "test_card_tables.py",
    "test_cards.py",
    "test_cases.py",
    "test_cost.py",
    "test_download.py",
    "test_download_hub.py",
    "test_download_machine.py",
    "test_fashion_mnist.py",
    "test_fetch.py",
    "test_fewshot.py",
    "test_fuzz_cards.py",
    "test_fuzz_hdf5.py",
    "test_fuzz_images.py",
    "test_fuzz_npz.py",
    "test_fuzz_regressions.py",
    "test_fuzz_safetensors.py",
    "test_hdf5_file.py",
    "test_hostile_files.py",
    "test_hostile_npz.py",
    "test_images.py",
    "test_imports.py",
    "test_keys.py",
    "test_knn.py",
    "test_labels.py",
    "test_model_pages.py",
    "test_names.py",
    "test_objectnet.py",
    "test_packaging.py",
    "test_posemb.py",
    "test_probe.py",
    "test_published.py",
    "test_real.py",
    "test_results.py",
    "test_safetensors.py",
    "test_sources.py",
    "test_spec.py",
    # Their compilers run in processes of their own, on JAX and on TensorFlow each time.
    "test_tpu_compile.py",
    "test_tpu_plan.py",
}
# Files about reading and writing weights, keeping runs, and measuring, which is the same on every
# backend: on another than TensorFlow in make test-full only. test_google_npz.py, test_load.py,
# test_training.py, which resumes runs, test_features.py and test_analysis.py stand for them there.
SAME_ON_EVERY_BACKEND = {
    "test_checkpoint.py",
    "test_containers.py",
    "test_dedup.py",
    "test_figures.py",
    "test_finetune.py",
    "test_flexi.py",
    "test_huggingface.py",
    "test_inspect.py",
    "test_keras_hub.py",
    "test_paper.py",
    "test_probe_command.py",
    "test_reproduce.py",
    "test_robust.py",
    "test_study.py",
    "test_task.py",
    "test_timm.py",
    "test_transfer.py",
    "test_transfer_data.py",
    "test_variants.py",
    "test_vtab.py",
    "test_vtab_run.py",
}
FULL_TIMEOUT = 3600  # seconds for one test marked `full`

_left_out: dict[str, int] = {}


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="also run the tests marked `full`")


def pytest_configure(config):
    if importlib.util.find_spec("keras_vit") is None or not importlib.util.find_spec(
        "keras_vit.zoo"
    ):
        pytest.exit("keras_vit is not installed: run pip install -e . first.", returncode=4)


def pytest_collection_modifyitems(config, items):
    wants_full = config.getoption("full") or "full" in (config.getoption("markexpr") or "")
    kept, dropped = [], []
    for item in items:
        reason = _reason_to_leave_out(item, wants_full)
        if reason:
            _left_out[reason] = _left_out.get(reason, 0) + 1
        if item.get_closest_marker("full") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(FULL_TIMEOUT))
        (dropped if reason else kept).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


@pytest.fixture(scope="session")
def random_model():
    """`random_model(spec, **options)`: a model with no weight at its initial zeros or ones, and a
    head sharp enough that top-1 means something."""
    import numpy as np

    from keras_vit.model import VisionModel

    def build(spec, seed=0, **options):
        model, rng = VisionModel(spec, **options), np.random.default_rng(seed)
        for variable in model.weights:
            values = rng.normal(size=variable.shape)
            if variable.path.endswith("kernel"):
                gain = 3.0 if variable.path == "head/kernel" else 1.0
                values *= gain / np.sqrt(np.prod(variable.shape[:-1]))
            else:
                values = 0.1 * values + variable.path.endswith("scale")
            variable.assign(values)
        return model

    return build


@pytest.fixture(scope="session")
def official():
    """tests/oracles/official.py: reads the fixtures that the official code wrote."""
    return _module(Path(__file__).parent / "oracles" / "official.py")


def _module(path: Path):
    """A helper file as a module; its dataclasses look it up by name."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A web server on this machine (tests/loopback.py), an empty cache, short waits."""
    from keras_vit.zoo.fetching import download, hub, web

    module = _module(Path(__file__).with_name("loopback.py"))
    for name in [n for n in os.environ if n.startswith(("KERAS_VIT_", "HF_"))]:
        monkeypatch.delenv(name)
    for name in ("KERAS_HOME", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    # Long enough for a busy machine; tests of silence set less.
    monkeypatch.setattr(web, "STALL_SECONDS", 10.0)
    monkeypatch.setattr(download, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr(hub.huggingface_hub, "get_token", lambda: None)
    monkeypatch.setattr(hub, "_warned", set())
    running = module.Server()
    monkeypatch.setattr(hub.constants, "ENDPOINT", running.url(""))
    yield running
    running.close()


def _reason_to_leave_out(item, wants_full: bool) -> str | None:
    if item.get_closest_marker("full") and not wants_full:
        return "full: heavy, run by make test-full"
    if BACKEND != "tensorflow":
        if item.get_closest_marker("tf_only"):
            return f"tf_only: needs TensorFlow, this run is on {BACKEND}"
        if item.path.name in BACKEND_FREE:
            return "backend-free: already run on TensorFlow"
        if item.path.name in SAME_ON_EVERY_BACKEND and not wants_full:
            return "weights and checkpoints: already run on TensorFlow"
    return None


@pytest.fixture(scope="session")
def reference():
    """The float64 Vision Transformer of tests/oracles/numpy_vit.py."""
    path = Path(__file__).parent / "oracles" / "numpy_vit.py"
    spec = importlib.util.spec_from_file_location("numpy_vit", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def embedded_stand_ins(tmp_path_factory):
    """A table of cards in place of the embedded models': the same networks, random weights.

    Name the folder in KERAS_VIT_CARDS, and a test that needs those models to be there, not to be
    good, does not depend on what the package ships.
    """
    import keras

    from keras_vit.data.sources import FASHION_MNIST_CLASSES
    from keras_vit.model import VisionModel
    from keras_vit.train.recipes.fashion_mnist import TASKS
    from keras_vit.zoo.formats import write_weights

    folder, rows = tmp_path_factory.mktemp("cards"), []
    for tag, name in (("fashion_mnist", "ten"), ("fashion_mnist_8", "eight")):
        keras.utils.set_random_seed(0)
        classes, model = TASKS[name].classes, VisionModel(TASKS[name].spec)
        head = model.get_layer("head").kernel
        head.assign(keras.random.normal(head.shape))
        write_weights(model, folder / f"{tag}.npz", dtype="float16")
        rows.append(
            f'[[card]]\nvariant = "ViT-Mini/4"\ntag = "{tag}"\nfile = "{tag}.npz"\n'
            f"num_classes = {len(classes)}\nimage_size = [28, 28]\n"
            f"class_names = {[FASHION_MNIST_CLASSES[i] for i in classes]!r}\n"
        )
    (folder / "cards.toml").write_text("\n".join(rows), "utf-8")
    return folder


def pytest_sessionfinish(session):
    # Under pytest-xdist every worker collects, and only the first process prints.
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = _left_out


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    _left_out.update(getattr(node, "workeroutput", {}).get("left_out", {}))


def pytest_terminal_summary(terminalreporter):
    write = terminalreporter.write_line
    terminalreporter.section(f"left out and skipped ({BACKEND})")
    for reason, count in sorted(_left_out.items()):
        write(f"left out {count}: {reason}")
    skipped = terminalreporter.stats.get("skipped", [])
    for report in skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        write(f"skipped {report.nodeid}: {str(reason).removeprefix('Skipped: ')}")
    write(f"{len(skipped)} skipped, {sum(_left_out.values())} left out")
