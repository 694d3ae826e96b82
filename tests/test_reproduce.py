"""Measured beside reported: what counts as reproduced, for the embedded models and for made-up cards."""

import dataclasses
import json
import warnings

import numpy as np
import pytest
from PIL import Image

from keras_vit import cli
from keras_vit.card import Card, Metric, Preprocessing
from keras_vit.data.sources import FASHION_MNIST_CLASSES, arrays, fashion_mnist_folders, open_source
from keras_vit.data.streams import Stream
from keras_vit.results import store
from keras_vit.train.evaluate import align, evaluate, wilson
from keras_vit.transfer import real
from keras_vit.transfer.reproduce import reported_on, reproduce, rounding
from keras_vit.zoo.cards import all_cards

SIZE = (4, 4)
PLAIN = Preprocessing(resize="none", mean=(0.0,), std=(1.0,))
EMBEDDED = [
    *("ViT-Mini/4@fashion_mnist", "ViT-Mini/4@fashion_mnist_8"),
    *("R14+ViT-Mini/4@fashion_mnist", "BiT-Mini@fashion_mnist"),
]
FULL_SET = any((f / "t10k-images-idx3-ubyte.gz").is_file() for f in fashion_mnist_folders())
RIGHT, TOTAL = 900, 1000
FULL = pytest.mark.full
NAMES = tuple(f"c{i}" for i in range(6))


def numbered(total=TOTAL, name="photos.npz"):
    """Images whose first two pixels are their number, all of class 0."""
    images = np.zeros((total, *SIZE, 1), np.uint8)
    images[:, 0, 0, 0], images[:, 0, 1, 0] = np.divmod(np.arange(total), 256)
    return arrays(images, np.zeros(total, np.int32), NAMES, name)


def right_on(count, top5=None):
    """Says class 0 to the first `count` images, and has it fifth for as many as `top5`."""

    def predict(images):
        number = images[:, 0, 0, 0].astype(int) * 256 + images[:, 0, 1, 0].astype(int)
        scores = np.tile(np.float32([0.0, 0.3, 0.2, 0.15, 0.11, 0.1]), (len(images), 1))
        scores[number < (top5 or count), 0] = 0.105
        scores[number < count, 0] = 0.9
        return scores

    return predict


def card(*metrics: tuple[str, float], source="authors: a paper", dataset="my photos"):
    made = tuple(Metric(dataset, name, value, source) for name, value in metrics)
    return Card("ViT-B/16", "made_up", num_classes=6, class_names=NAMES, metrics=made)


def run(card_, predict, source=None, **options):
    options = {"class_names": NAMES, "image_size": SIZE, "channels": 1, **options}
    return reproduce(card_, predict, source or numbered(), preprocessing=PLAIN, **options)


LOW, HIGH = (100 * x for x in wilson(RIGHT, TOTAL))  # 87.98 and 91.71


def test_the_interval_of_this_file_is_the_textbooks():
    """Wilson's formula in another arrangement."""
    p, n, z = RIGHT / TOTAL, TOTAL, 1.959964
    roots = np.roots([1 + z**2 / n, -(2 * p + z**2 / n), p**2])
    assert sorted(100 * roots) == pytest.approx([LOW, HIGH], abs=1e-4)


@pytest.mark.parametrize(
    ("reported", "inside"),
    [
        (90.0, True),
        (90.03, True),
        (round(LOW, 2), True),
        (round(LOW, 2) - 0.01, False),
        (round(HIGH, 2) + 0.01, False),
        (91.7, True),
        (91.8, False),  # 91.75 to 91.85
        (70.0, False),
        (99.99, False),
    ],
)
def test_inside_is_the_interval_widened_by_the_last_digit(reported, inside):
    found = run(card(("top1", reported)), right_on(RIGHT))
    (check,) = found.checks
    assert (check.measured, check.interval) == (0.9, wilson(RIGHT, TOTAL))
    assert check.inside is inside and found.passed is inside


def test_rounding_is_half_a_unit_of_the_last_digit():
    assert rounding(84.5) == pytest.approx(0.0005)
    assert rounding(90.07) == pytest.approx(0.00005)
    assert rounding(78.438) == pytest.approx(0.000005)
    # The interval of a perfect score ends at 1; what is reported as 100.0 may be 99.96.
    assert run(card(("top1", 100.0)), right_on(TOTAL)).passed


def test_every_metric_needs_one_source_that_agrees():
    both = card(("top1", 90.1), ("top5", 95.0))
    assert run(both, right_on(RIGHT, top5=950)).passed
    assert not run(both, right_on(RIGHT, top5=800)).passed
    two = dataclasses.replace(both, metrics=(*both.metrics, *card(("top1", 95.0)).metrics))
    found = run(two, right_on(RIGHT, top5=950))
    assert [c.inside for c in found.checks] == [True, True, False] and found.passed


def test_what_differs_from_the_report_is_noted():
    report = card(("top1", 90.0), source="authors: on 5,000 test images")
    notes = run(report, right_on(RIGHT)).notes
    assert any("1,000 images; the report is of 5,000" in note for note in notes)
    assert any("photos.npz is taken to be my photos" in note for note in notes)
    notes = run(
        card(("top1", 90.0), source="x, 1,000 images", dataset="photos.npz"), right_on(RIGHT)
    )
    assert notes.notes == ()
    few = run(card(("top1", 90.0), dataset="imagenet2012"), right_on(RIGHT)).notes
    assert any("the report is of 50,000" in note for note in few)


def test_data_must_be_the_reports():
    metrics = (
        Metric("imagenet2012", "top1", 80.0, "authors"),
        Metric("cifar10", "top1", 99.0, "authors"),
        Metric("cifar10", "top1_after_fine_tuning", 99.0, "authors"),
    )
    made = dataclasses.replace(card(), metrics=metrics)
    assert reported_on(made, "tfds:imagenet2012:validation")[0] == "imagenet2012"
    assert [m.value for m in reported_on(made, "tfds:cifar10:test")[1]] == [99.0]
    with pytest.raises(ValueError, match=r"reports on cifar10, imagenet2012, none on Pets"):
        reported_on(made, "tfds:oxford_iiit_pet:test")
    with pytest.raises(ValueError, match="none on tfds:imagenet_v2"):  # 1,000 classes as well
        reported_on(made, "tfds:imagenet_v2:test")
    own = dataclasses.replace(made, metrics=(Metric("tfds:birds:train", "top1", 80.0, "mine"),))
    assert reported_on(own, "tfds:birds:test")[1:] == (list(own.metrics), [])
    with pytest.raises(ValueError, match=r"no reported top1 or top5.*it has top1_after"):
        reported_on(dataclasses.replace(made, metrics=metrics[2:]), "tfds:cifar10")


def test_classes_must_match():
    with pytest.raises(ValueError, match="classes that the model does not know"):
        run(card(("top1", 90.0)), right_on(RIGHT), class_names=("x", *NAMES[1:]))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        other = tuple(f"n{i}" for i in range(6))
        assert run(card(("top1", 90.0)), right_on(RIGHT), class_names=other).passed
    assert "taken to be in the same order" in str(told[0].message)


def test_rows_for_a_store():
    found = run(card(("top1", 90.0)), right_on(RIGHT, top5=960))
    top1, top5 = found.results(command="keras-vit reproduce x", when="now")
    assert (top1.study, top1.model, top1.data) == ("reproduce", "ViT-B/16@made_up", "my photos")
    assert (top1.metric, top1.value, top1.examples) == ("accuracy", 0.9, TOTAL)
    assert (top5.metric, top5.value, top5.interval) == ("top5", 0.96, wilson(960, TOTAL))
    assert top1.settings == {"images": "photos.npz"} and top1.command


def command(capsys, *arguments):
    code = cli.run(["reproduce", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(
    "name", [*EMBEDDED[:2], *(pytest.param(n, marks=FULL) for n in EMBEDDED[2:])]
)
def test_embedded_models_do_what_their_cards_say_on_a_part_of_the_test_set(name, tmp_path, capsys):
    path = tmp_path / "results.jsonl"
    data = "fashion_mnist:subset_test"
    code, out, err = command(capsys, name, "--data", data, "--json", "--results", path)
    assert code == 0, err
    found = json.loads(out)
    images = 800 if name.endswith("_8") else 1000
    assert found["examples"] == images and found["passed"]
    assert any(f"the report is of {10 * images:,}" in note for note in found["notes"])
    row = next(r for r in store.read(path) if r.metric == "accuracy")
    assert (row.model, row.examples) == (name, images)
    assert row.interval[1] - row.interval[0] > 0.03  # of 1,000 images; of 10,000 a third of it


@pytest.mark.skipif(not FULL_SET, reason="Debian's package dataset-fashion-mnist is not installed")
@pytest.mark.full
@pytest.mark.parametrize("name", EMBEDDED)
def test_embedded_models_do_what_their_cards_say_to_the_digit(name, capsys):
    code, out, err = command(capsys, name, "--data", "fashion_mnist", "--json")
    assert code == 0, err
    found = json.loads(out)
    (check,) = found["checks"]
    # Another processor or backend rounds otherwise, which moves a few images of thousands.
    assert 100 * check["measured"] == pytest.approx(check["reported"], abs=0.05)
    assert found["notes"] == []


def with_card(folder, name: str, value: float, mean: float) -> str:
    """A user's table in which the embedded model has another report or another preprocessing."""
    made = all_cards()[name]
    (metric,) = made.metrics
    names = ", ".join(f'"{n}"' for n in FASHION_MNIST_CLASSES)
    (folder / "mine.toml").write_text(
        f'[[card]]\nvariant = "{made.variant}"\ntag = "{made.tag}"\nfile = "{made.file}"\n'
        f'num_classes = 10\nimage_size = [28, 28]\nclass_names = [{names}]\nsha256 = "{made.sha256}"\n'
        f"[card.preprocessing]\nmean = [{mean}]\nstd = [127.5]\n"
        f'[[card.metrics]]\ndataset = "{metric.dataset}"\nname = "top1"\nvalue = {value}\n'
        f'source = "wrong"\n',
        "utf-8",
    )
    return str(folder)


@pytest.mark.case("L18")
@pytest.mark.parametrize(("value", "mean"), [(95.0, 127.5), (90.07, 0.0)], ids=["number", "mean"])
def test_a_wrong_number_or_preprocessing_in_a_card_is_exit_1(
    tmp_path, monkeypatch, capsys, value, mean
):
    monkeypatch.setenv("KERAS_VIT_CARDS", with_card(tmp_path, EMBEDDED[0], value, mean))
    code, out, err = command(capsys, EMBEDDED[0], "--data", "fashion_mnist:subset_test")
    assert code == 1, err
    assert "not as reported" in out and "OUTSIDE" in out and f"{value:g} %" in out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([EMBEDDED[0], "--data", "nowhere"], "unknown data 'nowhere'"),
        ([EMBEDDED[0], "--data", "tfds:no_such_set"], "tfds:no_such_set has no split 'test'"),
        (["ViT-Nano", "--data", "fashion_mnist:subset_test"], "ViT-Nano"),
        ([EMBEDDED[1], "--data", "{birds}"], "classes that the model does not know"),
        ([EMBEDDED[0], "--data", "{birds}", "--results", "{birds}.csv"], ".jsonl file"),
        ([EMBEDDED[0], "--data", "{birds}", "--real", "{birds}"], "not ReaL's real.json"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorflow_datasets")
def test_bad_input_is_exit_2(tmp_path, capsys, arguments, told):
    birds = tmp_path / "birds.npz"
    np.savez(birds, images=np.zeros((2, 8, 8, 3), np.uint8), labels=[0, 1], class_names=["a", "b"])
    code, out, err = command(capsys, *(a.format(birds=birds) for a in arguments))
    assert (code, out) == (2, "") and told in err, err


# Streams: every image once, in bounded memory.


def stream_of(source, broken=()):
    """The images of a source as PNG records that are read from front to back."""
    import io

    import tensorflow as tf

    files = []
    for i, image in enumerate(source.images):
        file = io.BytesIO()
        Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(file, "png")
        files.append(b"no image" if i in broken else file.getvalue())

    def read(first, last, seed):
        assert seed is None, "evaluation is in stored order"
        return tf.data.Dataset.range(first, last).map(tf.io.serialize_tensor)

    def parse(record):
        index = tf.io.parse_tensor(record, tf.int64)
        return tf.gather(tf.constant(files), index), tf.gather(tf.constant(source.labels), index)

    return Stream("streamed", len(source), source.class_names, read, parse)


@pytest.mark.tf_only
@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_a_stream_is_evaluated_as_the_same_images_in_memory(batch_size):
    source = numbered(53)
    source = dataclasses.replace(source, labels=np.arange(53, dtype=np.int64) % 6)
    how = {"image_size": SIZE, "channels": 1, "preprocessing": PLAIN, "batch_size": batch_size}
    seen, done = [], []

    def predict(images):
        number = images[:, 0, 1, 0].astype(int)
        seen.extend(number.tolist())
        return np.random.default_rng(0).dirichlet(np.ones(6), 53)[number]

    memory = evaluate(predict, source, **how)
    seen.clear()
    streamed = evaluate(predict, stream_of(source), progress=lambda *now: done.append(now), **how)
    assert seen == list(range(53)) and done[-1] == (53, 53)
    same = {"data": "", "seconds": 0.0}
    assert dataclasses.replace(streamed, **same) == dataclasses.replace(memory, **same)
    part = evaluate(predict, stream_of(source, broken={0, 5, 52}), **how)
    assert part.examples == 50 and len(part.broken) == 1
    with pytest.raises(ValueError, match="none of the 53 images"):
        evaluate(predict, stream_of(source, broken=set(range(53))), **how)


@pytest.mark.tf_only
def test_the_classes_of_a_stream_are_matched_by_name():
    source = dataclasses.replace(numbered(12), labels=np.arange(12, dtype=np.int64) % 6)
    names = ("extra", *reversed(NAMES))
    aligned = align(stream_of(source), names)
    assert aligned.class_names == names
    labels = [int(aligned.parse(r)[1]) for r in aligned.read(0, 12, None)]
    assert [names[label] for label in labels] == [NAMES[i % 6] for i in range(12)]


# ReaL: a prediction is right when it is one of an image's labels.


def real_json(path, labels):
    path.write_text(json.dumps(labels), "utf-8")
    return path


def test_real_labels_are_read_or_refused(tmp_path):
    path = real_json(tmp_path / "real.json", [[1, 2], [], [999]])
    assert real.read_real(path) == ((1, 2), (), (999,))
    for other in ([], {"a": 1}, [[1000]], [["x"]], [1, 2], "text"):
        with pytest.raises(ValueError, match=r"is not ReaL's real\.json"):
            real.read_real(real_json(path, other))
    for name in ("dog.jpg", "ILSVRC2012_val_00000004.JPEG", "ILSVRC2012_val_00000000.JPEG"):
        with pytest.raises(ValueError, match="no validation image of ImageNet"):
            real.coded(((1,), (), (2,)), name, 0)
    both = real.coded(((1, 7),), b"dir/ILSVRC2012_val_00000001.JPEG", 7)
    original, labels = real.split_labels(both[None].astype(np.float32))
    assert np.flatnonzero(original[0]).tolist() == [7]
    assert np.flatnonzero(labels[0]).tolist() == [1, 7]


COUNT = 9
# Of image i, class i is ImageNet's; what ReaL says, in the order of the files' numbers.
REAL = [[0], [5, 1], [], [7], [4, 3, 8], [], [6], [0], [9, 8]]
PREDICTED = [0, 5, 2, 3, 8, 4, 1, 7, 8]  # for image i
HITS = [True, True, None, False, True, None, False, False, True]


def image_of(i):
    return np.full((*SIZE, 3), i, np.uint8)


def predict_real(images):
    return np.eye(1000, dtype=np.float32)[[PREDICTED[int(x[0, 0, 0])] for x in images]]


def check_real(source):
    classes = tuple(f"name {i}" for i in range(1000))
    if source.name.startswith("tfds:"):
        source = dataclasses.replace(source, name="tfds:imagenet2012:validation")
    made = Card("ViT-B/16", "x", metrics=(Metric("imagenet2012", "top1", 50.0, "authors"),))
    found = reproduce(
        made, predict_real, source, class_names=classes, image_size=SIZE, channels=3,
        preprocessing=PLAIN, real=True, batch_size=4,
    )  # fmt: skip
    told = [hit for hit in HITS if hit is not None]
    assert (found.real.examples, found.real.right) == (len(told), sum(told))
    right = sum(PREDICTED[i] == i for i in range(COUNT))
    assert found.evaluation.accuracy == pytest.approx(right / COUNT)
    row = next(r for r in found.results() if r.metric == "real")
    assert (row.data, row.value) == ("ImageNet", sum(told) / len(told))
    assert row.interval == wilson(sum(told), len(told))


def test_real_on_a_folder_of_files(tmp_path):
    for label in range(1000):
        folder = tmp_path / "val" / f"n{label:08d}"
        folder.mkdir(parents=True)
        # ReaL's numbers are in the names; the order of the folders is another.
        number = COUNT - label if label < COUNT else COUNT + 1 + label
        Image.fromarray(image_of(label if label < COUNT else 0)).save(
            folder / f"ILSVRC2012_val_{number:08d}.png"
        )
    opened = open_source(f"folder:{tmp_path / 'val'}")
    kept = opened.take(np.arange(COUNT))
    labels = [*reversed(REAL), *([[]] * 1100)]
    coded = real.open_real(f"folder:{tmp_path / 'val'}", tuple(map(tuple, labels)))
    check_real(coded.take(np.arange(COUNT)))
    assert [len(kept), coded.num_classes] == [COUNT, 1000]
    with pytest.raises(ValueError, match="1000 classes of ImageNet"):
        real.open_real("fashion_mnist:subset_test", ((1,),))


@pytest.mark.tf_only
@pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorflow_datasets")
@pytest.mark.parametrize("limit", [0, 2**30], ids=["streamed", "in memory"])
def test_real_on_tensorflow_datasets(tmp_path, monkeypatch, limit):
    tfds = pytest.importorskip("tensorflow_datasets")
    import tensorflow as tf

    order = np.random.default_rng(0).permutation(COUNT)  # files are shuffled there
    rows = {
        "image": np.stack([image_of(i) for i in order]),
        "label": order,
        "file_name": [f"ILSVRC2012_val_{i + 1:08d}.JPEG" for i in order],
    }
    tfds.dataset_builders.store_as_tfds_dataset(
        name="imagenet_like",
        version="1.0.0",
        data_dir=tmp_path,
        features=tfds.features.FeaturesDict(
            {
                "image": tfds.features.Image(shape=(None, None, 3)),
                "label": tfds.features.ClassLabel(names=[f"n{i:08d}" for i in range(1000)]),
                "file_name": tfds.features.Text(),
            }
        ),
        split_datasets={"validation": tf.data.Dataset.from_tensor_slices(rows)},
    )
    monkeypatch.setattr("keras_vit.data.streams.TFDS_MEMORY_LIMIT", limit)
    labels = tuple(map(tuple, REAL))
    source = real.open_real("tfds:imagenet_like:validation", labels, data_dir=str(tmp_path))
    assert isinstance(source, Stream) is (limit == 0)
    check_real(source)
