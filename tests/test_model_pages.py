"""The documents made from the cards are current, complete and short where they must be."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

from keras_vit.zoo import groups, names, pages, table
from keras_vit.zoo.cards import all_cards
from keras_vit.zoo.variants import VARIANTS

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("name", list(table.documents()))
def test_docs_hold_the_generated_pages(name):
    assert (DOCS / name).read_text("utf-8") == table.documents()[name], (
        "run: python -m keras_vit.zoo.table --write docs --replace README.md"
    )


def test_no_page_is_left_over():
    assert {f"models/{path.name}" for path in (DOCS / "models").iterdir()} | {"models.md"} == set(
        table.documents()
    )


def test_every_variant_is_on_one_page_and_every_card_is_told_in_full():
    on_pages = [name for page in pages.PAGES for name in pages.variants_of(page)]
    assert sorted(on_pages) == sorted(VARIANTS)
    text = "".join(table.documents().values())
    for card in all_cards().values():
        if not card.tag.startswith("vtab_"):
            start = text.index(f"## `{card.name}`\n")
            part = text[start : text.find("\n## ", start)]
            for value in (card.description, card.file, *card.sources, card.license, card.note):
                assert (value or "") in part, card.name
            assert all(metric.source in part for metric in card.metrics)
    assert text.count("NETWORK@vtab_TASK_runN") == 1


def test_every_card_belongs_to_one_group_and_the_counts_hold():
    found = dict.fromkeys(groups.GROUPS, 0)
    for card in all_cards().values():
        found[groups.group_of(card)] += 1
    assert {group.title: count for group, count in found.items()} == {
        group.title: group.count for group in groups.GROUPS
    }
    shown = dict(re.findall(r"^\| (.+?) \| .*? \| (\d+) \|$", table.document(), re.M))
    for group in groups.GROUPS:
        assert shown[group.title] == str(group.count)
    assert sum(found.values()) == len(all_cards()) == 455


def test_a_card_of_no_group_is_refused():
    stranger = dataclasses.replace(all_cards()["ViT-B/16@orig_in21k"], tag="unheard_of")
    with pytest.raises(ValueError, match="belongs to 0 groups"):
        groups.group_of(stranger)


def test_the_summary_is_short():
    assert len(table.summary().splitlines()) == 2 + len(pages.PAGES)
    counts = [int(n) for n in re.findall(r"\| \d+ \| (\d+) \|", table.summary())]
    assert sum(counts) == len(all_cards())


def test_document_marks_the_default_of_every_released_variant():
    assert table.document().count("**`") == len(names.DEFAULTS)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ViT-B/16@orig_in21k_ft_in1k_384",
         "resize to 384 px, ignoring the aspect ratio, bilinear, (x - 127.5) / 127.5"),
        ("DINOv2-S/14@dinov2_lvd142m",
         "shorter side to 518 px, bicubic with antialias, rounded to whole numbers, (x - 123.675/116.28/103.53) / "
         "58.395/57.12/57.375"),
        ("FlexiViT-S@flexi_in1k_90ep",
         "resize to 272 px, ignoring the aspect ratio, bilinear, truncated to whole numbers, centre "
         "crop 240, (x - 127.5) / 127.5"),
    ],
)  # fmt: skip
def test_preprocessing_is_told_in_words(name, text):
    assert pages.preprocessing_text(all_cards()[name]) == text


def test_table_row_says_who_reports_the_accuracy():
    card = all_cards()["ViT-S/16@augreg_in21k_ft_in1k_384"]
    row = pages.table([card]).splitlines()[2]
    assert row == (
        "| `ViT-S/16@augreg_in21k_ft_in1k_384` | 22.2 | 384 | 1,000 | 83.73 authors, 83.814 timm | 89 "
        "| Apache-2.0 |"
    )
    measured = dataclasses.replace(
        card,
        metrics=(dataclasses.replace(card.metrics[0], dataset="fashion_mnist", source="run: x"),),
    )
    assert "83.73 run (fashion_mnist)" in pages.table([measured])


def test_block_is_replaced_between_its_markers_only():
    text = f"# A\n\n{table.BEGIN}\nold\n{table.END}\n\nb\n"
    new = table.replace_block(text)
    assert new == f"# A\n\n{table.BEGIN}\n{table.summary()}{table.END}\n\nb\n"
    assert table.replace_block(new) == new


@pytest.mark.parametrize(
    "text", ["", table.BEGIN, f"{table.END}{table.BEGIN}", f"{table.BEGIN}{table.END}" * 2]
)
def test_block_without_its_markers_is_refused(text):
    with pytest.raises(ValueError, match="must hold"):
        table.replace_block(text)


def test_the_table_is_a_command(tmp_path, capsys):
    table.main(["--summary"])
    assert capsys.readouterr().out == table.summary()
    readme = tmp_path / "README.md"
    readme.write_text(f"{table.BEGIN}\n{table.END}\n")
    table.main(["--replace", str(readme)])
    assert table.summary() in readme.read_text()
    assert list(tmp_path.iterdir()) == [readme]
    table.main(["--write", str(tmp_path / "docs")])
    assert capsys.readouterr().out == ""
    written = [p for p in (tmp_path / "docs").rglob("*") if p.is_file()]
    assert len(written) == len(table.documents())
    table.main([])
    assert capsys.readouterr().out == table.document()


def test_listing_models_imports_no_keras():
    code = (
        "import sys, keras_vit.zoo.cards as c, keras_vit.zoo.names as n, keras_vit.zoo.fetch, "
        "keras_vit.zoo.table as t; c.all_cards(); n.resolve('vit-b16'); t.document(); "
        "heavy = {'keras', 'tensorflow', 'jax', 'torch', 'numpy'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
