"""One run gives the same numbers on one device, several, and several hosts, and ends when a host is lost."""

import dataclasses
import importlib.util
import json
import os
import runpy
import socket
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_vit.card import Card, Preprocessing
from keras_vit.layers.preprocessor import preprocess
from keras_vit.model import VisionModel
from keras_vit.stepping import Stepping
from keras_vit.train import distribute_jax, distribute_tf, hardware, workers
from keras_vit.train.distribute import Placement, open_devices

BACKEND = keras.backend.backend()
CHILD = Path(__file__).with_name("distributed.py")
EXAMPLES = CHILD.parent.parent / "examples"
jax_only = pytest.mark.skipif(BACKEND != "jax", reason="needs JAX")
# Sums of float32 in another order differ in the last bits, which Adam's first steps may double.
CLOSE = {"rtol": 1e-5, "atol": 1e-7}

spec = importlib.util.spec_from_file_location("distributed", CHILD)
distributed = importlib.util.module_from_spec(spec)
spec.loader.exec_module(distributed)


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "", **more}


def on_devices(folder: Path, *names: str, backend: str = BACKEND) -> Path:
    """Trains on the devices, in one process."""
    subprocess.run(
        [sys.executable, CHILD, folder, "devices", *names],
        env=environment(KERAS_BACKEND=backend),
        check=True,
        timeout=1800,
    )
    return folder


def start_workers(folder: Path, parallel: int = 1, pause: float = 0.0, devices: int = 1):
    """Two processes that find each other over loopback."""
    ports = [free_port(), free_port()]
    more = {
        workers.ADDRESSES: ",".join(f"127.0.0.1:{port}" for port in ports),
        workers.COUNT: "2",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }
    started = []
    for i in range(2):
        with (folder / f"log{i}").open("a") as log:
            started.append(
                subprocess.Popen(
                    [sys.executable, CHILD, folder, "workers", str(parallel), str(pause)],
                    env=environment(**more, **{workers.INDEX: str(i)}),
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
    return started


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def end(started, seconds: float = 1200) -> list[int]:
    """Exit codes of the processes, which do not outlive the test."""
    try:
        return [process.wait(timeout=seconds) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()


def read(path: Path):
    """(about, weights) of a report."""
    with np.load(path) as file:
        return json.loads(str(file["about"])), {k: file[k] for k in file.files if k != "about"}


def assert_same(found, expected):
    """Losses, scores and averaged weights of two runs."""
    for ours, theirs in zip(found[0]["history"], expected[0]["history"], strict=True):
        assert ours.keys() == theirs.keys()
        for name in ours:
            np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, err_msg=name)
    assert found[1].keys() == expected[1].keys()
    for name, value in found[1].items():
        if name.endswith("attention/key/bias"):
            continue  # without a gradient, but for rounding, which Adam makes as large as any other
        np.testing.assert_allclose(value, expected[1][name], **CLOSE, err_msg=name)


@pytest.fixture(scope="session")
def single(tmp_path_factory):
    """The run on the one default device of this process, and its folder."""
    folder = tmp_path_factory.mktemp("single")
    placement = Placement()
    trained, done = distributed.train(placement, folder / "run")
    distributed.report(folder / "single.npz", trained, done)
    return folder


@pytest.fixture(scope="session")
def expected(single):
    return read(single / "single.npz")


@pytest.fixture(scope="session")
def two_cpus(tmp_path_factory):
    return on_devices(tmp_path_factory.mktemp("devices"), "cpu:2", "cpu:2>cpu:1")


@pytest.fixture(scope="session")
def two_workers(tmp_path_factory):
    """On JAX they have four devices each, and spread the model over pairs of them."""
    folder = tmp_path_factory.mktemp("workers")
    parallel, devices = (2, 4) if BACKEND == "jax" else (1, 1)
    codes = end(start_workers(folder, parallel, devices=devices))
    assert codes == [0, 0], (folder / "log0").read_text() + (folder / "log1").read_text()
    return folder


# Several devices ----------------------------------------------------------------------------------


@pytest.mark.tf_only
def test_two_replicas_train_as_one_device_does(two_cpus, expected):
    assert_same(read(two_cpus / "cpu:2.npz"), expected)


@pytest.mark.tf_only
def test_a_checkpoint_of_two_replicas_goes_on_on_one(two_cpus, expected):
    found = read(two_cpus / "cpu:2>cpu:1.npz")
    assert found[0]["resumed_from"] == 3
    assert_same(found, expected)


@pytest.mark.tf_only
@pytest.mark.case("T01")
def test_the_batch_of_a_recipe_is_that_of_all_replicas(two_cpus):
    assert json.loads((two_cpus / "sizes.json").read_text()) == [4, 4]


@pytest.mark.tf_only
@pytest.mark.case("U07")
def test_what_a_strategy_saved_predicts_the_same_without_one(two_cpus):
    saved = keras.models.load_model(two_cpus / "saved.keras")
    with np.load(two_cpus / "saved.npz") as file:
        np.testing.assert_array_equal(saved(file["images"]), file["logits"])


@pytest.mark.full
@pytest.mark.tf_only
def test_four_replicas_train_as_one_device_does(tmp_path, expected):
    on_devices(tmp_path, "cpu:4", "cpu:4>cpu:2")
    assert_same(read(tmp_path / "cpu:4.npz"), expected)
    assert_same(read(tmp_path / "cpu:4>cpu:2.npz"), expected)


@pytest.mark.full
@jax_only
def test_eight_devices_train_as_one_does_with_the_model_spread_or_not(tmp_path, expected):
    on_devices(tmp_path, "cpu:8", "cpu:8@2", "cpu:8@2>cpu:8", "cpu:8>cpu:8@4", "cpu:8@2>cpu:1")
    for name in ("cpu:8", "cpu:8@2", "cpu:8@2>cpu:8", "cpu:8>cpu:8@4", "cpu:8@2>cpu:1"):
        assert_same(read(tmp_path / f"{name}.npz"), expected)


@pytest.mark.full
def test_the_other_backend_trains_the_same(tmp_path, expected):
    other = "jax" if BACKEND == "tensorflow" else "tensorflow"
    on_devices(tmp_path, "cpu:1", backend=other)
    assert_same(read(tmp_path / "cpu:1.npz"), expected)


# Several hosts ------------------------------------------------------------------------------------


def test_two_workers_train_as_one_device_does(two_workers, expected):
    for i in range(2):
        found = read(two_workers / f"worker{i}.npz")
        assert_same(found, expected)
        assert found[0]["told"] == [True, False, True]
        assert found[0]["replicas"] == (4 if BACKEND == "jax" else 2)
        assert workers.ADVICE in (two_workers / f"log{i}").read_text()


@pytest.mark.full
def test_a_checkpoint_of_two_workers_goes_on_on_one_device(two_workers, expected, tmp_path):
    distributed.first_epoch_of(two_workers / "run-workers", tmp_path / "run")
    trained, done = distributed.train(Placement(), tmp_path / "run")
    distributed.report(tmp_path / "single.npz", trained, done)
    found = read(tmp_path / "single.npz")
    assert found[0]["resumed_from"] == 3
    assert_same(found, expected)


@pytest.mark.full
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("sign", ["SIGKILL", "SIGSTOP"])
def test_when_one_worker_is_lost_both_end_and_a_restart_goes_on(tmp_path, expected, victim, sign):
    import signal

    started = start_workers(tmp_path, pause=5.0)
    try:
        wait_for(lambda: "epoch 0" in (tmp_path / f"log{victim}").read_text(), started)
        started[victim].send_signal(getattr(signal, sign))
        lost = time.monotonic()
        assert started[1 - victim].wait(timeout=120) != 0
        assert time.monotonic() - lost < 60
        started[victim].kill()
    finally:
        codes = end(started, seconds=10)
    assert codes[victim] != 0
    assert end(start_workers(tmp_path)) == [0, 0]
    for i in range(2):
        found = read(tmp_path / f"worker{i}.npz")
        assert found[0]["resumed_from"] == 3
        assert_same(found, expected)


def wait_for(condition, started) -> None:
    until = time.monotonic() + 1200
    while not condition():
        assert time.monotonic() < until and all(p.poll() is None for p in started)
        time.sleep(0.1)


def test_after_an_error_the_process_exits_without_waiting(tmp_path):
    text = (
        "import atexit, time\n"
        "from keras_vit.train import workers\n"
        "atexit.register(time.sleep, 600)\n"
        "workers.exit_at_once_when_failed()\n"
        "with workers.ending_together():\n    raise OSError('disk full')\n"
    )
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert found.returncode == 1 and "disk full" in found.stderr


def test_an_error_about_a_lost_worker_says_what_to_do(monkeypatch):
    monkeypatch.setattr(workers, "_failed", False)
    with (
        pytest.raises(workers.WorkerLost, match="start all workers again"),
        Placement(process=(1, 2)).scope(),
    ):
        raise ValueError("Gloo AllGather failed: Connection closed by peer")
    assert workers._failed
    with pytest.raises(ValueError, match="nothing of the kind"), Placement(process=(1, 2)).scope():
        raise ValueError("nothing of the kind")


# What the environment says ------------------------------------------------------------------------


def test_the_cluster_comes_from_the_environment(monkeypatch):
    for name in (workers.ADDRESSES, workers.COUNT, workers.INDEX, "TF_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    assert workers.cluster_from_environment() is None
    jobs = {"worker": ["b:2", "c:3"], "chief": ["a:1"]}
    config = {"cluster": jobs, "task": {"type": "worker", "index": 1}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    found = workers.cluster_from_environment()
    assert found == workers.Cluster(("a:1", "b:2", "c:3"), 3, 2)
    monkeypatch.setenv(workers.ADDRESSES, "a:1, b:2")
    monkeypatch.setenv(workers.INDEX, "1")
    found = workers.cluster_from_environment()
    assert found == workers.Cluster(("a:1", "b:2"), 2, 1)
    assert json.loads(found.tf_config)["task"] == {"type": "worker", "index": 1}
    monkeypatch.setenv(workers.COUNT, "3")
    with pytest.raises(ValueError, match=r"names 2 processes, .* says 3"):
        workers.cluster_from_environment()
    monkeypatch.setenv(workers.ADDRESSES, "a:1")
    with pytest.raises(ValueError, match="needs the address of each of the 3"):
        _ = workers.cluster_from_environment().tf_config


@pytest.mark.parametrize(
    "values, message",
    [
        ({workers.ADDRESSES: "a:1,b:2"}, "PROCESS_ID must be the number"),
        ({workers.ADDRESSES: "a", workers.INDEX: "0"}, "must be host:port"),
        ({workers.ADDRESSES: "a:1,b:2", workers.INDEX: "2"}, "count from 0"),
        ({"TF_CONFIG": "{}"}, "TF_CONFIG must be"),
        ({"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}, "task": {"type": "ps", "index": 0}}'}, "TF_CONFIG must be"),
        ({"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}'}, "TF_CONFIG must be"),
    ],
)  # fmt: skip
def test_an_environment_that_contradicts_itself_is_refused(monkeypatch, values, message):
    for name in (workers.ADDRESSES, workers.COUNT, workers.INDEX, "TF_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        workers.cluster_from_environment()


@pytest.mark.parametrize(
    "devices, message",
    [
        ("fpga", "devices must be one of"),
        ("auto:2", "devices must be one of"),
        ("cpu:two", "devices must be one of"),
        ("cpu:0", "at least one device"),
        ("cpu:77", "of 77 cpu devices found"),
        ("gpu", "no GPU found"),
        ("tpu", "no TPU found"),
    ],
)
def test_devices_that_are_not_here_are_refused(devices, message, monkeypatch):
    keras.ops.zeros(1) + 1  # what has started keeps its devices
    for name in hardware.TPU_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    if BACKEND == "tensorflow":
        monkeypatch.setattr(distribute_tf, "resolve_tpu", lambda: None)
    with pytest.raises(ValueError, match=message):
        open_devices(devices)


def test_several_workers_need_an_environment(monkeypatch):
    for name in (workers.ADDRESSES, workers.COUNT, workers.INDEX, "TF_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    if BACKEND == "jax":
        import jax

        def initialize(**options):
            assert options == {"heartbeat_timeout_seconds": workers.HEARTBEAT_SECONDS}
            raise ValueError("coordinator_address should be defined.")

        monkeypatch.setattr(jax.distributed, "initialize", initialize)
    with pytest.raises(ValueError, match=f"set {workers.ADDRESSES}, .*{workers.INDEX}"):
        open_devices("multi-worker")


@pytest.mark.tf_only
def test_tensorflow_does_not_spread_the_model():
    with pytest.raises(ValueError, match="model_parallel needs JAX"):
        open_devices("cpu", model_parallel=2)


@jax_only
def test_the_model_is_spread_over_a_divisor_of_the_devices():
    with pytest.raises(ValueError, match="model_parallel=2 does not divide the 1"):
        open_devices("cpu:1", model_parallel=2)


@jax_only
def test_every_variable_that_can_be_spread_is_named():
    """Paths are a contract between the layers and the table."""
    with keras.StatelessScope():  # no values
        paths = [v.path for v in VisionModel(distributed.SPEC).weights]
    for end in distribute_jax.SPREAD:
        assert any(path.endswith(end) for path in paths), end


# A placement --------------------------------------------------------------------------------------


def test_a_batch_is_divided_or_refused():
    placement = Placement(replicas=4)
    assert placement.per_replica(8) == 2
    with pytest.raises(ValueError, match="6 cannot be divided over 4 replicas: give 4 or 8"):
        placement.per_replica(6)
    with pytest.raises(ValueError, match="replicas: give 4"):
        placement.per_replica(3)


def test_a_feed_of_another_host_is_refused():
    @dataclasses.dataclass
    class Feed:
        batch_size = 8
        shard = (0, 2)

    with pytest.raises(ValueError, match=r"part \(0, 2\) .* part \(1, 2\)"):
        Placement(shard=(1, 2)).keras_data(Feed(), 0, 1)


def test_calls_of_a_device_end_with_the_epochs():
    placement = Placement(steps_per_execution=32)
    assert placement.steps_per_call(100, 40) == 20
    assert placement.steps_per_call(101) == 1
    assert Placement().steps_per_call(100) == 1


def test_the_hook_is_the_one_that_keras_calls():
    """Should Keras rename it, fit under strategies reads a batch too many, or fails."""
    trainer = keras.Model.__mro__[1] if BACKEND != "tensorflow" else None
    if trainer is None:
        from keras.src.backend.tensorflow.trainer import TensorFlowTrainer as trainer

        assert "_maybe_symbolic_build" in vars(trainer)
    assert "_maybe_symbolic_build" in vars(Stepping)


def test_bytes_are_normalised_by_the_step():
    """As the preprocessing does on the host: to the last rounding, which a compiler may change."""
    card = Card(
        variant="ViT-Ti/16",
        tag="none",
        preprocessing=Preprocessing(mean=(120.0,), std=(60.0,)),
    )
    model = VisionModel(distributed.SPEC, card=card)
    for variable, value in zip(model.weights, distributed.model().weights, strict=True):
        variable.assign(value)
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 8, 1), np.uint8)
    logits = keras.ops.convert_to_numpy(model(preprocess(pixels, (8, 8), card.preprocessing)))
    targets = np.eye(4, dtype=np.float32)[np.arange(8) % 4]
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    expected = float(loss(targets, logits))
    np.testing.assert_allclose(model.predict(pixels, verbose=0), logits, rtol=1e-5, atol=1e-5)
    model.compile(keras.optimizers.SGD(0.1), loss)
    scores = [model.evaluate(pixels, targets, verbose=0)]
    scores += model.fit(pixels, targets, batch_size=8, verbose=0).history["loss"]
    np.testing.assert_allclose(scores, expected, rtol=1e-5)


# TPUs, without one --------------------------------------------------------------------------------


@pytest.fixture
def resolver(monkeypatch):
    """TensorFlow's resolver, noting what it is asked for; `answers` is the address that works."""
    import tensorflow as tf

    asked = []

    class Fake:
        answers = "local"

        def __init__(self, tpu=None):
            asked.append(tpu)
            if tpu != Fake.answers:
                raise ValueError("no such TPU")

    Fake.asked = asked
    monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", Fake)
    monkeypatch.setattr(tf.config, "experimental_connect_to_cluster", lambda resolver: None)
    monkeypatch.setattr(tf.tpu.experimental, "initialize_tpu_system", lambda resolver: None)
    monkeypatch.delenv("TPU_NAME", raising=False)
    return Fake


@pytest.mark.tf_only
@pytest.mark.case("U03")
def test_a_tpu_is_looked_for_here_then_by_name_then_in_the_environment(resolver, monkeypatch):
    assert distribute_tf.resolve_tpu() is not None and resolver.asked == ["local"]
    monkeypatch.setenv("TPU_NAME", "mine")
    for answers in ("mine", None, "nothing"):
        resolver.asked.clear()
        resolver.answers = answers
        assert (distribute_tf.resolve_tpu() is None) == (answers == "nothing")
        assert resolver.asked == ["local", "mine", None][: 2 if answers == "mine" else 3]
    monkeypatch.setenv("TPU_WORKER_ID", "0")
    with pytest.warns(UserWarning, match="seems to have a TPU, but the run goes to the CPU"):
        assert open_devices("auto").kind == "cpu"


@pytest.mark.tf_only
def test_the_example_for_tpus_runs_with_the_resolver_faked(resolver, monkeypatch, tmp_path):
    import tensorflow as tf

    class Faked(tf.distribute.OneDeviceStrategy):
        def __init__(self, resolver):
            super().__init__("/cpu:0")

    monkeypatch.setattr(tf.distribute, "TPUStrategy", Faked)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / "tpu_strategy.py"), run_name="__main__")
    assert resolver.asked == ["local"]
    assert keras.models.load_model(tmp_path / "vit_on_tpu.keras").spec.num_classes == 10
