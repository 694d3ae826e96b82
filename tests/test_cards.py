"""The cards say what is publicly known of each checkpoint, and the tables in the docs say the same."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from keras_vit.card import Card, Preprocessing
from keras_vit.train.recipes.fashion_mnist import EIGHT
from keras_vit.zoo import cards, names, table
from keras_vit.zoo.cards import all_cards, card_spec, read_table
from keras_vit.zoo.variants import VARIANTS

HERE = Path(__file__).parent
# The public checkpoints of the four groups, plain ViT only; several facts may be of one file.
FACTS = json.loads((HERE / "data/checkpoints.json").read_text())
PUBLIC = {c.name: c for c in all_cards().values() if not (c.file or "").startswith("embedded/")}

ROW = '[[card]]\nvariant = "ViT-B/16"\ntag = "mine"\n'


def listed_mib(text: str) -> tuple[float, float]:
    """'393.69 MiB' or '1.22 GiB' -> (MiB, what rounding may hide)."""
    number, unit = text.split()
    scale = {"MiB": 1.0, "GiB": 1024.0}[unit]
    digits = len(number.partition(".")[2])
    return float(number) * scale, 0.5 * 10**-digits * scale


def by_file(fact: dict) -> Card:
    return next(c for c in PUBLIC.values() if c.file == fact["gs"].removeprefix("gs://"))


def test_every_file_of_the_facts_has_one_card_and_no_card_is_invented():
    published = {fact["gs"].removeprefix("gs://") for fact in FACTS}
    files = [card.file for card in PUBLIC.values()]
    assert sorted(files) == sorted(published)


@pytest.mark.parametrize("fact", FACTS, ids=lambda f: f["name"])
def test_card_agrees_with_the_facts(fact):
    card = by_file(fact)
    assert fact["url"] in card.sources
    assert card.image_size == (fact["resolution"],) * 2
    assert card.num_classes == fact["classes"]
    assert ("representation_size" in card.spec) == fact["pre_logits"]
    assert card.class_names == {1000: "imagenet2012", 21843: "imagenet21k"}[fact["classes"]]
    assert card.license == "Apache-2.0"
    stem = fact["gs"].rpartition("/")[2].removesuffix(".npz")
    size = re.match(r"(?:ViT-)?([A-Za-z]+_\d+)", stem)
    assert size and card.variant == "ViT-" + size[1].replace("_", "/")
    values = {(m.source.partition(":")[0], m.name): m.value for m in card.metrics}
    if fact.get("published_top1"):
        assert values["authors", "top1"] == fact["published_top1"]
    if "timm" in fact:
        assert values["timm", "top1"] == fact["timm"]["top1"]
        assert any(fact["timm"]["timm_model"] in m.source for m in card.metrics)


@pytest.mark.parametrize("fact", [f for f in FACTS if f.get("size")], ids=lambda f: f["gs"])
def test_size_agrees_with_the_bucket_listing(fact):
    size, rounding = listed_mib(fact["size"])
    # 0.005 MiB: the listing does not tell the two ways of writing an npz header apart.
    assert (by_file(fact).size or 0) / 2**20 == pytest.approx(size, abs=rounding + 0.005)


@pytest.mark.parametrize("name", PUBLIC)
def test_size_is_that_of_the_parameters_of_the_spec(name):
    card = PUBLIC[name]
    count = card_spec(card).num_params
    if name == "ViT-S/16@sam_in1k":  # a whole optimizer state, see its note
        count *= 3
    # What is not float32 parameters: zip and array headers, under 0.5 KB per array of at most 1600.
    assert 0 < (card.size or 0) - 4 * count < 600_000
    assert card.size_predicted


def test_unusable_heads_are_those_of_the_paper_release_at_21k():
    dead = {c.name for c in PUBLIC.values() if not c.usable_head}
    assert dead == {c.name for c in PUBLIC.values() if c.tag == "orig_in21k"}
    assert all("zeros" in PUBLIC[name].note for name in dead)


def test_gsam_pools_by_mean_and_warns():
    gsam = [c for c in PUBLIC.values() if c.tag == "gsam_in1k"]
    assert len(gsam) == 4
    assert all(c.spec["pool"] == "gap" and "issue #195" in c.note for c in gsam)
    assert not any("pool" in c.spec for c in PUBLIC.values() if c not in gsam)


def test_dropout_of_a_card_is_that_of_the_authors_fine_tuning():
    for card in PUBLIC.values():
        # vit_jax/configs/augreg.py: "No AugReg during fine-tuning"
        expected = 0.0 if card.tag.startswith("augreg") else VARIANTS[card.variant].dropout
        assert card_spec(card).dropout == expected, card.name


def test_tags_follow_the_documented_scheme():
    scheme = r"(orig|augreg|sam|gsam)_in(1k|21k)(_ft_in1k)?(_\d+)?(_timm)?"
    for card in PUBLIC.values():
        assert re.fullmatch(scheme, card.tag), card.name
        assert f"{card.tag}_".count("_ft_") == (
            "fine-tuned" in card.pretraining and "in21k" in card.tag
        )
        pixels = re.search(r"_(\d{3})", card.tag)
        assert card.image_size[0] == int(pixels[1] if pixels else 224)


@pytest.mark.case("L18")
def test_every_head_states_its_reported_accuracy_and_how_it_is_evaluated():
    for card in PUBLIC.values():
        if card.usable_head and card.num_classes == 1000:
            reported = [m for m in card.metrics if m.dataset == "imagenet2012" and m.name == "top1"]
            assert reported or "ccuracy" in card.note, card.name
        # The authors' evaluation: plain bilinear resize to the input, no crop, no antialias.
        assert card.preprocessing == Preprocessing()
        assert (card.preprocessing.resize, card.preprocessing.antialias) == ("stretch", False)
    for metric in (m for card in PUBLIC.values() for m in card.metrics):
        assert metric.source.partition(":")[0] in ("authors", "timm")
        assert 50 < metric.value < 100 or metric.name == "top1_with_unreleased_head"


def test_aliases_and_hub_names_belong_to_one_card_each():
    seen: dict[str, str] = {}
    for card in PUBLIC.values():
        for name in filter(None, (card.hub, *card.aliases)):
            assert seen.setdefault(name, card.name) == card.name
    # Hugging Face's google/vit-*, KerasHub's presets, and timm's plain ViT made from Google's files.
    kinds = [name.split("/")[0] + "/" if "/" in name else "" for name in seen]
    assert {kind: kinds.count(kind) for kind in kinds} == {"google/": 11, "timm/": 36, "": 11}
    assert seen["google/vit-base-patch16-224-in21k"] == "ViT-B/16@orig_in21k"


def test_embedded_cards_are_complete_but_for_what_training_measures():
    ten, eight = (all_cards()[f"ViT-Mini/4@{tag}"] for tag in ("fashion_mnist", "fashion_mnist_8"))
    assert len(ten.class_names) == 10
    assert eight.class_names == tuple(ten.class_names[i] for i in EIGHT)
    assert {"Sandal", "Bag"} == set(ten.class_names) - set(eight.class_names)
    for card in (ten, eight):
        spec = card_spec(card)
        assert (spec.image_size, spec.in_channels, spec.pool) == ((28, 28), 1, "gap")
        assert card.preprocessing == Preprocessing(mean=(127.5,), std=(127.5,))


def test_names_agree_with_the_source_list_of_fashion_mnist():
    from keras_vit.data.sources import FASHION_MNIST_CLASSES

    assert all_cards()["ViT-Mini/4@fashion_mnist"].class_names == FASHION_MNIST_CLASSES


def test_cards_are_sorted_by_variant_and_survive_their_dict():
    ranks = [list(VARIANTS).index(card.variant) for card in all_cards().values()]
    assert ranks == sorted(ranks)
    for card in all_cards().values():
        assert Card.from_dict(json.loads(json.dumps(card.to_dict()))) == card


def test_callers_cannot_change_the_table():
    all_cards().clear()
    assert "ViT-B/16@orig_in21k" in all_cards()


# ---------------------------------------------------------------- a user's own tables


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Writes a user's table and makes it known."""

    def write(text: str, name: str = "mine.toml") -> Path:
        (tmp_path / name).write_text(text, "utf-8")
        monkeypatch.setenv(cards.CARDS_VARIABLE, str(tmp_path))
        cards._merged.cache_clear()
        return tmp_path

    yield write
    cards._merged.cache_clear()


def test_own_table_adds_and_overrides(own):
    folder = own(
        '[defaults]\nlicense = "MIT"\n'
        + ROW
        + 'file = "birds.npz"\nnum_classes = 2\nclass_names = ["robin", "wren"]\n'
        + '[[card]]\nvariant = "ViT-B/16"\ntag = "orig_in21k"\nnote = "ours"\n'
    )
    (folder / "birds.npz").write_bytes(b"x")
    found = all_cards()
    mine = found["ViT-B/16@mine"]
    assert mine.class_names == ("robin", "wren")
    assert mine.license == "MIT"
    assert mine.file == str(folder / "birds.npz")  # beside its table
    assert found["ViT-B/16@orig_in21k"].note == "ours"
    assert len(found) == len(PUBLIC) + 3
    assert names.resolve("vit-b16@mine") == ("ViT-B/16", "mine")


def test_several_directories_the_last_wins(own, tmp_path, monkeypatch):
    own(ROW + 'note = "first"\n')
    second = tmp_path / "second"
    second.mkdir()
    (second / "t.toml").write_text(ROW + 'note = "second"\n')
    monkeypatch.setenv(cards.CARDS_VARIABLE, f"{tmp_path}:{second}")
    assert all_cards()["ViT-B/16@mine"].note == "second"


def test_a_variant_without_released_weights_takes_those_of_a_user(own):
    own('[[card]]\nvariant = "ViT-g/14"\ntag = "ours"\n')
    assert names.default_tag("ViT-g/14") == "ours"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("card = [", r"mine\.toml is no valid TOML"),
        ("[[cards]]\n", r"mine\.toml has \['cards'\]"),
        (ROW + "color = 1\n", r"mine\.toml, row 1 \(ViT-B/16@mine\): unknown fields \['color'\]"),
        ('[[card]]\ntag = "x"\n', r"row 1 \(\?@x\): a card needs the fields \['variant'\]"),
        (
            ROW + '[[card]]\nvariant = "ViT-Q/16"\ntag = "x"\n',
            r"row 2 .*variant 'ViT-Q/16' is none of",
        ),
        (ROW + "image_size = 224\n", r"row 1 .*image_size must be a list, got 224"),
        (ROW + "image_size = [222, 222]\n", r"row 1 .*222 is no multiple of the patch size 16"),
        (ROW + 'num_classes = "ten"\n', r"num_classes must be an integer, got 'ten'"),
        (ROW + "size = true\n", r"size must be an integer, got True"),
        (ROW + 'class_names = ["a"]\nnum_classes = 2\n', r"1 class_names for num_classes = 2"),
        (ROW + 'file = "../secret.npz"\n', r"must be a relative path without `\.\.`"),
        (ROW + 'file = "/etc/passwd"\n', r"must be a relative path"),
        (ROW + 'sha256 = "abc"\n', r"must be 64 lower-case hexadecimal digits"),
        (ROW + 'spec = { pool = "maximum" }\n', r"pool must be one of"),
        (ROW + "spec = { depth = 3 }\n", r"depth"),
        (ROW + "metrics = [{ value = 1.0 }]\n", r"row 1 .*missing"),
        (ROW + ROW, r"row 2 .*stand in an earlier row already"),
        ('[[card]]\nvariant = "ViT-B/16"\ntag = "a@b"\n', r"tag 'a@b' must be a word"),
    ],
)
def test_a_broken_table_is_named_with_its_row(own, text, message):
    own(text)
    with pytest.raises(ValueError, match=message) as error:
        all_cards()
    assert "\n" not in str(error.value)


def test_a_missing_directory_of_tables_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv(cards.CARDS_VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=r"KERAS_VIT_CARDS names .*nowhere, which is no directory"):
        all_cards()


def test_unreadable_text_is_named(own):
    folder = own("")
    (folder / "mine.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"mine\.toml cannot be read"):
        all_cards()


# ---------------------------------------------------------------- generated tables


def test_docs_hold_the_generated_table():
    docs = HERE.parent / "docs/models.md"
    assert docs.read_text("utf-8") == table.document(), (
        "run: python -m keras_vit.zoo.table > docs/models.md"
    )


def test_document_has_a_row_per_card_and_marks_defaults():
    text = table.document()
    for name in all_cards():
        assert f"`{name}`" in text
    assert text.count("**`") == len(names.DEFAULTS)


def test_table_row_says_who_reports_the_accuracy():
    card = all_cards()["ViT-S/16@augreg_in21k_ft_in1k_384"]
    row = table.table([card]).splitlines()[2]
    assert row == (
        "| `ViT-S/16@augreg_in21k_ft_in1k_384` | 22.2 | 384 | 1,000 | 83.73 authors, 83.814 timm | 89 "
        "| Apache-2.0 |"
    )
    measured = dataclasses.replace(
        card,
        metrics=(dataclasses.replace(card.metrics[0], dataset="fashion_mnist", source="run: x"),),
    )
    assert "83.73 run (fashion_mnist)" in table.table([measured])


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


def test_listing_models_imports_no_keras():
    code = (
        "import sys, keras_vit.zoo.cards as c, keras_vit.zoo.names as n, keras_vit.zoo.fetch, "
        "keras_vit.zoo.table as t; c.all_cards(); n.resolve('vit-b16'); t.document(); "
        "heavy = {'keras', 'tensorflow', 'jax', 'torch', 'numpy'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_table_needs_no_rows():
    assert read_table("", "empty.toml") == []
