"""Every name a model goes by leads to one variant and tag; any other is answered with the nearest."""

import json
from pathlib import Path

import pytest

from keras_vit.zoo import names, scope
from keras_vit.zoo.cards import all_cards, tags
from keras_vit.zoo.names import default_tag, resolve, resolve_tag
from keras_vit.zoo.spellings import SPELLINGS
from keras_vit.zoo.variants import VARIANTS

B16_384 = "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0--imagenet2012-steps_20k-lr_0.03-res_384"
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
        assert tag in known
        rule = [
            t
            for t in ("augreg_in21k_ft_in1k", "orig_in21k_ft_in1k", "orig_in21k")
            if any(k.startswith(t) for k in known)
        ]
        assert variant == "ViT-Mini/4" or (tag.startswith(rule[0]) and not tag.endswith("_timm"))
    assert not all_cards()["ViT-H/14@orig_in21k"].usable_head  # the one default that load warns of


@pytest.mark.parametrize("variant", ["ViT-g/14", "ViT-G/14", "ViT-L/14", "ViT-b/32"])
def test_variants_without_released_weights_say_so(variant):
    with pytest.raises(
        ValueError, match=rf"never released weights of {variant}: .*keras_vit\.build"
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


def test_weights_of_timm_that_are_not_googles_are_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"this version knows .*vit_base_patch16_224\.sam_in1k"):
        resolve("vit_base_patch16_224.dino")


def test_an_augreg_file_without_a_card_is_loaded_by_its_path():
    name = B16_384.replace("medium1", "light0")
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
        ("microsoft/resnet-50", "a ResNet with batch norm", "BiT-R50x1"),
        ("resnet50", "a ResNet with batch norm", "BiT-R50x1"),
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
