"""A user's own tables of cards, and what a broken one is told."""

import contextlib
import json
import random
from pathlib import Path

import pytest

from keras_vit import posemb
from keras_vit.card import POSEMB_RESIZES, Card, Metric, Preprocessing
from keras_vit.zoo import cards, names
from keras_vit.zoo.cards import all_cards, read_table

ROW = '[[card]]\nvariant = "ViT-B/16"\ntag = "mine"\n'
SHIPPED = len(all_cards())


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
    assert len(found) == SHIPPED + 1
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
        (ROW + "metrics = [{ value = 1.0 }]\n", r"row 1 .*metrics takes the fields \['dataset',"),
        (ROW + "metrics = 3\n", r"row 1 .*metrics must be a list, got 3"),
        (
            ROW + 'metrics = [{ dataset = "d", name = "top1", value = nan, source = "s" }]\n',
            r"row 1 .*value must be finite",
        ),
        (
            ROW + 'metrics = [{ dataset = "d", name = "top1", value = "9", source = "s" }]\n',
            r"row 1 .*value must be an integer or a number, got '9'",
        ),
        (ROW + "preprocessing = 3\n", r"row 1 .*preprocessing must be a table, got 3"),
        (ROW + "preprocessing = { crop = 1 }\n", r"preprocessing takes the fields"),
        (ROW + "preprocessing = { resize_to = -1 }\n", r"resize_to must be positive"),
        (ROW + "preprocessing = { mean = [0.5, inf, 0.5] }\n", r"mean must be finite, got inf"),
        (ROW + "preprocessing = { std = [0.0] }\n", r"std must be positive"),
        (ROW + f"preprocessing = {{ std = [{10**400}] }}\n", r"row 1 .*std must be finite"),
        (ROW + 'posemb_resize = "cubic"\n', r"posemb_resize must be one of \['align_corners'"),
        (ROW + 'patch_resize = "bilinear"\n', r"patch_resize must be one of"),
        (ROW + 'sources = ["hf://nothing"]\n', r"'hf://nothing' is no hub address"),
        (ROW + "sources = [1]\n", r"every entry of sources must be a string, got 1"),
        (ROW + "aliases = [true]\n", r"every entry of aliases must be a string"),
        (ROW + 'class_names = "birds"\n', r"class_names 'birds' is no shipped list"),
        (
            ROW + 'class_names = "imagenet21k"\nnum_classes = 10\n',
            r"21843 class_names for num_classes = 10",
        ),
        (ROW + "num_classes = -1\n", r"num_classes must be 0 or more"),
        (ROW + "size = 0\n", r"size positive"),
        (ROW + "spec = { num_classes = 3 }\n", r"fields of the card itself"),
        (ROW + 'file = "a\\nb"\n', r"file 'a\\nb' must be"),
        ('card = [1, "x"]\n', r"row 1 \(\?@\?\): a card needs the fields"),
        ('[card]\nvariant = "x"\n', r"\[\[card\]\] with double brackets"),
        ("x = " + "[" * 5000, r"mine\.toml is no valid TOML"),
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


@pytest.mark.parametrize("field", ["variant", "tag"])
def test_a_name_with_control_characters_is_told_on_one_line(own, field):
    own(ROW.replace({"variant": "ViT-B/16", "tag": "mine"}[field], "a\\n\\u001bb"))
    with pytest.raises(ValueError, match="row 1") as error:
        all_cards()
    assert str(error.value).isprintable()


def test_an_empty_list_of_names_does_away_with_a_default():
    table = '[defaults]\nclass_names = "imagenet2012"\n' + ROW
    assert read_table(table, "t.toml")[0].class_names == "imagenet2012"
    (card,) = read_table(table + "num_classes = 37\nclass_names = []\n", "t.toml")
    assert card.class_names is None


def test_broken_values_are_always_a_value_error():
    """Every field of a card and of its parts with every kind of value; the seed makes it one test."""
    rng = random.Random(0)
    odd = [
        None, True, -1, 0, 10**30, 1.5, float("nan"), float("inf"), "", "x", "\n", "../x", "\0",
        [], [[]], [None], [1, 2], ["a"], {}, {"a": 1}, [{}], [{"dataset": 1}], "y" * 10**5,
    ]  # fmt: skip
    good = json.loads(json.dumps(all_cards()["DINOv2-S/14-reg4@dinov2_lvd142m"].to_dict()))
    fields = [*Card.__dataclass_fields__, "unknown", 3]
    accepted = 0
    for _ in range(3000):
        row = json.loads(json.dumps(good))
        for _ in range(rng.randint(1, 3)):
            where = rng.choice([row, row, row["preprocessing"], row["metrics"][0]])
            if isinstance(where, dict):
                where[rng.choice([*fields, *where])] = rng.choice(odd)
                if not isinstance(row.get("preprocessing"), dict) or not row.get("metrics"):
                    break
                if not isinstance(row["metrics"], list):
                    break
        with contextlib.suppress(ValueError):  # any other error fails the test
            cards._checked(Card.from_dict(row))
            accepted += 1
    assert 0 < accepted < 1500


@pytest.mark.parametrize("value", [None, 3, "card", [], [("variant", "x")]])
def test_a_card_that_is_no_table_is_refused(value):
    with pytest.raises(ValueError, match="a card must be a table of fields"):
        Card.from_dict(value)


def test_parts_check_their_fields():
    with pytest.raises(ValueError, match="antialias must be true or false, got 1"):
        Preprocessing(antialias=1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="mean and std must be as many"):
        Preprocessing(mean=(1.0, 2.0))
    assert Metric("d", "top1", 80, "s").value == 80.0


def test_the_rules_of_a_card_are_those_of_the_library():
    assert tuple(posemb.METHODS) == POSEMB_RESIZES


def test_a_table_needs_no_rows():
    assert read_table("", "empty.toml") == []


def test_what_pillow_resizes_is_rounded_as_pillow_does():
    """A kernel that widens when it shrinks is Pillow's here, whose pixels are whole numbers."""
    for card in all_cards().values():
        assert card.preprocessing.antialias == card.preprocessing.rounded, card.name
