"""The report of a run: plain values for machines, Markdown and curves for people."""

import re
from importlib import metadata
from pathlib import Path
from typing import Any

from keras_vit.card import Card
from keras_vit.model import VisionModel
from keras_vit.train import curves, rundir
from keras_vit.train.evaluate import Evaluation
from keras_vit.train.keeper import METRICS
from keras_vit.train.recipe import Recipe
from keras_vit.train.run import Result, versions

MATRIX_LIMIT = 30  # classes; a larger confusion matrix is shown by its largest confusions
LIST_LIMIT = 50  # broken images and history rows shown; all are in the JSON
CURVES = "curves.svg"
PACKAGES = ("keras-vit-zoo", "tensorflow", "jax")


def build(
    model: VisionModel,
    measured: Evaluation,
    result: Result,
    recipe: Recipe,
    about: dict[str, Any],
    command: str | None,
) -> dict[str, Any]:
    """Everything of a run as plain values."""
    card: Card | None = model.card
    return {
        "command": command,
        **about,
        "evaluated_on": "validation" if about["validation"] else "training",
        "evaluation": measured.to_dict(),
        "best_epoch": result.best_epoch,
        "epochs": len(result.history),
        "resumed_from": result.resumed_from,
        "seconds": round(result.seconds, 2),
        "history": result.history,
        "recipe": recipe.to_dict(),
        "seed": recipe.seed,
        "card": card.to_dict() if card else None,
        "spec": model.spec.to_dict(),
        "versions": {**versions(), **_installed()},
    }


def markdown(report: dict[str, Any]) -> str:
    """The report of a fine-tuning run for people; names of classes and files are escaped."""
    measured = report["evaluation"]
    train, validation = report["train"], report["validation"]
    chosen = "" if validation is None else " The best epoch was chosen on the same images."
    lines = [
        f"# {escape(report['model'])} on {escape(train['name'])}",
        "",
        *_score(measured, f"{report['evaluated_on']} images", chosen),
        f"{train['examples']} training images, {validation['examples'] if validation else 0} "
        f"validation images, {len(measured['per_class'])} classes; best of {report['epochs']} epochs: "
        f"{report['best_epoch']}; {report['seconds']:.0f} s of training.",
        "",
        *_of_classes(measured),
        *("## History", "", *_history(report["history"]), ""),
        *_broken(measured),
        *_how(report, {"weights trained": _trained(report)}),
        "Data, specification and card are in report.json.",
        "",
    ]
    return "\n".join(lines)


def write_training(folder: Path, report: dict[str, Any]) -> None:
    """Writes `report.md` and `curves.svg` of a training by a recipe.

    Args:
        folder: of the run; its metrics.jsonl gives the curves.
        report: what `report.json` will hold.

    Raises:
        OSError: they cannot be written.
    """
    rundir.write_text(folder / CURVES, curves.draw(curves.read_metrics(folder / METRICS)))
    rundir.write_text(folder / "report.md", training_markdown(report))


def training_markdown(report: dict[str, Any]) -> str:
    """The report of a training by a recipe, for people."""
    train, measured = report["train"], report.get("evaluation")
    lines = [
        f"# {escape(report['task'])}: {escape(report['model'])} on {escape(train['name'])}",
        "",
    ]
    if measured:
        told = f"images of {escape(report['test']['name'])}, by the weights in model.npz"
        lines += _score(measured, told, "")
    lines += _pretext(report)
    lines += [
        f"{train['examples']:,} training images, {report['steps']:,} steps in {report['epochs']} "
        f"epochs, {report['seconds']:.0f} s; {report['parameters']:,} parameters.",
        "",
        f"![loss, accuracy and learning rate over the epochs]({CURVES})",
        "",
        *("## History", "", *_history(report["history"]), ""),
        *(_of_classes(measured) if measured else ()),
        *(_broken(measured) if measured else ()),
        *_how(report, {}),
        "Specification and every number are in report.json, the curves' numbers in metrics.jsonl.",
        "",
    ]
    return "\n".join(lines)


def _pretext(report: dict[str, Any]) -> list[str]:
    """What masked patch prediction came to."""
    found = report.get("pretext")
    if not found:
        return []
    kind = "held-out images" if found["held_out"] else "training images, none were held out,"
    lines = [
        f"Masked patch prediction of `{report['recipe']['pretext']['target']}`: loss "
        f"**{found['loss']:.4f}**, colour class of a corrupted patch right **{found['accuracy']:.2%}**, "
        f"mean of {found['examples']:,} {kind} of {escape(found['data'])}. The files hold the encoder "
        f"without a head: `keras-vit finetune` gives it one.",
        "",
    ]
    if found["figure"]:
        return [*lines, f"![images, corrupted, wanted, predicted]({found['figure']})", ""]
    return [*lines, "There is no figure, because matplotlib is not installed.", ""]


def _score(measured: dict[str, Any], images: str, remark: str) -> list[str]:
    low, high = measured["interval"]
    single = measured["mean_average_precision"] is None
    lines = [
        f"{'Accuracy' if single else 'Exact matches'}: **{measured['accuracy']:.2%}** "
        f"(95 % interval {low:.1%} to {high:.1%}) of {measured['examples']} {images}.{remark}",
        "",
    ]
    if measured["top5"] is not None:
        lines += [f"Among the first five: {measured['top5']:.2%}.", ""]
    if measured["mean_average_precision"] is not None:
        lines += [f"Mean average precision: {measured['mean_average_precision']:.4f}.", ""]
    return lines


def _of_classes(measured: dict[str, Any]) -> list[str]:
    lines = ["## Classes", "", *_classes(measured), ""]
    return lines if measured["confusion"] is None else [*lines, *_confusion(measured), ""]


def _broken(measured: dict[str, Any]) -> list[str]:
    broken = measured["broken"]
    if not broken:
        return []
    lines = [f"## {len(broken)} images could not be read", ""]
    lines += [f"- {escape(message)}" for message in broken[:LIST_LIMIT]]
    if len(broken) > LIST_LIMIT:
        lines.append("- ... all of them are in report.json")
    return [*lines, ""]


def _how(report: dict[str, Any], more: dict[str, str]) -> list[str]:
    """The command, and a table of recipe and versions."""
    lines = ["## How", ""]
    if report["command"]:
        # Every line of it: a file name may hold a line break, and what follows must stay code.
        lines += [*(f"    {line}" for line in report["command"].splitlines()), ""]
    facts = {**flat(report["recipe"]), **report["versions"], **more}
    lines += table(("what", "value"), [(k, escape(str(v))) for k, v in facts.items()])
    return [*lines, ""]


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested plain values as one level, `part.field`."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= (
            flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        )
    return found


def escape(text: str) -> str:
    """Text as Markdown that shows it and does nothing else."""
    text = re.sub(r"[\x00-\x1f\x7f]+", " ", text)
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]()#+!|~$])", r"\\\1", text)


def table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """Lines of a Markdown table."""
    marks = ("---", *("--:" for _ in heads[1:]))
    return [f"| {' | '.join(row)} |" for row in (heads, marks, *rows)]


def _classes(measured: dict[str, Any]) -> list[str]:
    heads = ["class", "images", "precision", "recall", "F1"]
    several = measured["mean_average_precision"] is not None
    rows = []
    for score in measured["per_class"]:
        values = [score["precision"], score["recall"], score["f1"]]
        values += [score["average_precision"]] if several else []
        cells = ["–" if v is None else f"{v:.3f}" for v in values]
        rows.append((escape(score["name"]), str(score["examples"]), *cells))
    return table((*heads, *(["average precision"] if several else [])), rows)


def _confusion(measured: dict[str, Any]) -> list[str]:
    names, counts = [s["name"] for s in measured["per_class"]], measured["confusion"]
    if len(names) <= MATRIX_LIMIT:
        lines = [
            "## Confusion matrix",
            "",
            "Rows are the true class, columns the predicted one.",
            "",
        ]
        rows = [(escape(n), *map(str, row)) for n, row in zip(names, counts, strict=True)]
        return lines + table(("", *map(escape, names)), rows)
    pairs = [
        (count, names[i], names[j])
        for i, row in enumerate(counts)
        for j, count in enumerate(row)
        if i != j and count
    ]
    pairs.sort(key=lambda pair: -pair[0])
    rows = [(escape(a), escape(b), str(count)) for count, a, b in pairs[:MATRIX_LIMIT]]
    lines = ["## Largest confusions", "", "The whole matrix is in report.json.", ""]
    return lines + table(("true class", "predicted", "images"), rows)


def _history(history: list[dict[str, float]]) -> list[str]:
    keys = list(history[0]) if history else []
    rows = [(str(i), *(f"{e[k]:.4f}" for k in keys)) for i, e in enumerate(history, 1)]
    return table(("epoch", *keys), rows[-LIST_LIMIT:])


def _trained(report: dict[str, Any]) -> str:
    if report["from_scratch"]:
        return "all, from random values"
    return "the head only" if report["freeze"] else "all"


def _installed() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
