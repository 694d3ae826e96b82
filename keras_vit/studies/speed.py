"""Figure 12: how many images a network classifies in a second, and how many a core takes at once.

Two sources: a clock, on the device that Keras has here, and the compiler of TPUs, which has none. Either
leaves rows that hold all that the table and the figure need.
"""

import dataclasses
import functools
import gc
import importlib.util
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from typing import Any

import keras
import numpy as np

from keras_vit.model import VisionModel
from keras_vit.results.store import Result, now
from keras_vit.spec import Spec, changed
from keras_vit.studies.figures import Figures
from keras_vit.studies.topology import parse
from keras_vit.studies.tpu_plan import FULL, largest
from keras_vit.train.recipes.smoke import tiny
from keras_vit.train.run import versions
from keras_vit.zoo.names import resolve
from keras_vit.zoo.variants import VARIANTS

# Source: arXiv 2010.11929, Figure 12.
NETWORKS = (
    "BiT-R50x1", "ViT-B/32", "BiT-R50x2", "ViT-L/32",
    "ViT-B/16", "ViT-L/16", "ViT-H/14", "BiT-R152x4",
)  # fmt: skip
SIZES = (64, 128, 224, 384, 512)
BATCHES = (1, 8, 32)  # of a measurement here
COMPILED_BATCHES = (32, 128)  # programs that a line goes through
DTYPES = ("float32", "bfloat16", "mixed_bfloat16", "float16", "mixed_float16")

STUDY = "speed"
DATA = "random images"
RATE = "images per second"
MEMORY = "memory"  # bytes
ROUNDS = 5


@dataclasses.dataclass(frozen=True)
class Summary:
    """What the figure shows of a network at one size.

    Attributes:
        model, image_size: which.
        rate: images per second, of a core where a compiler said so; None where nobody knows.
        batch: at which that is the most.
        largest: batch that still fits; None where only a clock was used, or where nothing fits.
        how: `compiled` when twice as many were refused, `line` when it was read off a straight line
            through two programs, `at least` when there was a single program; `nothing fits`.
    """

    model: str
    image_size: int
    rate: float | None
    batch: int | None
    largest: int | None = None
    how: str = ""


def network(model: str, image_size: int, *, smoke: bool = False) -> Spec:
    """A network for square images.

    Args:
        model: a name of a variant.
        image_size: pixels; what no patch covers is dropped, as in the official code (/14).
        smoke: a tiny network of its family instead.

    Raises:
        ValueError: there is no such network, or it cannot take such images.
    """
    variant = resolve(model)[0]
    spec = VARIANTS[variant].spec
    spec = tiny(spec) if smoke else spec
    size = {"image_size": (image_size, image_size)}
    try:
        return changed(spec, size, variant)
    except ValueError:
        if image_size < max(getattr(spec, "patch_size", (1, 1))) or not hasattr(spec, "allow_crop"):
            raise
        return changed(spec, {**size, "allow_crop": True}, variant)


def check(dtype: str, image_sizes: Sequence[int], batches: Sequence[int]) -> None:
    """Refuses what is known to fail, before any work is done.

    Raises:
        ValueError: with what was expected.
    """
    if dtype not in DTYPES:
        raise ValueError(f"no dtype {dtype!r}: give one of {', '.join(DTYPES)}.")
    for what, numbers in (("image sizes", image_sizes), ("batches", batches)):
        if not numbers or min(numbers) < 1 or len(set(numbers)) < len(numbers):
            raise ValueError(
                f"{what} must be different numbers from 1 up, got {list(numbers)}: give them as 8,32."
            )


# By the clock


def device() -> dict[str, Any]:
    """What the clock's numbers depend on besides the network, for the settings of a row."""
    kinds = [d.split(":")[0] for d in keras.distribution.list_devices()]
    return {
        "device": next((k for k in ("tpu", "gpu", "cuda") if k in kinds), "cpu"),
        "backend": keras.backend.backend(),
    }


def in_turns(
    runs: dict[str, Callable[[], Any]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of every run; they take turns, so that a busy moment hits all of them.

    A run that needs more memory than there is has no seconds.

    Args:
        runs: by name; each has ended when it returns, and is called once without the clock.
        rounds: timed calls of each.
        clock: seconds.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    ready = []
    for name, run in runs.items():
        try:
            run()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            continue
        ready.append(name)
    for _ in range(rounds):
        for name in ready:
            start = clock()
            runs[name]()
            times[name].append(clock() - start)
    return times


def is_out_of_memory(error: Exception) -> bool:
    """Whether a device had too little memory, as TensorFlow and JAX say it."""
    return "ResourceExhausted" in type(error).__name__ or "RESOURCE_EXHAUSTED" in str(error)


def by_clock(
    models: Sequence[str],
    image_sizes: Sequence[int],
    batches: Sequence[int],
    *,
    dtype: str = "float32",
    rounds: int = ROUNDS,
    smoke: bool = False,
    rows: Iterable[Result] = (),
    command: str | None = None,
    keep: Callable[[Result], Any] = lambda row: None,
    log: Callable[[str], None] = lambda text: None,
) -> list[Result]:
    """Measures inference with random weights on the device that Keras has, as `predict` runs it.

    Images lie on the device already. All networks are in memory at one size.

    Args:
        models: names of variants.
        image_sizes: pixels.
        batches: images at once; larger ones than the first that lacks memory are left out.
        dtype: Keras dtype policy.
        rounds: timed runs, of which the median counts.
        smoke: tiny networks instead.
        rows: found before; what is among them is not measured again.
        command: that asked for it.
        keep: called with every row as soon as there is one.
        log: called with lines about progress.

    Returns:
        All rows of these networks, sizes and batches, the old ones too.
    """
    there = {row.key: row for row in rows}
    found: list[Result] = []
    for size in image_sizes:
        built: dict[str, VisionModel] = {}
        too_large: set[str] = set()
        for batch in sorted(batches):
            settings = {"image_size": size, "batch": batch, "dtype": dtype, **device()}
            wanted = []
            for model in models:
                old = there.get(_row(named(model, smoke), RATE, 0.0, settings).key)
                if old is not None:
                    found.append(old)
                elif model not in too_large:
                    wanted.append(model)
            if not wanted:
                continue
            for model in wanted:
                if model not in built:
                    built[model] = _compiled(network(model, size, smoke=smoke), dtype)
            images = _images(batch, built[wanted[0]])
            runs = {m: functools.partial(built[m].predict_on_batch, images) for m in wanted}
            times = in_turns(runs, rounds)
            for model in wanted:
                if not times[model]:
                    too_large.add(model)
                    log(f"{named(model, smoke)}, {size} pixels: {batch} images do not fit")
                    continue
                row = rate_row(named(model, smoke), batch, times[model], settings, command)
                found.append(row)
                keep(row)
                log(
                    f"{row.model}, {size} pixels, {batch} at once: {row.value:,.1f} images a second"
                )
        built.clear()
        gc.collect()
    return found


def named(model: str, smoke: bool) -> str:
    """The name in rows."""
    variant = resolve(model)[0]
    return f"tiny {variant}" if smoke else variant


def rate_row(
    model: str, batch: int, seconds: Sequence[float], settings: dict[str, Any], command: str | None
) -> Result:
    """A measurement as a row: images in the median of the seconds, and the deviation of the rates."""
    rates = [batch / each for each in seconds]
    spread = statistics.stdev(rates) if len(rates) > 1 else None
    return _row(
        model, RATE, batch / statistics.median(seconds), settings, std=spread, command=command
    )


def _row(model: str, metric: str, value: float, settings: dict[str, Any], **more: Any) -> Result:
    return Result(
        study=STUDY, model=model, data=DATA, metric=metric, value=value, unit="number",
        settings=settings, when=now(), **{"versions": versions(), **more},
    )  # fmt: skip


def _compiled(spec: Spec, dtype: str) -> VisionModel:
    model = VisionModel(spec, dtype=dtype)
    model.compile()
    return model


def _images(batch: int, model: VisionModel) -> Any:
    shape = (batch, *model.spec.image_size, model.spec.in_channels)
    pixels = np.random.default_rng(0).uniform(-1.0, 1.0, shape)
    return keras.ops.convert_to_tensor(pixels.astype("float32"))


# By the compiler of TPUs


def next_batch(
    batches: Sequence[int], tried: dict[int, Figures], doubling: bool = False
) -> int | None:
    """Which batch to compile next, None when there are enough.

    Args:
        batches: that were asked for.
        tried: what the compiler said of others; what is larger than a refused one is left out.
        doubling: go on with twice as many until they are refused.
    """
    refused = min((b for b, f in tried.items() if not f.fits), default=None)
    for batch in sorted(batches):
        if batch not in tried and (refused is None or batch < refused):
            return batch
    if refused is not None:
        fits = any(f.fits for f in tried.values())
        return None if fits or refused == 1 else refused // 2
    return 2 * max(tried) if doubling else None


def largest_batch(tried: dict[int, Figures], hbm: int) -> tuple[int | None, str]:
    """The largest batch that fits a core, and how that is known; see `Summary`."""
    fitting = max((b for b, f in tried.items() if f.fits), default=None)
    refused = min((b for b, f in tried.items() if not f.fits), default=None)
    if fitting is None:
        return None, "nothing fits" if refused == 1 else ""
    if refused is not None and refused <= 2 * fitting:
        return fitting, "compiled"
    line = largest(tried, FULL * hbm)
    if line is None:
        return fitting, "at least"
    return max(fitting, line if refused is None else min(line, refused - 1)), "line"


def by_compiler(
    models: Sequence[str],
    image_sizes: Sequence[int],
    batches: Sequence[int],
    ask: Callable[..., None],
    *,
    topology: str,
    dtype: str = "bfloat16",
    doubling: bool = False,
    smoke: bool = False,
    rows: Iterable[Result] = (),
    command: str | None = None,
    keep: Callable[[Result], Any] = lambda row: None,
    log: Callable[[str], None] = lambda text: None,
) -> list[Result]:
    """What the compiler of TPUs says of inference on one core: memory, and images per second.

    Args:
        models, image_sizes, batches, dtype, smoke, rows, command, keep, log: see `by_clock`.
        ask: `keras_vit.studies.process.tpu_speed`.
        topology: `v3-8`; one core of it is compiled for.
        doubling: see `next_batch`.

    Returns:
        All rows of these networks and sizes: a row of bytes for every program, refused ones too, and
        one of images per second where the compiler has a sane figure.
    """
    where, old, found = parse(topology), list(rows), []
    for size in image_sizes:
        for model in models:
            name = named(model, smoke)
            settings = {"image_size": size, "dtype": dtype, "topology": where.name}
            mine = [
                row
                for row in old
                if (row.study, row.model) == (STUDY, name)
                and all(row.settings.get(k) == v for k, v in settings.items())
            ]
            found += mine
            known = programs(mine)
            if next_batch(batches, known, doubling) is not None:
                ask(
                    network(model, size, smoke=smoke),
                    where.name,
                    batches,
                    dtype=dtype,
                    doubling=doubling,
                    known=known,
                    progress=functools.partial(_say, log, f"{name}, {size} pixels"),
                    compiled=functools.partial(_keep_program, found, keep, name, settings, command),
                )
    return found


def _say(log: Callable[[str], None], about: str, what: str) -> None:
    log(f"{about}: compiling {what}")


def _keep_program(
    found: list[Result],
    keep: Callable[[Result], Any],
    name: str,
    settings: dict[str, Any],
    command: str | None,
    batch: int,
    figures: Figures,
) -> None:
    at, new = {**settings, "batch": batch}, []
    more = {"command": command, "versions": _compiler_versions()}
    if figures.fits and figures.seconds is not None:
        new.append(_row(name, RATE, batch / figures.seconds, at, **more))
    # Bytes last: a program whose bytes are there is not compiled again.
    new.append(_row(name, MEMORY, float(figures.memory), at, **more))
    for row in new:
        found.append(row)
        keep(row)


def _compiler_versions() -> dict[str, str]:
    names = ("keras", "jax", "libtpu")
    return {name: metadata.version(name) for name in names if importlib.util.find_spec(name)}


def programs(rows: Iterable[Result]) -> dict[int, Figures]:
    """The compiler's figures by batch, from the rows of one network at one size."""
    rows = list(rows)
    rates = {row.settings["batch"]: row.value for row in rows if row.metric == RATE}
    found = {}
    for row in rows:
        if row.metric == MEMORY:
            batch = row.settings["batch"]
            hbm = parse(row.settings["topology"]).generation.hbm
            seconds = batch / rates[batch] if batch in rates else None
            # A program that is refused needs more than there is.
            found[batch] = Figures(int(row.value), row.value <= hbm, seconds)
    return found


# What both give


def summaries(rows: Iterable[Result]) -> list[Summary]:
    """The points of the figure: the peak over batches, and the largest batch."""
    groups: dict[tuple[str, int], list[Result]] = {}
    for row in rows:
        groups.setdefault((row.model, row.settings["image_size"]), []).append(row)
    found = []
    for (model, size), mine in groups.items():
        best = max((r for r in mine if r.metric == RATE), key=lambda r: r.value, default=None)
        tried = programs(mine)
        top, how = None, ""
        if tried:
            where = next(r.settings["topology"] for r in mine if r.metric == MEMORY)
            top, how = largest_batch(tried, parse(where).generation.hbm)
        rate, batch = (None, None) if best is None else (best.value, best.settings["batch"])
        found.append(Summary(model, size, rate, batch, top, how))
    return found
