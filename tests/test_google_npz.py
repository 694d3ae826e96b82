"""The official npz layout: every era read, written back bit for bit, and refused whole when it does not fit."""

import dataclasses
import json
import zipfile
from pathlib import Path

import keras
import ml_dtypes
import numpy as np
import pytest

from keras_vit.model import VisionModel
from keras_vit.spec import ViTSpec
from keras_vit.zoo.formats import google_npz, values_of, write_weights
from keras_vit.zoo.infer import spec_of
from keras_vit.zoo.weights import load_weights

ORACLES = Path(__file__).parent / "oracles"
LAYOUTS = sorted((ORACLES / "layouts").glob("*.npz"))
EXPECTED = ORACLES / "layouts_expected.npz"
# The official numbers are float32 of another framework; both sides round at 1e-6 of logits near 2,
# and the smallest wrong choice (epsilon 1e-5) moves them by 8e-5.
ATOL = 2e-5

SPEC = ViTSpec(32, 64, 2, 2, 8, image_size=32, num_classes=10)


def params(name: str, root: str = "params") -> dict[str, np.ndarray]:
    with np.load(ORACLES / name) as file:
        return {k[len(root) + 1 :]: file[k] for k in file.files if k.startswith(f"{root}/")}


def values(model) -> dict[str, np.ndarray]:
    return {v.path: keras.ops.convert_to_numpy(v) for v in model.weights}


def logits(model, x) -> np.ndarray:
    return keras.ops.convert_to_numpy(model(x, training=False))


@pytest.mark.case("L01", "L20")
@pytest.mark.parametrize("path", LAYOUTS, ids=lambda p: p.stem)
def test_every_layout_gives_the_official_logits(path):
    model = VisionModel(SPEC)
    load_weights(model, path)
    with np.load(EXPECTED) as file:
        row = "output_bf16_leaves_upcast_to_f32" if "bf16" in path.stem else "output_float32"
        np.testing.assert_allclose(logits(model, file["input"]), file[row], rtol=0, atol=ATOL)


def test_float16_layout_gives_the_official_logits(tmp_path):
    with np.load(ORACLES / "layouts" / "plain_prelinen.npz") as file:
        np.savez(tmp_path / "half.npz", **{k: file[k].astype(np.float16) for k in file.files})
    model = VisionModel(SPEC)
    load_weights(model, tmp_path / "half.npz")
    with np.load(EXPECTED) as file:
        expected = file["output_f16_leaves_upcast_to_f32"]
        np.testing.assert_allclose(logits(model, file["input"]), expected, rtol=0, atol=ATOL)


@pytest.mark.parametrize("path", LAYOUTS, ids=lambda p: p.stem)
def test_a_lone_file_tells_its_architecture(path):
    spec = spec_of(google_npz.read(path))
    # The tables of big_vision have no entry for the class token.
    assert spec.posemb_includes_cls == (not path.stem.startswith("bv_"))
    assert dataclasses.replace(spec, posemb_includes_cls=True) == SPEC


def test_blocks_stacked_by_scan_are_read_in_order():
    with np.load(ORACLES / "bv_vit_scan_map.npz") as file:
        spec = ViTSpec(32, 64, 2, 2, 8, image_size=32, num_classes=10, pool="map")
        model = VisionModel(spec)
        load_weights(model, params("bv_vit_scan_map.npz"))
        np.testing.assert_allclose(logits(model, file["input"]), file["output"], rtol=0, atol=ATOL)


def test_an_inlined_attention_head_is_read():
    inlined = {k.removeprefix("MAPHead_0/"): v for k, v in params("bv_vit_map.npz").items()}
    assert "probe" in inlined
    model = VisionModel(ViTSpec(32, 64, 2, 2, 8, image_size=32, num_classes=10, pool="map"))
    load_weights(model, inlined)
    with np.load(ORACLES / "bv_vit_map.npz") as file:
        np.testing.assert_allclose(logits(model, file["input"]), file["output"], rtol=0, atol=ATOL)


@pytest.mark.parametrize("includes_cls", [True, False])
@pytest.mark.parametrize(
    ("name", "root"),
    [("vit_tiny_token.npz", "params"), ("bv_fix_old_checkpoint.npz", "params_fixed")],
)
def test_class_token_and_position_meet_in_either_order(name, root, includes_cls):
    import dataclasses

    model = VisionModel(dataclasses.replace(SPEC, posemb_includes_cls=includes_cls))
    load_weights(model, params(name, root))
    with np.load(ORACLES / name) as file:
        np.testing.assert_allclose(logits(model, file["input"]), file["output"], rtol=0, atol=ATOL)


def test_the_official_layout_is_written_back_bit_for_bit(tmp_path):
    source = ORACLES / "layouts" / "plain_prelinen.npz"
    model = VisionModel(SPEC)
    load_weights(model, source)
    write_weights(model, tmp_path / "back.npz")
    with zipfile.ZipFile(source) as a, zipfile.ZipFile(tmp_path / "back.npz") as b:
        assert sorted(a.namelist()) == b.namelist()
        assert all(a.read(name) == b.read(name) for name in a.namelist())


def test_every_pool_and_layer_survives_a_round_trip(tmp_path):
    for pool in ("map", "gap", "token_unpooled", "none", "first"):
        spec = ViTSpec(
            12, 20, 3, 2, (4, 3), image_size=(12, 15), in_channels=5, num_classes=7, pool=pool,
            representation_size=11,
        )  # fmt: skip
        model, other = VisionModel(spec), VisionModel(spec)
        write_weights(model, tmp_path / f"{pool}.npz")
        report = load_weights(other, tmp_path / f"{pool}.npz")
        assert set(report.loaded) == set(values(model)) and report.unused == ()
        for path, value in values(other).items():
            np.testing.assert_array_equal(value, values(model)[path], err_msg=path)


@pytest.mark.case("L04")
def test_one_error_names_every_key_and_nothing_is_touched():
    arrays = params("vit_tiny_token_rep.npz")
    arrays["Transformer/encoderblock_7/LayerNorm_0/scale"] = np.ones(32, np.float32)
    arrays["embedding/kernel"] = arrays["embedding/kernel"][..., :-1]
    del arrays["Transformer/encoder_norm/bias"]
    model = VisionModel(SPEC)
    before = values(model)
    with pytest.raises(ValueError) as caught:
        load_weights(model, arrays)
    text = str(caught.value)
    assert "- Transformer/encoder_norm/bias" in text
    assert "+ Transformer/encoderblock_7/LayerNorm_0/scale" in text
    assert "+ pre_logits/kernel" in text and "+ pre_logits/bias" in text
    assert (
        "! embedding/kernel has shape (8, 8, 3, 31) in the file, (8, 8, 3, 32) in the model" in text
    )
    assert "! head/kernel has shape (24, 10) in the file, (32, 10) in the model" in text
    assert "num_classes=" in text
    for path, value in values(model).items():
        np.testing.assert_array_equal(value, before[path], err_msg=path)


def test_other_parameters_beside_the_image_model_are_ignored_but_strangers_are_not():
    arrays = params("vit_tiny_token.npz")
    load_weights(VisionModel(SPEC), {**arrays, "opt/0/mu/cls": arrays["cls"]})
    with pytest.raises(ValueError, match=r"\+ stranger/kernel"):
        load_weights(VisionModel(SPEC), {**arrays, "stranger/kernel": arrays["cls"]})


@pytest.mark.parametrize("keep", [True, False], ids=["keep", "drop"])
def test_loading_for_fine_tuning_equals_the_official_load_pretrained(keep):
    name = f"load_pretrained_{'keep' if keep else 'drop'}_pre_logits.npz"
    spec = ViTSpec(
        32, 64, 2, 2, 8, image_size=48, num_classes=5, representation_size=24 if keep else None
    )
    model = VisionModel(spec)
    skip = ["head/.*"] if keep else ["head/.*", "pre_logits/.*"]
    report = load_weights(model, params("vit_tiny_token_rep.npz"), skip=skip)
    assert report.resized == ((4, 4), (6, 6))
    assert {k.split("/")[0] for k in report.unused} == {s.split("/")[0] for s in skip}
    # The fixture's head is a fresh zero kernel with 0.25 as its bias, to make the reset visible.
    model.get_layer("head").bias.assign(np.full(5, 0.25, np.float32))
    with np.load(ORACLES / name) as file:
        after = {k[len("params_after/") :]: file[k] for k in file.files if k.startswith("params_")}
        for key, value in google_npz.to_arrays(values_of(model), model.spec).items():
            # scipy's zoom and ours round differently in the last bit of a resized table.
            np.testing.assert_allclose(value, after[key], rtol=0, atol=2e-7, err_msg=key)
        np.testing.assert_allclose(logits(model, file["input"]), file["output"], rtol=0, atol=ATOL)


@pytest.mark.case("R02")
def test_grids_are_compared_and_not_lengths():
    spec = ViTSpec(12, 20, 3, 1, 4, image_size=(8, 32), num_classes=3, pool="gap")
    wide = VisionModel(spec)
    square = VisionModel(ViTSpec(12, 20, 3, 1, 4, image_size=(16, 16), num_classes=3, pool="gap"))
    report = load_weights(
        square, google_npz.to_arrays(values_of(wide), wide.spec), source_grid=(2, 8)
    )
    assert report.resized == ((2, 8), (4, 4))
    assert (
        np.abs(values(square)["posembed_input/table"] - values(wide)["posembed_input/table"]).max()
        > 0
    )
    same = VisionModel(spec)
    assert (
        load_weights(
            same, google_npz.to_arrays(values_of(wide), wide.spec), source_grid=(2, 8)
        ).resized
        is None
    )
    with pytest.raises(ValueError, match="grid"):
        load_weights(
            square,
            google_npz.to_arrays(values_of(wide), wide.spec),
            source_grid=(2, 8),
            posemb_resize=None,
        )


@pytest.mark.case("L11")
def test_files_are_known_by_content(tmp_path):
    arrays = params("vit_tiny_token.npz")
    np.savez(tmp_path / "a.npz", **arrays)
    renamed = (tmp_path / "a.npz").rename(tmp_path / "a.bin")
    load_weights(VisionModel(SPEC), renamed)
    text = tmp_path / "text.npz"
    text.write_text("404 Not Found")
    with pytest.raises(ValueError, match="not an npz, safetensors, HDF5"):
        load_weights(VisionModel(SPEC), text)


def test_truncated_damaged_and_pickled_files_are_refused_whole(tmp_path):
    model = VisionModel(SPEC)
    before = values(model)
    arrays = params("vit_tiny_token.npz")
    whole = tmp_path / "whole.npz"
    np.savez(whole, **arrays)
    data = whole.read_bytes()

    (tmp_path / "cut.npz").write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match="truncated"):
        load_weights(model, tmp_path / "cut.npz")

    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 0xFF
    (tmp_path / "flipped.npz").write_bytes(flipped)
    with pytest.raises(ValueError, match="damaged"):
        load_weights(model, tmp_path / "flipped.npz")

    np.savez(tmp_path / "pickled.npz", **{**arrays, "cls": np.array([{}], dtype=object)})
    with pytest.raises(ValueError, match="pickled"):
        load_weights(model, tmp_path / "pickled.npz")

    with pytest.raises(FileNotFoundError, match="does not exist"):
        load_weights(model, tmp_path / "nowhere.npz")
    np.savez(tmp_path / "other.npz", weight=np.zeros(3))
    with pytest.raises(ValueError, match="holds no network of the official releases"):
        load_weights(model, tmp_path / "other.npz")
    for path, value in values(model).items():
        np.testing.assert_array_equal(value, before[path], err_msg=path)


def test_a_failed_write_leaves_nothing_behind(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError("No space left on device")

    monkeypatch.setattr(np, "savez", fail)
    with pytest.raises(OSError, match="space"):
        write_weights(VisionModel(SPEC), tmp_path / "x.npz")
    assert list(tmp_path.iterdir()) == []


def test_bfloat16_files_hold_what_their_void_bytes_say(tmp_path):
    table = np.array([1.0, -2.5, 3.140625], np.float32)
    np.savez(tmp_path / "v.npz", x=table.astype(ml_dtypes.bfloat16))
    from keras_vit.zoo.formats.npz import open_npz

    entry = open_npz(tmp_path / "v.npz")["x"]
    assert entry.dtype == np.dtype("V2")
    np.testing.assert_array_equal(entry.read(), table)


def test_fixture_configs_say_what_this_test_assumes():
    with np.load(EXPECTED) as file:
        model = json.loads(str(file["config"]))["model"]
    assert model["hidden_size"] == SPEC.hidden_size and model["classifier"] == SPEC.pool
