"""What `doctor` makes of machines that are not here: every probe of hardware and wheels is replaced."""

import json

import keras
import pytest

from keras_vit import cli
from keras_vit.cli import doctor
from keras_vit.train import distribute_tf, hardware, selfcheck

BACKEND = keras.backend.backend()


@pytest.fixture
def machine(monkeypatch):
    """`machine(backend, wheels, files, google=..., sees=...)` is where the probes then look."""

    def pretend(backend, wheels, files=(), *, google=False, sees=(), owners=None, cuda=True):
        def device_files(pattern):
            return [f"/dev/{file}" for file in files if file.startswith(pattern.split("[")[0])]

        monkeypatch.setattr(hardware, "device_files", device_files)
        monkeypatch.setattr(hardware, "pci_vendors", lambda: {"0x1ae0"} if google else {"0x8086"})
        monkeypatch.setattr(hardware, "version", wheels.get)
        tensorflow = [w for w in wheels if w.startswith("tensorflow")]
        monkeypatch.setattr(hardware, "tensorflow_wheels", lambda: owners or tensorflow)
        monkeypatch.setattr(doctor, "_backend_name", lambda: backend)
        monkeypatch.setattr(doctor, "_sees", lambda kind: kind in sees)
        monkeypatch.setattr(doctor, "_built_with_cuda", lambda: cuda)
        return {c.what: c for c in [*doctor._wheels(), *doctor._accelerators()]}

    for name in (*hardware.TPU_VARIABLES, "JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return pretend


TF = {"tensorflow": "2.21.0"}
JAX = {"jax": "0.10.2", "jaxlib": "0.10.2"}
TPU_VM = ("accel0", "accel1")


@pytest.mark.parametrize(
    "backend, wheels, files, found, remedy",
    [
        ("tensorflow", TF, TPU_VM, "wheel tensorflow, which is built without TPU", "pip install tensorflow-tpu"),
        ("tensorflow", {"tensorflow-cpu": "2.21.0"}, TPU_VM, "wheel tensorflow-cpu", "pip uninstall tensorflow-cpu"),
        ("jax", JAX, TPU_VM, "libtpu is not installed", 'pip install "jax[tpu]"'),
        ("jax", {**JAX, "libtpu": "0.0.52"}, TPU_VM, "it does not answer", "doctor --devices tpu"),
    ],
)  # fmt: skip
@pytest.mark.case("U02")
def test_a_tpu_that_the_wheels_cannot_use_is_told_in_one_line(
    machine, backend, wheels, files, found, remedy
):
    check = machine(backend, wheels, files)["TPU"]
    assert check.state == "wrong" and found in check.found and remedy in check.remedy
    assert "\n" not in check.found + check.remedy


def test_a_variable_that_leaves_the_tpu_out_is_told(machine, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    wheels = {**JAX, "libtpu": "0.0.52"}
    check = machine("jax", wheels, TPU_VM)["TPU"]
    assert check.state == "wrong" and "JAX_PLATFORMS=cpu" in check.found
    assert "TPU" not in machine("jax", wheels)  # without one it is as it should be
    monkeypatch.setenv("JAX_PLATFORMS", "tpu,cpu")
    assert machine("jax", wheels, TPU_VM, sees={"tpu"})["TPU"].state == "ok"


def test_signs_of_a_tpu(machine, monkeypatch):
    machine("jax", JAX, ("vfio/0", "vfio/1"))
    assert hardware.tpu_signs() == []  # another device that is handed through
    machine("jax", JAX, ("vfio/0",), google=True)
    assert hardware.tpu_signs() == ["/dev/vfio/0"]
    machine("jax", JAX)
    monkeypatch.setenv("TPU_WORKER_ID", "0")
    assert hardware.tpu_signs() == ["TPU_WORKER_ID"]
    assert "TPU" in machine("jax", JAX)


@pytest.mark.parametrize(
    "backend, wheels, cuda, found, remedy",
    [
        ("tensorflow", TF, True, "CUDA is missing", "tensorflow[and-cuda]"),
        ("tensorflow", {"tensorflow-cpu": "2.21.0"}, False, "without CUDA", "pip uninstall tensorflow-cpu"),
        ("jax", JAX, True, "without CUDA", "jax[cuda13]"),
        ("jax", {**JAX, "jax-cuda13-plugin": "0.10.2"}, True, "does not start", "nvidia-smi"),
    ],
)  # fmt: skip
def test_a_gpu_that_lies_idle_is_told(machine, backend, wheels, cuda, found, remedy):
    check = machine(backend, wheels, ("nvidia0",), cuda=cuda)["GPU"]
    assert check.state == "wrong" and "/dev/nvidia0" in check.found
    assert found in check.found and remedy in check.remedy
    assert machine(backend, wheels, ("nvidia0",), sees={"gpu"})["GPU"].state == "ok"


def test_a_gpu_that_was_hidden_is_no_mistake(machine, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert machine("tensorflow", TF, ("nvidia0",))["GPU"].state == "note"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert "JAX_PLATFORMS" in machine("jax", JAX, ("nvidia0",))["GPU"].found


def test_wheels_that_do_not_belong_together_are_told(machine):
    found = machine("jax", {"jax": "0.10.2", "jaxlib": "0.9.1"})
    assert found["jaxlib"].state == "wrong" and "jaxlib==0.10.2" in found["jaxlib"].remedy
    assert "missing" in machine("jax", {"jax": "0.10.2"})["jaxlib"].found
    both = {"tensorflow": "2.21.0", "tensorflow-tpu": "2.20.0"}
    found = machine("tensorflow", both, TPU_VM)
    assert found["folder tensorflow"].state == "wrong"
    assert "tensorflow and tensorflow-tpu" in found["TPU"].found
    found = machine("tensorflow", TF)
    assert set(found) == {"wheels"} and found["wheels"].found == "tensorflow 2.21.0"


@pytest.mark.case("U01")
def test_without_a_tpu_the_check_says_so_in_one_sentence(machine, monkeypatch, capsys):
    machine(BACKEND, TF if BACKEND == "tensorflow" else {**JAX, "libtpu": "0.0.52"})
    monkeypatch.setattr(distribute_tf, "resolve_tpu", lambda: None)
    assert selfcheck.check_tpu() is False
    printed = capsys.readouterr().out
    assert printed.startswith("no TPU found: ") and printed.count("\n") == 1
    assert cli.run(["doctor", "--devices", "tpu", "--json"]) == 1
    out = capsys.readouterr()
    first = json.loads(out.out)["checks"][0]
    assert first["state"] == "wrong" and first["found"] == printed.strip().rstrip(".")
    assert "Traceback" not in out.err


def test_the_check_trains_where_devices_are(capsys):
    found = selfcheck.check_devices("cpu")
    assert (found["devices"], found["replicas"]) == ("cpu", 1)
    assert found["loss"][1] < found["loss"][0]
    assert found["versions"]["keras"] == keras.__version__
    assert 0 < found["step_seconds"] and 0 < found["first_step_seconds"]
    assert "training works on 1 CPU replicas" in selfcheck.said(found)


def test_a_step_that_fails_on_devices_that_are_there_is_told(monkeypatch):
    def fit(*arguments, **options):
        raise RuntimeError("could not find registered platform\nwith id 0x7f")

    monkeypatch.setattr(selfcheck.run, "fit", fit)
    with pytest.raises(ValueError, match=r"1 CPU replicas were found, but .* with id 0x7f"):
        selfcheck.check_devices("cpu")
