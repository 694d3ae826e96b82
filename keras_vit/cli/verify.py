"""`verify` and `bench`: what an exported file of any tool does, beside its model and beside others."""

from pathlib import Path
from typing import Annotated, Any

import typer

from keras_vit.cli.common import Answer, Classes, Data, bytes_text, log, open_data, table

BATCH = 32


def verify(
    file: Annotated[
        str,
        typer.Argument(
            help="A .tflite or .onnx file or a SavedModel folder, of any tool.", show_default=False
        ),
    ],
    against: Annotated[
        str,
        typer.Option(
            "--against", help="The model, by name or as a checkpoint.", show_default=False
        ),
    ],
    data: Data,
    classes: Classes = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="Images at most, evenly over the data.")
    ] = 1000,
    min_agreement: Annotated[
        float,
        typer.Option(
            "--min-agreement", min=0.0, max=1.0, help="Share of images with the same top-1 class."
        ),
    ] = 0.95,
    allow: Annotated[
        bool, typer.Option("--allow", help="Exit with 0 also below --min-agreement.")
    ] = False,
) -> Answer:
    """Run a file and its model on the same images: agreement, accuracy, errors, operations.

    Exits with 1 where they agree on fewer images than --min-agreement. Accuracy is measured where the
    classes of the data are those of the model. What a file does not say of itself is said so.
    """
    import numpy as np

    from keras_vit.cli.progress import counter
    from keras_vit.data.batches import Batches
    from keras_vit.export import open_artifact
    from keras_vit.export.verification import verify_file, what_it_takes
    from keras_vit.train.evaluate import align
    from keras_vit.zoo.api import load

    artifact = open_artifact(file)
    source = open_data(data, classes)
    model = load(against)
    if not model.has_usable_head:
        raise ValueError(
            f"{against} has no usable head, so no classes to agree on: name a model with classes."
        )
    how, unknown = what_it_takes(artifact, model)
    try:
        source, labelled = align(source, model.class_names), not source.multi_label
    except ValueError as error:
        log(f"no accuracy: {error}")
        labelled = False
    count = min(limit, len(source))
    source = source.take(np.linspace(0, len(source) - 1, count).astype(int))
    height, width = model.spec.image_size
    size = artifact.input_shape[1] or height, artifact.input_shape[2] or width
    feeds = [
        Batches(source, shape, model.spec.in_channels, rule, batch_size=BATCH)
        for shape, rule in ((model.spec.image_size, model.preprocessing), (size, how))
    ]

    def batches(progress):
        for i in range(len(feeds[0])):
            (x, targets, *_), (given, *_) = feeds[0][i], feeds[1][i]
            yield x, given, np.asarray(targets).argmax(-1) if labelled else None
            progress(min(count, (i + 1) * BATCH), count)

    with counter("images") as progress:
        found = verify_file(artifact, model, batches(progress), unknown)
    good = found.agreement >= min_agreement
    values = {**found.to_dict(), "against": against, "min_agreement": min_agreement, "good": good}
    return Answer(values, _verified(found, good, min_agreement), 0 if good or allow else 1)


def _verified(found: Any, good: bool, least: float) -> tuple[Any, ...]:
    accuracy = ""
    if found.accuracy is not None:
        accuracy = f", accuracy {found.accuracy:.2%} (the model {found.model_accuracy:.2%})"
    view: list[Any] = [
        f"{found.file}: {found.format}, {found.output}",
        f"top-1 agreement {found.agreement:.2%} of {found.images:,} images{accuracy}",
        f"error of probabilities: largest {found.largest_error:.1e}, mean {found.mean_error:.1e}; of "
        f"logits: largest {found.largest_logit_error:.2g}, mean {found.mean_logit_error:.2g}",
    ]
    if found.operations:
        rows = [
            (name, n, *(found.runtimes[name][k] or "unknown" for k in ("version", "runtime")))
            for name, n in found.operations.items()
        ]
        view += ["", table(("operation", "times", "version", "LiteRT from"), rows), ""]
        left = ", ".join(f"{n} {name}" for name, n in found.undelegated.items()) or "none"
        view.append(f"needs LiteRT {found.runtime or 'of unknown version'}")
        view.append(f"XNNPACK partitions: {found.partitions}, operations left outside: {left}")
        gpu = ", ".join(f"{name} ({reason})" for name, reason in found.gpu.items())
        view.append(f"GPU delegates do not take, by their rules: {gpu or 'nothing that is known'}")
    view += [f"unknown: {sentence}" for sentence in found.unknown]
    if not good:
        view.append(f"NOT GOOD: the agreement is below {least:.0%}.")
    return tuple(view)


def bench(
    files: Annotated[
        list[Path],
        typer.Argument(help="One or more .tflite or .onnx files, of any tool.", show_default=False),
    ],
    threads: Annotated[str, typer.Option("--threads", help="Numbers of threads: 1,2.")] = "1,2",
    rounds: Annotated[
        int, typer.Option("--rounds", min=3, help="Timed runs of each file and number of threads.")
    ] = 30,
) -> Answer:
    """Time files against each other on this machine: median and spread, peak memory, size.

    The files take turns, so that a busy moment hits all of them. For a phone, each .tflite has its adb
    command; benchmark_model is TensorFlow's own tool, to be pushed there once.
    """
    from keras_vit.export.benchmark import benchmark

    words = [word.strip() for word in threads.split(",")]
    if not all(word.isdigit() and int(word) for word in words):
        raise ValueError(f"--threads takes numbers such as 1,2, got {threads!r}.")
    from keras_vit.cli.progress import counter

    with counter("rounds") as progress:
        found = benchmark(files, threads=[int(w) for w in words], rounds=rounds, progress=progress)
    rows = [
        (
            one.path.name,
            latency.threads,
            f"{latency.median_ms:.2f}",
            f"{latency.low_ms:.2f} to {latency.high_ms:.2f}",
            "unknown" if one.peak_memory is None else bytes_text(one.peak_memory),
            bytes_text(one.size),
        )
        for one in found
        for latency in one.latencies
    ]
    columns = ("file", "threads", "median ms", "10 % to 90 %", "peak memory", "size")
    view = [table(columns, rows)]
    if phones := [f"  {one.adb}" for one in found if one.adb]:
        view += ["", "on a phone:", *phones]
    return Answer([one.to_dict() for one in found], tuple(view))
