"""The curves of a run: where the points lie, and that the file stands alone."""

import json
import xml.etree.ElementTree as xml

import numpy as np
import pytest

from keras_vit.train.curves import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    draw,
    points,
    read_metrics,
    ticks,
)

LINES = [
    {"step": 5, "epoch": 0.5, "lr": 1e-3, "loss": 2.0},
    {"step": 10, "epoch": 1.0, "lr": 5e-4, "loss": 1.0, "val_loss": 1.5, "val_accuracy": 0.5},
    {"step": 20, "epoch": 2.0, "lr": 0.0, "loss": 0.0, "val_loss": float("nan"), "val_accuracy": 1.0},
]  # fmt: skip
SVG = "{http://www.w3.org/2000/svg}"


def curves(text: str) -> list[tuple[str, list[list[float]]]]:
    """(colour, points) of every curve."""
    found = xml.fromstring(text).iter(f"{SVG}polyline")
    return [
        (c.get("stroke"), [[float(n) for n in p.split(",")] for p in c.get("points").split()])
        for c in found
    ]


def test_points_lie_where_their_numbers_are():
    text = draw(LINES)
    (loss, first), (val_loss, second), (_, accuracy), (_, rate) = curves(text)
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    middle = (LEFT + right) / 2
    # Epochs go from 0 to 2, losses from 0 to 2, accuracies from 0.4 to 1, the rate from 0 to 0.001.
    half = bottom - (bottom - TOP) / 6
    np.testing.assert_allclose(
        first, [[(LEFT + middle) / 2, TOP], [middle, (TOP + bottom) / 2], [right, bottom]], atol=0.1
    )
    np.testing.assert_allclose(second, [[middle, TOP + (bottom - TOP) / 4]], atol=0.1)  # NaN: none
    np.testing.assert_allclose(accuracy, [[middle, half], [right, TOP]], atol=0.1)
    np.testing.assert_allclose([y for _, y in rate], [TOP, (TOP + bottom) / 2, bottom], atol=0.1)
    assert loss != val_loss
    labels = [element.text for element in xml.fromstring(text).iter(f"{SVG}text")]
    assert {"loss", "accuracy", "learning rate", "training", "validation", "epochs"} <= set(labels)
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_runs_without_accuracy_or_without_anything():
    assert len(curves(draw([{"epoch": 1.0, "loss": 0.5, "lr": 0.1}]))) == 2
    assert curves(draw([])) == []


def test_long_runs_are_thinned_and_end_with_the_last_point():
    lines = [{"epoch": i / 1000, "loss": 1 / i} for i in range(1, 10_000)]
    found = points(lines, "loss")
    assert 500 < len(found) <= 600 and found[-1] == (9.999, 1 / 9999)
    assert found == sorted(found)


@pytest.mark.parametrize(
    ("low", "high", "count", "expected"),
    [
        (0, 1, 5, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0.3, 2.2, 4, [0, 0.5, 1, 1.5, 2, 2.5]),
        (0, 8e-4, 4, [0, 2e-4, 4e-4, 6e-4, 8e-4]),
        (3, 3, 4, [1, 2, 3, 4, 5]),
    ],
)
def test_axes_have_round_numbers_that_cover_the_values(low, high, count, expected):
    found = ticks(low, high, count)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_metrics_are_read_line_by_line(tmp_path):
    assert read_metrics(tmp_path / "metrics.jsonl") == []
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES[:2]))
    assert read_metrics(tmp_path / "metrics.jsonl") == LINES[:2]
