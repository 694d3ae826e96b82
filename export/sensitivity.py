"""Which blocks of a network suffer from int8, and which to leave in float32 for an accuracy budget."""

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from keras_vit.export.calibrate import Progress, Ranges
from keras_vit.export.paths import Operation, blocks, operation_table
from keras_vit.export.quantize import quantized


@dataclasses.dataclass(frozen=True)
class BlockError:
    """What a file loses when one block alone is quantised.

    Attributes:
        block: its layer name, `encoderblock_3`.
        error: root mean square of the change of the output over the spread of the output.
        agreement: share of images that keep their top-1 class.
    """

    block: str
    error: float
    agreement: float


@dataclasses.dataclass(frozen=True)
class Choice:
    """What stays in float32 for a budget.

    Attributes:
        blocks: the blocks chosen, the worst first.
        drop: share of correct images lost against the float32 file with these blocks in float32.
        steps: `(blocks in float32, drop)` of every file that was tried.
        ranking: all blocks, the worst first; empty where nothing had to be chosen.
    """

    blocks: tuple[str, ...]
    drop: float
    steps: tuple[tuple[int, float], ...]
    ranking: tuple[BlockError, ...]


def rank_blocks(
    model: bytes,
    mode: str,
    ranges: Ranges,
    images: np.ndarray,
    *,
    in_float: Collection[Operation] = (),
    progress: Progress | None = None,
) -> tuple[BlockError, ...]:
    """Quantises each block alone, everything else in float32, and ranks them, the worst first.

    Args:
        model: a float32 .tflite file.
        mode: `int8` or `int16x8`.
        ranges: of `calibrate.activation_ranges`.
        images: what the file takes, (N, H, W, C).
        in_float: operations that stay in float32 anyway.
        progress: called with (blocks done, blocks).
    """
    table = operation_table(model)
    reference = outputs_of(model, images)
    spread = max(float(reference.std()), 1e-12)
    fixed = {op.index for op in in_float}
    names = [
        name
        for name in blocks(table)
        if any(op.paths[-1] == name and op.index not in fixed for op in table)
    ]
    rows = []
    for done, name in enumerate(names, 1):
        others = [op for op in table if op.paths[-1] != name or op.index in fixed]
        found = outputs_of(quantized(model, mode, ranges=ranges, in_float=others), images)
        error = float(np.sqrt(((found - reference) ** 2).mean())) / spread
        agreement = float((found.argmax(-1) == reference.argmax(-1)).mean())
        rows.append(BlockError(name, error, agreement))
        if progress:
            progress(done, len(names))
    return tuple(sorted(rows, key=lambda row: -row.error))


def choose_blocks(
    model: bytes,
    mode: str,
    ranges: Ranges,
    images: np.ndarray,
    labels: Any,
    max_drop: float,
    *,
    in_float: Sequence[Operation] = (),
    progress: Progress | None = None,
) -> Choice:
    """Leaves blocks in float32, the worst first, until accuracy is within a budget.

    Args:
        model, mode, ranges, images, in_float, progress: as for `rank_blocks`.
        labels: (N,) class indices.
        max_drop: largest share of correct images that may be lost against float32, 0.01 for a point.

    Raises:
        ValueError: the labels do not fit the images, or the budget is no share.
    """
    labels = check_labels(labels, len(images), max_drop)
    table = operation_table(model)

    def accuracy(content: bytes) -> float:
        return float((outputs_of(content, images).argmax(-1) == labels).mean())

    def drop(chosen: Sequence[str]) -> float:
        fixed = {op.index for op in in_float}
        keep = [op for op in table if op.index in fixed or op.paths[-1] in chosen]
        return best - accuracy(quantized(model, mode, ranges=ranges, in_float=keep))

    best = accuracy(model)
    chosen: list[str] = []
    steps = [(0, drop(chosen))]
    ranking: tuple[BlockError, ...] = ()
    if steps[-1][1] > max_drop:
        ranking = rank_blocks(model, mode, ranges, images, in_float=in_float, progress=progress)
    for row in ranking:
        chosen.append(row.block)
        steps.append((len(chosen), drop(chosen)))
        if steps[-1][1] <= max_drop:
            break
    return Choice(tuple(chosen), steps[-1][1], tuple(steps), ranking)


def check_labels(labels: Any, count: int, max_drop: float) -> np.ndarray:
    """Labels and budget of `choose_blocks`, refused with a ValueError where they make no sense."""
    if not 0 <= max_drop < 1:
        raise ValueError(
            f"max_drop must be a share of images from 0 to below 1 (0.01 is one point), got {max_drop}."
        )
    labels = None if labels is None else np.asarray(labels)
    if labels is None or labels.shape != (count,) or not np.issubdtype(labels.dtype, np.integer):
        got = "none" if labels is None else f"{labels.dtype} of shape {labels.shape}"
        raise ValueError(
            f"max_drop needs a label for each of {count} images, class indices of shape ({count},), "
            f"got {got}: give labelled data."
        )
    return labels


def outputs_of(model: bytes, images: np.ndarray) -> np.ndarray:
    """The first output of a .tflite file with a fixed batch and float32 output, for any N images."""
    from ai_edge_litert.interpreter import Interpreter

    runtime: Any = Interpreter(model_content=model)
    runtime.allocate_tensors()
    (entry,), (result, *_) = runtime.get_input_details(), runtime.get_output_details()
    batch, found = int(entry["shape"][0]), []
    for start in range(0, len(images), batch):
        piece = images[start : start + batch]
        filled = np.concatenate([piece, np.repeat(piece[-1:], batch - len(piece), axis=0)])
        runtime.set_tensor(entry["index"], filled)
        runtime.invoke()
        found.append(runtime.get_tensor(result["index"])[: len(piece)])
    return np.concatenate(found)
