"""The cards say what is publicly known of each checkpoint, and the tables in the docs say the same."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from keras_vit.card import Card, Preprocessing
from keras_vit.train.recipes.fashion_mnist import EIGHT
from keras_vit.zoo import cards, vtab
from keras_vit.zoo.cards import all_cards, card_spec
from keras_vit.zoo.fetching.sources import Hub, check_container, parse
from keras_vit.zoo.variants import VARIANTS

HERE = Path(__file__).parent
# The authors' public files of the families that are here; several facts may be of one file.
FACTS = json.loads((HERE / "data/checkpoints.json").read_text())
# What timm states for its copies and its own weights of these families.
TIMM = json.loads((HERE / "data/timm_cards.json").read_text())
PUBLIC = {c.name: c for c in all_cards().values() if not (c.file or "").startswith("embedded/")}
ROWS = [c for c in PUBLIC.values() if not c.tag.startswith("vtab_")]
NPZ = [c for c in ROWS if (c.file or "").endswith(".npz")]


def listed_mib(text: str) -> tuple[float, float]:
    """'393.69 MiB' or '1.22 GiB' -> (MiB, what rounding may hide)."""
    number, unit = text.split()
    scale = {"MiB": 1.0, "GiB": 1024.0}[unit]
    digits = len(number.partition(".")[2])
    return float(number) * scale, 0.5 * 10**-digits * scale


def by_file(fact: dict) -> Card:
    return next(c for c in ROWS if c.file == fact["gs"].removeprefix("gs://"))


def variant_in(stem: str) -> str:
    """The variant that a published file name states."""
    if match := re.match(r"flexivit_([sbl])_", stem):
        return f"FlexiViT-{match[1].upper()}"
    if re.match(r"vit_b(16|30)_i21k", stem):
        return "FlexiViT-B"
    if stem.startswith("vit_s16"):
        return "ViT-S/16"
    if match := re.match(r"(?:BiT-[SM]-)?(R\d+x\d)", stem):
        return f"BiT-{match[1]}"
    if match := re.match(r"Mixer-[A-Z]_\d+", stem):
        return match[0].replace("_", "/")
    if match := re.match(r"(?:ViT-)?(Ti|S|B|L|H)_(\d+)", stem):
        return f"ViT-{match[1]}/{match[2]}"
    match = re.match(r"(R\d*)[+_](?:ViT-)?(Ti|S|B|L)_(\d+)", stem)
    assert match, stem
    return f"{match[1]}+ViT-{match[2]}/{match[3]}"


def test_every_file_of_the_facts_has_one_card_and_no_card_is_invented():
    published = {fact["gs"].removeprefix("gs://") for fact in FACTS}
    assert len(published) == 133
    assert sorted(card.file or "" for card in NPZ) == sorted(published)
    others = {card.file for card in ROWS} - published
    assert others <= {f"timm/{name}/model.safetensors" for name in TIMM}
    assert len(all_cards()) == len(NPZ) + len(others) + 285 + 4


@pytest.mark.parametrize("fact", FACTS, ids=lambda f: f["name"])
def test_card_agrees_with_the_facts(fact):
    card = by_file(fact)
    assert fact["url"] in card.sources
    assert card.image_size == (fact["resolution"],) * 2
    assert card.num_classes == fact["classes"]
    assert ("representation_size" in card.spec) == (
        fact["pre_logits"] or fact["group"] == "big_vision"
    )
    named = {1000: "imagenet2012", 21843: "imagenet21k"}.get(fact["classes"])
    assert card.class_names == named or fact["classes"] == 10
    assert card.license == "Apache-2.0"
    stem = fact["gs"].rpartition("/")[2].removesuffix(".npz")
    assert card.variant == variant_in(stem)
    values = {(m.source.partition(":")[0], m.name): m.value for m in card.metrics}
    if fact.get("published_top1"):
        assert values["authors", "top1"] == fact["published_top1"]
    if "timm" in fact:
        assert values["timm", "top1"] == fact["timm"]["top1"]
        assert any(fact["timm"]["timm_model"] in m.source for m in card.metrics)


@pytest.mark.parametrize("fact", [f for f in FACTS if f.get("size")], ids=lambda f: f["gs"])
def test_size_agrees_with_the_bucket_listing(fact):
    size, rounding = listed_mib(fact["size"])
    # 0.01 MiB: the listing does not tell the two ways of writing an npz header apart.
    assert (by_file(fact).size or 0) / 2**20 == pytest.approx(size, abs=rounding + 0.01)


@pytest.mark.parametrize("name", [c.name for c in PUBLIC.values() if c.size])
def test_size_is_that_of_the_parameters_of_the_spec(name):
    card = PUBLIC[name]
    count = card_spec(card).num_params
    if name == "ViT-S/16@sam_in1k":  # a whole optimizer state, see its note
        count *= 3
    # What is not float32 parameters: headers, under 0.5 KB per array of at most 1600.
    assert 0 < (card.size or 0) - 4 * count < 600_000
    assert card.size_predicted


def test_sizes_are_left_out_where_the_file_may_hold_more_than_parameters():
    assert {c.file.split("/")[0] for c in ROWS if c.size is None and c.file} == {"big_vision"}
    assert all(c.size is None for c in ROWS if (c.file or "").startswith("big_vision/"))


@pytest.mark.parametrize("name", TIMM)
def test_every_weight_of_timm_belongs_to_one_card(name):
    fact = TIMM[name]
    owners = [c for c in ROWS if f"timm/{name}" in (c.hub, *c.aliases)]
    assert len(owners) == 1
    card, trunk = owners[0], fact["classes"] == 0 and "orig_in21k" in name
    pixels = 480 if "_bit." in name and fact["pixels"] == 448 else fact["pixels"]
    assert card.image_size == (pixels, pixels)
    assert card.num_classes == (21843 if trunk else fact["classes"])
    assert card.license.lower() == fact["license"]
    address = f"hf://timm/{name}/model.safetensors"
    if fact["url"].startswith("https://storage.googleapis.com/"):
        assert f"gs://{card.file}" == fact["url"].replace(
            "https://storage.googleapis.com/", "gs://"
        )
    if trunk:
        assert address not in card.sources  # it has neither pre_logits nor head
        (own,) = [c for c in ROWS if c.variant == card.variant and c.tag == "orig_in21k_timm"]
        assert own.sources == (address,) and own.num_classes == 0 and "Features" in own.note
    elif name != "flexivit_base.patch30_in21k":  # resized to other patches
        assert card.sources[0] == address
    if card.file == f"timm/{name}/model.safetensors":  # trained in PyTorch
        p = card.preprocessing
        assert p.resize == "shorter_side" and p.antialias and p.method == fact["interpolation"]
        assert p.resize_to == int(fact["pixels"] / fact["crop"])
        # Three decimals: the means are given so.
        assert list(p.mean) * (3 // len(p.mean)) == pytest.approx(
            [255 * v for v in fact["mean"]], abs=1e-3
        )
        assert list(p.std) * (3 // len(p.std)) == pytest.approx(
            [255 * v for v in fact["std"]], abs=1e-3
        )
        assert card_spec(card).activation == "gelu"  # pyright: ignore[reportAttributeAccessIssue]


def test_sources_can_be_read_and_mirrors_come_before_the_closed_buckets():
    for card in PUBLIC.values():
        assert card.sources
        for source in card.sources:
            check_container(parse(source))
        google = ["storage.googleapis.com" in source for source in card.sources]
        assert google == sorted(google), card.name
        hubs = [parse(source) for source in card.sources if source.startswith("hf://")]
        assert all(isinstance(hub, Hub) and hub.file for hub in hubs)
    # Hugging Face's copies by Google that hold safetensors (keras-hub pull request #1989).
    google = {s.split("/")[3] for c in ROWS for s in c.sources if s.startswith("hf://google/")}
    assert google == {
        "vit-base-patch16-224", "vit-base-patch16-224-in21k", "vit-base-patch16-384",
        "vit-base-patch32-224-in21k", "vit-base-patch32-384", "vit-large-patch16-224-in21k",
        "vit-huge-patch14-224-in21k",
    }  # fmt: skip


def test_unusable_heads_are_those_of_the_paper_release_at_21k():
    dead = {c.name for c in PUBLIC.values() if not c.usable_head}
    expected = {c.name for c in ROWS if c.tag == "orig_in21k" and "ViT" in c.variant}
    assert dead == expected and len(dead) == 9
    assert all("zeros" in PUBLIC[name].note for name in dead)


def test_checkpoints_without_a_head_say_so():
    headless = {c.variant.split("-")[0] for c in ROWS if c.num_classes == 0}
    assert headless == {"ViT", "R50+ViT", "DINO", "DINOv2", "MAE"}
    for card in ROWS:
        assert ("eatures" in f"{card.description} {card.note}") or card.num_classes


def test_gsam_pools_by_mean_and_warns():
    gsam = [c for c in ROWS if c.tag == "gsam_in1k" and c.variant.startswith("ViT")]
    assert len(gsam) == 4
    assert all(c.spec["pool"] == "gap" and "issue #195" in c.note for c in gsam)
    others = {c.tag for c in ROWS if "pool" in c.spec and c not in gsam}
    assert others == {"plain_in1k_90ep", "plain_in1k_150ep", "plain_in1k_300ep"}


def test_numerics_follow_the_origin_of_the_weights():
    for card in ROWS:
        torch = (card.file or "").startswith("timm/") and card.tag != "orig_in21k_timm"
        activation = getattr(card_spec(card), "activation", None)
        assert activation == (None if "BiT" in card.variant else "gelu" if torch else "gelu_tanh")
        rule = {"FlexiViT": "linear_antialias", "DeiT": "bicubic", "DINO": "bicubic",
                "DINOv2": "bicubic", "MAE": "bicubic"}.get(card.variant.split("-")[0])  # fmt: skip
        if card.tag.startswith("augreg2") or card.variant.endswith("-reg4"):
            rule = "bicubic_antialias"
        assert card.posemb_resize == (rule or "align_corners"), card.name
        assert (card.patch_resize == "pseudo_inverse") == card.variant.startswith("FlexiViT")


def test_licences_are_those_of_the_weights():
    assert {c.license for c in PUBLIC.values()} == {"Apache-2.0", "CC-BY-NC-4.0"}
    for card in PUBLIC.values():
        noncommercial = card.variant.startswith("MAE")
        assert (card.license == "CC-BY-NC-4.0") == noncommercial
        assert ("commercial" in card.note) == noncommercial


def test_dropout_of_a_card_is_that_of_the_authors_fine_tuning():
    for card in ROWS:
        series = card.tag.split("_")[0]
        # vit_jax/configs/augreg.py: "No AugReg during fine-tuning"
        expected = VARIANTS[card.variant].dropout if series in ("orig", "sam", "gsam") else 0.0
        assert getattr(card_spec(card), "dropout", 0.0) == expected, card.name


def test_tags_follow_the_documented_scheme():
    scheme = (
        r"(orig|augreg2?|sam|gsam|plain|bit|distill|teacher|flexi|fixed\d+|deit|dino|dinov2|mae|miil)"
        r"_(in1k|in21k|lvd142m)(_ft_(in1k|cifar10|pets|flowers102|food101|sun397))?"
        r"(_\d+ep)?(_\d{3})?(_timm)?"
    )
    text = cards.__doc__ or ""
    for card in ROWS:
        assert re.fullmatch(scheme, card.tag), card.name
        assert f"`{card.tag.split('_')[0]}`" in text
        assert f"{card.tag}_".count("_ft_") == (
            "fine-tuned" in card.pretraining and not card.tag.startswith(("augreg_in1k", "deit_"))
        )
        pixels = re.search(r"_(\d{3})(_timm)?$", card.tag)
        own = VARIANTS[card.variant].spec.image_size[0]
        assert card.image_size[0] == int(pixels[1] if pixels else own)


@pytest.mark.case("L18")
def test_every_head_states_its_reported_accuracy_and_how_it_is_evaluated():
    for card in ROWS:
        if card.usable_head and card.num_classes == 1000:
            reported = [m for m in card.metrics if m.dataset == "imagenet2012" and m.name == "top1"]
            assert reported or "ccuracy" in card.note, card.name
        folder = (card.file or "").split("/")[0]
        if folder in ("vit_models", "mixer_models") or card.tag.startswith("bit_"):
            # The authors' evaluation: plain bilinear resize to the input, no crop, no antialias.
            assert card.preprocessing == Preprocessing()
        if folder == "big_vision":
            assert card.preprocessing.truncate and not card.preprocessing.antialias
    for metric in (m for card in PUBLIC.values() for m in card.metrics):
        assert metric.source.partition(":")[0] in ("authors", "timm")
        assert 50 < metric.value < 100 or metric.name == "top1_with_unreleased_head"


def test_aliases_and_hub_names_belong_to_one_card_each():
    seen: dict[str, str] = {}
    for card in PUBLIC.values():
        for name in filter(None, (card.hub, *card.aliases)):
            assert seen.setdefault(name, card.name) == card.name
    # Hugging Face's google/*, facebook/*; timm's; KerasHub's presets and PyTorch Hub's names.
    kinds = [name.split("/")[0] + "/" if "/" in name else "" for name in seen]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "google/": 12, "timm/": 106, "facebook/": 23, "": 11 + 14,
    }  # fmt: skip
    assert seen["google/vit-base-patch16-224-in21k"] == "ViT-B/16@orig_in21k"


def test_vtab_is_made_from_its_pattern():
    made = [c for c in PUBLIC.values() if c.tag.startswith("vtab_")]
    assert len(made) == len({c.file for c in made}) == 5 * 19 * 3
    card = PUBLIC["BiT-R50x1@vtab_caltech101_run0"]
    assert card.file == "bit_models/vtab/BiT-M-R50x1-run0-caltech101.npz"
    assert card.sources == (f"https://storage.googleapis.com/{card.file}",)
    assert (card.num_classes, card.image_size, card.class_names) == (102, (480, 480), None)
    tiny = PUBLIC["BiT-R152x4@vtab_dsprites_orientation_run2"]
    assert tiny.file == "bit_models/vtab/BiT-M-R152x4-run2-dsprites-orientation.npz"
    assert (tiny.num_classes, tiny.image_size) == (16, (128, 128))
    assert all(cards._checked(c) == c for c in made)


@pytest.mark.case("P05")
@pytest.mark.parametrize(
    ("size", "expected"),
    [((32, 32), (160, 128)), ((95, 96), (160, 128)), ((96, 96), (512, 480)),
     ((224, 224), (512, 480)), ((40, 400), (512, 480))],
)  # fmt: skip
def test_bit_resolution_follows_the_released_rule(size, expected):
    assert vtab.bit_resolution(size) == expected


def test_listing_and_a_card_import_nothing_heavy():
    """How long it takes is measured by `python -m benchmarks.loading`."""
    code = (
        "import sys, keras_vit; keras_vit.list_models(pretrained=True); "
        "keras_vit.card('DINOv2-S/14'); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    heavy = {"keras", "tensorflow", "jax", "numpy", "h5py", "huggingface_hub", "PIL", "rich"}
    assert not heavy & set(done.stdout.split())


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
