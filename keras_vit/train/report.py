"""The report of a fine-tuning run: plain values for machines, Markdown for people."""

import re
from importlib import metadata
from typing import Any

from keras_vit.card import Card
from keras_vit.model import VisionModel
from keras_vit.train.evaluate import Evaluation
from keras_vit.train.recipe import Recipe
from keras_vit.train.run import Result, versions

MATRIX_LIMIT = 30  # classes; a larger confusion matrix is shown by its largest confusions
LIST_LIMIT = 50  # broken images and history rows shown; all are in the JSON
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
    """The report for people; names of classes and files are escaped."""
    measured = report["evaluation"]
    low, high = measured["interval"]
    single = measured["confusion"] is not None
    train, validation = report["train"], report["validation"]
    chosen = "" if validation is None else " The best epoch was chosen on the same images."
    lines = [
        f"# {escape(report['model'])} on {escape(train['name'])}",
        "",
        f"{'Accuracy' if single else 'Exact matches'}: **{measured['accuracy']:.2%}** "
        f"(95 % interval {low:.1%} to {high:.1%}) of {measured['examples']} {report['evaluated_on']} "
        f"images.{chosen}",
        "",
    ]
    if measured["top5"] is not None:
        lines += [f"Among the first five: {measured['top5']:.2%}.", ""]
    if measured["mean_average_precision"] is not None:
        lines += [f"Mean average precision: {measured['mean_average_precision']:.4f}.", ""]
    lines += [
        f"{train['examples']} training images, {validation['examples'] if validation else 0} "
        f"validation images, {len(measured['per_class'])} classes; best of {report['epochs']} epochs: "
        f"{report['best_epoch']}; {report['seconds']:.0f} s of training.",
        "",
        "## Classes",
        "",
        *_classes(measured),
        "",
    ]
    if single:
        lines += [*_confusion(measured), ""]
    lines += ["## History", "", *_history(report["history"]), ""]
    if measured["broken"]:
        lines += [f"## {len(measured['broken'])} images could not be read", ""]
        lines += [f"- {escape(message)}" for message in measured["broken"][:LIST_LIMIT]]
        if len(measured["broken"]) > LIST_LIMIT:
            lines.append("- ... all of them are in report.json")
        lines.append("")
    lines += ["## How", ""]
    if report["command"]:
        # Every line of it: a file name may hold a line break, and what follows must stay code.
        lines += [*(f"    {line}" for line in report["command"].splitlines()), ""]
    facts = {**flat(report["recipe"]), **report["versions"], "weights trained": _trained(report)}
    lines += table(("what", "value"), [(k, escape(str(v))) for k, v in facts.items()])
    lines += ["", "Data, specification and card are in report.json.", ""]
    return "\n".join(lines)


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
