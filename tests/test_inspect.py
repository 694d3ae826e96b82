"""The inspection as a whole: the command, the report in a browser, the callback."""

import base64
import dataclasses
import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import keras
import numpy as np
import pytest
from PIL import Image

pytest.importorskip("matplotlib", reason="figures need matplotlib, the extra plots")

import keras_vit
from keras_vit import analysis, cli
from keras_vit.analysis.inspection import PARTS
from keras_vit.analysis.report import SECTIONS

SPEC = keras_vit.ViTSpec(
    image_size=(12, 20), patch_size=(4, 4), hidden_size=8, mlp_dim=12, num_heads=2, num_layers=2,
    num_classes=3,
)  # fmt: skip
EVIL = '<img src=x onerror="boom()">&.png'
LABELS = ("<script>boom()</script>", "b&b", "c")
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@pytest.fixture(scope="module")
def model(official):
    made = official.built(SPEC, card=keras_vit.Card(variant="tiny", tag="x", class_names=LABELS,
                                                    num_classes=3))  # fmt: skip
    rng = np.random.default_rng(0)
    for variable in made.weights:
        variable.assign(rng.normal(size=variable.shape, scale=0.4))
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory, model):
    """A folder with the model and three pictures, one of them with an evil name."""
    place = tmp_path_factory.mktemp("inspect")
    model.save(place / "tiny.keras")
    rng = np.random.default_rng(0)
    for name in ("a.png", EVIL, "c.png"):
        Image.fromarray(rng.integers(0, 256, (30, 40, 3), np.uint8)).save(place / name)
    (place / "broken.png").write_text("no image")
    return place


@pytest.fixture(scope="module")
def ran(folder):
    """(folder written, what --json would print) of one call of the command."""
    out = folder / "out"
    pictures = [str(folder / name) for name in ("a.png", EVIL, "c.png")]
    command = ["inspect", str(folder / "tiny.keras"), *pictures, "--out", str(out)]
    assert cli.run([*command, "--layer", "0", "--layer=-1", "--head", "1"]) == 0
    return out, json.loads((out / "inspection.json").read_text("utf-8"))


class Page(HTMLParser):
    """What stands in a page: tags with their attributes, and its text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def test_the_command_writes_arrays_that_are_those_of_the_library(ran, model, folder):
    out, numbers = ran
    inputs = np.stack(
        list(analysis.prepare(model, [folder / name for name in ("a.png", EVIL, "c.png")]))
    )
    seen = analysis.look(model, inputs, layers=(0, 1), heads=(1,))
    with np.load(out / "inspection.npz", allow_pickle=False) as arrays:
        # The same computation twice; only the order of sums inside a kernel may differ.
        for name, wanted in (
            ("distance", seen.distance.mean(0)),
            ("rollout", seen.rollout),
            ("maps", seen.maps),
            ("features", seen.features),
            ("filters", analysis.embedding_filters(model).components),
            ("positions", analysis.position_similarity(model)),
        ):
            np.testing.assert_allclose(arrays[name], wanted, atol=1e-4, err_msg=name)
        np.testing.assert_array_equal(arrays["pictures"], analysis.as_pixels(model, inputs))
    found = numbers["distance"]
    np.testing.assert_allclose(found["per_layer_and_head"], seen.distance.mean(0), atol=1e-4)
    assert found["images"] == 3 and found["unit"] == "pixels"
    assert found["uniform"] == pytest.approx(
        np.mean([[np.hypot(4 * (a // 5 - b // 5), 4 * (a % 5 - b % 5)) for a in range(15)]
                 for b in range(15)])
    )  # fmt: skip
    (peak, *_) = numbers["rollout"]["peaks"]
    assert seen.rollout[0, peak["row"], peak["column"]] == seen.rollout[0].max()
    assert numbers["maps"] == {"layers": [0, 1], "heads": [1]}
    names = {f"{part}.png" for part in PARTS}
    assert {p.name for p in out.iterdir()} == names | {
        "inspection.html", "inspection.npz", "inspection.json"
    }  # fmt: skip


def test_similarity_of_neighbours_is_over_those_that_touch(ran):
    out, numbers = ran
    with np.load(out / "inspection.npz", allow_pickle=False) as arrays:
        positions = arrays["positions"]
    pairs = [
        positions[r, c, r + down, c + across]
        for r in range(3) for c in range(5) for down, across in ((0, 1), (1, 0))
        if r + down < 3 and c + across < 5
    ]  # fmt: skip
    assert numbers["positions"]["mean_of_neighbours"] == pytest.approx(np.mean(pairs))


def test_the_report_stands_alone_and_escapes_every_name(ran):
    out, _ = ran
    text = (out / "inspection.html").read_text("utf-8")
    page = Page(text)
    assert "boom()" in page.text and not [tag for tag, _ in page.tags if tag == "script"]
    images = [attributes for tag, attributes in page.tags if tag == "img"]
    assert len(images) == len(PARTS)
    for attributes, part in zip(images, PARTS, strict=True):
        assert "onerror" not in attributes and len(attributes["alt"]) > 20
        start = "data:image/png;base64,"
        assert attributes["src"].startswith(start)
        assert (
            base64.b64decode(attributes["src"][len(start) :]) == (out / f"{part}.png").read_bytes()
        )
    addresses = [a[k] for _, a in page.tags for k in ("src", "href") if k in a]
    assert all(address.startswith("data:") for address in addresses), "it asks the network"
    assert "url(" not in text and "@import" not in text
    assert "prefers-color-scheme: dark" in text
    assert all(title in page.text for title, *_ in SECTIONS.values())


def test_the_numbers_behind_each_figure_can_be_downloaded(ran):
    out, numbers = ran
    page = Page((out / "inspection.html").read_text("utf-8"))
    links = {a["download"]: a["href"] for tag, a in page.tags if tag == "a"}
    assert set(links) == {f"{part}.json" for part in PARTS}
    found = {
        name: json.loads(base64.b64decode(href.partition("base64,")[2]))
        for name, href in links.items()
    }
    assert found["distance.json"]["per_layer_and_head"] == numbers["distance"]["per_layer_and_head"]
    with np.load(out / "inspection.npz", allow_pickle=False) as arrays:
        np.testing.assert_allclose(found["rollout.json"]["rollout"], arrays["rollout"], atol=1e-4)
        np.testing.assert_allclose(
            found["positions.json"]["positions"], arrays["positions"], atol=1e-4
        )


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium")
def test_the_report_opens_in_a_browser(ran, tmp_path):
    out, _ = ran
    address = (out / "inspection.html").as_uri()
    dom = browser(tmp_path, "--dump-dom", address).stdout
    for title, *_ in SECTIONS.values():
        assert re.search(rf"<h2 id=.*>{title}</h2>", dom), title
    assert "boom()" in dom and "<script" not in dom
    pictures = {}
    for scheme in ("light", "dark"):
        target = tmp_path / f"{scheme}.png"
        dark = ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
        browser(tmp_path, *dark, f"--screenshot={target}", "--window-size=1000,1400", address)
        pictures[scheme] = np.asarray(Image.open(target).convert("RGB")).astype(float)
        assert pictures[scheme].shape == (1400, 1000, 3) and pictures[scheme].std() > 10, "blank"
        # Only the figures have colours, so they are there, and not refused by the page's policy.
        assert (np.ptp(pictures[scheme], axis=-1) > 60).mean() > 0.03, "no figures"
    assert pictures["light"][5, 5].min() > 200 and pictures["dark"][5, 5].max() < 60
    broken = browser(tmp_path, "--dump-dom", (out / "none.html").as_uri()).stdout
    assert "<h2 id=" not in broken  # the check can fail


def browser(home, *arguments):
    """Headless Chromium with a profile of its own."""
    done = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--hide-scrollbars", "--virtual-time-budget=5000", f"--user-data-dir={home / 'profile'}",
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "HOME": str(home)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done


def test_data_gives_the_images_of_the_distance(folder, tmp_path, capsys):
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (9, 12, 20, 3), np.uint8)
    np.savez(tmp_path / "data.npz", images=images, labels=np.arange(9) % 3)
    command = ["inspect", str(folder / "tiny.keras"), "--data", str(tmp_path / "data.npz")]
    out = ["--out", str(tmp_path / "out"), "--json"]
    only = ["--what", "distance", "--what", "rollout"]
    assert cli.run([*command, *out, *only, "--limit", "7"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["distance"]["images"] == 7 and len(answer["images"]) == 4
    assert set(answer["files"]) == {"report", "arrays", "numbers", "distance", "rollout"}
    assert "maps" not in answer and Path(answer["files"]["report"]).is_file()
    # Again there, with other parts: refused without --force, and nothing old stays with it.
    assert cli.run([*command, *out]) == 2
    assert cli.run([*command, *out, "--what", "maps", "--force"]) == 0
    assert {p.name for p in (tmp_path / "out").glob("*.png")} == {"maps.png"}


def test_files_that_are_no_images_are_named_and_the_rest_is_shown(folder, tmp_path, capsys):
    command = ["inspect", str(folder / "tiny.keras"), str(folder / "broken.png")]
    out = ["--out", str(tmp_path / "out"), "--what", "rollout"]
    assert cli.run([*command, *out]) == 2
    assert "none of the images can be read" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert cli.run([*command, str(folder / "a.png"), *out, "--json"]) == 2
    told = capsys.readouterr()
    assert json.loads(told.out)["images"] == ["a.png"] and "broken.png" in told.err
    assert len(json.loads(told.out)["errors"]) == 1


def test_of_many_files_some_are_shown_and_all_count(folder, tmp_path, capsys, monkeypatch):
    from keras_vit.cli import inspect

    monkeypatch.setattr(inspect, "MOST_SHOWN", 2)
    names = ("broken.png", "a.png", EVIL, "c.png")
    command = ["inspect", str(folder / "tiny.keras"), *(str(folder / name) for name in names)]
    out = ["--out", str(tmp_path / "out"), "--what", "distance", "--what", "rollout", "--json"]
    assert cli.run([*command, *out]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert answer["images"] == ["a.png", EVIL] and answer["distance"]["images"] == 3
    assert len(answer["errors"]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to look at"),
        (["a.png", "--layer", "7"], "there is no layer 7: this model has 2"),
        (["a.png", "--head", "2"], "there is no head 2"),
        (["a.png", "--image-size", "13"], "no multiple of the patch size"),
    ],
)
def test_bad_requests_end_in_one_line(arguments, message, folder, tmp_path, capsys):
    given = [str(folder / a) if a.endswith(".png") else a for a in arguments]
    out = tmp_path / "out"
    assert cli.run(["inspect", str(folder / "tiny.keras"), *given, "--out", str(out)]) == 2
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert len(told) == 1 and message in told[0]
    assert not out.exists()


@pytest.mark.case("W03")
def test_a_network_without_attention_is_refused_by_the_command(tmp_path, official, folder, capsys):
    body = keras_vit.ResNetBody((1,), width_factor=0.5, norm_groups=8)
    bit = official.built(keras_vit.ResNetSpec(image_size=16, body=body, num_classes=3))
    bit.save(tmp_path / "bit.keras")
    command = ["inspect", str(tmp_path / "bit.keras"), str(folder / "a.png")]
    assert cli.run([*command, "--out", str(tmp_path / "out")]) == 2
    assert "is a ResNet (BiT)" in capsys.readouterr().err


def test_a_model_without_positions_has_a_sentence_in_their_place(official, tmp_path):
    spec = keras_vit.ViTSpec(8, 12, 2, 1, 4, image_size=8, posemb="none", num_classes=0)
    model = official.built(spec)
    found = analysis.inspect(model, np.zeros((1, 8, 8, 3), np.float32))
    analysis.write(found, tmp_path)
    text = (tmp_path / "inspection.html").read_text("utf-8")
    assert "has no one position embedding" in text and not (tmp_path / "positions.png").exists()
    assert found.predictions == () and found.names == ("image 1",)


def test_the_callback_writes_every_few_epochs_of_a_plain_fit(tmp_path):
    keras.utils.set_random_seed(0)
    vit = keras_vit.build(keras_vit.ViTSpec(8, 12, 2, 1, 4, image_size=8, num_classes=0))
    model = keras.Sequential([vit, keras.layers.Dense(3)])
    model.compile(
        "adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=keras.backend.backend() == "jax",  # on TensorFlow compiling takes longer
    )  # fmt: skip
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-1, 1, (8, 8, 8, 3)).astype(np.float32), np.arange(8) % 3
    seen = analysis.InspectionCallback(
        x[:2], tmp_path / "watch", every=2, names=["one", "two"], parts=("filters", "rollout")
    )
    model.fit(x, y, epochs=5, batch_size=4, verbose=0, callbacks=[seen])
    assert sorted(p.name for p in (tmp_path / "watch").iterdir()) == ["epoch_0002", "epoch_0004"]
    for epoch in ("epoch_0002", "epoch_0004"):
        assert {p.name for p in (tmp_path / "watch" / epoch).iterdir()} == {
            "inspection.html", "inspection.npz", "inspection.json", "filters.png", "rollout.png"
        }  # fmt: skip
    arrays = [
        np.load(tmp_path / "watch" / e / "inspection.npz") for e in ("epoch_0002", "epoch_0004")
    ]
    assert np.abs(arrays[0]["rollout"] - arrays[1]["rollout"]).max() > 1e-4, (
        "the weights stood still"
    )


def test_the_callback_sees_the_weights_of_that_epoch_in_a_run(tmp_path, official):
    from keras_vit.data.sources import arrays as source_of
    from keras_vit.train.finetune import finetune

    rng = np.random.default_rng(0)
    model = official.built(keras_vit.ViTSpec(8, 12, 2, 1, 4, image_size=8, num_classes=3))
    for variable in model.weights:
        variable.assign(rng.normal(size=variable.shape, scale=0.3))
    images = rng.integers(0, 256, (12, 8, 8, 3), np.uint8)
    data = source_of(images, np.arange(12) % 3)
    watch = analysis.InspectionCallback(list(images[:1]), tmp_path / "watch", parts=("features",))
    finetune(
        model, data, validation=data, out=tmp_path / "run", callbacks=(watch,),
        recipe=lambda recipe: dataclasses.replace(recipe, epochs=1, batch_size=4),
    )  # fmt: skip
    with np.load(tmp_path / "watch" / "epoch_0001" / "inspection.npz") as found:
        (x,) = analysis.prepare(model, [images[0]])
        trained = keras_vit.load(tmp_path / "run" / "model.keras")
        now = analysis.look(trained, x[None], parts=("features",)).features
        np.testing.assert_allclose(found["features"], now, atol=1e-4)
    before = analysis.look(model, x[None], parts=("features",)).features
    assert np.abs(now - before).max() > 1e-3, "nothing was trained"


def test_the_callback_refuses_early(tmp_path):
    with pytest.raises(ValueError, match="every"):
        analysis.InspectionCallback([], tmp_path, every=0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    watch = analysis.InspectionCallback(np.zeros((1, 8, 8, 3)), tmp_path)
    with pytest.raises(TypeError, match="holds none"):
        model.fit(np.zeros((2, 4)), np.zeros((2, 1)), verbose=0, callbacks=[watch])


def test_a_full_disk_does_not_end_the_training(tmp_path, model):
    (tmp_path / "file").write_text("in the way")
    watch = analysis.InspectionCallback(
        np.zeros((1, 12, 20, 3), np.float32), tmp_path / "file", parts=("filters",)
    )
    watch.set_model(model)
    with pytest.warns(UserWarning, match="this epoch has no inspection"):
        watch.on_epoch_end(0)
