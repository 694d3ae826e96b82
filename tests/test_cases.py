"""Every public case is closed by a test, or docs/cases.md says why not."""

import ast
import functools
import re
from pathlib import Path

TESTS = Path(__file__).parent
DOC = TESTS.parent / "docs" / "cases.md"
LINE = re.compile(r"([A-Z]\d\d) ([HML])  (\S.*)")
ROW = re.compile(r"\| ([A-Z]\d\d) \| (\S.*) \|")


def known() -> dict[str, str]:
    """Ids of cases.txt with their titles."""
    lines = (TESTS / "cases.txt").read_text("utf-8").splitlines()
    matches = [LINE.fullmatch(line) for line in lines if not line.startswith("#")]
    assert all(matches), "a line of cases.txt is not `id severity  title`"
    ids = [m[1] for m in matches if m]
    assert len(set(ids)) == len(ids), "an id stands twice in cases.txt"
    return {m[1]: m[3] for m in matches if m}


def marked(source: str) -> set[str]:
    """Ids in `pytest.mark.case(...)` calls, as decorator, pytestmark or mark of a parameter."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or getattr(node.func, "attr", None) != "case":
            continue
        if ast.unparse(node.func) == "pytest.mark.case":
            found |= {ast.literal_eval(argument) for argument in node.args}
    return found


@functools.cache
def all_marked() -> dict[str, str]:
    """Ids that some test file marks, each with one such file."""
    files = sorted(TESTS.rglob("test_*.py"))
    return {i: file.name for file in files for i in marked(file.read_text("utf-8"))}


def listed(section: str) -> set[str]:
    """Ids in the table under a heading of docs/cases.md."""
    text = DOC.read_text("utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    return {m[1] for m in map(ROW.fullmatch, text.splitlines()) if m}


def test_every_case_is_closed_or_explained():
    open_cases = set(known()) - set(all_marked()) - listed("Not yet")
    assert not open_cases, [f"{i} {known()[i]}" for i in sorted(open_cases)]


def test_marks_and_documents_name_known_cases():
    unknown = {i: file for i, file in all_marked().items() if i not in known()}
    assert not unknown
    assert not (listed("Not yet") | listed("In part")) - set(known())


def test_the_document_is_up_to_date():
    closed = listed("Not yet") & set(all_marked())
    assert not closed, f"a test closes {sorted(closed)}: take them out of `Not yet`"
    assert listed("In part") <= set(all_marked())


def test_marks_are_found_wherever_they_stand():
    source = (
        "import pytest\n"
        "pytestmark = pytest.mark.case('A01')\n"
        "@pytest.mark.parametrize('x', [pytest.param(1, marks=pytest.mark.case('A02'))])\n"
        "@pytest.mark.case('A03', 'A04')\n"
        "def test_x(x): ...\n"
    )
    assert marked(source) == {"A01", "A02", "A03", "A04"}
