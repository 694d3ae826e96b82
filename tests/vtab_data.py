"""Small made-up sets with the features of the real ones, as tensorflow-datasets stores them.

The values are those of `tensorflow_datasets.testing.mock_data`, written to files; objects and binary
images, which those make up inconsistently, are made here.
"""

from pathlib import Path
from typing import Any

import numpy as np

COUNTS = {"train": 30, "validation": 7, "test": 6}
# Sets as tfds has them: their splits and, where labels come from elsewhere, the rest of an example.
SETS = {
    "caltech101": ("train", "test"),
    "cifar10": ("train", "test"),
    "cifar100": ("train", "test"),
    "dtd": ("train", "validation", "test"),
    "oxford_flowers102": ("train", "validation", "test"),
    "oxford_iiit_pet": ("train", "test"),
    "sun397/tfds": ("train", "validation", "test"),
    "svhn_cropped": ("train", "test"),
    "patch_camelyon": ("train", "validation", "test"),
    "eurosat/rgb": ("train",),
    "resisc45": ("train",),
    "diabetic_retinopathy_detection/btgraham-300": ("train", "validation", "test"),
    "clevr": ("train", "validation"),
    "dmlab": ("train", "validation", "test"),
    "dsprites": ("train",),
    "kitti": ("train", "validation", "test"),
    "smallnorb": ("train", "test"),
    "imagenet2012": ("train", "validation"),
}


def write(name: str, data_dir: str) -> dict[str, list[dict[str, Any]]]:
    """Stores a set and returns its examples by split, in stored order."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.testing.mocking import RandomFakeGenerator

    info = tfds.builder(name, data_dir=data_dir).info
    rng = np.random.default_rng(len(name))
    kept = {}
    for number, split in enumerate(SETS[name]):
        made = RandomFakeGenerator(info.features, COUNTS[split], seed=100 * number)
        kept[split] = [finished(name, dict(made[i]), rng) for i in range(COUNTS[split])]
    Path(info.data_dir).mkdir(parents=True)
    writer = tfds.core.SequentialWriter(info, max_examples_per_shard=11)
    writer.initialize_splits(list(kept))
    writer.add_examples(kept)
    writer.close_all()
    return kept


def finished(name: str, example: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """An example that its features can encode."""
    import tensorflow_datasets as tfds

    if name == "dsprites":
        example["image"] = example["image"] % 2
    elif name == "imagenet2012":
        example["file_name"] = f"ILSVRC2012_val_{rng.integers(1, 11):08d}.JPEG"
    elif name == "oxford_iiit_pet":
        example["head_bbox"] = tfds.features.BBox(0.0, 0.0, 1.0, 1.0)
    elif name == "clevr":
        example["question_answer"] = []
        example["objects"] = [clevr_object(rng) for _ in range(rng.integers(3, 11))]
    elif name == "kitti":
        example["objects"] = [kitti_object(rng) for _ in range(rng.integers(0, 4))]
    return example


def clevr_object(rng: np.random.Generator) -> dict[str, Any]:
    return {
        **{"color": 0, "material": 0, "shape": 0, "size": 1, "rotation": 0.0},
        "3d_coords": np.zeros(3, np.float32),
        "pixel_coords": rng.uniform(7, 12, 3).astype(np.float32),
    }


def kitti_object(rng: np.random.Generator) -> dict[str, Any]:
    import tensorflow_datasets as tfds

    return {
        **{"type": int(rng.integers(0, 5)), "truncated": 0.0, "occluded": 0, "alpha": 0.0},
        "bbox": tfds.features.BBox(0.0, 0.0, 1.0, 1.0),
        "dimensions": np.ones(3, np.float32),
        "location": rng.uniform(1, 40, 3).astype(np.float32),
        "rotation_y": 0.0,
    }
