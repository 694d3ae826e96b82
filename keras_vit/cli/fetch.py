"""`fetch` and `lock`: weights onto this machine, and which ones they are into a file."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from keras_vit.cli.common import Answer, Force, Interrupted, bytes_text, check_file, table

Names = Annotated[
    list[str],
    typer.Argument(
        help="Names of models, or hf://, https:// and gs:// addresses.", show_default=False
    ),
]
CacheDir = Annotated[
    Path | None,
    typer.Option("--cache-dir", help="Where weights are kept.", show_default="KERAS_VIT_CACHE"),
]


@dataclasses.dataclass(frozen=True)
class _Plan:
    """What would be fetched for one name; `here` is the file that is on this machine already."""

    name: str
    source: str | None
    size: int | None
    size_predicted: bool
    target: str | None
    here: str | None


def fetch(
    names: Names,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would be fetched, and fetch nothing.")
    ] = False,
    cache_dir: CacheDir = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Use no network: say what is here and what is not.")
    ] = False,
) -> Answer:
    """Fetch weights into the cache, checked, so that loading them needs no network.

    An interrupted download goes on where it stopped when the same command runs again.
    """
    plans = [_plan(name, cache_dir) for name in _named(names)]
    if dry_run:
        return Answer([dataclasses.asdict(plan) for plan in plans], _view(plans))
    found = []
    for plan in plans:
        try:
            path = _fetch(plan.name, cache_dir, offline or None)
        except KeyboardInterrupt as stopped:
            done = "".join(f" {f['name']} is here." for f in found)
            raise Interrupted(
                f"{stopped or 'run the same command again to go on'}.{done}"
            ) from None
        size = _size(path)
        found.append(
            {"name": plan.name, "path": str(path), "bytes": size, "was_here": bool(plan.here)}
        )
    rows = [(f["name"], f["path"], bytes_text(f["bytes"])) for f in found]
    return Answer(found, (table(("name", "path", "size"), rows, 2),))


def lock(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Names of models or addresses; all of the cache without.", show_default=False
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path(
        "keras-vit.lock"
    ),
    cache_dir: CacheDir = None,
    force: Force = False,
) -> Answer:
    """Write down the hashes, sizes and commits of the weights that are here, in a file to commit.

    Where that file is the working directory's keras-vit.lock, or KERAS_VIT_LOCK names it, loading
    and fetching refuse other files than it lists.
    """
    from keras_vit.zoo.fetch import cache_folder
    from keras_vit.zoo.fetching.lock import entries_of, lock_values, write_json

    check_file(output, (".lock", ".json"), force)
    folder = cache_folder(cache_dir)
    if names:
        entries = [e for name in _named(names) for e in _entries(name, cache_dir)]
    else:
        entries = entries_of(folder)
    if not entries:
        raise ValueError(
            f"nothing was fetched into {folder} yet: keras-vit fetch NAME, or name models."
        )
    values = lock_values(entries)
    write_json(output, values)
    rows = [(key, f["sha256"][:16], bytes_text(f["size"])) for key, f in values["files"].items()]
    view = (table(("file", "sha256", "size"), rows, 2), f"written: {output}")
    return Answer({"output": str(output), **values}, view)


def _named(names: list[str]) -> list[str]:
    """The names as loading reads them: the address of a known checkpoint is that checkpoint."""
    from keras_vit.zoo.addressed import named

    return [named(name) for name in names]


def _is_address(name: str) -> bool:
    from keras_vit.zoo.addressed import is_address

    return is_address(name)


def _fetch(name: str, cache_dir: Path | None, offline: bool | None) -> Path:
    if _is_address(name):
        from keras_vit.zoo.fetching.addresses import fetch_repo, fetch_url

        by = fetch_repo if name.startswith("hf://") else fetch_url
        return by(name, cache_dir=cache_dir, offline=offline, progress=True)
    from keras_vit.zoo.api import card
    from keras_vit.zoo.fetch import fetch as fetch_card

    return fetch_card(card(name), cache_dir=cache_dir, offline=offline, progress=True)


def _plan(name: str, cache_dir: Path | None) -> _Plan:
    if _is_address(name):
        from keras_vit.zoo.fetching.addresses import planned

        target, here = planned(name, cache_dir)
        return _Plan(name, name, _size(here) if here else None, False, target, _text(here))
    from keras_vit.zoo import fetch as cards
    from keras_vit.zoo.api import card as card_of

    card = card_of(name)
    source, target, here = cards.planned(card, cache_dir)
    return _Plan(card.name, source, card.size, card.size_predicted, target, _text(here))


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _view(plans: list[_Plan]) -> tuple[Any, ...]:
    lines = []
    for plan in plans:
        about = "about " if plan.size_predicted else ""
        size = f"{about}{bytes_text(plan.size)}" if plan.size is not None else "size not known"
        lines.append(f"{plan.name}, {size}")
        lines.append(f"  from  {plan.source or 'the package'}")
        if plan.target:
            lines.append(f"  to    {plan.target}")
        lines.append(f"  here  {plan.here or 'no'}")
    return tuple(lines)


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.iterdir() if file.is_file())


def _entries(name: str, cache_dir: Path | None) -> list:
    """What a lock file lists for one name."""
    if _is_address(name):
        from keras_vit.zoo.fetching.addresses import entries

        return entries(name, cache_dir)
    from keras_vit.zoo.api import card
    from keras_vit.zoo.fetch import lock_entry

    return [lock_entry(card(name), cache_dir)]
