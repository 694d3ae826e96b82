"""What is left of a set of images when some are taken out, written so that every command reads it."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from keras_vit.data.sources import Source


def checked_kept(source: object, path: Path) -> Source:
    """The source, if what is kept of it can be written there.

    Raises:
        ValueError: the kind of data and the kind of file do not go together.
        FileExistsError: it is there.
    """
    if not isinstance(source, Source):
        raise ValueError("images that are streamed cannot be written again: use the list of pairs.")
    if os.path.lexists(path):
        raise FileExistsError(f"{path} exists: give another name for the images that are kept.")
    if isinstance(source.images, np.ndarray) != (path.suffix == ".npz"):
        wanted = (
            "an .npz" if isinstance(source.images, np.ndarray) else "a folder, without a suffix"
        )
        raise ValueError(f"the kept images of {source.name} are written as {wanted}, got {path}.")
    if path.suffix != ".npz" and not source.name.startswith("folder:"):
        raise ValueError(f"{source.name} is no folder of images, of which links could be made.")
    return source


def write_kept(source: Source, drop: Iterable[int], path: Path) -> int:
    """Writes all images of a source but some; nothing of the source is changed.

    Args:
        source: arrays of one size, or a folder of images.
        drop: places of those that are left out.
        path: an .npz of arrays; or a folder of links to the files, a folder in it for each class.

    Returns:
        How many are kept.

    Raises:
        ValueError: none would be.
        OSError: it cannot be written.
    """
    gone = set(drop)
    kept = np.array([i for i in range(len(source)) if i not in gone], np.int64)
    if not len(kept):
        raise ValueError(f"no image of {source.name} would be kept.")
    part = path.with_name(f".{path.name}.part")
    left = source.take(kept)
    try:
        if path.suffix == ".npz":
            with part.open("wb") as file:
                np.savez_compressed(
                    file,
                    images=left.images,
                    labels=left.labels,
                    class_names=np.array(left.class_names),
                )
        else:
            root = Path(source.name.removeprefix("folder:"))
            for image in map(Path, left.images):
                link = part / image.relative_to(root)
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(image.absolute())
        os.replace(part, path)
    except OSError as error:
        raise OSError(
            f"cannot write {path} ({error.strerror or error}): make room or give another place."
        ) from None
    finally:
        if part.is_dir():
            shutil.rmtree(part)
        else:
            part.unlink(missing_ok=True)
    return len(kept)
