"""How the tasks of VTAB get their classes from what a data set says of an image.

Pure functions on one example, as tensorflow-datasets decodes it, without its image. What is in no class
gets an index outside the range of the classes, which `Source` refuses.

Source: arXiv 1910.04867, appendix A; google-research/task_adaptation, data/clevr.py, dsprites.py, kitti.py
and smallnorb.py.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Example = Mapping[str, Any]

# Depth from the camera, in Blender's units. The last bound is no class: nothing is so far away.
CLEVR_DISTANCES = (0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0)
CLEVR_FEWEST, CLEVR_MOST = 3, 10  # objects in an image
# Metres. What is behind the camera counts as near.
KITTI_DISTANCES = (-100.0, 8.0, 20.0, 999.0)
KITTI_NO_VEHICLE = 1000.0
KITTI_VEHICLES = 3  # the first types: car, van, truck
DSPRITES_BINS = 16
DSPRITES_POSITIONS, DSPRITES_ORIENTATIONS = 32, 40


def interval(value: float, bounds: Sequence[float]) -> int:
    """The index of the last of the rising `bounds` that is below `value`; -1 when none is.

    A value that equals a bound belongs to the interval before it.
    """
    return int(np.searchsorted(np.asarray(bounds), value, side="left")) - 1


def bin_of(index: int, of: int, bins: int) -> int:
    """The bin of one of `of` equally spaced values, in order: neighbours share a bin."""
    return int(index) * bins // of


def clevr_count(example: Example) -> int:
    """Number of objects less 3: 8 classes for 3 to 10 objects."""
    return len(example["objects"]["size"]) - CLEVR_FEWEST


def clevr_distance(example: Example) -> int:
    """Interval of the depth of the closest object: 6 classes; -1 without an object."""
    depths = np.asarray(example["objects"]["pixel_coords"], np.float64).reshape(-1, 3)[:, 2]
    return interval(depths.min(), CLEVR_DISTANCES) if len(depths) else -1


def dsprites_location(example: Example) -> int:
    """Horizontal position: 32 columns in 16 classes."""
    return bin_of(example["label_x_position"], DSPRITES_POSITIONS, DSPRITES_BINS)


def dsprites_orientation(example: Example) -> int:
    """Orientation: 40 angles in 16 classes, of three and two angles in turn."""
    return bin_of(example["label_orientation"], DSPRITES_ORIENTATIONS, DSPRITES_BINS)


def kitti_distance(example: Example) -> int:
    """Interval of the depth of the closest car, van or truck: 4 classes, the last for none."""
    objects = example["objects"]
    depths = np.asarray(objects["location"], np.float64).reshape(-1, 3)[:, 2]
    vehicles = depths[np.asarray(objects["type"]) < KITTI_VEHICLES]
    return interval(min(vehicles, default=KITTI_NO_VEHICLE), KITTI_DISTANCES)


def smallnorb_azimuth(example: Example) -> int:
    """Azimuth of the camera: 18 classes, 20 degrees apart."""
    return int(example["label_azimuth"])


def smallnorb_elevation(example: Example) -> int:
    """Elevation of the camera: 9 classes, 5 degrees apart."""
    return int(example["label_elevation"])


def between(bounds: Sequence[float], unit: str) -> tuple[str, ...]:
    """Names of the intervals between the bounds within a range: below, from to, above."""
    inner = [f"{low:g} to {high:g} {unit}" for low, high in itertools.pairwise(bounds)]
    return (f"below {bounds[0]:g} {unit}", *inner, f"above {bounds[-1]:g} {unit}")


def bins(what: str, of: int, count: int) -> tuple[str, ...]:
    """Names of the bins of `bin_of`."""
    members = [[i for i in range(of) if bin_of(i, of, count) == b] for b in range(count)]
    return tuple(f"{what} {m[0]} to {m[-1]} of {of}" for m in members)


CLASS_NAMES = {
    "clevr-count": tuple(f"{n} objects" for n in range(CLEVR_FEWEST, CLEVR_MOST + 1)),
    "clevr-distance": between(CLEVR_DISTANCES[1:-1], "units"),
    "dsprites-location": bins("column", DSPRITES_POSITIONS, DSPRITES_BINS),
    "dsprites-orientation": bins("orientation", DSPRITES_ORIENTATIONS, DSPRITES_BINS),
    "kitti-distance": (*between(KITTI_DISTANCES[1:-1], "m"), "no vehicle"),
    "smallnorb-azimuth": tuple(f"azimuth {20 * n} degrees" for n in range(18)),
    "smallnorb-elevation": tuple(f"elevation {30 + 5 * n} degrees" for n in range(9)),
}
