"""The shipped class names: how many, in which order, and under which licence."""

from importlib import resources

import pytest

from keras_vit.data.labels import label_names


@pytest.mark.case("L17")
@pytest.mark.parametrize(
    ("name", "index", "expected"),
    [
        ("imagenet2012", 0, "tench, Tinca tinca"),
        ("imagenet2012", 281, "tabby, tabby cat"),
        ("imagenet2012", 285, "Egyptian cat"),
        ("imagenet2012", 999, "toilet tissue, toilet paper, bathroom tissue"),
        # The Google checkpoints order ImageNet-21k by WordNet number: n00004475 comes first,
        # n01440764 is the 360th and n02123045 the 2398th.
        ("imagenet21k", 0, "organism, being"),
        ("imagenet21k", 359, "tench, Tinca tinca"),
        ("imagenet21k", 2397, "tabby, tabby cat"),
        ("imagenet21k", 2405, "Egyptian cat"),
    ],
)
def test_known_indices_have_their_names(name, index, expected):
    assert label_names(name)[index] == expected


@pytest.mark.case("L17")
@pytest.mark.parametrize(("name", "count"), [("imagenet2012", 1000), ("imagenet21k", 21843)])
def test_lists_have_a_name_for_every_output(name, count):
    names = label_names(name)
    assert len(names) == count
    assert all(n and n == n.strip() for n in names)


def test_every_imagenet2012_name_is_among_the_21k_ones():
    # All but a few of the 1000 synsets are in the 21,843, with the same words.
    shared = set(label_names("imagenet2012")) & set(label_names("imagenet21k"))
    assert len(shared) >= 980


def test_names_of_a_card_pass_unchanged():
    assert label_names(("cat", "dog")) == ("cat", "dog")
    assert label_names(None) is None


def test_unknown_list_names_the_shipped_ones():
    with pytest.raises(ValueError, match=r"imagenet2012.*imagenet21k"):
        label_names("imagenet22k")


def test_the_licence_of_the_words_lies_beside_them():
    text = resources.files("keras_vit.data").joinpath("class_names", "LICENSE").read_text("utf-8")
    assert "Princeton University" in text
