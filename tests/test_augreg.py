"""AugReg's files by their names, and the authors' index of them."""

import csv
import json
import random
import time

import pytest

import keras_vit
from keras_vit.cli import run
from keras_vit.zoo import augreg, augreg_index
from keras_vit.zoo.augreg import FineTuning, Settings, card_of, parse
from keras_vit.zoo.augreg_index import read_index
from keras_vit.zoo.cards import all_cards, card_spec

UPSTREAM = "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0"
TUNED = f"{UPSTREAM}--imagenet2012-steps_20k-lr_0.01-res_224"
# Of the published index; `name` is the model, and each line is of one fine-tuned file.
COLUMNS = (
    "name,ds,epochs,lr,aug,wd,do,sd,best_val,final_val,final_test,adapt_ds,adapt_lr,adapt_steps,"
    "adapt_resolution,adapt_final_val,adapt_final_test,params,infer_samples_per_sec,filename,"
    "adapt_filename"
).split(",")


def line(settings: Settings, **values) -> dict:
    """A line of the index for a fine-tuned file."""
    tuned = settings.fine_tuning
    assert tuned
    upstream = Settings(*(getattr(settings, f) for f in list(Settings.__dataclass_fields__)[:-1]))
    return {
        "name": settings.model, "ds": settings.data, "epochs": settings.epochs,
        "lr": settings.lr, "aug": settings.augmentation, "wd": settings.weight_decay,
        "do": settings.dropout, "sd": settings.stochastic_depth, "best_val": 0.5,
        "final_val": 0.5, "final_test": 0.4, "adapt_ds": tuned.dataset, "adapt_lr": tuned.lr,
        "adapt_steps": tuned.steps, "adapt_resolution": tuned.pixels, "adapt_final_val": 0.8,
        "adapt_final_test": 0.7, "params": 1, "infer_samples_per_sec": 1.0,
        "filename": upstream.stem, "adapt_filename": settings.stem, **values,
    }  # fmt: skip


def settings_of(model="B/16", data="i21k", aug="none", dataset="imagenet2012", pixels=224, lr=0.01):
    tuned = FineTuning(dataset, 20_000, lr, pixels)
    return Settings(model, data, 300, 0.001, aug, 0.1, 0.0, 0.0, tuned)


@pytest.fixture
def index(tmp_path):
    """Writes an index.csv of these lines."""

    def write(lines, columns=COLUMNS):
        path = tmp_path / "index.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(lines)
        return path

    return write


def test_a_name_states_how_the_file_was_made():
    assert parse(TUNED) == Settings(
        "B/16", "i21k", 300, 0.001, "medium1", 0.1, 0.0, 0.0,
        FineTuning("imagenet2012", 20_000, 0.01, 224),
    )  # fmt: skip
    zero = parse(TUNED.replace("imagenet2012-steps_20k", "kitti-steps_0k"))
    assert zero and zero.fine_tuning and zero.fine_tuning.steps == 500
    two = parse(TUNED.replace("steps_20k", "steps_2k"))
    assert two and two.fine_tuning and two.fine_tuning.steps == 2500


@pytest.mark.parametrize(
    "name",
    [
        UPSTREAM,
        f"{UPSTREAM}.npz",
        f"gs://vit_models/augreg/{UPSTREAM}.npz",
        f"https://storage.googleapis.com/vit_models/augreg/{UPSTREAM}.npz",
        f"augreg/{UPSTREAM}",
    ],
)
def test_a_file_is_known_by_its_name_and_its_addresses(name):
    settings = parse(name)
    assert settings and settings.fine_tuning is None
    assert settings.stem == UPSTREAM


def test_every_name_of_the_scheme_comes_back():
    count = 0
    for file_model, model in augreg.FILE_MODELS.items():
        for data, epochs in (("i1k", 300), ("i21k", 300), ("i21k", 30)):
            for aug in augreg.AUGMENTATIONS:
                stem = f"{file_model}-{data}-{epochs}ep-lr_0.001-aug_{aug}-wd_0.03-do_0.1-sd_0.1"
                for steps in augreg.STEPS:
                    name = f"{stem}--resisc45-steps_{steps}-lr_0.003-res_384"
                    settings = parse(name)
                    assert settings and settings.model == model and settings.stem == name
                    count += 1
    assert count == 10 * 3 * 7 * 4
    known = [c.file for c in all_cards().values() if (c.file or "").startswith(augreg.FOLDER)]
    assert len(known) == 49
    for file in known:
        settings = parse(file)
        assert settings and f"{augreg.FOLDER}/{settings.stem}.npz" == file


@pytest.mark.parametrize(
    "name",
    [
        "",
        "B/16",
        "ViT-B_16.npz",
        UPSTREAM.replace("B_16", "B_17"),
        UPSTREAM.replace("medium1", "medium9"),
        UPSTREAM.replace("i21k", "i22k"),
        UPSTREAM.replace("wd_0.1", "wd_0.10"),
        UPSTREAM.replace("wd_0.1", "wd_1.2.3"),
        UPSTREAM.replace("lr_0.001", "lr_1e999"),
        f"{UPSTREAM}--",
        TUNED.replace("imagenet2012", "birds"),
        TUNED.replace("steps_20k", "steps_21k"),
        TUNED.replace("--", "-"),
        f"{TUNED}--x",
        f"{TUNED}\n",
        TUNED.replace("224", "\u0662\u0662\u0664"),
    ],
)
def test_other_names_are_none(name):
    assert parse(name) is None or name.endswith("\n")
    assert card_of(name) is None or name.endswith("\n")


def test_a_card_is_made_of_a_name():
    name = TUNED.replace("medium1", "light0")
    card = card_of(name)
    assert card
    assert card.name == f"ViT-B/16@{name.removeprefix('B_16-')}"
    assert card.file == f"vit_models/augreg/{name}.npz"
    assert card.sources == (f"https://storage.googleapis.com/{card.file}",)
    assert (card.num_classes, card.image_size) == (1000, (224, 224))
    assert card.class_names == "imagenet2012"
    assert "augmentation light0" in card.pretraining and "20,000 steps" in card.pretraining
    # The very card again by its own name, and through the public functions.
    assert card_of(card.name) == card
    assert keras_vit.card(card.name) == keras_vit.card(f"{name}.npz") == card
    assert keras_vit.card(f"gs://vit_models/augreg/{name}.npz") == card


def test_a_file_with_a_row_has_that_card():
    card = card_of(TUNED)
    assert card and card.name == "ViT-B/16@augreg_in21k_ft_in1k_224"
    assert keras_vit.card(TUNED).metrics


def test_a_made_card_says_what_the_tables_say_of_the_same_file():
    for known in all_cards().values():
        if (known.file or "").startswith(augreg.FOLDER):
            settings = parse(known.file or "")
            assert settings
            made = augreg._card(settings, known.file or "")
            for field in ("variant", "num_classes", "image_size", "class_names", "pretraining"):
                assert getattr(made, field) == getattr(known, field), known.name
            assert card_spec(made) == card_spec(known)
            assert made.sources[-1] == known.sources[-1]
            # 20 bytes per array: the two ways of writing zip headers (551 arrays at most).
            assert 0 <= (made.size or 0) - (known.size or 0) <= 12_000 or known.size is None


def test_a_name_of_no_checkpoint_is_told():
    with pytest.raises(ValueError, match="ViT-B/16@nothing is no checkpoint"):
        augreg.known_card("ViT-B/16", "nothing")


# ---------------------------------------------------------------- the index


def test_the_best_is_chosen_by_validation_not_by_test(index):
    lines = [
        line(settings_of(aug="none"), final_val=0.40, final_test=0.99),
        line(settings_of(aug="none", pixels=384), final_val=0.40, final_test=0.99),
        line(settings_of(aug="light1"), final_val=0.45, final_test=0.10),
        line(settings_of(aug="light1", data="i1k"), final_val=0.77, final_test=0.76),
        line(settings_of("S/16", aug="strong1"), final_val=0.9),
    ]
    found = read_index(index(lines), "B/16")
    assert [(row.settings.data, row.settings.augmentation) for row in found] == [
        ("i21k", "light1"), ("i21k", "none"), ("i1k", "light1"),
    ]  # fmt: skip
    assert (found[0].val, found[0].test) == (45.0, 10.0)
    assert all(row.settings.fine_tuning is None for row in found)


def test_the_best_fine_tuned_file_of_a_data_set(index):
    lines = [
        line(settings_of(pixels=224), adapt_final_val=0.80, adapt_final_test=0.95),
        line(settings_of(pixels=384), adapt_final_val=0.86, adapt_final_test=0.85),
        line(settings_of(pixels=384, lr=0.03), adapt_final_val="", adapt_final_test=0.99),
        line(settings_of(dataset="cifar100"), adapt_final_val=0.99),
    ]
    found = read_index(index(lines), "B/16", "imagenet2012")
    assert [row.settings.stem[-3:] for row in found] == ["384", "224"]
    assert found[0].test == pytest.approx(85.0)


def test_percentages_are_read_like_fractions(index):
    lines = [line(settings_of(), final_val=48.2, final_test="")]
    (row,) = read_index(index(lines), "B/16")
    assert row.val == 48.2 and row.test != row.test


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"final_val": "best"}, r"index\.csv, line 3: 'best' is no accuracy"),
        ({"final_val": "480"}, r"line 3: '480' is no accuracy"),
        ({"final_test": "-0.1"}, r"line 3: '-0\.1' is no accuracy"),
        ({"final_val": "inf"}, r"line 3: 'inf' is no accuracy"),
        ({"filename": "x" * 9000}, r"line 3: 'x{200}' is no name of a file of B/16"),
        ({"filename": "../../etc/passwd"}, r"line 3: .* is no name of a file of B/16"),
        ({"filename": UPSTREAM.replace("B_16", "S_16")}, r"is no name of a file of B/16"),
        ({"filename": TUNED}, r"line 3: .* does not fit its column"),
    ],
)
def test_a_broken_line_is_named(index, changes, message):
    path = index([line(settings_of()), line(settings_of(aug="light1"), **changes)])
    with pytest.raises(ValueError, match=message) as error:
        read_index(path, "B/16")
    assert str(error.value).isprintable()


def test_a_missing_column_and_a_short_line_are_named(index, tmp_path):
    path = index([line(settings_of())], [c for c in COLUMNS if c != "final_val"])
    with pytest.raises(ValueError, match=r"has no columns \['final_val'\]: it is no index"):
        read_index(path, "B/16")
    path = index([line(settings_of())])
    with path.open("a") as file:
        file.write("\nB/16,i21k\n")
    with pytest.raises(ValueError, match=r"line 4 has 2 cells instead of 21"):
        read_index(path, "B/16")


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\x00", b"<html>403</html>", b'"' + b"a" * 200_000]
)
def test_what_is_no_index_is_refused(tmp_path, content):
    path = tmp_path / "index.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"is no index of AugReg|cannot be read as a table"):
        read_index(path, "B/16")


def test_a_file_too_large_for_an_index_is_not_read(index, monkeypatch):
    path = index([line(settings_of())])
    monkeypatch.setattr(augreg_index, "INDEX_CAP", 10)
    with pytest.raises(ValueError, match="it is no index of AugReg"):
        read_index(path, "B/16")


def test_unknown_models_and_data_are_told_with_the_known_ones(index):
    path = index([])
    with pytest.raises(ValueError, match=r"no AugReg model 'H/14': there are Ti/16, S/32"):
        read_index(path, "H/14")
    with pytest.raises(ValueError, match=r"fine-tuning on 'birds': there are cifar100"):
        read_index(path, "B/16", "birds")


def test_sixty_thousand_lines_are_read_in_seconds(index):
    rng = random.Random(0)
    models = list(augreg.MODELS)
    lines = [
        line(
            settings_of(models[i % 10], aug=rng.choice(augreg.AUGMENTATIONS), lr=round(i / 1e5, 5)),
            adapt_final_val=round(rng.random(), 4),
        )
        for i in range(1, 60_001)
    ]
    path = index(lines)
    start = time.perf_counter()
    found = read_index(path, "R50+L/32", "imagenet2012")
    assert time.perf_counter() - start < 60  # 0.4 s on a quiet machine: no quadratic time
    assert len(found) == 6000
    assert found[0].val == max(row.val for row in found)


def test_an_index_that_is_not_there_is_told_with_its_address(monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path))
    with pytest.raises(FileNotFoundError) as error:
        augreg_index.index_path()
    message = str(error.value)
    assert str(tmp_path / "vit_models/augreg/index.csv") in message
    assert augreg_index.INDEX_URL in message and "\n" not in message
    monkeypatch.setenv(augreg_index.INDEX_VARIABLE, str(tmp_path / "mine.csv"))
    with pytest.raises(FileNotFoundError, match=r"mine\.csv is not here"):
        augreg_index.index_path()
    (tmp_path / "mine.csv").write_text("x")
    assert augreg_index.index_path() == tmp_path / "mine.csv"


def test_the_command_lists_and_picks(index, capsys, monkeypatch):
    best = settings_of(pixels=384)
    path = index([line(settings_of()), line(best, adapt_final_val=0.9, adapt_final_test=0.88)])
    command = ["list", "augreg:B/16", "--best", "imagenet2012", "--index", str(path)]
    assert run(command) == 0
    out = capsys.readouterr().out
    assert "90.00" in out and "88.00" in out
    assert f"best: keras_vit.load({best.stem!r})" in out
    assert run([*command, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in data] == [best.stem, settings_of().stem]
    assert data[0]["val"] == 90.0 and "384 px" in data[0]["settings"]
    monkeypatch.setenv(augreg_index.INDEX_VARIABLE, str(path))
    assert run(["list", "augreg:B/16", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 1  # both come from one pre-trained file


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "ViT-*", "--best", "kitti"], "belong to augreg:MODEL"),
        (["list", "augreg:H/14", "--index", "INDEX"], "no AugReg model 'H/14'"),
        (["list", "augreg:S/16", "--index", "INDEX"], "has no file of S/16"),
        (
            ["list", "augreg:B/16", "--best", "x", "--index", "INDEX"],
            "no AugReg fine-tuning on 'x'",
        ),
        (["list", "augreg:B/16", "--index", "nowhere.csv"], "is published at https://"),
    ],
)
def test_the_command_says_in_one_line_what_is_wrong(index, capsys, arguments, message):
    path = str(index([line(settings_of())]))
    assert run([path if a == "INDEX" else a for a in arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and not captured.out
    assert len(captured.err.strip().splitlines()) == 1


def test_info_tells_a_made_card(capsys):
    assert run(["info", TUNED.replace("medium1", "light0"), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["name"].startswith("ViT-B/16@i21k-300ep")
    assert data["spec"]["num_classes"] == 1000
    assert "augmentation light0" in data["card"]["pretraining"]
