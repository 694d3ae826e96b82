"""Every name a model goes by leads to one variant and tag; any other is answered with the nearest."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from keras_vit.zoo import names, scope
from keras_vit.zoo.api import list_models
from keras_vit.zoo.cards import all_cards, tags
from keras_vit.zoo.names import default_tag, resolve, resolve_tag
from keras_vit.zoo.spellings import SPELLINGS
from keras_vit.zoo.variants import VARIANTS

B16_384 = "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0--imagenet2012-steps_20k-lr_0.03-res_384"
R_TI16 = "R_Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0"
R50_B16 = "R50+ViT-B/16"
BUCKET = "https://storage.googleapis.com/vit_models/"


@pytest.mark.parametrize(
    "name",
    [
        "ViT-L/16",
        "vit-l/16",
        "VIT_L_16",
        "ViT-L_16",
        "ViT-L_16.npz",
        "ViT L 16",
        "vit_l16",
        "L/16",
        "L_16",
        " ViT-L/16 ",
    ],
)
def test_spellings_of_a_variant(name):
    assert resolve(name) == ("ViT-L/16", None)


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        ("ViT-b/32", "ViT-b/32"),
        ("ViT-b_32", "ViT-b/32"),
        ("vit-b/32", "ViT-B/32"),
        ("vit_b_32", "ViT-B/32"),
        ("VIT-B/32", "ViT-B/32"),
        ("ViT-g/14", "ViT-g/14"),
        ("vit-g/14", "ViT-g/14"),
        ("ViT-G/14", "ViT-G/14"),
        ("VIT_G_14", "ViT-G/14"),
        ("vit_mini_4", "ViT-Mini/4"),
        ("Mini/4", "ViT-Mini/4"),
        ("R14-vit-mini-4", "R14+ViT-Mini/4"),
        ("bit_mini", "BiT-Mini"),
    ],
)
def test_case_decides_only_where_two_variants_differ_by_it(name, variant):
    assert resolve(name) == (variant, None)


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("ViT-B/16@sam_in1k", "ViT-B/16@sam_in1k"),
        ("vit_b16@SAM-in1k", "ViT-B/16@sam_in1k"),
        # published files
        ("ViT-B_16-224", "ViT-B/16@orig_in21k_ft_in1k_224"),
        ("imagenet21k/ViT-B_16.npz", "ViT-B/16@orig_in21k"),
        ("imagenet21k+imagenet2012/ViT-B_16", "ViT-B/16@orig_in21k_ft_in1k_384"),
        ("vit_models/sam/ViT-B_16.npz", "ViT-B/16@sam_in1k"),
        ("gs://vit_models/gsam/ViT-B_16.npz", "ViT-B/16@gsam_in1k"),
        (BUCKET + "imagenet21k%2Bimagenet2012/ViT-L_16.npz", "ViT-L/16@orig_in21k_ft_in1k_384"),
        (B16_384, "ViT-B/16@augreg_in21k_ft_in1k_384"),
        (B16_384 + ".npz", "ViT-B/16@augreg_in21k_ft_in1k_384"),
        (B16_384.replace("lr_0.03", "lr_0.01"), "ViT-B/16@augreg_in21k_ft_in1k_384_timm"),
        # timm: with its own pick where the authors recommend another file
        ("vit_base_patch16_224.augreg_in21k_ft_in1k", "ViT-B/16@augreg_in21k_ft_in1k_224"),
        ("vit_base_patch16_384.augreg_in21k_ft_in1k", "ViT-B/16@augreg_in21k_ft_in1k_384_timm"),
        ("vit_small_patch16_384.augreg_in21k_ft_in1k", "ViT-S/16@augreg_in21k_ft_in1k_384"),
        ("timm/vit_large_patch16_224.augreg_in21k", "ViT-L/16@augreg_in21k_timm"),
        ("hf-hub:timm/vit_base_patch16_224.sam_in1k", "ViT-B/16@sam_in1k"),
        ("vit_base_patch16_224.orig_in21k", "ViT-B/16@orig_in21k"),
        ("vit_base_patch16_224", "ViT-B/16@augreg_in21k_ft_in1k_224"),
        ("vit_large_patch16_384", "ViT-L/16@augreg_in21k_ft_in1k_384_timm"),
        ("vit_base_patch8_224", "ViT-B/8@augreg_in21k_ft_in1k_224_timm"),
        ("vit_large_patch32_384", "ViT-L/32@orig_in21k_ft_in1k_384"),
        ("vit_huge_patch14_224", "ViT-H/14@orig_in21k"),
        # Hugging Face, KerasHub
        ("google/vit-base-patch16-224", "ViT-B/16@orig_in21k_ft_in1k_224"),
        ("google/vit-large-patch16-384", "ViT-L/16@orig_in21k_ft_in1k_384"),
        ("google/vit-huge-patch14-224-in21k", "ViT-H/14@orig_in21k"),
        ("vit_base_patch16_224_imagenet", "ViT-B/16@orig_in21k_ft_in1k_224"),
        ("vit_large_patch32_224_imagenet21k", "ViT-L/32@orig_in21k"),
        ("deit_base_distilled_patch16_384_imagenet", "DeiT-B/16-distilled@deit_in1k_384"),
        # hybrids
        ("imagenet21k/R50+ViT-B_16.npz", "R50+ViT-B/16@orig_in21k"),
        (
            BUCKET + "imagenet21k%2Bimagenet2012/R50%2BViT-B_16.npz",
            f"{R50_B16}@orig_in21k_ft_in1k_384",
        ),
        (R_TI16, "R+ViT-Ti/16@augreg_in21k"),
        (R_TI16 + ".npz", "R+ViT-Ti/16@augreg_in21k"),
        ("vit_base_r50_s16_384.orig_in21k_ft_in1k", f"{R50_B16}@orig_in21k_ft_in1k_384"),
        ("vit_base_r50_s16_384", f"{R50_B16}@orig_in21k_ft_in1k_384"),
        ("vit_small_r26_s32_224", "R26+ViT-S/32@augreg_in21k_ft_in1k_224"),
        # BiT: its file names, timm, Hugging Face
        ("BiT-S-R50x1", "BiT-R50x1@bit_in1k"),
        ("BiT-M-R50x1", "BiT-R50x1@bit_in21k"),
        ("BiT-M-R50x1.npz", "BiT-R50x1@bit_in21k"),
        ("bit_m_r101x3", "BiT-R101x3@bit_in21k"),
        ("BiT-M-R50x1-ILSVRC2012", "BiT-R50x1@bit_in21k_ft_in1k_480"),
        ("BiT-M-R152x4-run1-caltech101.npz", "BiT-R152x4@vtab_caltech101_run1"),
        ("resnetv2_50x1_bit.goog_in21k_ft_in1k", "BiT-R50x1@bit_in21k_ft_in1k_480"),
        ("resnetv2_50x1_bit", "BiT-R50x1@distill_in1k_224"),  # timm's own default
        ("resnetv2_101x1_bit", "BiT-R101x1@bit_in21k_ft_in1k_480"),
        ("google/bit-50", "BiT-R50x1@bit_in21k_ft_in1k_480"),
        # Mixer
        ("mixer_models/imagenet21k/Mixer-B_16.npz", "Mixer-B/16@orig_in21k"),
        ("mixer_b16_224.goog_in21k_ft_in1k", "Mixer-B/16@orig_in1k"),
        ("mixer_b16_224", "Mixer-B/16@orig_in1k"),
        # relatives
        ("deit_base_distilled_patch16_384.fb_in1k", "DeiT-B/16-distilled@deit_in1k_384"),
        ("facebook/deit-base-patch16-224", "DeiT-B/16@deit_in1k_224"),
        ("deit_base_patch16_384", "DeiT-B/16@deit_in1k_384"),
        ("vit_base_patch16_224.dino", "DINO-B/16@dino_in1k"),
        ("vit_small_patch8_224", "DINO-S/8@dino_in1k"),  # timm's only weights of that name
        ("facebook/dino-vits16", "DINO-S/16@dino_in1k"),
        ("vit_small_patch14_dinov2.lvd142m", "DINOv2-S/14@dinov2_lvd142m"),
        ("vit_base_patch14_reg4_dinov2", "DINOv2-B/14-reg4@dinov2_lvd142m"),
        ("facebook/dinov2-base", "DINOv2-B/14@dinov2_lvd142m"),
        ("hf://facebook/dinov2-with-registers-base", "DINOv2-B/14-reg4@dinov2_lvd142m"),
        ("vit_base_patch16_224.mae", "MAE-B/16@mae_in1k"),
        ("facebook/vit-mae-base", "MAE-B/16@mae_in1k"),
        ("flexivit_base.1200ep_in1k", "FlexiViT-B@flexi_in1k_1200ep"),
        ("flexivit_b_i1k_300ep", "FlexiViT-B@flexi_in1k_300ep"),
    ],
)
def test_names_that_mean_weights(name, full):
    variant, tag = resolve(name)
    assert f"{variant}@{tag}" == full
    assert full in all_cards()


def test_timm_names_without_weights_here_name_the_variant():
    assert resolve("vit_giant_patch14_224") == ("ViT-g/14", None)


def test_every_card_is_found_by_every_name_it_carries():
    for card in all_cards().values():
        expected = (card.variant, card.tag)
        for name in filter(None, (card.name, card.hub, *card.aliases, card.file, *card.sources)):
            assert resolve(name) == expected, name
            assert resolve(name.upper().replace("_", "-")) == expected, name


def test_a_name_that_two_cards_share_means_neither(tmp_path, monkeypatch):
    row = '[[card]]\nvariant = "ViT-B/16"\ntag = "{}"\naliases = ["house-model"{}]\n'
    (tmp_path / "own.toml").write_text(row.format("one", "") + row.format("two", ', "second"'))
    monkeypatch.setenv("KERAS_VIT_CARDS", str(tmp_path))
    assert resolve("second") == ("ViT-B/16", "two")
    with pytest.raises(ValueError, match="no model goes by the name 'house-model'"):
        resolve("house-model")
    monkeypatch.delenv("KERAS_VIT_CARDS")
    with pytest.raises(ValueError, match="no model goes by the name 'second'"):
        resolve("second")


def test_every_variant_is_found_by_its_own_name():
    for name in VARIANTS:
        assert resolve(name) == (name, None)
        assert resolve(name.replace("/", "_")) == (name, None)


@pytest.mark.parametrize(
    ("tag", "full"),
    [
        ("imagenet21k", "orig_in21k"),
        ("imagenet21k+imagenet2012", "orig_in21k_ft_in1k_384"),
        ("imagenet21k+imagenet2012-224", "orig_in21k_ft_in1k_224"),
        ("augreg", "augreg_in21k_ft_in1k_384"),
        ("augreg_in21k_ft_in1k", "augreg_in21k_ft_in1k_384"),
        ("AugReg-in1k", "augreg_in1k_384"),
        ("orig_in21k_ft_in1k", "orig_in21k_ft_in1k_384"),
        ("orig", "orig_in21k_ft_in1k_384"),
        ("sam", "sam_in1k"),
    ],
)
def test_shorter_tags(tag, full):
    assert resolve_tag("ViT-B/16", tag) == full
    assert resolve(f"ViT-B/16@{tag}") == ("ViT-B/16", full)


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("BiT-R50x1@bit", "bit_in21k_ft_in1k_480"),
        ("BiT-R50x1@BiT-M", "bit_in21k"),
        ("BiT-R50x1@bit-s", "bit_in1k"),
        ("BiT-R50x1@distill", "distill_in1k_224"),
        ("BiT-R152x2@teacher", "teacher_in21k_ft_in1k_384"),
        ("R50+ViT-B/16@imagenet21k", "orig_in21k"),
        ("Mixer-B/16@imagenet1k", "orig_in1k"),
        ("DINOv2-B/14@dinov2", "dinov2_lvd142m"),
        ("DeiT-B/16@deit", "deit_in1k_224"),
        ("FlexiViT-B@flexi", "flexi_in1k_1200ep"),
        ("MAE-B/16@mae", "mae_in1k"),
    ],
)
def test_shorter_tags_of_other_families(name, full):
    assert resolve(name)[1] == full


@pytest.mark.parametrize(
    ("pattern", "family", "some", "count"),
    [
        ("*", "hybrid", "R50+ViT-B/16", 8),
        ("*", "resnet", "BiT-R152x4", 19),
        ("*", "mixer", "Mixer-H/14", 7),
        ("DINOv2-*", "vit", "DINOv2-g/14-reg4", 8),
        ("R50*", None, "R50+ViT-L/32", 4),
    ],
)
def test_lists_of_a_family(pattern, family, some, count):
    found = list_models(pattern, family=family)
    assert len(found) == count
    assert some is None or some in found
    pretrained = list_models(pattern, family=family, pretrained=True)
    nothing = list_models(pattern, family=family, pretrained=False)
    assert {name.partition("@")[0] for name in pretrained} == set(found) - set(nothing)
    assert set(pretrained) <= set(all_cards())


def test_a_fresh_process_answers_without_keras():
    """How long it takes is measured by `python -m benchmarks.loading`."""
    for call in (
        "list_models(pretrained=True)",
        "card('vit_base_patch16_224')",
        "card('ViT-L/16')",
    ):
        code = (
            f"import keras_vit, sys; keras_vit.{call}; "
            "heavy = {'keras', 'tensorflow', 'jax', 'torch', 'numpy'} & set(sys.modules); "
            "assert not heavy, heavy"
        )
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)


def test_a_folder_name_means_the_nearest_release_where_the_paper_has_none():
    assert resolve_tag("ViT-S/16", "imagenet21k") == "augreg_in21k"
    assert resolve_tag("ViT-B/8", "augreg") == "augreg_in21k_ft_in1k_224"


def test_defaults_are_frozen():
    golden = json.loads((Path(__file__).parent / "golden/defaults.json").read_text())
    assert golden == names.DEFAULTS


def test_defaults_exist_and_follow_the_rule():
    for variant in VARIANTS:
        known = tags(variant)
        if not known:
            assert variant not in names.DEFAULTS
            continue
        tag = default_tag(variant)
        assert tag in known and not tag.endswith("_timm"), variant
        rule = [
            t
            for t in (
                "augreg_in21k_ft_in1k",
                "orig_in21k_ft_in1k",
                "bit_in21k_ft_in1k",
                "orig_in1k",
            )
            if any(k.startswith(t) for k in known)
        ]
        assert tag.startswith((*rule, tag)[0]), variant
    assert not all_cards()["ViT-H/14@orig_in21k"].usable_head
    assert not all_cards()["R26+ViT-B/32@orig_in21k"].usable_head  # load warns of these two


def test_defaults_classify_images_where_anything_released_does():
    cards = all_cards().values()
    for variant, tag in names.DEFAULTS.items():
        card = all_cards()[f"{variant}@{tag}"]
        classifies = {c.variant for c in cards if c.num_classes == 1000 and "vtab" not in c.tag}
        assert card.num_classes == 1000 or variant not in classifies or variant == "ViT-H/14"


@pytest.mark.parametrize(
    "variant",
    [
        "ViT-g/14",
        "ViT-L/14",
        "ViT-b/32",
        "R50+ViT-L/16",
        "BiT-R200x3",
        "ResNet-GN-R50x1",
        "Mixer-H/14",
    ],
)
def test_variants_without_released_weights_say_so(variant):
    with pytest.raises(
        ValueError, match=rf"never released weights of {re.escape(variant)}: .*keras_vit\.build"
    ):
        default_tag(variant)
    with pytest.raises(ValueError, match="never released"):
        resolve(f"{variant}@augreg")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("ViT-B/17", "ViT-B/16"),
        ("Vit-Lage/16", "ViT-L/16"),
        ("google/vit-base-patch16-225", "google/vit-base-patch16-224"),
        ("vit_base_patch16_224_augreg_in21k_ft_in1", "vit_base_patch16_224.augreg_in21k_ft_in1k"),
        ("banana", "there are ViT-B/16, R50+ViT-B/16"),
        ("", "there are ViT-B/16, R50+ViT-B/16"),
    ],
)
def test_unknown_names_give_the_nearest(name, nearest):
    with pytest.raises(ValueError) as error:
        resolve(name)
    assert repr(name) in str(error.value)
    assert nearest in str(error.value)


def test_unknown_tags_give_those_of_the_variant():
    with pytest.raises(ValueError) as error:
        resolve("ViT-L/32@augreg_in21k")
    message = str(error.value)
    assert message.startswith("ViT-L/32 has no weights 'augreg_in21k': it has ")
    assert all(tag in message for tag in tags("ViT-L/32"))
    assert message.endswith("Did you mean ViT-L/32@orig_in21k?")
    with pytest.raises(ValueError, match=r"ends in @: add a tag of ViT-L/32, orig_in21k"):
        resolve("ViT-L/32@")


def test_of_many_tags_the_first_are_given():
    with pytest.raises(ValueError) as error:
        resolve("BiT-R50x1@bit_in22k")
    message = str(error.value)
    assert "it has bit_in1k, bit_in21k, bit_in21k_ft_in1k_480" in message
    assert re.search(
        r"and \d+ more, see keras_vit\.list_models\('BiT-R50x1@\*', pretrained=True\)", message
    )
    assert message.endswith("Did you mean BiT-R50x1@bit_in21k?") and len(message) < 400


def test_weights_of_timm_that_are_not_googles_are_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"this version knows .*vit_base_patch16_224\.sam_in1k"):
        resolve("vit_base_patch16_224.augreg3_in1k")
    with pytest.raises(
        ValueError, match=r"of timm's weights for Mixer-B/16 .*mixer_b16_224\.goog_in21k"
    ):
        resolve("mixer_b16_224.goog_in22k")


def test_an_augreg_file_without_a_row_is_known_by_its_name():
    name = B16_384.replace("medium1", "light0")
    variant, tag = resolve(name + ".npz")
    assert (variant, f"B_16-{tag}") == ("ViT-B/16", name)
    assert resolve(f"{variant}@{tag}") == (variant, tag)


def test_a_name_like_augregs_that_names_no_file_is_loaded_by_its_path():
    name = B16_384.replace("medium1", "light9")
    with pytest.raises(ValueError) as error:
        resolve(name + ".npz")
    assert f"load('ViT-B/16', weights='PATH/{name}.npz')" in str(error.value)


@pytest.mark.case("L07")
@pytest.mark.parametrize(
    "name",
    [
        "R50+ViT-B/16",
        "R50x1+ViT-B/16",
        "r50+vit_b16",
        "R50-ViT-B/16",
        "R50-ViT-B_16",
        "R50+ViT-B_16.npz",
        "R50%2BViT-B_16.npz",
        "R50+B/16",
    ],
)
def test_spellings_of_a_hybrid(name):
    assert resolve(name) == ("R50+ViT-B/16", None)


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        ("R50+L/32", "R50+ViT-L/32"),
        ("R50_L_32", "R50+ViT-L/32"),
        ("R26+S/32", "R26+ViT-S/32"),
        ("R+Ti/16", "R+ViT-Ti/16"),
        ("R_Ti_16", "R+ViT-Ti/16"),
        ("bit-r152x4", "BiT-R152x4"),
        ("R200x3", "BiT-R200x3"),
        ("resnet-gn-r50x1", "ResNet-GN-R50x1"),
        ("Mixer-B_16.npz", "Mixer-B/16"),
        ("mlp-mixer-l/16", "Mixer-L/16"),
        ("deit_b16", "DeiT-B/16"),
        ("DeiT-base/16-distilled", "DeiT-B/16-distilled"),
        ("DINO ViT-S/8", "DINO-S/8"),
        ("DINOv2 ViT-g/14", "DINOv2-g/14"),
        ("DINOv2-S/14-reg", "DINOv2-S/14-reg4"),
        ("mae_vit_large_patch16", "MAE-L/16"),
        ("FlexiViT-B/16", "FlexiViT-B"),
        ("vit-huge/14", "ViT-H/14"),
        ("vit_base_patch16", "ViT-B/16"),
    ],
)
def test_spellings_of_other_families(name, variant):
    assert resolve(name)[0] == variant


def test_no_spelling_means_two_variants_but_for_their_case():
    both = [set(variants) for variants in SPELLINGS.values() if len(variants) > 1]
    assert both and all(b in ({"ViT-b/32", "ViT-B/32"}, {"ViT-g/14", "ViT-G/14"}) for b in both)


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        ("vit_base_r26_s32_224", "R26+ViT-B/32"),
        ("mixer_s16_224", "Mixer-S/16"),
        ("resnetv2_152x4_bit", "BiT-R152x4"),
        ("deit_base_distilled_patch16_384", "DeiT-B/16-distilled"),
        ("vit_giant_patch14_reg4_dinov2", "DINOv2-g/14-reg4"),
        ("flexivit_large", "FlexiViT-L"),
        ("timm/vit_tiny_r_s16_p8_384", "R+ViT-Ti/16"),
    ],
)
def test_architectures_of_timm(name, variant):
    assert resolve(name)[0] == variant


@pytest.mark.parametrize(
    ("name", "kind", "near"),
    [
        ("deit3_base_patch16_224.fb_in1k", "DeiT III", "DeiT-B/16"),
        ("DeiT-III-B/16", "DeiT III", "DeiT-B/16"),
        ("facebook/dinov3-vitb16-pretrain-lvd1689m", "DINOv3", "DINOv2-B/14-reg4"),
        ("vit_base_patch16_dinov3.lvd1689m", "DINOv3", "DINOv2-B/14-reg4"),
        ("google/siglip-base-patch16-224", "SigLIP", "ViT-B/16"),
        ("vit_base_patch16_siglip_224", "SigLIP", "ViT-B/16"),
        ("LiT-B16B", "LiT, an image and a text network", "ViT-B/16"),
        ("openai/clip-vit-base-patch32", "CLIP", "ViT-B/16"),
        ("microsoft/beit-base-patch16-224", "BEiT", "MAE-B/16"),
        ("eva02_large_patch14_448", "EVA", "DINOv2-L/14"),
        ("swin_tiny_patch4_window7_224", "the Swin Transformer", "ViT-B/16"),
        ("facebook/convnext-tiny-224", "ConvNeXt", "BiT-R50x1"),
        ("microsoft/resnet-50", "a ResNet other than BiT's", "BiT-R50x1"),
        ("resnet50", "a ResNet other than BiT's", "BiT-R50x1"),
    ],
)
def test_models_that_are_not_here_are_named_with_what_is_near(name, kind, near):
    with pytest.raises(ValueError) as error:
        resolve(name)
    start = f"{name!r} names {kind}, which is not in this package: near are "
    assert str(error.value).startswith(start)
    assert near in str(error.value).removeprefix(start)


def test_models_near_those_that_are_not_here_exist():
    for _, _, near in scope.OTHERS:
        assert set(near) <= set(VARIANTS)


def test_the_hybrid_of_hugging_face_is_told_where_its_weights_are():
    with pytest.raises(ValueError, match=r"keras_vit\.load\('R50\+ViT-B/16'\)"):
        resolve("google/vit-hybrid-base-bit-384")


@pytest.mark.parametrize("name", ["BiT-L-R152x4", "ViT-H_14-jft", "jft/ViT-L_16.npz"])
def test_weights_trained_on_jft_were_never_released(name):
    with pytest.raises(ValueError, match="JFT, which the authors never released"):
        resolve(name)
    with pytest.raises(ValueError, match=r"it has orig_in21k.* JFT were never released"):
        resolve("ViT-H/14@jft300m")


@pytest.mark.case("K04")
def test_names_of_earlier_versions_keep_their_meaning():
    """Add names to the golden file; never change or remove one."""
    golden = json.loads((Path(__file__).parent / "golden/names.json").read_text())
    for name, meaning in golden.items():
        variant, tag = resolve(name)
        assert (f"{variant}@{tag}" if tag else variant) == meaning, name
    assert set(all_cards()) | set(VARIANTS) <= set(golden)


@pytest.mark.parametrize("spelling", ["ViT-B/16", "vit-b/16", "B/16", "vit_b16"])
def test_the_name_of_an_augreg_file_goes_with_any_spelling_of_its_variant(spelling):
    tag = "i21k-301ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0"
    assert names.resolve(f"{spelling}@{tag}") == ("ViT-B/16", tag)
