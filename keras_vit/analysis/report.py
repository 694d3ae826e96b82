"""The inspection as one HTML file that stands alone: figures inside, numbers behind each, no network.

Names of images and labels come from users and files: everything is escaped, and the page's own policy
allows no script and no request.
"""

import base64
import json
from html import escape
from typing import Any

import numpy as np

MOST_NUMBERS = 20_000  # of a part in the page; more are in the arrays beside it
DIGITS = 4

# part -> (title, how to read it, arrays behind it)
SECTIONS = {
    "filters": (
        "Filters",
        "What the first layer looks for: the directions along which its filters differ most, as in "
        "Figure 7 (left) of the paper. Waves and colour edges mean that it has learned; noise means "
        "that it has not.",
        ("filters_variance", "filters"),
    ),
    "positions": (
        "Positions",
        "Each tile is one patch and shows how similar its position embedding is to that of every "
        "other patch, from -1 to 1, as in Figures 7 (centre) and 10. A bright spot at the patch's "
        "own place, with its row and column, is what trained models show.",
        ("positions",),
    ),
    "distance": (
        "Attention distance",
        "How many pixels away a head looks on average, as in Figures 7 (right) and 11. Low dots are "
        "heads that look nearby, dots at the dashed line look everywhere alike.",
        ("distance",),
    ),
    "rollout": (
        "Attention rollout",
        "Which patches the output attends to, followed through all layers, as in Figures 6 and 14: "
        "heads averaged, the identity added for the residual connections, layers multiplied.",
        ("rollout",),
    ),
    "maps": (
        "Attention of single heads",
        "Where single heads of the chosen layers look. Each map is scaled to its own largest weight.",
        ("maps",),
    ),
    "features": (
        "Patch features",
        "The tokens of the patches after the last layer, by their first three principal components "
        "over all images shown: patches of one colour mean the same to the model.",
        (),
    ),
}

STYLE = """
:root { color-scheme: light dark; --text: #1c2024; --dim: #5a626b; --back: #ffffff; --card: #f3f5f7;
  --line: #d3d8de; --link: #0b57b0; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e9ec; --dim: #a4adb6; --back: #14171a;
  --card: #1f2429; --line: #3a424a; --link: #8ab8f5; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back);
  max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; overflow-wrap: anywhere; } h2 { margin-top: 2.5rem; }
p.dim, caption { color: var(--dim); } caption { text-align: left; }
a { color: var(--link); }
figure { margin: 1rem 0; } figure img { max-width: 100%; height: auto; background: #fff;
  padding: .5rem; border: 1px solid var(--line); border-radius: 6px; box-sizing: border-box; }
table { border-collapse: collapse; margin: .5rem 0; } td, th { padding: .2rem .7rem; text-align: left;
  border-bottom: 1px solid var(--line); overflow-wrap: anywhere; } td.n, th.n { text-align: right; }
pre, code { background: var(--card); border-radius: 4px; overflow-wrap: anywhere; }
pre { padding: .7rem; overflow: auto; max-height: 20rem; white-space: pre-wrap; }
.scroll { overflow-x: auto; }
"""
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def page(
    summary: dict[str, Any],
    arrays: dict[str, np.ndarray],
    drawn: dict[str, bytes],
    command: str | None = None,
) -> str:
    """The report.

    Args:
        summary: of the inspection.
        arrays: of the inspection, for the numbers behind the figures.
        drawn: part -> PNG.
        command: the command line that made it.
    """
    model = _text(summary["model"])
    body = [f"<h1>Inside {model}</h1>", *_head(summary, command)]
    for part, (title, reading, names) in SECTIONS.items():
        if part in drawn:
            body += _section(part, title, reading, names, summary, arrays, drawn[part])
        elif part in summary["notes"]:
            body += [f"<h2>{title}</h2>", f"<p>{_text(summary['notes'][part])}</p>"]
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Inside {model}</title>",
            f"<style>{STYLE}</style>",
            "</head>",
            "<body>",
            *body,
            "</body>",
            "</html>",
            "",
        ]
    )


def _head(summary: dict[str, Any], command: str | None) -> list[str]:
    (height, width), (down, across) = summary["grid"], summary["pixels_per_patch"]
    lines = [
        f"<p>{height} × {width} patches, {down} × {across} pixels from one to the next. All arrays "
        f"are in <code>inspection.npz</code>, the numbers in <code>inspection.json</code>, both "
        f"beside this page.</p>"
    ]
    if command:
        lines.append(f"<pre>{_text(command)}</pre>")
    rows: list[tuple[str, ...]] = [(name,) for name in summary["images"]]
    heads: tuple[str, ...] = ("image",)
    if summary["predictions"]:
        heads = ("image", "predicted class", "probability")
        rows = [
            (*row, best["label"], f"{best['probability']:.1%}")
            for row, best in zip(rows, summary["predictions"], strict=True)
        ]
    return [*lines, *_table(heads, rows, 2)]


def _section(part, title, reading, names, summary, arrays, png) -> list[str]:
    picture = base64.b64encode(png).decode()
    numbers = dict(summary.get(part, {}))
    numbers |= {name: _numbers(arrays[name]) for name in names if name in arrays}
    text = json.dumps(numbers, ensure_ascii=False)
    whole = base64.b64encode(text.encode("utf-8", "replace")).decode()
    return [
        f'<h2 id="{part}">{title}</h2>',
        f"<p>{reading}</p>",
        "<figure>",
        f'<img src="data:image/png;base64,{picture}" alt="{_alt(part, title, summary)}">',
        "</figure>",
        *_rows(part, summary),
        f"<details><summary>Numbers of “{title}”</summary>",
        f'<p><a download="{part}.json" href="data:application/json;base64,{whole}">'
        f"Download as {part}.json</a></p>",
        f"<pre>{_text(text)}</pre>",
        "</details>",
    ]


def _rows(part: str, summary: dict[str, Any]) -> list[str]:
    """The table of numbers that one wants to read without opening anything."""
    found = summary.get(part, {})
    if part == "distance":
        rows = [
            (str(layer), *(f"{v:.1f}" for v in (min(heads), sum(heads) / len(heads), max(heads))))
            for layer, heads in enumerate(found["per_layer_and_head"])
        ]
        told = (
            f"pixels, mean over {found['images']} images; everywhere alike: {found['uniform']:.1f}"
        )
        return _table(("layer", "nearest head", "mean", "farthest head"), rows, 1, told)
    if part == "rollout":
        rows = [
            (name, str(p["row"]), str(p["column"]), f"{p['times_the_mean']:.1f}")
            for name, p in zip(summary["images"], found["peaks"], strict=True)
        ]
        told = f"the patch with the largest weight; whose attention: {found['query']}"
        return _table(("image", "row, from 0", "column, from 0", "times the mean"), rows, 1, told)
    if part == "positions":
        rows = [
            (what, "–" if found[key] is None else f"{found[key]:.3f}")
            for what, key in (
                ("patches that touch, mean", "mean_of_neighbours"),
                ("all pairs of patches, mean", "mean_of_others"),
                ("lowest", "lowest"),
            )
        ]
        return _table(("cosine similarity", ""), rows, 1)
    return []


def _alt(part: str, title: str, summary: dict[str, Any]) -> str:
    """What the figure shows, for who cannot see it."""
    shown = ", ".join(summary["images"])
    height, width = summary["grid"]
    found = summary.get(part, {})
    if part == "distance":
        low, high = min(found["per_layer"]), max(found["per_layer"])
        about = (
            f"mean attention distance of every head by layer; means of layers lie between {low:.0f} "
            f"and {high:.0f} pixels, {found['uniform']:.0f} would be everywhere alike"
        )
    elif part == "filters":
        about = f"{found['components']} principal components of the first filters as small pictures"
    elif part == "positions":
        about = f"{height} by {width} tiles with the similarity of position embeddings"
    else:
        about = f"{title.lower()} of {shown}"
    return escape(clean(f"Figure: {about}."))


def _numbers(array: np.ndarray) -> Any:
    if array.size > MOST_NUMBERS:
        return f"{array.size} numbers of shape {array.shape}: in inspection.npz"
    return np.round(array.astype(np.float64), DIGITS).tolist()


def _table(heads, rows, texts: int, caption: str | None = None) -> list[str]:
    """A table whose first `texts` columns are texts and the others numbers."""

    def cells(tag: str, values) -> str:
        return "".join(
            f"<{tag}{'' if i < texts else ' class=n'}>{_text(str(v))}</{tag}>"
            for i, v in enumerate(values)
        )

    lines = ['<div class="scroll"><table>']
    if caption:
        lines.append(f"<caption>{_text(caption)}</caption>")
    lines += [f"<tr>{cells('th', heads)}</tr>", *(f"<tr>{cells('td', row)}</tr>" for row in rows)]
    return [*lines, "</table></div>"]


def _text(value: str) -> str:
    return escape(clean(value))


def clean(value: str) -> str:
    """Without control characters and halves of surrogate pairs, which no HTML file can hold."""
    value = "".join(c if c.isprintable() or c in "\n\t" else "�" for c in value)
    return value.encode("utf-8", "replace").decode()
