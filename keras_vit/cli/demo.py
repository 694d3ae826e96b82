"""`demo`: the whole job on real images in a few minutes, with what ships in the package."""

import dataclasses
import statistics
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from keras_vit.cli.common import Answer, Force, Interrupted, bytes_text, log, table

PRETRAINED = "ViT-Mini/4@fashion_mnist"
BASE = "ViT-Mini/4@fashion_mnist_8"
HELD_OUT = ("Sandal", "Bag")  # what the base model has never seen
SHOWN = 5  # classified images in the output


@dataclasses.dataclass(frozen=True)
class Plan:
    """How much the demo does.

    Attributes:
        seeds: runs of each kind; the seed decides the images drawn, the split and the order.
        per_class: labelled images of each class that a run gets, a fifth of them for validation.
        epochs: of every run.
        image_size: pixels; the base model was trained at 28.
        tested: test images.
        verified: of these, how many each export must agree on; 0 for synthetic images, because the
            first predictions of a model that has learned nothing are ties.
    """

    seeds: int
    per_class: int
    epochs: int
    image_size: int
    tested: int
    verified: int


FULL = Plan(seeds=3, per_class=40, epochs=10, image_size=40, tested=1000, verified=200)
QUICK = Plan(seeds=1, per_class=5, epochs=1, image_size=32, tested=40, verified=0)

EXPORTS = (
    ("SavedModel float32", "saved_model", None),
    ("LiteRT float32", "model_float32.tflite", None),
    ("LiteRT float16", "model_float16.tflite", "float16"),
    ("LiteRT dynamic int8", "model_dynamic_int8.tflite", "dynamic_int8"),
)


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for everything it makes.")] = Path(
        "demo"
    ),
    quick: Annotated[
        bool, typer.Option("--quick", help="A miniature: shows that it runs, measures nothing.")
    ] = False,
    force: Force = False,
) -> Answer:
    """Load, classify, fine-tune at a higher resolution, compare with training from scratch, export.

    A model that was trained on eight kinds of clothing learns ten from a few images of each, against
    the same network from random weights with the same budget. Takes 4 to 9 minutes on 2 cores.
    """
    from keras_vit.train.rundir import check_out

    started = time.monotonic()
    check_out(out, force)
    plan = QUICK if quick else FULL
    log("loading Keras ...")
    from keras_vit.cli.progress import make_bar

    bar = make_bar()
    with bar:
        try:
            report = _run(plan, out, bar)
        except KeyboardInterrupt:
            raise Interrupted(f"finished runs are kept in {out}; --force starts anew.") from None
    from keras_vit.train.rundir import write_json

    report["seconds"] = round(time.monotonic() - started, 1)
    write_json(out / "report.json", report)
    return Answer({"out": str(out), **report}, _view(report, out))


def _run(plan: Plan, out: Path, bar: Any) -> dict[str, Any]:
    from keras_vit.data.sources import fashion_mnist
    from keras_vit.train.run import versions

    total = 1 + 2 * plan.seeds * (plan.epochs + 1) + 2 * len(EXPORTS)
    step = _Steps(bar, total)
    out.mkdir(parents=True, exist_ok=True)
    test = fashion_mnist("subset_test")
    test = test.take(range(plan.tested), "fashion_mnist:subset_test")
    step.says(f"loading {PRETRAINED}")
    classified = _classify(test)
    step.done(f"{PRETRAINED} at 28x28: {classified['accuracy']:.1%} of {len(test)} test images")
    runs: list[dict[str, Any]] = []
    for seed in range(plan.seeds):
        for kind in ("pretrained", "from_scratch"):
            runs.append(_finetune(plan, kind, seed, test, out, step))
    best = max(
        (run for run in runs if run["kind"] == "pretrained"), key=lambda run: run["validation"]
    )
    return {
        "plan": dataclasses.asdict(plan),
        "classified": classified,
        "task": f"{BASE} to ten classes, of which it has never seen {' and '.join(HELD_OUT)}",
        "runs": runs,
        "summary": {kind: _summary(runs, kind) for kind in ("pretrained", "from_scratch")},
        "exported_run": best["folder"],
        "artifacts": _artifacts(
            out / best["folder"] / "model.keras", test, plan.verified, out, step
        ),
        "versions": versions(),
    }


class _Steps:
    """Advances the bar, and says on stderr what happened where there is no terminal for a bar."""

    def __init__(self, bar: Any, total: int):
        self.bar = bar
        self.task = bar.add_task("demo", total=total)

    def says(self, text: str) -> None:
        self.bar.update(self.task, description=text)

    def done(self, text: str | None = None) -> None:
        self.bar.advance(self.task)
        if text and self.bar.disable:
            log(text)
        elif text:
            self.bar.console.print(text, markup=False)


def _classify(test: Any) -> dict[str, Any]:
    """The pretrained model on the test images, and what it says to a few of them."""
    from keras_vit.zoo.api import load

    model = load(PRETRAINED)
    predictions = model.predict_images(test.images[:SHOWN], top=1)
    return {
        "model": PRETRAINED,
        "accuracy": _measure(model.probabilities, test, model).accuracy,
        "examples": [
            {"true": test.class_names[label], "predicted": name, "probability": probability}
            for label, [(name, _, probability)] in zip(test.labels, predictions, strict=False)
        ],
    }


def _measure(predict: Any, test: Any, model: Any):
    from keras_vit.train.evaluate import align, evaluate

    return evaluate(
        predict,
        align(test, model.class_names),
        image_size=model.spec.image_size,
        channels=model.spec.in_channels,
        preprocessing=model.preprocessing,
        batch_size=100,
    )


def _finetune(
    plan: Plan, kind: str, seed: int, test: Any, out: Path, step: _Steps
) -> dict[str, Any]:
    """One run, tested: the same images, split, order and recipe for both kinds."""
    import keras

    from keras_vit.data.augment import Augment
    from keras_vit.data.sources import fashion_mnist
    from keras_vit.train.finetune import finetune

    source = fashion_mnist("subset_train")
    few = source.split(plan.per_class / 300, seed)[1]  # 300 of each class in the subset
    what = f"{'fine-tuning' if kind == 'pretrained' else 'from scratch'}, seed {seed}"
    step.says(what)
    name = f"runs/{kind}_{seed}"
    started = time.monotonic()
    found = finetune(
        BASE,
        dataclasses.replace(few, name=f"fashion_mnist:subset_train[{len(few)}]"),
        out=out / name,
        val_split=0.2,
        image_size=plan.image_size,
        from_scratch=kind == "from_scratch",
        recipe=lambda default: dataclasses.replace(
            default, epochs=plan.epochs, early_stopping=None, augment=Augment(flip=True, shift=True)
        ),
        seed=seed,
        force=True,
        callbacks=(keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: step.done()),),
    )
    measured = _measure(found.model.probabilities, test, found.model)
    recalls = [s.recall for s in measured.per_class if s.name in HELD_OUT and s.recall is not None]
    run = {
        "kind": kind,
        "seed": seed,
        "folder": name,
        "images": len(few),
        "best_epoch": found.result.best_epoch,
        "validation": found.evaluation.accuracy,
        "test": measured.accuracy,
        "test_never_seen": statistics.mean(recalls) if recalls else None,
        "seconds": round(time.monotonic() - started, 1),
    }
    step.done(f"{what}: test {run['test']:.1%}, {run['seconds']:.0f} s")
    return run


def _summary(runs: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """Mean and standard deviation over the seeds, as measured."""
    summary: dict[str, Any] = {}
    for field in ("test", "test_never_seen"):
        values = [run[field] for run in runs if run["kind"] == kind and run[field] is not None]
        summary[field] = {
            "mean": statistics.mean(values) if values else None,
            "std": statistics.stdev(values) if len(values) > 1 else None,
        }
    return summary


def _artifacts(
    keras_file: Path, test: Any, verified: int, out: Path, step: _Steps
) -> list[dict[str, Any]]:
    """Exports the model in every format and runs every file on the test images."""
    import numpy as np

    from keras_vit.cli.convert import export_model
    from keras_vit.data.batches import Batches
    from keras_vit.export import open_artifact
    from keras_vit.export.verify import measure_latency
    from keras_vit.zoo.api import load

    model = load(keras_file)
    images = np.concatenate(
        [x for x, *_ in _all(Batches(test, model.spec.image_size, 1, model.preprocessing))]
    )
    reference = np.concatenate(
        [model.probabilities(images[i : i + 100]) for i in range(0, len(images), 100)]
    )
    latency = measure_latency(lambda: model.predict_on_batch(images[:1]), None)
    rows = [
        _row(
            "Keras",
            keras_file,
            keras_file.stat().st_size,
            latency.median_ms,
            reference,
            reference,
            test,
        )
    ]
    for name, file, quantize in EXPORTS:
        step.says(f"exporting {name}")
        path = out / file
        report = export_model(
            model,
            path,
            format="litert" if path.suffix == ".tflite" else "tf_saved_model",
            quantize=quantize,
            images=images[:verified] if verified else None,
            force=True,
        )
        step.done()
        step.says(f"running {name} on {len(images)} test images")
        found = open_artifact(path).predict(images)
        row = _row(name, path, report.size, report.latency.median_ms, found, reference, test)
        rows.append(row)
        step.done(
            f"{name}: accuracy {row['accuracy']:.1%}, largest error {row['largest_error']:.1e}"
        )
    return rows


def _all(batches: Any):
    return (batches[i] for i in range(len(batches)))


def _row(name, path, size, milliseconds, found, reference, test) -> dict[str, Any]:
    return {
        "name": name,
        "file": str(path),
        "accuracy": float((found.argmax(1) == test.labels).mean()),
        "largest_error": float(abs(found - reference).max()),
        "bytes": int(size),
        "milliseconds": milliseconds,
    }


def _view(report: dict[str, Any], out: Path) -> tuple[Any, ...]:
    shown = report["classified"]
    examples = [(e["true"], e["predicted"], f"{e['probability']:.3f}") for e in shown["examples"]]
    plan = report["plan"]
    runs = [
        (
            {"pretrained": "fine-tuned", "from_scratch": "from scratch"}[kind],
            _spread(found["test"]),
            _spread(found["test_never_seen"]),
        )
        for kind, found in report["summary"].items()
    ]
    artifacts = [
        (
            row["name"],
            f"{row['accuracy']:.1%}",
            "–" if row["name"] == "Keras" else f"{row['largest_error']:.1e}",
            bytes_text(row["bytes"]),
            f"{row['milliseconds']:.2f} ms",
        )
        for row in report["artifacts"]
    ]
    return (
        f"{shown['model']}: {shown['accuracy']:.1%} of {plan['tested']} test images; the first:",
        table(("is", "predicted", "probability"), examples, 2),
        "",
        f"{report['task']};",
        f"{plan['per_class']} images of each class, {plan['epochs']} epochs at "
        f"{plan['image_size']}x{plan['image_size']}, {plan['seeds']} seeds; test accuracy:",
        table(("", "all ten classes", "never seen before"), runs),
        "",
        f"the best of them, exported and run on the {plan['tested']} test images:",
        table(("file", "accuracy", "largest error", "size", "one image"), artifacts),
        "",
        f"everything is in {out}/, numbers in report.json ({report['seconds']:.0f} s)",
    )


def _spread(value: dict[str, float | None]) -> str:
    if value["mean"] is None:
        return "–"
    return f"{value['mean']:.1%}" + ("" if value["std"] is None else f" ± {100 * value['std']:.1f}")
