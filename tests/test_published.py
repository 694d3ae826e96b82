"""The published rows reproduce the totals that are printed beside them, and agree with the cards and recipes."""

import importlib
import re
import statistics
from pathlib import Path

import pytest

from keras_vit.results import document
from keras_vit.results.names import VTAB_GROUPS, column_name, data_name, model_name
from keras_vit.results.published import LAYOUTS, layout_name, published
from keras_vit.results.tables import avg5, beside_published, mean_of
from keras_vit.zoo.cards import all_cards

# Rows x columns, counted in the paper; what is printed as – is not there.
COUNTS = {"2": 8 * 4 + 3 + 1, "5": 6 * 14, "6": 18 * 7, "7": 4 * 5, "8": 8, "9": 19 * 3}
# Table 6's average of five, from a calculation of its own.
AVG5 = {
    ("ViT-B/32", 7): 93.61, ("ViT-B/16", 7): 95.02, ("ViT-L/32", 7): 95.05, ("ViT-L/16", 7): 95.75,
    ("ViT-L/16", 14): 96.02, ("ViT-H/14", 14): 96.28, ("R50x1", 7): 90.73, ("R50x2", 7): 93.18,
    ("R101x1", 7): 92.95, ("R152x1", 7): 93.62, ("R152x2", 7): 94.96, ("R152x2", 14): 95.11,
    ("R200x3", 14): 95.68, ("R50x1+ViT-B/32", 7): 95.12, ("R50x1+ViT-B/16", 7): 95.49,
    ("R50x1+ViT-L/32", 7): 95.52, ("R50x1+ViT-L/16", 7): 95.79, ("R50x1+ViT-L/16", 14): 95.89,
}  # fmt: skip
GROUPS = {
    "ViT-H/14 JFT-300M": (86.69, 87.00, 65.03, 77.63),
    "ViT-L/16 JFT-300M": (85.56, 86.72, 62.96, 76.28),
    "ViT-L/16 ImageNet-21k": (83.27, 84.65, 57.50, 72.72),
}


def values(table, *keys):
    """{(model, settings...): {column: percent}} of a table."""
    found = {}
    for row in published(table):
        place = (row.model, *(row.settings[k] for k in keys))
        scale = 100 if row.unit == "share" else 1
        found.setdefault(place, {})[column_name(row)] = scale * row.value
    return found


def test_every_table_is_complete_and_every_number_has_a_source():
    assert {table: len(published(table)) for table in COUNTS} == COUNTS
    rows = published()
    # BiT-L's mean over VTAB is a cell of Table 2 and a bar of Figure 2.
    assert len(rows) == len({row.key for row in rows}) + 1, "a number stands there twice"
    for row in rows:
        assert row.study == "published" and row.source, row
        assert row.unit == "number" or row.value > 0.25, f"{row} is no accuracy of the paper"
        assert row.std is None or row.std < 0.02
    table_of = {t: {r.source for r in published(t)} for t in COUNTS if t != "2"}
    assert table_of == {t: {f"arXiv 2010.11929, Table {t}"} for t in table_of}


def test_values_are_the_printed_digits():
    (row,) = [
        r for r in published(5) if r.model == "ViT-L/16" and r.settings["pretraining"] == "ImageNet-21k"
        and column_name(r) == "ReaL"
    ]  # fmt: skip
    assert row.value == 0.8840 and row.metric == "real" and row.data == "ImageNet"
    (row,) = [r for r in published(2) if r.model.startswith("BiT") and r.data == "VTAB"]
    assert (row.value, row.std) == (0.7629, 0.017)


def test_avg5_of_table_6():
    found = {}
    for row in published(6):
        found.setdefault((row.model, row.settings["epochs"]), []).append(row)
    # Half a unit of the last digit.
    assert {place: 100 * avg5(rows) for place, rows in found.items()} == pytest.approx(
        AVG5, abs=0.0051
    )


def test_means_of_table_7():
    columns = LAYOUTS["7"].means["mean"]
    found = values(7, "optimizer")
    means = {place: mean_of(row, columns) for place, row in found.items()}
    printed = {
        ("R50x1", "Adam"): 89.33,
        ("R50x1", "SGD"): 88.79,
        ("R152x2", "Adam"): 94.01,
        ("R152x2", "SGD"): 93.72,
    }
    assert means == pytest.approx(printed, abs=0.0051)


def test_table_9_gives_the_printed_vtab_totals_and_groups():
    totals = {
        f"{r.model} {r.settings['pretraining']}": 100 * r.value
        for r in published(2)
        if r.data == "VTAB" and r.model.startswith("ViT")
    }
    for place, row in values(9, "pretraining").items():
        *groups, total = GROUPS[" ".join(place)]
        for name, group in zip(VTAB_GROUPS, groups, strict=True):
            tasks = [row[f"VTAB {task}"] for task in VTAB_GROUPS[name]]
            assert statistics.fmean(tasks) == pytest.approx(group, abs=0.0051)
        assert len(row) == 19
        # Means of numbers with one digit.
        assert statistics.fmean(row.values()) == pytest.approx(total, abs=0.01)
        assert totals[" ".join(place)] == total
    figure = {r.data: 100 * r.value for r in published("figure 2") if r.model == "ViT-H/14"}
    assert list(figure.values()) == pytest.approx([77.63, 86.69, 87.00, 65.03], abs=0.0051)


def test_the_comparisons_of_the_paper_are_there():
    found = {(r.model, r.data, r.metric): 100 * r.value for r in published("figure 2")}
    assert found["BiT-L R152x4", "VTAB", "accuracy"] == pytest.approx(76.29)
    assert found["VIVI-Ex-100% R50x3", "VTAB", "accuracy"] == pytest.approx(70.5)
    assert found["S4L R50x1", "VTAB", "accuracy"] == pytest.approx(67.97)
    assert all(r.settings["note"] for r in published("figure 2") if r.model.startswith("S4L"))
    others = {(r.model, r.data, r.metric): 100 * r.value for r in published("others")}
    assert others["iGPT-XL", "ImageNet", "accuracy"] == pytest.approx(72.0)
    assert others["ViT-H/14", "ObjectNet", "top5"] == pytest.approx(82.1)
    noisy = {column_name(r): r.value for r in published(2) if r.model.startswith("Noisy")}
    assert noisy == {"ImageNet": 0.884, "ReaL": 0.9055, "TPUv3-core-days": 12300}


def test_tables_5_and_6_agree_where_they_are_of_the_same_models():
    """All 14-epoch rows but H/14's, where the paper differs from itself."""
    wide, scaling = values(5, "pretraining"), values(6, "epochs")
    same = {"ViT-B/32": 7, "ViT-B/16": 7, "ViT-L/32": 7, "ViT-L/16": 14}
    for model, epochs in same.items():
        row = scaling[model, epochs]
        assert wide[model, "JFT-300M"] == {c: row[c] for c in wide[model, "JFT-300M"]}


# Recipe -> the column of Table 5, or the rows, that its docstring repeats.
REPEATED = {
    ("paper_finetune", "imagenet"): ("ImageNet", "ImageNet-21k"),
    ("paper_finetune", "cifar10"): ("CIFAR-10", "ImageNet-21k"),
    ("paper_finetune", "cifar100"): ("CIFAR-100", "ImageNet-21k"),
    ("paper_finetune", "pets"): ("Pets", "ImageNet-21k"),
    ("paper_finetune", "flowers"): ("Flowers-102", "ImageNet-21k"),
    ("paper", "imagenet21k"): ("ImageNet", "ImageNet-21k"),
}


def expected(module: str, function: str) -> str:
    made = getattr(importlib.import_module(f"keras_vit.train.recipes.{module}"), function)
    text = " ".join(made.__doc__.split())
    return text[text.index("Expected:") : text.index("Source:")]


@pytest.mark.parametrize(("recipe", "place"), REPEATED.items(), ids=str)
def test_recipes_expect_what_table_5_says(recipe, place):
    column, pretraining = place
    text = re.sub(r"with high_resolution.*", "", expected(*recipe))
    told = dict(re.findall(r"\b([BLH]/\d+) (\d\d\.\d\d)", text))
    assert len(told) >= 4
    table = values(5, "pretraining")
    for model, number in told.items():
        assert table[f"ViT-{model}", pretraining][column] == pytest.approx(float(number))


def test_recipes_expect_what_tables_2_5_and_6_say():
    totals = [f"{100 * r.value:.2f}" for r in published(2) if r.data == "VTAB"][:3]
    assert re.findall(r"\d\d\.\d\d", expected("paper_finetune", "vtab")) == totals
    text = expected("paper", "jft")
    assert len(re.findall(r"\d\d\.\d\d", text)) >= 10
    imagenet = {f"{row['ImageNet']:.2f}" for row in values(6, "epochs").values()}
    assert set(re.findall(r"\d\d\.\d\d", text)) <= imagenet
    text = expected("paper", "imagenet")
    last = re.findall(r"\d\d\.\d\d", text)[-4:]
    table = values(5, "pretraining")
    models = ("ViT-B/16", "ViT-B/32", "ViT-L/16", "ViT-L/32")
    assert [float(n) for n in last] == pytest.approx(
        [table[model, "ImageNet"]["ImageNet"] for model in models]
    )


def test_the_card_of_bit_m_says_the_same_of_vtab():
    card = all_cards()["BiT-R152x4@bit_in21k"]
    (metric,) = [m for m in card.metrics if m.dataset == "vtab-1k"]
    (row,) = [r for r in published("figure 2") if r.model.startswith("BiT-M") and r.data == "VTAB"]
    assert 100 * row.value == pytest.approx(metric.value) and "big_transfer" in metric.source


@pytest.mark.parametrize(
    ("name", "study", "expected"),
    [
        ("tfds:oxford_iiit_pet:test", "", "Pets"),
        ("tfds:oxford_flowers102", "", "Flowers-102"),
        ("tfds:cifar10/1.0.0:test[:10%]", "", "CIFAR-10"),
        ("tfds:imagenet2012:validation", "reproduce", "ImageNet"),
        ("imagenet2012", "", "ImageNet"),
        ("tfds:cifar100", "vtab", "VTAB CIFAR-100"),
        ("dsprites-orientation", "vtab", "VTAB dSpr-Ori"),
        ("tfds:svhn_cropped", "vtab", "VTAB SVHN"),
        ("tfds:clevr", "vtab", "tfds:clevr"),
        ("VTAB Pets", "published", "VTAB Pets"),
        ("VTAB natural", "published", "VTAB natural"),
        ("folder:cifar10", "", "folder:cifar10"),
        ("my birds", "", "my birds"),
    ],
)
def test_data_sets_go_by_many_names(name, study, expected):
    assert data_name(name, study) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("R50x1+ViT-B/32", "R50+ViT-B/32"),
        ("R152x2", "BiT-R152x2"),
        ("BiT-L R152x4", "BiT-R152x4"),
        ("ViT-B/16@orig_in21k", "ViT-B/16"),
        ("vit_base_patch16_224", "ViT-B/16"),
        ("iGPT-XL", "iGPT-XL"),
    ],
)
def test_models_go_by_many_names(name, expected):
    assert model_name(name) == expected


def test_unknown_tables_are_told():
    assert layout_name("Table 6") == "6" and layout_name("figure_2") == "figure 2"
    with pytest.raises(ValueError, match=r"no published table '4'.*figure 2"):
        published("4")


def test_every_layout_prints_all_its_numbers():
    for name, layout in LAYOUTS.items():
        table = beside_published(name, [])
        cells = [c for row in table.rows for c in row[table.left :]]
        assert sum(c != "–" for c in cells) >= len(published(name)), name
        assert len(table.rows) >= 3 and layout.title


ROOT = Path(__file__).parent.parent


def test_the_page_has_the_tables_of_today():
    page = (ROOT / "docs" / "results.md").read_text("utf-8")
    assert page == document.updated(page), (
        "run python -m keras_vit.results.document docs/results.md"
    )
    with pytest.raises(ValueError, match="the page needs the lines"):
        document.updated("no markers")


def test_the_examples_of_the_page_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "results.md").read_text("utf-8")
    space = {}
    for block in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S):
        exec(block, space)
    out = capsys.readouterr().out
    assert "| ViT-B/16@orig_in21k | ImageNet-21k | measured here |" in out and "| 94.10 |" in out
