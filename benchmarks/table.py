"""Generated tables in a README."""

from pathlib import Path


def replace_block(path: Path, name: str, text: str) -> None:
    """Puts text between `<!-- NAME:begin -->` and `<!-- NAME:end -->` of a file."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    whole = path.read_text("utf-8")
    start, stop = whole.index(begin) + len(begin), whole.index(end)
    path.write_text(f"{whole[:start]}\n{text}\n{whole[stop:]}", "utf-8")
