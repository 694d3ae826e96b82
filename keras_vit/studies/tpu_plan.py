"""What a training run on a TPU would take, before anybody pays for one.

The compiler of TPUs runs without them: it compiles the very step that `fit` runs, and says what memory
and how much time it needs. `plan` tries a few sizes of micro-batch and puts its figures together.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable

from keras_vit.spec import Spec
from keras_vit.studies.figures import Figures
from keras_vit.studies.topology import Slice, parse
from keras_vit.studies.trained import trained_spec
from keras_vit.train import overrides, recipes
from keras_vit.train.recipe import Recipe
from keras_vit.zoo.names import resolve

# TPUv3-core-days, by variant, recipe and epochs. Source: arXiv 2010.11929, Table 2.
PUBLISHED_CORE_DAYS = {
    ("ViT-H/14", "paper/jft", 14): 2500,
    ("ViT-L/16", "paper/jft", 14): 680,
    ("ViT-L/16", "paper/imagenet21k", 90): 230,
}
BEST_CASE = (
    "A best case: the compiler's time for the step alone, with no waiting for data or other hosts. "
    "Published core-days are 1.4 (ViT-L/16 on JFT) to 1.75 times (ViT-H/14 on JFT) what the same "
    "compiler predicts for the authors' own code."
)
# Images of 500x375 pixels that a core of a server decodes, crops and resizes to 224 in a second, as
# the training pipeline without RandAugment does. Measured by benchmarks/pipeline.py.
IMAGES_PER_CPU_CORE = 900.0
PROBE = 8  # examples per device in the first program that is compiled
FULL = 0.96  # share of the memory that programs may use; the compiler keeps the rest


@dataclasses.dataclass(frozen=True)
class Work:
    """What is to be planned.

    Attributes:
        model: name of the variant.
        spec: the network as it is trained.
        recipe: with the batch size and the length of the run.
        steps: updates of the whole run.
        where: the slice.
        dtype: Keras dtype policy.
    """

    model: str
    spec: Spec
    recipe: Recipe
    steps: int
    where: Slice
    dtype: str

    @property
    def per_device(self) -> int:
        """Examples of a batch on one device."""
        return self.recipe.batch_size // self.where.devices


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the compiler says of a run. A core is what JAX calls a device: a chip of v5p or later.

    Attributes:
        model, recipe, topology, dtype: as asked for.
        image_size: (height, width).
        batch_size: examples per update.
        cores, hosts: of the slice.
        hbm_bytes: memory of a core.
        fits: whether the run is possible.
        micro_batch: examples that a core computes at once.
        accumulation_steps: parts that a core's share of the batch is computed in.
        memory_bytes: of a core, at the peak of the step.
        state_bytes: of it, weights and the optimizer's state.
        largest_micro_batch: the most examples at once that would fit, by a straight line through
            what was compiled; None when a single size was.
        step_seconds, images_per_second_per_core: None where the compiler has no sane figure.
        steps: updates of the run.
        core_days: of the whole run.
        published_core_days: the paper's for this run on TPUv3, if it is one of the paper's.
        host_images_per_second: what each host must deliver.
        host_cpu_cores: that it needs for that.
        compilations: (micro-batch, parts, bytes, seconds of compiling) of every program tried.
        notes: what to know of these numbers.
    """

    model: str
    recipe: str
    topology: str
    dtype: str
    image_size: tuple[int, int]
    batch_size: int
    cores: int
    hosts: int
    hbm_bytes: int
    fits: bool
    micro_batch: int
    accumulation_steps: int
    memory_bytes: int
    state_bytes: int
    largest_micro_batch: int | None
    step_seconds: float | None
    images_per_second_per_core: float | None
    steps: int
    core_days: float | None
    published_core_days: int | None
    host_images_per_second: float | None
    host_cpu_cores: int | None
    compilations: tuple[tuple[int, int, int, float], ...]
    notes: tuple[str, ...]


def work(
    model: str,
    topology: str,
    *,
    recipe: str,
    batch_size: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    options: Iterable[str] = (),
    changes: Iterable[str] = (),
) -> Work:
    """What names stand for.

    Args:
        model: any name of a variant.
        topology: `v3-8`.
        recipe: `paper/imagenet21k`.
        batch_size: examples per update, None for the recipe's.
        image_size: pixels, None for the recipe's.
        options: `key=value` texts, arguments of the recipe's function.
        changes: `part.field=value` texts, other values for fields of the recipe.

    Raises:
        ValueError: one of them does not exist, or the batch cannot be divided over the slice.
    """
    where, variant = parse(topology), resolve(model)[0]
    given = overrides.options(recipes.find(recipe), list(options))
    wanted = overrides.apply(recipes.resolve(recipe, variant, **given), changes)
    batch = batch_size or wanted.batch_size
    if batch % where.devices:
        low = batch // where.devices * where.devices
        near = f"{low} or {low + where.devices}" if low else f"{where.devices}"
        raise ValueError(
            f"a batch of {batch} cannot be divided over the {where.devices} cores of {where.name}: "
            f"give {near}."
        )
    # How many parts it is computed in is what the plan finds.
    parts = dataclasses.replace(wanted.optimizer, accumulation_steps=1)
    wanted = dataclasses.replace(wanted, batch_size=batch, optimizer=parts)
    spec = trained_spec(variant, wanted, image_size)
    if wanted.steps is None and wanted.examples is None:
        raise ValueError(
            f"{recipe} does not say how many images there are: give --set examples=NUMBER."
        )
    steps = wanted.total_steps(max(1, (wanted.examples or 0) // batch))
    return Work(variant, spec, wanted, steps, where, wanted.dtype or "mixed_bfloat16")


def plan(task: Work, measure: Callable[[int, int], Figures], update: Callable[[], Figures]) -> Plan:
    """The plan of a run.

    Args:
        task: what is to be planned.
        measure: (micro-batch, parts) -> `Figures` of the step.
        update: `Figures` of what a step does once, whatever the parts.
    """
    tried: dict[int, Figures] = {}

    def figures(micro: int) -> Figures:
        if micro not in tried:
            tried[micro] = measure(micro, task.per_device // micro)
        return tried[micro]

    hbm = task.where.generation.hbm
    micro = best_micro_batch(task.per_device, hbm, figures)
    found, parts = tried[micro], task.per_device // micro
    notes = [BEST_CASE]
    seconds = None
    if found.fits:
        seconds, once = found.seconds, None
        if seconds is not None and parts > 1:
            once = update().seconds
            # The compiler counts the body of the loop over the parts once.
            seconds = parts * seconds - (parts - 1) * once if once is not None else None
        if seconds is None:
            notes = [
                f"No time: the compiler has no sane figure for {task.where.generation.name}; what it "
                f"says of memory holds."
            ]
    else:
        notes = [f"It does not fit: a single example per core needs {found.memory:,} bytes."]
    if task.where.generation.name == "v4":
        notes.append(
            "The compiler plans v4 core by core with half of a chip's memory each, although JAX joins "
            "the two cores of a chip there."
        )
    rate = None if seconds is None else task.per_device / seconds
    per_host = None if rate is None else rate * task.where.devices / task.where.hosts
    return Plan(
        model=task.model,
        recipe=task.recipe.name,
        topology=task.where.name,
        dtype=task.dtype,
        image_size=(task.spec.image_size[0], task.spec.image_size[1]),
        batch_size=task.recipe.batch_size,
        cores=task.where.devices,
        hosts=task.where.hosts,
        hbm_bytes=hbm,
        fits=found.fits,
        micro_batch=micro,
        accumulation_steps=parts,
        memory_bytes=found.memory,
        state_bytes=found.arguments,
        largest_micro_batch=largest(tried, FULL * hbm),
        step_seconds=seconds,
        images_per_second_per_core=rate,
        steps=task.steps,
        core_days=None if seconds is None else seconds * task.steps * task.where.devices / 86400,
        published_core_days=published(task),
        host_images_per_second=per_host,
        host_cpu_cores=None if per_host is None else math.ceil(per_host / IMAGES_PER_CPU_CORE),
        compilations=tuple(
            (size, task.per_device // size, f.memory, round(f.compile_seconds, 1))
            for size, f in tried.items()
        ),
        notes=tuple(notes),
    )


def best_micro_batch(per_device: int, hbm: int, figures: Callable[[int], Figures]) -> int:
    """The largest divisor of a core's examples that fits; 1 when nothing does.

    Memory grows by the same amount with every example, so that two programs tell of all sizes; each
    is compiled before it is believed.
    """
    divisors = [d for d in range(1, per_device + 1) if per_device % d == 0]
    tried: dict[int, Figures] = {}
    best, too_large = 0, per_device + 1
    size = max(d for d in divisors if d <= PROBE)
    while best < size < too_large:
        tried[size] = figures(size)
        if tried[size].fits:
            best = size
        else:
            too_large = size
        predicted = largest(tried, FULL * hbm)
        if predicted is None:
            # What one program says: as if its temporaries were examples alone, so rather less.
            only = tried[size]
            free = FULL * hbm - (only.memory - only.temporaries)
            predicted = int(free * size / only.temporaries) if only.temporaries else size // 2
        wanted = [d for d in divisors if best < d < too_large]
        below = [d for d in wanted if d <= predicted]
        if below:
            size = max(below)
        elif not best and wanted:
            size = min(wanted)  # the line may be wrong where nothing has fitted yet
        else:
            break
    return best or 1


def largest(tried: dict[int, Figures], hbm: float) -> int | None:
    """The most examples that fit, on the line through the two largest programs; None for one."""
    if len(tried) < 2:
        return None
    (a, first), (b, second) = sorted(tried.items())[-2:]
    slope = (second.memory - first.memory) / (b - a)
    if slope <= 0:
        return None
    return max(0, int(a + (hbm - first.memory) / slope))


def published(task: Work) -> int | None:
    """The paper's TPUv3-core-days of this very run."""
    epochs = task.recipe.epochs
    if task.where.generation.name != "v3" or epochs is None or epochs != int(epochs):
        return None
    return PUBLISHED_CORE_DAYS.get((task.model, task.recipe.name, int(epochs)))
