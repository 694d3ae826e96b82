"""docs/paper.md: every table, figure and equation has a row, and every command of it runs."""

import re
import shlex
from pathlib import Path

import pytest

from keras_vit import cli

PAGE = Path(__file__).parents[1] / "docs" / "paper.md"
TEXT = PAGE.read_text("utf-8")
COMMANDS = sorted(set(re.findall(r"`(keras-vit [^`]+)`", TEXT)))
# Their networks and images are what is asked about, or they read what ships with the package.
AS_THEY_ARE = ("list", "info", "results", "cost")
# The compiler of TPUs takes half a minute for a network; tests/test_tpu_plan.py runs the command.
ELSEWHERE = ("tpu-plan",)
# Commands that need images of one's own and have no --smoke: their own tests run them.
OWN_TESTS = ("finetune", "dedup")


def rows(heading: str) -> list[list[str]]:
    """Cells of the rows of the table under a heading."""
    section = TEXT.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def numbers(heading: str) -> set[int]:
    found = set()
    for first, *_ in rows(heading):
        for low, high in re.findall(r"(\d+)(?:-(\d+))?", first):
            found |= set(range(int(low), int(high or low) + 1))
    return found


@pytest.mark.parametrize(("heading", "last"), [("Tables", 9), ("Figures", 14), ("Equations", 8)])
def test_nothing_of_the_paper_is_left_out(heading, last):
    assert numbers(heading) == set(range(1, last + 1))


def test_every_appendix_has_a_row():
    named = " ".join(first for first, *_ in rows("Sections and appendices"))
    assert all(re.search(rf"\b{part}\b", named) for part in ["B.1", "B.1.1", "B.1.2"])
    assert {int(n) for n in re.findall(r"D\.(\d+)", named)} == set(range(1, 11))


def test_every_row_says_how():
    kinds = ("exact", "protocol", "miniature", "numbers", "later", "the TPU compiler's figures")
    for heading in ("Tables", "Figures", "Equations", "Sections and appendices"):
        for *_, command, how in rows(heading):
            assert how.startswith(kinds), how
            assert command or how == "later"


def test_the_files_that_it_names_exist():
    root = PAGE.parents[1]
    for name in re.findall(r"`(keras_vit/[^`]+)`", TEXT):
        if (root / "keras_vit").is_dir():  # not beside an installed wheel
            assert (root / name).is_file(), name
    for name in re.findall(r"\]\(([\w./]+)\)", TEXT):
        assert (PAGE.parent / name).is_file(), name


def of(*commands: str) -> list[str]:
    return [line for line in COMMANDS if line.split()[1] in commands]


@pytest.mark.parametrize("line", of(*AS_THEY_ARE))
def test_what_needs_no_images_prints_something(line, capsys):
    assert cli.run(shlex.split(line)[1:]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 3


OTHERS = [
    line for line in COMMANDS if line.split()[1] not in (*AS_THEY_ARE, *ELSEWHERE, *OWN_TESTS)
]
# Nineteen tasks take a minute; tests/test_vtab.py has them all.
LESS = {"vtab": ["--tasks", "dmlab"]}
# One of each command; the others differ in their names only.
FIRST = {line.split()[1]: line for line in reversed(OTHERS)}


@pytest.mark.parametrize(
    "line",
    [
        line if line in FIRST.values() else pytest.param(line, marks=pytest.mark.full)
        for line in OTHERS
    ],
)
def test_every_command_runs_in_small(line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name, *arguments = shlex.split(line)[1:]
    arguments += ["--smoke", *LESS.get(name, [])]
    assert cli.run([name, *arguments]) == 0, capsys.readouterr().err
    assert capsys.readouterr().out.strip()
    if "--out" in line:
        assert any((tmp_path / shlex.split(line)[-1]).rglob("*.*"))
