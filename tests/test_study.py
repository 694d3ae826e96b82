"""The paper's studies: what they train, that they go on where they ended, and what they draw."""

import dataclasses
import json

import numpy as np
import pytest

from keras_vit import cli
from keras_vit.data.sources import Source
from keras_vit.results import store
from keras_vit.results.published import published
from keras_vit.spec import HybridSpec, ResNetSpec, ViTSpec
from keras_vit.studies import catalogue, drawing, running
from keras_vit.studies.study import Axis, Candidate, Cell, Study, one
from keras_vit.studies.trained import trained_spec
from keras_vit.train.recipe import Optimizer, Recipe, Schedule

NAMES = list(catalogue.STUDIES)
TINY = {"num_layers": 1, "hidden_size": 8, "mlp_dim": 8, "num_heads": 1, "patch_size": (14, 14)}
RECIPE = Recipe(epochs=None, steps=3, batch_size=8, schedule=Schedule(1e-2), optimizer=Optimizer())


# What is trained


def spec_of(study, cell):
    recipe = dataclasses.replace(cell.candidates[0].recipe, classes=study.classes)
    return trained_spec(cell.model, recipe)


def test_figure_5_trains_the_rows_of_table_6_for_the_compute_that_is_printed_there():
    printed = {
        (row.model, row.settings["epochs"]): row.value
        for row in published("6")
        if row.metric == "exaflops"
    }
    study = catalogue.find("scaling/compute", "paper")
    found = {}
    for cell in study.cells:
        name = cell.model.removeprefix("BiT-").replace("R50+", "R50x1+")
        found[name, cell.candidates[0].recipe.epochs] = cell.at
    # R200x3 has no settings in the paper.
    assert found.keys() == {run for run in printed if run[0] != "R200x3"}
    for run, compute in found.items():
        # 859 is a slip of the paper: not half of 1668, which it prints for twice the epochs.
        expected = 1668 / 2 if printed[run] == 859 else printed[run]
        # As in tests/test_cost.py: 1.5 %, and half a unit for what was rounded in print.
        assert abs(compute - expected) < 0.015 * expected + 0.5, run


@pytest.mark.parametrize("scale", catalogue.SCALES)
@pytest.mark.parametrize("name", NAMES)
def test_every_cell_is_a_network_that_can_be_trained(name, scale):
    study = catalogue.find(name, scale)
    assert study.name == name and study.seeds and len(study.cells) >= 4
    for cell in study.cells:
        assert study.cost_of(cell).training_exaflops > 0
        assert (cell.images or 0) <= study.available
        for candidate in cell.candidates:
            recipe = dataclasses.replace(candidate.recipe, classes=study.classes)
            assert trained_spec(cell.model, recipe).num_classes == study.classes


@pytest.mark.parametrize("scale", catalogue.SCALES)
def test_data_sizes_are_of_every_family_and_nested(scale):
    few, regularised = (
        catalogue.find(f"data-size/{kind}", scale) for kind in ("few-shot", "regularised")
    )
    families = {cell.curve: type(spec_of(few, cell)) for cell in few.cells}
    assert list(families.values()).count(ViTSpec) >= 2 and ResNetSpec in families.values()
    assert scale == "paper" or HybridSpec in families.values()
    for curve in families:
        mine = [cell for cell in few.cells if cell.curve == curve]
        assert len(mine) == 4 and mine[-1].images is None
        # One setting at every size, and nothing to choose but the epoch.
        assert len({cell.candidates for cell in mine}) == 1 and len(mine[0].candidates) == 1
    assert few.best_epoch and few.held_out
    for cell in regularised.cells:
        tried = {candidate.label for candidate in cell.candidates}
        assert any("weight decay 0.3" in label for label in tried)
        assert any("label smoothing 0.1" in label for label in tried)
        is_resnet = isinstance(spec_of(regularised, cell), ResNetSpec)
        assert any("dropout 0.1" in label for label in tried) != is_resnet


def test_table_8_has_the_paper_s_cells_and_each_is_another_network():
    study = catalogue.find("ablation/positions", "paper")
    cells = {(c.curve, c.at): spec_of(study, c) for c in study.cells}
    assert len(cells) == 8 and len(set(cells.values())) == 8
    assert cells["1-D", "at the stem"] == dataclasses.replace(
        spec_of(study, study.cells[1]), posemb="learn", posemb_at="stem"
    )
    assert cells["2-D", "every layer, shared"].posemb_at == "layers_shared"
    assert cells["relative", "at the stem"].posemb == "relative"


def test_figure_8_changes_one_thing_at_a_time():
    study = catalogue.find("scaling/shape", "paper")
    base = {"num_layers": 8, "hidden_size": 1024, "mlp_dim": 2048, "patch_size": (32, 32)}
    fields = {
        "depth": {"num_layers"},
        "width": {"hidden_size", "mlp_dim"},
        "width of the MLP": {"mlp_dim"},
        "patch size": {"patch_size"},
    }
    for curve, free in fields.items():
        specs = [spec_of(study, cell) for cell in study.cells if cell.curve == curve]
        for spec in specs:
            assert {f for f in base if getattr(spec, f) != base[f]} <= free
        assert any(all(getattr(s, f) == base[f] for f in base) for s in specs), curve
    assert min(cell.at for cell in study.cells) == 1.0


# Running


def pictures(count, seed, classes=3):
    """Images whose brightness tells their class."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    pixels = rng.integers(0, 40, (count, 28, 28, 1)) + 90 * labels[:, None, None, None]
    names = tuple(f"class {i}" for i in range(classes))
    return Source(f"made{seed}", pixels.astype(np.uint8), labels.astype(np.int32), names)


DATA = running.Data(pictures(80, 1), pictures(30, 2), (pictures(24, 3), pictures(12, 4)))


def tiny_study(**changes):
    still = dataclasses.replace(RECIPE, schedule=Schedule(0.0))
    choice = tuple(
        Candidate(label, one(recipe, **TINY)[0].recipe)
        for label, recipe in (("still", still), ("moving", dataclasses.replace(RECIPE, steps=30)))
    )
    cells = (
        Cell("small", 24, "ViT-Mini/4", one(RECIPE, **TINY), 24),
        Cell("chosen", 60, "ViT-Mini/4", choice),
    )
    about = ("tiny/study", "A tiny study", "nothing", Axis("images", log=True))
    return Study(*about, cells, seeds=(0, 1), examples=80, classes=3, held_out=0.25, **changes)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """(folder, rows, lines of the log) of a study that was interrupted once and taken up again."""
    out = tmp_path_factory.mktemp("study")
    calls = []

    def stop(line):
        if "chosen" in line:  # the second cell begins
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        running.run(tiny_study(), DATA, out, log=stop)
    before = store.read(out / running.RESULTS)
    rows = running.run(tiny_study(), DATA, out, log=calls.append)
    return out, before, rows, calls


def test_a_study_goes_on_where_it_ended(finished):
    out, before, rows, calls = finished
    assert {row.settings["curve"] for row in before} == {"small"}
    kept = {row.key: row.value for row in before}
    assert kept and all(row.value == kept[row.key] for row in rows if row.key in kept)
    assert not any("small" in line for line in calls)
    assert not (out / "unfinished").exists()
    again = []
    assert running.run(tiny_study(), DATA, out, log=again.append) == rows and again == []


def test_every_row_says_seed_size_compute_and_deviation(finished):
    _, _, rows, _ = finished
    final = [row for row in rows if row.metric != "held-out"]
    places = {(r.settings["curve"], r.settings["seed"], r.metric) for r in final}
    assert len(final) == len(places) == 2 * 2 * 2
    for row in final:
        same = [
            r.value
            for r in final
            if r.settings["curve"] == row.settings["curve"] and r.metric == row.metric
        ]
        assert row.std == pytest.approx(np.std(same, ddof=1))
        assert row.settings["exaflops"] > 0 and row.settings["parameters"] > 100
        assert row.examples == (30 if row.metric == "accuracy" else 12)
    assert {r.settings["images"] for r in final} == {24, 60}


def test_the_candidate_that_is_best_on_held_out_images_is_reported(finished):
    _, _, rows, _ = finished
    tried = {r.settings["chosen"]: r.value for r in rows if r.metric == "held-out"}
    assert set(tried) == {"still", "moving"} and tried["moving"] > tried["still"] + 0.2
    assert {r.examples for r in rows if r.metric == "held-out"} == {len(DATA.train) - 60}
    reported = {
        r.settings["chosen"]
        for r in rows
        if r.settings["curve"] == "chosen" and r.metric == "accuracy"
    }
    assert reported == {"moving"}


def test_held_out_images_are_never_drawn_and_larger_subsets_hold_smaller_ones():
    numbered = Source(
        "n",
        np.arange(80)[:, None, None, None] * np.ones((80, 2, 2, 1)),
        np.arange(80) % 4,
        tuple("abcd"),
    )
    draw, held_out = running.Data(numbered, numbered).parted(0.25)

    def ids(source):
        return set(source.images[:, 0, 0, 0].astype(int))

    sets = [ids(draw(count)) for count in (5, 20, None)]
    assert sets[0] < sets[1] < sets[2] and len(sets[2]) == 60 and len(held_out) == 20
    assert not sets[2] & ids(held_out)


def test_sets_that_are_read_in_order_are_sliced():
    asked = []
    data = running.Data(pictures(80, 1), DATA.test, slices=lambda a, b: asked.append((a, b)))
    draw, _ = data.parted(0.25)
    draw(10), draw(None)
    assert asked == [(60, 80), (0, 10), (0, 60)]


def test_what_would_fail_after_hours_is_refused_before(tmp_path):
    few = dataclasses.replace(DATA, train=DATA.train.take(np.arange(20)))
    with pytest.raises(ValueError, match=r"needs 24 training images .* leaves 15"):
        running.run(tiny_study(), few, tmp_path)
    with pytest.raises(ValueError, match="give test images of the same classes"):
        running.run(tiny_study(), dataclasses.replace(DATA, test=pictures(8, 5, 2)), tmp_path)
    with pytest.raises(ValueError, match="chooses by held-out images"):
        dataclasses.replace(tiny_study(), held_out=0.0)
    with pytest.raises(ValueError, match="no curve 'large': it has"):
        tiny_study().parts(["large"])
    with pytest.raises(ValueError, match=r"no study 'figure 4': there are data-size"):
        catalogue.find("figure 4")


# Drawing


def test_the_figure_has_the_mean_and_deviation_of_every_cell(finished):
    _, _, rows, _ = finished
    study = tiny_study()
    panels = drawing.figure(study, rows).axes
    assert [p.get_ylabel() for p in panels] == list(drawing.METRICS.values())
    for panel, metric in zip(panels, drawing.METRICS, strict=True):
        for curve, bars in zip(("small", "chosen"), panel.containers, strict=True):
            values = [r.value for r in rows if r.metric == metric and r.settings["curve"] == curve]
            assert bars[0].get_ydata() == pytest.approx([100 * np.mean(values)])
            assert bars[0].get_xdata() == pytest.approx([24 if curve == "small" else 60])
            low, high = bars[2][0].get_segments()[0][:, 1]
            assert (high - low) / 2 == pytest.approx(100 * np.std(values, ddof=1))
    found = drawing.tables(study, rows)["accuracy"]
    assert found.head == ("curve", "24", "60") and [r[0] for r in found.rows] == ["small", "chosen"]


def test_the_paper_s_points_stand_beside_one_s_own():
    study = catalogue.find("scaling/compute")
    panel = drawing.figure(study, []).axes[-1]
    lines = {line.get_label(): line for line in panel.lines}
    assert {name: len(line.get_xdata()) for name, line in lines.items()} == {
        "ViT": 6, "ResNet (BiT)": 7, "Hybrid": 5,
    }  # fmt: skip
    assert 4262 in lines["ViT"].get_xdata() and 88.08 in np.round(lines["ViT"].get_ydata(), 2)


# The command


def test_smoke_runs_and_writes_everything(tmp_path, capsys):
    command = [
        "study",
        "data-size/few-shot",
        "--smoke",
        "--out",
        str(tmp_path),
        "--only",
        "BiT-Mini",
    ]
    assert cli.run(command) == 2
    assert "has no curve 'BiT-Mini'" in capsys.readouterr().err
    assert cli.run([*command[:-2], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["settings"]["images"] for row in found["rows"]] == [24, 48]
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert "| ViT-Mini/4 |" in (tmp_path / "study.md").read_text()


def test_plans_say_what_is_trained(capsys):
    assert cli.run(["study", "scaling/compute", "--scale", "paper", "--plan", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["exaflops"] == pytest.approx(sum(c["exaflops_each"] for c in plan["cells"]))
    assert cli.run(["study", "list", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == NAMES
