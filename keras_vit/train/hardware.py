"""What accelerators and wheels a machine has, found without starting a backend or asking the network."""

import glob
import importlib.metadata
import os
from pathlib import Path

TENSORFLOW_WHEELS = ("tensorflow", "tensorflow-cpu", "tensorflow-tpu", "tf-nightly")
# Set on TPU VMs, in GKE and in Colab. TPU_NAME is not among them: people set it at home, for gcloud.
TPU_VARIABLES = (
    "TPU_WORKER_ID",
    "TPU_WORKER_HOSTNAMES",
    "TPU_ACCELERATOR_TYPE",
    "COLAB_TPU_ADDR",
    "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS",
)
GOOGLE_PCI = "0x1ae0"


def tpu_signs() -> list[str]:
    """What says that this machine has a TPU: device files and variables; empty when nothing does."""
    files = device_files("accel[0-9]*")
    if GOOGLE_PCI in pci_vendors():  # other hardware is handed to virtual machines by vfio too
        files += device_files("vfio/[0-9]*")
    return files + [name for name in TPU_VARIABLES if os.environ.get(name)]


def gpu_signs() -> list[str]:
    """Device files of NVIDIA GPUs."""
    return device_files("nvidia[0-9]*")


def device_files(pattern: str) -> list[str]:
    """Files in /dev of a pattern, in order."""
    return sorted(glob.glob(f"/dev/{pattern}"))


def pci_vendors() -> set[str]:
    """Vendors of the PCI devices, as `0x1ae0`."""
    found = set()
    for path in glob.glob("/sys/bus/pci/devices/*/vendor"):
        try:
            found.add(Path(path).read_text().strip())
        except OSError:
            continue
    return found


def version(wheel: str) -> str | None:
    """Version of an installed distribution, None when there is none."""
    try:
        return importlib.metadata.version(wheel)
    except importlib.metadata.PackageNotFoundError:
        return None


def tensorflow_wheels() -> list[str]:
    """Distributions that own the import package `tensorflow`; more than one breaks it."""
    return sorted(set(importlib.metadata.packages_distributions().get("tensorflow", [])))


def jax_skips(platform: str) -> bool:
    """Whether JAX_PLATFORMS leaves a platform out."""
    wanted = os.environ.get("JAX_PLATFORMS", "")
    return bool(wanted) and platform not in wanted.split(",")


def tpu_problem(backend: str) -> tuple[str, str] | None:
    """What is wrong with the wheels or variables of a backend that should use a TPU, and what to do."""
    if backend == "tensorflow":
        wheels = tensorflow_wheels()
        if len(wheels) > 1:
            return (
                f"the wheels {' and '.join(wheels)} have written over each other",
                f"pip uninstall {' '.join(wheels)}, then pip install tensorflow-tpu",
            )
        if wheels and "tensorflow-tpu" not in wheels:
            return (
                f"TensorFlow comes from the wheel {wheels[0]}, which is built without TPU support",
                f"pip uninstall {wheels[0]}, then pip install tensorflow-tpu",
            )
        return None
    if version("libtpu") is None:
        return "libtpu is not installed", 'pip install "jax[tpu]"'
    if jax_skips("tpu"):
        return f"JAX_PLATFORMS={os.environ['JAX_PLATFORMS']} leaves it out", "unset JAX_PLATFORMS"
    return None


def why_no_tpu(backend: str) -> tuple[str, str]:
    """The likeliest reason that a backend finds no TPU, and what to do."""
    signs, problem = tpu_signs(), tpu_problem(backend)
    if signs:
        return problem or (
            f"this machine shows signs of one ({', '.join(signs)}), but it does not answer",
            "end other processes that use it, and look into /tmp/tpu_logs",
        )
    none = "this machine shows no sign of one, neither device files nor variables"
    return (
        f"{none}, and {problem[0]}" if problem else none,
        "run on a TPU VM, or plan for one with keras-vit tpu-plan",
    )
