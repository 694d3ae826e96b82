"""The published tables as a part of docs/results.md: `python -m keras_vit.results.document docs/results.md`."""

import sys
from pathlib import Path

from keras_vit.results.published import LAYOUTS, published
from keras_vit.results.tables import beside_published
from keras_vit.train import rundir

BEGIN = "<!-- published tables: python -m keras_vit.results.document docs/results.md -->\n"
END = "<!-- end of the published tables -->\n"


def section() -> str:
    """Every published table with its sources, in Markdown."""
    parts = []
    for name, layout in LAYOUTS.items():
        heading = f"Table {name}" if name.isdigit() else name.capitalize()
        sources = dict.fromkeys(row.source for row in published(name))
        table = beside_published(name, [], best=name not in ("5", "others")).markdown()
        listed = "; ".join(str(source) for source in sources)
        parts.append(f"### {heading}: {layout.title}\n\n{table}\nSource: {listed}.\n")
    return "\n" + "\n".join(parts) + "\n"


def updated(page: str) -> str:
    """A page with what stands between the markers made anew.

    Raises:
        ValueError: the markers are not there.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page needs the lines {BEGIN.strip()!r} and {END.strip()!r}.")
    return f"{before}{BEGIN}{section()}{END}{after}"


if __name__ == "__main__":
    for _name in sys.argv[1:]:
        rundir.write_text(Path(_name), updated(Path(_name).read_text("utf-8")))
