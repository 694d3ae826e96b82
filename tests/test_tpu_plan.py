"""Plans for TPUs: names of slices, how a plan comes from a compiler's figures, and the command."""

import dataclasses
import json
import os
import sys

import pytest

from keras_vit import cli
from keras_vit.studies import process, tpu_plan
from keras_vit.studies.figures import Figures, memory_needed, sane_seconds
from keras_vit.studies.topology import GENERATIONS, GIB, parse
from keras_vit.zoo.variants import VARIANTS

GB = 10**9


def fake_compiler(hbm, *, fixed=4 * GB, image=0.1 * GB, overhead=0.010, each=0.005, update=0.02):
    """A compiler for which memory is `fixed` and so much for every image, time likewise."""
    calls = []

    def measure(micro, parts):
        memory = int(fixed + image * micro)
        calls.append((micro, parts))
        if memory > hbm:
            return Figures(memory, False)
        # A loop over parts is counted once.
        seconds = update + overhead + each * micro
        temporaries = memory - int(0.7 * fixed)
        return Figures(memory, True, seconds, 1e9, int(0.7 * fixed), temporaries, 0, 1.0)

    def once():
        return Figures(fixed, True, update, 1e6)

    return measure, once, calls


def planned(model="ViT-L/16", topology="v3-8", *, batch_size=4096, compiler=None, **options):
    """(work, plan, (micro-batch, parts) of every program) with the fake compiler."""
    options = {"recipe": "paper/imagenet21k", **options}
    task = tpu_plan.work(model, topology, batch_size=batch_size, **options)
    measure, once, calls = fake_compiler(
        tpu_plan.FULL * task.where.generation.hbm, **(compiler or {})
    )
    return task, tpu_plan.plan(task, measure, once), calls


@pytest.mark.parametrize(
    ("name", "devices", "hosts", "layout"),
    [
        ("v3-8", 8, 1, "v3:2x2"),
        ("v3-2", 2, 1, "v3:1x1"),
        ("v3-32", 32, 4, "v3:4x4"),
        ("v3-64", 64, 8, "v3:4x8"),
        ("V3-128", 128, 16, "v3:8x8"),
        ("v4-8", 8, 1, "v4:2x2x1"),
        ("v4-32", 32, 4, "v4:2x2x4"),
        ("v5e-4", 4, 1, "v5e:2x2"),
        ("v5litepod-16", 16, 4, "v5e:4x4"),
        ("v5p-8", 4, 1, "v5p:2x2x1"),
        ("v5p-16", 8, 2, "v5p:2x2x2"),
        ("v6e-8", 8, 2, "v6e:2x4"),
    ],
)
def test_names_of_slices(name, devices, hosts, layout):
    found = parse(name)
    assert (found.devices, found.hosts, found.layout) == (devices, hosts, layout)


@pytest.mark.parametrize("name", ["v3-9", "v3", "v9-8", "v3-256", "v5p-1", "tpu", "v3-0", "v3--8"])
def test_slices_that_do_not_exist(name):
    with pytest.raises(ValueError, match=r"v3-8|sizes that can be planned"):
        parse(name)


def test_memory_of_a_core_is_a_share_of_the_chip():
    # Cloud TPU documentation, "TPU v3" and so on: per chip 32 GiB, 32 GiB, 16, 95 and 32 GB.
    chips = {"v3": 32 * GIB, "v4": 32 * GIB, "v5e": 16 * GB, "v5p": 95 * GB, "v6e": 32 * GB}
    assert {n: g.hbm * g.devices_per_chip for n, g in GENERATIONS.items()} == chips
    flops = {"v3": 123e12, "v4": 275e12, "v5e": 197e12, "v5p": 459e12, "v6e": 918e12}
    assert {n: g.flops * g.devices_per_chip for n, g in GENERATIONS.items()} == flops


def test_a_plan_takes_the_largest_divisor_that_fits():
    task, plan, calls = planned()
    # (0.96 x 16 GiB - 4 GB) / 0.1 GB = 124.9 images; 512 per core have the divisor 64 below that.
    assert (plan.micro_batch, plan.accumulation_steps) == (64, 8)
    assert plan.largest_micro_batch == 124
    assert plan.fits and plan.memory_bytes == 10_400_000_000
    assert len(calls) <= 3
    # 8 x (0.010 + 64 x 0.005) s and one update of 0.02 s.
    assert plan.step_seconds == pytest.approx(8 * 0.33 + 0.02)
    assert plan.images_per_second_per_core == pytest.approx(512 / 2.66)
    # ImageNet-21k has 14,197,122 images: 3466 updates in each of 90 epochs.
    assert plan.steps == task.steps == 90 * 3466
    assert plan.core_days == pytest.approx(2.66 * 311_940 * 8 / 86400)
    assert plan.published_core_days == 230
    assert plan.host_images_per_second == pytest.approx(4096 / 2.66)
    assert plan.host_cpu_cores == -(-4096 // (2.66 * tpu_plan.IMAGES_PER_CPU_CORE))
    assert "1.4" in plan.notes[0] and "1.75" in plan.notes[0]


def test_everything_at_once_where_it_fits():
    _, plan, calls = planned(topology="v3-128")
    assert (plan.micro_batch, plan.accumulation_steps, plan.hosts) == (32, 1, 16)
    assert plan.step_seconds == pytest.approx(0.03 + 32 * 0.005)
    assert plan.host_images_per_second == pytest.approx(4096 / 16 / plan.step_seconds)
    assert calls[-1] == (32, 1)


def test_a_first_program_that_is_too_large_is_followed_by_smaller_ones():
    _, plan, calls = planned(compiler={"image": 3 * GB})
    assert calls[0] == (8, 64)
    assert plan.fits and plan.micro_batch == 4 and plan.largest_micro_batch == 4


def test_what_does_not_fit_at_all():
    _, plan, _ = planned(compiler={"fixed": 20 * GB})
    assert not plan.fits and plan.micro_batch == 1
    assert plan.step_seconds is plan.core_days is plan.host_cpu_cores is None
    assert "single example" in plan.notes[0]


def test_a_time_that_makes_no_sense_is_not_printed():
    # Seconds of 1e12 operations on a core of 61.5e12 a second: 0.016 at least.
    assert sane_seconds(0.017, 1e12, 61.5e12) == 0.017
    for wrong in (None, -9.996, 0.0, 0.016, float("nan")):
        assert sane_seconds(wrong, 1e12, 61.5e12) is None
    task = tpu_plan.work("ViT-B/16", "v5e-8", recipe="paper/imagenet21k")
    measure, once, _ = fake_compiler(1e12)
    plan = tpu_plan.plan(task, lambda m, p: dataclasses.replace(measure(m, p), seconds=None), once)
    assert plan.fits and plan.step_seconds is None and plan.core_days is None
    assert "no sane figure for v5e" in plan.notes[0]


def test_published_figures_belong_to_their_runs():
    assert planned("ViT-H/14", recipe="paper/jft")[1].published_core_days == 2500
    assert planned("ViT-L/16", recipe="paper/jft")[1].published_core_days == 680
    shorter = planned("ViT-L/16", recipe="paper/jft", options=["epochs=7"])[1]
    assert shorter.published_core_days is None
    assert planned("ViT-L/16", "v5p-8")[1].published_core_days is None


def test_the_recipe_decides_about_the_network():
    task = tpu_plan.work("ViT-L/16", "v3-8", recipe="paper/imagenet21k")
    assert task.spec.num_classes == 21_843 and task.spec.dropout == 0.1
    assert task.spec.representation_size == 1024 and task.dtype == "mixed_bfloat16"
    assert task.recipe.batch_size == 4096
    other = tpu_plan.work(
        "google/vit-large-patch16-224",
        "v3-8",
        recipe="paper/imagenet21k",
        image_size=384,
        changes=["optimizer.moment_dtype=bfloat16"],
    )
    assert other.spec.image_size == (384, 384)
    assert other.recipe.optimizer.moment_dtype == "bfloat16"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 100}, "96 or 104"),
        ({"batch_size": 4}, "give 8"),
        ({"recipe": "paper/imagenet22k"}, "paper/imagenet21k"),
        ({"model": "ViT-L/17"}, "ViT-L/16"),
        ({"model": "ViT-S/16"}, "no row"),
        ({"image_size": 100}, "patch"),
        ({"changes": ["optimiser.average=0.5"]}, "optimizer"),
    ],
)
def test_wrong_wishes_are_named(changes, message):
    wishes = {"model": "ViT-L/16", "topology": "v3-8", "recipe": "paper/imagenet21k", **changes}
    with pytest.raises(ValueError, match=message):
        tpu_plan.work(**wishes)


def test_the_compiler_s_refusal_tells_what_was_needed():
    first = (
        "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory "
        "required for HLO temporaries (38.33G) exceeds available HBM (15.48G). HLO module: jit_step."
    )
    second = "Ran out of memory in memory space hbm. Used 20.31G of 15.48G hbm. Exceeded by 4.83G."
    assert memory_needed(first, 16 * GIB) == pytest.approx((16 + 22.85) * GIB)
    assert memory_needed(second, 16 * GIB) == pytest.approx((16 + 4.83) * GIB)
    assert memory_needed("INTERNAL: something else", 16 * GIB) is None


def command(capsys, *arguments):
    capsys.readouterr()
    code = cli.run(["tpu-plan", *arguments])
    found = capsys.readouterr()
    return code, found.out, found.err


def test_the_command_prints_the_plan(capsys, monkeypatch):
    def fake(model, topology, *, progress, **wishes):
        progress("a step")
        return planned(model, topology, **wishes)[1]

    monkeypatch.setattr(process, "check_installed", lambda: None)
    monkeypatch.setattr(process, "tpu_plan", fake)
    code, out, err = command(capsys, "ViT-L/16", "--batch", "4096")
    assert code == 0 and "compiling a step" in err
    for text in ("8 cores x 8 parts x 64 images", "124 images", "230", "1.75 times"):
        assert text in out
    code, out, _ = command(capsys, "ViT-L/16", "--batch", "4096", "--json")
    assert code == 0
    data = json.loads(out)
    assert {f.name for f in dataclasses.fields(tpu_plan.Plan)} == set(data)
    assert data["accumulation_steps"] == 8 and data["core_days"] > 0


def test_a_run_that_does_not_fit_is_a_failed_check(capsys, monkeypatch):
    plan = planned(compiler={"fixed": 20 * GB})[1]
    monkeypatch.setattr(process, "check_installed", lambda: None)
    monkeypatch.setattr(process, "tpu_plan", lambda *_, **__: plan)
    code, out, _ = command(capsys, "ViT-L/16")
    assert code == 1 and "no sane figure" in out and "does not fit" in out


def test_a_missing_compiler_is_one_sentence(capsys, monkeypatch):
    find = process.importlib.util.find_spec
    monkeypatch.setattr(
        process.importlib.util, "find_spec", lambda n: None if n == "libtpu" else find(n)
    )
    code, out, err = command(capsys, "ViT-L/16")
    assert code == 2 and not out
    assert "needs libtpu" in err and "keras-vit-zoo[tpu-plan]" in err and len(err.splitlines()) == 1


def test_a_compiler_that_dies_is_told(monkeypatch, tmp_path):
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho Killed by a test >&2\nexit 9\n")
    fake.chmod(0o755)
    monkeypatch.setattr(process, "check_installed", lambda: None)
    monkeypatch.setattr(sys, "executable", str(fake))
    with pytest.raises(RuntimeError, match="Killed by a test"):
        process.tpu_plan("ViT-L/16", "v3-8", recipe="paper/imagenet21k")


def test_the_child_runs_on_jax_whatever_the_parent_runs_on(monkeypatch, tmp_path):
    fake = tmp_path / "python"
    plan = dataclasses.asdict(planned()[1])
    (tmp_path / "plan").write_text(json.dumps({"plan": plan}))
    fake.write_text(
        f'#!/bin/sh\ncat > {tmp_path}/asked\nenv > {tmp_path}/environment\necho \'{{"compiling": "x"}}\'\n'
        f"echo noise\ncat {tmp_path}/plan\n"
    )
    fake.chmod(0o755)
    monkeypatch.setattr(process, "check_installed", lambda: None)
    monkeypatch.setattr(sys, "executable", str(fake))
    heard = []
    found = process.tpu_plan(
        "ViT-L/16", "v3-8", recipe="paper/imagenet21k", batch_size=4096, progress=heard.append
    )
    assert dataclasses.asdict(found) == plan and heard == ["x"]
    environment = dict(
        line.split("=", 1)
        for line in (tmp_path / "environment").read_text().splitlines()
        if "=" in line
    )
    assert environment["KERAS_BACKEND"] == "jax" and environment["JAX_PLATFORMS"] == "cpu"
    assert environment["PATH"] == os.environ["PATH"]
    assert json.loads((tmp_path / "asked").read_text())["batch_size"] == 4096


@pytest.mark.parametrize("name", ["ViT-B/16", "R50+ViT-B/16", "BiT-R50x1", "ResNet-GN-R50x1"])
def test_every_family_of_the_paper_can_be_planned(name):
    task = tpu_plan.work(name, "v3-32", recipe="paper/jft")
    assert type(task.spec) is type(VARIANTS[name].spec)
    assert task.per_device == 128 and task.spec.num_classes == 18_291
