"""Learning curves as an SVG that stands alone: loss, accuracy and learning rate over the epochs."""

import json
import math
from html import escape
from pathlib import Path
from typing import Any

# (title, ((legend, key of a line of metrics, colour), ...))
PANELS = (
    ("loss", (("training", "loss", "#1f77b4"), ("validation", "val_loss", "#d62728"))),
    ("accuracy", (("training", "accuracy", "#1f77b4"), ("validation", "val_accuracy", "#d62728"))),
    ("learning rate", (("", "lr", "#2ca02c"),)),
)
WIDTH, HEIGHT = 640, 200  # pixels of a panel
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 28, 34  # margins around its axes
MOST_POINTS = 600  # of a curve: about one for each pixel across

Point = tuple[float, float]


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl, none when there is no such file."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def draw(lines: list[dict[str, Any]]) -> str:
    """The curves of a run, one panel below the other.

    Args:
        lines: of metrics.jsonl: `epoch` (steps over steps per epoch), `lr`, and Keras's names to
            values. Within an epoch, training values are means since its beginning.
    """
    panels = []
    for title, curves in PANELS:
        found = [(name, points(lines, key), colour) for name, key, colour in curves]
        if any(each for _, each, _ in found):
            panels.append((title, [curve for curve in found if curve[1]]))
    height = HEIGHT * max(1, len(panels))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="11">',
        "<title>Learning curves</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
    ]
    for i, (title, curves) in enumerate(panels):
        parts += [f'<g transform="translate(0 {i * HEIGHT})">', *_panel(title, curves), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def points(lines: list[dict[str, Any]], key: str) -> list[Point]:
    """(epoch, value) where there is a finite one; of many lines every n-th, and the last."""
    found = [(line["epoch"], line[key]) for line in lines if key in line]
    kept = [(float(x), float(y)) for x, y in found if math.isfinite(y)]
    return kept[-1 :: -math.ceil(len(kept) / MOST_POINTS)][::-1] if kept else []


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers that cover a range."""
    if high <= low:
        low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
    rough = (high - low) / count
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(m * unit for m in (1, 2, 5, 10) if m * unit >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, last + 1)]


def _panel(title: str, curves: list[tuple[str, list[Point], str]]) -> list[str]:
    every = [point for _, each, _ in curves for point in each]
    across = ticks(0.0, max(x for x, _ in every))
    up = ticks(min(y for _, y in every), max(y for _, y in every), 4)
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def place(x: float, y: float) -> Point:
        return (
            LEFT + (x - across[0]) / (across[-1] - across[0]) * (right - LEFT),
            bottom - (y - up[0]) / (up[-1] - up[0]) * (bottom - TOP),
        )

    parts = [f'<text x="{LEFT}" y="16" font-size="13">{escape(title)}</text>']
    for value in up:
        _, y = place(0.0, value)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{right}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>')
    for value in across:
        x, _ = place(value, up[0])
        parts.append(f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{value:g}</text>')
    parts.append(f'<text x="{right}" y="{bottom + 28}" text-anchor="end">epochs</text>')
    parts.append(f'<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="#333"/>')
    for i, (name, each, colour) in enumerate(curves):
        placed = [place(x, y) for x, y in each]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        )
        if len(placed) <= 50:
            parts += [
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{colour}"/>' for x, y in placed
            ]
        if name:
            at = right - 150 + 80 * i
            parts.append(f'<path d="M{at} 12h14" stroke="{colour}" stroke-width="3"/>')
            parts.append(f'<text x="{at + 18}" y="16">{escape(name)}</text>')
    return parts
