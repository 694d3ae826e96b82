"""The store of results and its tables: nothing lost, nothing doubled, nothing mixed up."""

import csv
import errno
import io
import json
import os
import statistics
import subprocess
import sys

import pytest

from keras_vit import cli
from keras_vit.results import store
from keras_vit.results.published import published
from keras_vit.results.store import Result
from keras_vit.results.tables import avg5, beside_published, cell, pivot, study_tables
from keras_vit.train import rundir

NAME = "results.jsonl"


def row(value=0.5, model="ViT-B/16", data="tfds:cifar10:test", metric="accuracy", **fields):
    settings = fields.pop("settings", {})
    study = fields.pop("study", "transfer")
    return Result(study, model, data, metric, value, settings=settings, **fields)


ADD_SOME = """
import sys
from keras_vit.results import store
from keras_vit.results.store import Result
path, writer = sys.argv[1], int(sys.argv[2])
for i in range(12):
    made = Result("s", "m", "d", "accuracy", i / 12, settings={"writer": writer, "number": i})
    store.add(path, [made])
"""


def test_what_is_added_is_read_back(tmp_path):
    rows = [
        row(0.25, interval=(0.2, 0.3), std=0.01, examples=12, settings={"shots": 5, "lr": 0.03}),
        row(859.0, metric="exaflops", unit="number", source="arXiv 2010.11929, Table 6"),
        row(0.5, model="möwe|\n", when=store.now(), versions={"keras": "3"}, command="keras-vit x"),
    ]
    assert store.add(tmp_path / "deep" / NAME, rows) == rows
    assert store.read(tmp_path / "deep" / NAME) == rows


def test_a_later_measurement_replaces_the_same_one_only(tmp_path):
    path = tmp_path / NAME
    settings = {"shots": 5, "seed": 0}
    store.add(path, [row(0.1, settings=settings), row(0.2, data="pets", settings=settings)])
    same = row(0.3, settings={"seed": 0, "shots": 5}, when="later", examples=7)  # another order
    other = row(0.4, settings={"seed": 1, "shots": 5})
    found = store.add(path, [same, other])
    assert [(r.data, r.value) for r in found] == [
        ("pets", 0.2),
        ("tfds:cifar10:test", 0.3),
        ("tfds:cifar10:test", 0.4),
    ]


def test_several_processes_lose_nothing(tmp_path):
    path = tmp_path / NAME
    writers = [
        subprocess.Popen([sys.executable, "-c", ADD_SOME, str(path), str(w)]) for w in range(3)
    ]
    assert [writer.wait(120) for writer in writers] == [0, 0, 0]
    found = {(r.settings["writer"], r.settings["number"]) for r in store.read(path)}
    assert found == {(w, i) for w in range(3) for i in range(12)}
    assert len(path.with_suffix(".csv").read_text("utf-8").splitlines()) == 1 + 36


def test_a_torn_line_is_told_and_nothing_is_overwritten(tmp_path):
    path = tmp_path / NAME
    store.add(path, [row(0.1), row(0.2, data="pets")])
    torn = path.read_text("utf-8")[:-30]
    path.write_text(torn, "utf-8")
    for attempt in (lambda: store.read(path), lambda: store.add(path, [row(0.3)])):
        with pytest.raises(ValueError, match=r"line 2 of .*results\.jsonl is no result"):
            attempt()
    with pytest.raises(ValueError, match="line 2"):
        store.check(path)
    assert path.read_text("utf-8") == torn


@pytest.mark.parametrize(
    "line",
    ["[]", "{}", "7", '{"study": "a"}', json.dumps({**row().to_dict(), "value": "0.5"}), "\x00"],
)
def test_other_lines_are_told(tmp_path, line):
    path = tmp_path / NAME
    path.write_text(line + "\n", "utf-8")
    with pytest.raises(ValueError, match="line 1 of"):
        store.read(path)


def test_a_full_disk_leaves_the_old_store(tmp_path, monkeypatch):
    path = tmp_path / NAME
    before = store.add(path, [row(0.1)])

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(rundir.Path, "write_bytes", full)
    monkeypatch.setattr(rundir.Path, "write_text", full)
    with pytest.raises(OSError, match=r"results\.jsonl \(No space left on device\)"):
        store.add(path, [row(0.2, data="pets")])
    monkeypatch.undo()
    assert store.read(path) == before


def test_what_is_no_store_is_refused_before_any_work(tmp_path):
    for attempt in (store.check, lambda path: store.add(path, [row()])):
        with pytest.raises(ValueError, match=r"\.jsonl file, got .*results\.csv"):
            attempt(tmp_path / "results.csv")
    assert not list(tmp_path.iterdir())
    store.check(tmp_path / NAME)
    assert not (tmp_path / NAME).exists()


def test_values_are_checked():
    with pytest.raises(ValueError, match="divide percentages by 100"):
        row(90.7)
    with pytest.raises(ValueError, match="between 0 and 1"):
        row(float("nan"))
    with pytest.raises(ValueError, match="unit must be one of"):
        row(unit="percent")


def test_the_csv_beside_the_store_says_the_same(tmp_path):
    path = tmp_path / NAME
    rows = [row(0.25, interval=(0.2, 0.3), settings={"shots": 5}), row(0.5, data='a "b", c')]
    store.add(path, rows)
    found = list(csv.DictReader(io.StringIO(path.with_suffix(".csv").read_text("utf-8"))))
    assert [float(r["value"]) for r in found] == [0.25, 0.5]
    assert [r["settings.shots"] for r in found] == ["5", ""]
    assert found[1]["data"] == 'a "b", c' and found[0]["interval"] == "0.2 0.3"


FIVE = {
    "tfds:imagenet2012:validation": (0.9, "real"),
    "tfds:cifar10": (0.8, "accuracy"),
    "CIFAR-100": (0.7, "accuracy"),
    "tfds:oxford_iiit_pet:test": (0.6, "accuracy"),
    "tfds:oxford_flowers102:test": (0.45, "accuracy"),
}


def test_avg5_needs_all_five():
    rows = [row(value, data=data, metric=metric) for data, (value, metric) in FIVE.items()]
    rows.append(row(0.1, data="ImageNet"))  # its accuracy is none of them
    assert avg5(rows) == pytest.approx((0.9 + 0.8 + 0.7 + 0.6 + 0.45) / 5)
    for missing in FIVE:
        assert avg5([r for r in rows if r.data != missing or r.metric == "x"]) is None


def test_cells():
    assert cell(row(0.98765), decimals=1) == "98.8"
    assert cell(row(0.98765, std=0.0123)) == "98.77 ± 1.23"
    assert cell(row(0.5, interval=(0.4, 0.6)), spread="interval", decimals=0) == "50 (40–60)"
    assert cell(row(0.5, std=0.1, interval=(0.4, 0.6)), spread=None) == "50.00"
    assert cell(row(2500.0, unit="number")) == "2,500"
    assert cell(row(0.12345, unit="number")) == "0.1235"


def test_pivot_places_every_number():
    rows = [
        row(0.9, model="a", data="cifar10"),
        row(0.8, model="b", data="cifar10"),
        row(0.7, model="b", data="pets|\x1b[0m"),
    ]
    assert pivot(rows, best=True).markdown() == (
        "| model | CIFAR-10 | pets\\|?[0m |\n"
        "| --- | --: | --: |\n"
        "| a | **90.00** | – |\n"
        "| b | 80.00 | **70.00** |\n"
    )
    with pytest.raises(ValueError, match="spread must be one of"):
        pivot(rows, spread="range")


def test_repetitions_become_mean_and_deviation_and_a_mean_stands_for_them():
    values = [0.90, 0.92, 0.97]
    seeds = [row(v, settings={"seed": i}) for i, v in enumerate(values)]
    mean, std = statistics.fmean(values), statistics.stdev(values)
    expected = f"| ViT-B/16 | {100 * mean:.2f} ± {100 * std:.2f} |"
    assert expected in pivot(seeds).markdown()
    own = row(0.5, std=0.01, settings={"seeds": [0, 1, 2]})
    assert "| ViT-B/16 | 50.00 ± 1.00 |" in pivot([own, *seeds]).markdown()


def test_settings_split_rows_only_where_they_must():
    """A rate of its own for each data set leaves one row for a model, so its mean can be taken."""
    rows = [
        row(v, data=data, metric=metric, settings={"lr": lr, "seed": 0})
        for lr, (data, (v, metric)) in enumerate(FIVE.items())
    ]
    table = study_tables(rows)["transfer"]
    assert table.head[0] == "model" and "lr" not in table.head and len(table.rows) == 1
    assert "| 69.00 |" in beside_published(6, rows).markdown()  # avg-5
    twice = study_tables([*rows, row(0.85, data="cifar10", settings={"lr": 9})])["transfer"]
    assert twice.head[:2] == ("model", "lr") and len(twice.rows) > 1
    studies = study_tables([*rows, row(study="knn")])
    assert list(studies) == ["transfer", "knn"]


def test_ones_own_rows_stand_below_the_same_model():
    mine = [
        row(0.84, model="ViT-B/16@orig_in21k_ft_in1k_384", data="tfds:imagenet2012", study="reproduce"),
        row(0.95, model="vit_large_patch16_224", data="pets", settings={"pretraining": "JFT-300M"}),
        row(0.61, model="my own", data="tfds:cifar100:test"),
        row(0.99, model="ViT-B/16", data="tfds:cifar10", study="fewshot"),  # another measure
        row(0.98, model="ViT-B/16", data="folder:birds"),  # no column
    ]  # fmt: skip
    table = beside_published(5, mine)
    here = {r[0]: i for i, r in enumerate(table.rows) if "measured here" in r}
    assert list(here) == ["ViT-B/16@orig_in21k_ft_in1k_384", "vit_large_patch16_224", "my own"]
    above = {name: table.rows[i - 1][:2] for name, i in here.items()}
    assert above["ViT-B/16@orig_in21k_ft_in1k_384"] == ("ViT-B/16", "ImageNet-21k")
    assert above["vit_large_patch16_224"] == ("ViT-L/16", "JFT-300M")
    assert here["my own"] == len(table.rows) - 1
    first = dict(zip(table.head, table.rows[here["ViT-B/16@orig_in21k_ft_in1k_384"]], strict=True))
    assert first["ImageNet"] == "84.00" and first["Pets"] == first["ReaL"] == "–"
    # The paper's numbers are all still there, once each.
    numbers = [c for r in table.rows if "the paper" in r for c in r[3:] if c != "–"]
    assert numbers == [c for r in beside_published(5, []).rows for c in r[2:] if c != "–"]


def test_ones_own_vtab_stands_in_table_9_and_its_mean_in_table_2():
    tasks = [r.data for r in published(9) if r.model == "ViT-H/14"]
    mine = [row(0.5 + i / 100, "ViT-B/16", data, study="vtab") for i, data in enumerate(tasks)]
    table = beside_published(9, mine)
    assert "measured here" in table.head[-1] and table.rows[-1][0] == "VTAB"
    assert table.rows[-1][-1] == f"{100 * (0.5 + 9 / 100):.1f}"
    in_two = next(r for r in beside_published(2, mine).rows if "measured here" in r)
    assert "59.00" in in_two
    part = beside_published(9, mine[:-1])
    assert part.rows[-1][-1] == "–"


def run(capsys, *arguments):
    code = cli.run(["results", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command_prints_stores_and_tables(tmp_path, capsys):
    path = tmp_path / NAME
    store.add(path, [row(0.9, data="pets", std=0.01), row(0.5, data="eggs", study="fewshot")])
    code, out, err = run(capsys, path)
    assert (code, err) == (0, "")
    assert out.startswith("## transfer\n\n| model | Pets |\n") and "## fewshot" in out
    assert "| ViT-B/16 | 90.00 ± 1.00 |" in out
    code, out, _ = run(capsys, path, "--study", "fewshot", "--decimals", 1, "--spread", "none")
    assert code == 0 and "| ViT-B/16 | 50.0 |" in out and "transfer" not in out
    code, out, _ = run(capsys, path, "--table", "5", "--best")
    assert code == 0 and "| measured here |" in out and "**88.04**" in out
    code, out, _ = run(capsys, path, "--table", "5", "--format", "json")
    rows = json.loads(out)
    assert len(rows) == 84 + 2 and rows[0]["source"] == "arXiv 2010.11929, Table 5"
    code, out, _ = run(capsys, "--table", "figure-2", "--format", "csv")
    assert len(list(csv.DictReader(io.StringIO(out)))) == len(published("figure 2"))
    code, out, _ = run(capsys, path, "--json")
    assert [r["value"] for r in json.loads(out)] == [0.9, 0.5]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "name a store of results"),
        (["--table", "4"], "no published table '4'"),
        (["{store}", "--study", "vtab"], "no results of the study 'vtab': there are transfer"),
        (["{store}.jsonl"], "No such file"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(tmp_path, capsys, arguments, told):
    path = tmp_path / NAME
    store.add(path, [row(0.9)])
    code, out, err = run(capsys, *(a.format(store=path) for a in arguments))
    assert (code, out) == (2, "") and told in err and len(err.splitlines()) == 1
