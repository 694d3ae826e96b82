"""Figure 12: rates by the clock, memory and rates by the compiler of TPUs, the table and the figure."""

import json

import pytest

from keras_vit import cli
from keras_vit.results import store
from keras_vit.spec import ViTSpec
from keras_vit.studies import process, speed, speed_drawing
from keras_vit.studies.figures import Figures
from keras_vit.studies.topology import GIB

GB = 10**9
V3 = 16 * GIB


def fake_compiler(fixed=2 * GB, image=0.1 * GB, seconds=0.001, limit=V3):
    """An `ask` for which memory is `fixed` and so much for every image; the batches it compiled."""
    compiled_batches = []

    def ask(spec, topology, batches, *, dtype, doubling, known, progress, compiled):
        tried = dict(known)
        while (batch := speed.next_batch(batches, tried, doubling)) is not None:
            progress(f"{batch} images")
            memory = int(fixed + image * batch)
            fits = memory <= limit
            took = None if seconds is None or not fits else 0.004 + seconds * batch
            tried[batch] = Figures(memory, fits, took)
            compiled_batches.append(batch)
            compiled(batch, tried[batch])

    return ask, compiled_batches


def asked(ask, batches=(8, 32), **options):
    return speed.by_compiler(["ViT-B/32"], [224], batches, ask, topology="v3-8", **options)


# The networks


def test_every_network_of_the_figure_takes_every_size():
    for model in speed.NETWORKS:
        for size in speed.SIZES:
            spec = speed.network(model, size)
            assert tuple(spec.image_size) == (size, size)
    # 64 = 4 x 14 + 8, 512 = 36 x 14 + 8: what no patch covers is dropped.
    assert speed.network("ViT-H/14", 64).grid == (4, 4)
    assert speed.network("ViT-H/14", 512).grid == (36, 36)
    assert not speed.network("ViT-H/14", 224).allow_crop


def test_a_tiny_network_is_of_the_same_family():
    assert isinstance(speed.network("ViT-H/14", 64, smoke=True), ViTSpec)
    assert speed.network("ViT-H/14", 64, smoke=True).hidden_size == 16
    assert type(speed.network("BiT-R152x4", 64, smoke=True)) is type(speed.network("BiT-R50x1", 64))


# By the clock


def test_networks_take_turns_and_the_first_call_does_not_count():
    calls, now = [], [0.0]

    def run(name, seconds):
        calls.append(name)
        now[0] += seconds if calls.count(name) > 1 else 100.0

    runs = {"a": lambda: run("a", 1.0), "b": lambda: run("b", 3.0)}
    times = speed.in_turns(runs, 3, clock=lambda: now[0])
    assert calls == ["a", "b"] * 4
    assert times == {"a": [1.0] * 3, "b": [3.0] * 3}


def test_what_lacks_memory_is_left_out_and_other_errors_are_not_hidden():
    def too_large():
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes")

    assert speed.in_turns({"a": too_large, "b": lambda: None}, 2)["a"] == []
    with pytest.raises(ZeroDivisionError):
        speed.in_turns({"a": lambda: 1 / 0}, 2)


def test_a_row_is_the_median_and_the_peak_is_over_batches():
    def row(batch, seconds):
        return speed.rate_row("m", batch, seconds, {"image_size": 64, "batch": batch}, None)

    # One slow round in three moves neither the median nor the peak.
    rows = [row(1, [0.1, 0.1, 9.0]), row(8, [0.2, 0.1, 0.4]), row(32, [1.0, 1.0, 1.0])]
    assert [r.value for r in rows] == pytest.approx([10.0, 40.0, 32.0])
    assert rows[1].std == pytest.approx(30.550505)  # of 40, 80 and 20
    assert rows[2].std == 0.0 and rows[0].unit == "number"
    (found,) = speed.summaries(rows)
    assert (found.rate, found.batch) == (pytest.approx(40.0), 8)
    assert found.largest is None


def measured(capsys, *arguments):
    capsys.readouterr()
    code = cli.run(["speed", *arguments])
    found = capsys.readouterr()
    return code, found.out, found.err


def test_the_command_measures_and_goes_on(capsys, tmp_path):
    out = tmp_path / "speed"
    tiny = ["ViT-B/32", "--smoke", "--rounds", "2", "--batch", "2", "--out", str(out)]
    code, text, err = measured(capsys, *tiny, "--image-size", "8")
    assert code == 0 and "tiny ViT-B/32" in text and err.count("images a second") == 1
    (first,) = store.read(out / "results.jsonl")
    assert first.value > 0 and first.std is not None and first.command and first.when
    assert (first.settings["image_size"], first.settings["batch"]) == (8, 2)
    assert first.settings["device"] and first.settings["backend"]
    assert (out / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert "| tiny ViT-B/32 | 8 |" in (out / "speed.md").read_text()
    # Another size: only what is not there is measured.
    code, text, err = measured(capsys, *tiny, "--image-size", "8,16", "--json")
    assert code == 0 and err.count("images a second") == 1
    rows = store.read(out / "results.jsonl")
    assert rows[0] == first and [row.settings["image_size"] for row in rows] == [8, 16]
    assert [point["rate"] for point in json.loads(text)["points"]] == [row.value for row in rows]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ViT-B/17"], "ViT-B/16"),
        (["--image-size", "64,big"], "--image-size takes numbers such as 64,128"),
        (["--batch", "0,8"], "batches must be different numbers from 1 up"),
        (["--batch", "8,8"], "different numbers"),
        (["ViT-B/32", "--image-size", "16"], "smaller than one patch of 32"),
        (["ViT-B/32", "--dtype", "float8"], "no dtype 'float8': give one of float32, bfloat16"),
        (["--doubling"], "give --topology"),
        (["--topology", "v3-9"], "sizes that can be planned"),
        (["--topology", "v3-8", "--rounds", "3"], "leave it out"),
    ],
)
def test_wrong_wishes_are_one_sentence(capsys, tmp_path, arguments, message):
    code, text, err = measured(capsys, *arguments, "--out", str(tmp_path / "out"))
    assert code == 2 and not text and message in err
    assert len(err.strip().splitlines()) == 1


# By the compiler


def test_the_largest_batch_on_a_line_through_two_programs():
    ask, compiled = fake_compiler()
    (found,) = speed.summaries(asked(ask))
    assert compiled == [8, 32]
    # (0.96 x 16 GiB - 2 GB) / 0.1 GB = 144.9
    assert (found.largest, found.how) == (144, "line")
    # 32 images in 0.004 + 0.032 s.
    assert (found.rate, found.batch) == (pytest.approx(32 / 0.036), 32)


def test_the_largest_batch_by_doubling():
    ask, compiled = fake_compiler()
    (found,) = speed.summaries(asked(ask, doubling=True))
    # 151.8 images fill 16 GiB: 128 fit, 256 do not.
    assert compiled == [8, 32, 64, 128, 256]
    assert (found.largest, found.how, found.batch) == (128, "compiled", 128)


def test_a_refused_batch_ends_the_search_and_bounds_the_line():
    tried = {8: Figures(2 * GB, True), 16: Figures(3 * GB, True), 512: Figures(20 * GB, False)}
    # From 16 to 512 images 17 GB more: (0.96 x 16 GiB - 3 GB) / (17 GB / 496) = 393.7.
    assert speed.largest_batch(tried, V3) == (16 + 393, "line")
    # Refused at 40, where the line through 8 and 16 images would allow more: the compiler counts.
    small = {8: Figures(2 * GB, True), 16: Figures(3 * GB, True), 40: Figures(1 + V3, False)}
    assert 16 < speed.largest_batch(small, V3)[0] < 40
    assert speed.next_batch([8, 16, 512, 1024], tried) is None
    assert speed.next_batch([8, 16, 64, 512], tried) == 64


def test_batches_that_are_all_too_large_are_halved():
    ask, compiled = fake_compiler(image=5 * GB)
    (found,) = speed.summaries(asked(ask, batches=(8, 32)))
    assert compiled == [8, 4, 2]  # 2 + 5 x 2 GB
    assert (found.largest, found.how) == (2, "compiled")
    ask, compiled = fake_compiler(fixed=20 * GB)
    (found,) = speed.summaries(asked(ask, batches=(8,)))
    assert compiled == [8, 4, 2, 1]
    assert (found.largest, found.how, found.rate) == (None, "nothing fits", None)


def test_a_single_program_says_at_least():
    (found,) = speed.summaries(asked(fake_compiler()[0], batches=(8,)))
    assert (found.largest, found.how) == (8, "at least")


def test_a_time_without_sense_leaves_the_memory():
    rows = asked(fake_compiler(seconds=None)[0])
    assert {row.metric for row in rows} == {speed.MEMORY}
    (found,) = speed.summaries(rows)
    assert found.rate is None and found.largest == 144
    assert speed_drawing.summary_table([found], core=True).rows[0][2] == "–"


def test_rows_hold_what_the_compiler_said():
    ask, _ = fake_compiler()
    rows = asked(ask, batches=(8, 256))
    found = speed.programs(rows)
    assert {b: (f.memory, f.fits) for b, f in found.items()} == {
        8: (2_800_000_000, True),
        256: (27_600_000_000, False),
    }
    assert "backend" not in rows[0].versions  # of the compiler's process, not of this one
    assert found[8].seconds == pytest.approx(0.012) and found[256].seconds is None


def test_the_command_compiles_only_what_is_not_there(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(process, "check_installed", lambda: None)
    ask, compiled = fake_compiler()
    monkeypatch.setattr(process, "tpu_speed", ask)
    command = ["ViT-B/32", "BiT-R50x1", "--topology", "v3-8", "--image-size", "224"]
    command += ["--out", str(tmp_path)]
    code, text, err = measured(capsys, *command, "--batch", "8")
    assert code == 0 and compiled == [8, 8] and "compiling 8 images" in err
    code, text, _ = measured(capsys, *command, "--batch", "8,32")
    assert code == 0 and compiled == [8, 8, 32, 32]
    assert "144" in text and "straight line" in text and "best case" in text
    code, text, _ = measured(capsys, *command, "--batch", "8,32", "--json")
    assert code == 0 and len(compiled) == 4
    assert [point["largest"] for point in json.loads(text)["points"]] == [144, 144]
    assert (tmp_path / "figure.png").stat().st_size > 5000


def test_a_child_that_dies_is_told(monkeypatch, tmp_path):
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho Killed by a test >&2\nexit 9\n")
    fake.chmod(0o755)
    monkeypatch.setattr(process, "check_installed", lambda: None)
    monkeypatch.setattr(process.sys, "executable", str(fake))
    with pytest.raises(RuntimeError, match="Killed by a test"):
        process.tpu_speed(speed.network("ViT-B/32", 224), "v3-8", [8], dtype="bfloat16")


@pytest.mark.full
def test_inference_compiles_for_a_core():
    pytest.importorskip("libtpu")
    spec = ViTSpec(
        image_size=(8, 8), patch_size=(4, 4), hidden_size=8, num_layers=1, mlp_dim=8, num_heads=1,
        num_classes=3,
    )  # fmt: skip
    found = {}
    process.tpu_speed(
        spec, "v3-2", [1, 8], dtype="bfloat16", compiled=lambda b, f: found.update({b: f})
    )
    assert list(found) == [1, 8] and all(f.fits and f.memory > 0 for f in found.values())
    # 5 tokens: 2 x (4 x 48 x 8 + 5 x (4 x 8 x 8 + 2 x 8 x 8)) operations of matrices, and attention's.
    assert found[8].flops > 8 * 2 * (4 * 48 * 8 + 5 * (4 * 8 * 8 + 2 * 8 * 8))
