"""Says whether a wheel holds every file of the three folders and nothing else: check_wheel.py WHEEL."""

import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = {"keras_vit": "keras_vit", "zoo": "keras_vit/zoo", "export": "keras_vit/export"}


def tree() -> set[str]:
    """The files of the checkout under the names they should have in the wheel."""
    found = set()
    for folder, place in FOLDERS.items():
        for file in (ROOT / folder).rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                found.add(f"{place}/{file.relative_to(ROOT / folder).as_posix()}")
    return found


def main(wheel: str) -> int:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        info = next(name.split("/")[0] for name in names if ".dist-info/" in name)
        top_level = archive.read(f"{info}/top_level.txt").decode().split()
    packed = {name for name in names if not name.startswith(info)}
    problems = [f"not in the wheel: {name}" for name in sorted(tree() - packed)]
    problems += [f"not in the tree: {name}" for name in sorted(packed - tree())]
    if top_level != ["keras_vit"]:
        problems.append(f"top level is {top_level}, expected keras_vit alone")
    for name in ("LICENSE", "NOTICE"):
        if f"{info}/licenses/{name}" not in names:
            problems.append(f"{name} is missing")
    print("\n".join(problems) or f"{Path(wheel).name}: {len(packed)} files, the same as the tree")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
