"""BiT-M fine-tuned on VTAB-1k: five networks, 19 tasks, three runs each, made from one pattern.

`BiT-R50x1@vtab_caltech101_run0` is bit_models/vtab/BiT-M-R50x1-run0-caltech101.npz. A row of a table
for each of the 285 files would say the same 285 times.

Source: big_transfer README, line 78.
"""

import functools

from keras_vit.card import Card
from keras_vit.zoo.variants import VARIANTS

ARCHITECTURES = ("R50x1", "R101x1", "R50x3", "R101x3", "R152x4")
RUNS = (0, 1, 2)

# Task in the file name: classes as VTAB defines the task (arXiv 1910.04867), and the shorter side of
# its images where that is below 96.
TASKS = {
    "caltech101": (102, None),
    "cifar100": (100, 32),
    "dtd": (47, None),
    "oxford_flowers102": (102, None),
    "oxford_iiit_pet": (37, None),
    "sun397": (397, None),
    "svhn": (10, 32),
    "diabetic_retinopathy": (5, None),
    "eurosat": (10, 64),
    "patch_camelyon": (2, None),
    "resisc45": (45, None),
    "clevr-count": (8, None),
    "clevr-distance": (6, None),
    "dmlab": (6, None),
    "dsprites-orientation": (16, 64),
    "dsprites-xpos": (16, 64),
    "kitti-distance": (4, None),
    "smallnorb-azimuth": (18, None),
    "smallnorb-elevation": (9, None),
}

# npz and array headers of the 153, 306 or 459 arrays of such a file.
OVERHEAD = {"R50x1": 48_320, "R50x3": 48_320, "R101x1": 96_668, "R101x3": 96_668, "R152x4": 145_016}

NOTE = (
    "Classes and resolution are those of the task and of BiT-HyperRule; the authors state neither for "
    "the file, which does not name its classes."
)


def bit_resolution(image_size: tuple[int, int]) -> tuple[int, int]:
    """Pixels that BiT-HyperRule resizes a data set's images to for training, and of its crop.

    The code released with the paper decides, not the paper's text (448 and 384).

    Args:
        image_size: (height, width) of the data set's images.

    Source: big_transfer bit_hyperrule.py.
    """
    height, width = image_size
    return (160, 128) if height * width < 96 * 96 else (512, 480)


@functools.cache
def vtab_cards() -> tuple[Card, ...]:
    """A card for each of the 285 files."""
    return tuple(
        _card(architecture, task, run)
        for architecture in ARCHITECTURES
        for task in TASKS
        for run in RUNS
    )


def _card(architecture: str, task: str, run: int) -> Card:
    num_classes, side = TASKS[task]
    pixels = bit_resolution((side or 96, side or 96))[1]
    file = f"bit_models/vtab/BiT-M-{architecture}-run{run}-{task}.npz"
    spec = VARIANTS[f"BiT-{architecture}"].spec
    head = (num_classes - spec.num_classes) * (spec.feature_size + 1)
    return Card(
        variant=f"BiT-{architecture}",
        tag=f"vtab_{task.replace('-', '_')}_run{run}",
        description=f"BiT-M fine-tuned on 1,000 images of VTAB's {task}, run {run} of 0 to 2.",
        file=file,
        sources=(f"https://storage.googleapis.com/{file}",),
        size=4 * (_params(architecture) + head) + OVERHEAD[architecture],
        size_predicted=True,
        num_classes=num_classes,
        image_size=(pixels, pixels),
        pretraining=f"ImageNet-21k, 90 epochs; fine-tuned on VTAB-1k {task}",
        license="Apache-2.0",
        note=NOTE,
    )


@functools.cache
def _params(architecture: str) -> int:
    return VARIANTS[f"BiT-{architecture}"].spec.num_params
