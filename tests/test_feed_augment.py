"""What the tf.data feed does to images: decoding, crops, RandAugment, mixing.

The operations of RandAugment are held against Pillow and against NumPy in float64.
"""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from keras_vit.data.augment import Augment
from keras_vit.data.images import read_image

pytestmark = pytest.mark.tf_only

ORACLE = Path(__file__).parent / "oracles" / "losses_mixup.npz"
MAGNITUDES = (0, 5, 10, 15, 20)


def pictures() -> dict[str, np.ndarray]:
    """uint8 images: every value, a smooth one that does not use all, a flat one, a grey one."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:24, :32]
    smooth = np.stack([40 + 3 * y, 60 + 4 * x, 90 + y + x], axis=-1).astype(np.uint8)
    noise = rng.integers(0, 256, (24, 32, 3), np.uint8)
    return {
        "noise": noise,
        "smooth": smooth,
        "flat": np.full((24, 32, 3), 77, np.uint8),
        "grey": noise[..., :1],
    }


PICTURES = pictures()


def pillow(image: np.ndarray) -> Image.Image:
    return Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)


def array(image: Image.Image) -> np.ndarray:
    found = np.asarray(image)
    return found[..., None] if found.ndim == 2 else found


def assert_near(found, want, grey_levels: float):
    assert found.dtype == np.uint8 and found.shape == want.shape
    assert np.abs(found.astype(int) - want.astype(int)).max() <= grey_levels


def applied(operation: str, image: np.ndarray, magnitude: float, sign=1.0, place=(0.5, 0.5)):
    """By the table, as a seed would pick it."""
    import tensorflow as tf

    from keras_vit.data.randaugment import OPERATIONS, rand_augment

    which = (list(OPERATIONS).index(operation) + 0.5) / 16
    row = [which, 0.75 if sign > 0 else 0.25, *place]
    return rand_augment(tf.constant(image), magnitude, tf.constant([row], tf.float32)).numpy()


# RandAugment


def test_the_levels_are_the_published_ones():
    from keras_vit.data.randaugment import OPERATIONS, levels

    # degrees, shear, pixels, half size, bits, threshold, addition, factor
    want = {
        0: (0, 0, 0, 0, 0, 0, 0, 0.1),
        5: (15, 0.15, 50, 20, 2, 128, 55, 1.0),
        10: (30, 0.3, 100, 40, 4, 256, 110, 1.9),
        15: (45, 0.45, 150, 60, 6, 384, 165, 2.8),
        20: (60, 0.6, 200, 80, 8, 512, 220, 3.7),
    }
    for magnitude, row in want.items():
        found = levels(magnitude)
        names = "degrees shear pixels half_size bits threshold addition factor".split()
        np.testing.assert_allclose([getattr(found, n) for n in names], row, rtol=1e-12)
    assert (
        list(OPERATIONS)
        == (
            "autocontrast equalize invert rotate posterize solarize color contrast brightness "
            "sharpness shear_x shear_y translate_x translate_y cutout solarize_add"
        ).split()
    )


@pytest.mark.parametrize("picture", PICTURES)
def test_operations_without_a_level_are_those_of_pillow(picture):
    image = PICTURES[picture]
    references = {
        "autocontrast": (ImageOps.autocontrast, 1),  # a product in float32 next to a whole number
        "equalize": (ImageOps.equalize, 0),
        "invert": (ImageOps.invert, 0),
    }
    for name, (reference, tolerance) in references.items():
        assert_near(applied(name, image, 7), array(reference(pillow(image))), tolerance)


@pytest.mark.parametrize("magnitude", MAGNITUDES)
@pytest.mark.parametrize("picture", ["noise", "smooth", "grey"])
def test_operations_on_single_values_are_exact(picture, magnitude):
    image = PICTURES[picture]
    wide = image.astype(int)
    # Magnitude 0 keeps one bit: the published code shifts a byte by eight places, which
    # TensorFlow does as by seven.
    bits = max(4 * magnitude // 10, 1)
    assert_near(
        applied("posterize", image, magnitude), array(ImageOps.posterize(pillow(image), bits)), 0
    )
    threshold = 256 * magnitude // 10
    solarized = array(ImageOps.solarize(pillow(image), threshold))
    assert_near(applied("solarize", image, magnitude), solarized, 0)
    added = np.where(wide < 128, np.minimum(wide + 11 * magnitude, 255), wide).astype(np.uint8)
    assert_near(applied("solarize_add", image, magnitude), added, 0)


@pytest.mark.parametrize("magnitude", MAGNITUDES)
@pytest.mark.parametrize("picture", PICTURES)
def test_enhancements_are_those_of_pillow(picture, magnitude):
    image, factor = PICTURES[picture], 0.18 * magnitude + 0.1
    # The degenerate images differ by less than a level (Pillow rounds its grey and its smoothed
    # image, the papers' code drops fractions), which the blend multiplies; then both drop fractions.
    tolerance = np.ceil(abs(1 - factor)) + 1
    for name, enhance in {
        "color": ImageEnhance.Color,
        "sharpness": ImageEnhance.Sharpness,
    }.items():
        want = array(enhance(pillow(image)).enhance(factor))
        assert_near(applied(name, image, magnitude), want, tolerance)
    want = array(ImageEnhance.Brightness(pillow(image)).enhance(factor))
    assert_near(applied("brightness", image, magnitude), want, 1)


@pytest.mark.parametrize("magnitude", MAGNITUDES)
def test_contrast_blends_with_the_number_of_pixels(magnitude):
    factor = 0.18 * magnitude + 0.1
    large = np.tile(PICTURES["smooth"], (20, 20, 1))
    for image, flat in ((PICTURES["noise"], 24 * 32 // 256), (large, 255)):
        want = np.clip(flat + factor * (image.astype(float) - flat), 0, 255)
        # Fractions are dropped; float32 may fall on the other side of a whole number.
        assert_near(applied("contrast", image, magnitude), np.floor(want).astype(np.uint8), 1)


def moved(image: np.ndarray, matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The nearest pixels in float64, 128 outside, and where that does not hang on rounding.

    Args:
        matrix: (2, 3), from (x, y, 1) of the result to (x, y) of the image.
    """
    height, width, _ = image.shape
    y, x = np.mgrid[:height, :width].astype(float)
    at = np.einsum("ij,jyx->iyx", matrix, np.stack([x, y, np.ones_like(x)]))
    near = np.floor(at + 0.5).astype(int)
    sure = (np.abs(at + 0.5 - np.round(at + 0.5)) > 1e-3).all(axis=0)
    inside = (near >= 0).all(axis=0) & (near[0] < width) & (near[1] < height)
    picked = image[np.clip(near[1], 0, height - 1), np.clip(near[0], 0, width - 1)]
    return np.where(inside[..., None], picked, 128), sure


@pytest.mark.parametrize("magnitude", [0, 0.3, 1.1, 5, 10, 15, 20])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_moves_take_the_nearest_pixel_and_fill_with_grey(magnitude, sign):
    image, share = PICTURES["noise"], sign * magnitude / 10
    angle = np.deg2rad(30 * share)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    centre = np.array([31 / 2, 23 / 2])
    references = {
        "rotate": np.column_stack([turn, centre - turn @ centre]),
        "shear_x": np.array([[1, 0.3 * share, 0], [0, 1, 0]]),
        "shear_y": np.array([[1, 0, 0], [0.3 * share, 1, 0]]),
        "translate_x": np.array([[1, 0, 100 * share], [0, 1, 0]]),
        "translate_y": np.array([[1, 0, 0], [0, 1, 100 * share]]),
    }
    for name, matrix in references.items():
        found = applied(name, image, magnitude, sign)
        want, sure = moved(image, matrix)
        assert sure.mean() > 0.6, name
        np.testing.assert_array_equal(found[sure], want[sure], err_msg=name)


def test_rotation_turns_as_pillow_does():
    image = PICTURES["noise"]
    found = applied("rotate", image, 7.1)
    want = np.asarray(pillow(image).rotate(21.3, fillcolor=(128, 128, 128)))
    # Pillow computes in fixed point: hardly any pixel takes another neighbour.
    assert (found == want).all(axis=-1).mean() > 0.99


@pytest.mark.parametrize("magnitude", [0, 1, 2.3, 10, 20])
@pytest.mark.parametrize("place", [(0.0, 0.0), (0.5, 0.3), (0.99, 0.99)])
def test_cutout_fills_a_square_as_far_as_it_lies_in_the_image(magnitude, place):
    image, half = PICTURES["grey"], int(4 * magnitude)
    want = image.copy()
    y, x = int(place[0] * 24), int(place[1] * 32)
    want[max(y - half, 0) : y + half, max(x - half, 0) : x + half] = 128
    assert_near(applied("cutout", image, magnitude, place=place), want, 0)


def test_layers_follow_one_another_and_each_picks_one_of_sixteen():
    import tensorflow as tf

    from keras_vit.data.randaugment import OPERATIONS, rand_augment

    image = PICTURES["noise"]
    dice = np.float32([[2.5 / 16, 0, 0, 0], [9.5 / 16, 0, 0, 0]])
    both = rand_augment(tf.constant(image), 15, tf.constant(dice)).numpy()
    want = applied("sharpness", applied("invert", image, 15), 15)
    np.testing.assert_array_equal(both, want)
    # The smallest and the largest number that pick an operation.
    for index, name in enumerate(OPERATIONS):
        for edge in (index / 16, np.nextafter((index + 1) / 16, 0, dtype=np.float32)):
            row = tf.constant([[edge, 0.75, 0.5, 0.5]], tf.float32)
            found = rand_augment(tf.constant(image), 3, row).numpy()
            np.testing.assert_array_equal(found, applied(name, image, 3))


def test_magnitude_zero_is_not_the_identity():
    image = PICTURES["noise"]
    strong = "equalize invert posterize solarize color contrast brightness sharpness".split()
    for name in strong:
        assert (applied(name, image, 0) != image).mean() > 0.5, name
    for name in ("rotate", "shear_x", "shear_y", "translate_x", "translate_y", "cutout"):
        np.testing.assert_array_equal(applied(name, PICTURES["noise"], 0), PICTURES["noise"])


# Inception crop


def over(count: int, function) -> np.ndarray:
    """(count, ...) of what a function, traced once, gives for 0, 1, 2, ..."""
    import tensorflow as tf

    numbers = tf.range(count)
    kind = tf.function(function).get_concrete_function(numbers[0]).structured_outputs.dtype
    return tf.function(lambda: tf.map_fn(function, numbers, fn_output_signature=kind))().numpy()


def boxes(shape, count: int, area=(0.05, 1.0)) -> np.ndarray:
    """(count, 4) of boxes for the seeds (7, 0), (7, 1), ..."""
    import tensorflow as tf

    from keras_vit.data.crops import inception_box

    return over(count, lambda i: inception_box(tf.constant(shape), tf.stack([7, i]), area))


def test_inception_boxes_keep_their_bounds_and_are_spread_as_by_tensorflow():
    import tensorflow as tf

    height, width = 240, 320
    found = boxes((height, width, 3), 1000)
    y, x, h, w = found.T
    assert (y >= 0).all() and (x >= 0).all() and (y + h <= height).all() and (x + w <= width).all()
    areas, ratios = h * w / (height * width), w / h
    # Sides are whole pixels.
    assert areas.min() > 0.045 and areas.max() <= 1.0 and areas.max() > 0.9
    assert (w >= 0.75 * h - 1).all() and (w <= 4 / 3 * h + 1).all()
    assert ratios.min() < 0.78 and ratios.max() > 1.28
    assert len(np.unique(y)) > 50 and len(np.unique(x)) > 50

    sides = over(
        1000,
        lambda i: tf.image.stateless_sample_distorted_bounding_box(
            (height, width, 3),
            tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
            tf.stack([99, i]),
            min_object_covered=0.0,
            aspect_ratio_range=(3 / 4, 4 / 3),
            area_range=(0.05, 1.0),
        )[1][:2],
    )
    others = sides.prod(axis=1) / (height * width)
    # Kolmogorov and Smirnov: two samples of 1000 from one distribution differ by more than 0.087
    # once in a thousand draws of seeds, and these seeds are fixed.
    at = np.sort(np.concatenate([areas, others]))
    share = [np.searchsorted(np.sort(v), at, side="right") / 1000 for v in (areas, others)]
    assert np.abs(share[0] - share[1]).max() < 0.087


def test_the_area_of_the_box_is_an_option():
    h, w = boxes((240, 320, 3), 100, (0.5, 0.6)).T[2:]
    areas = h * w / (240 * 320)
    assert areas.min() > 0.49 and areas.max() < 0.61


def photo(height: int, width: int, mode: str = "RGB") -> Image.Image:
    """Smooth colours with edges, as photos are."""
    rng = np.random.default_rng(3)
    small = rng.integers(0, 256, (height // 8 + 2, width // 8 + 2, 3), np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BILINEAR).convert(mode)


def saved(image: Image.Image, kind: str = "JPEG", **options) -> bytes:
    opened = io.BytesIO()
    image.save(opened, kind, **options)
    return opened.getvalue()


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


FILES = {
    "rgb": saved(photo(45, 61), quality=90),
    "full resolution colours": saved(photo(45, 61), quality=90, subsampling=0),
    "grey": saved(photo(45, 61, "L"), quality=90),
    "progressive": saved(photo(45, 61), quality=90, progressive=True),
    "upright": saved(photo(45, 61), exif=turned(1)),
    "turned": saved(photo(45, 61), exif=turned(6)),
    "mirrored": saved(photo(45, 61), exif=turned(2)),
    "cmyk": saved(photo(45, 61, "CMYK")),
    "png": saved(photo(45, 61), "PNG"),
    "grey png": saved(photo(45, 61, "L"), "PNG"),
    "palette": saved(photo(45, 61, "P"), "GIF"),
}


@pytest.fixture(scope="module")
def decoders():
    """`decoders[channels](bytes[, box])`, each traced once."""
    import tensorflow as tf

    from keras_vit.data.decode import decode

    def make(channels):
        whole = tf.function(lambda data: decode(data, channels))
        part = tf.function(lambda data, box: decode(data, channels, lambda shape: box))

        def call(data, box=None):
            data = tf.constant(data)
            return (whole(data) if box is None else part(data, tf.constant(box))).numpy()

        return call

    return {channels: make(channels) for channels in (1, 3)}


@pytest.mark.parametrize("name", FILES)
def test_files_are_decoded_as_everywhere_else(decoders, name):
    for channels, decoder in decoders.items():
        np.testing.assert_array_equal(decoder(FILES[name]), read_image(FILES[name], channels))


def crops_of(decoder, name: str, channels: int):
    """Pairs of a box that was decoded alone, and that box of the whole image."""
    rng, whole = np.random.default_rng(0), read_image(FILES[name], channels)
    for _ in range(6):
        h, w = (rng.integers(4, side + 1) for side in whole.shape[:2])
        y, x = (rng.integers(0, s - b + 1) for s, b in zip(whole.shape, (h, w), strict=False))
        yield decoder(FILES[name], [y, x, h, w]), whole[y : y + h, x : x + w]


@pytest.mark.parametrize("name", FILES)
def test_a_crop_while_decoding_is_the_crop_of_the_whole(decoders, name):
    for channels, decoder in decoders.items():
        for found, want in crops_of(decoder, name, channels):
            np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("name", ["rgb", "grey", "turned", "png"])
def test_a_training_image_is_the_resized_box(name):
    import tensorflow as tf

    from keras_vit.card import Preprocessing
    from keras_vit.data.crops import inception_box
    from keras_vit.data.rules import TrainingRule

    rule = TrainingRule((16, 20), 3, Preprocessing(), Augment(crop="inception"), True, 5)
    dice = rule.dice(tf.constant(3, tf.int64), 2)
    assert set(dice) == {"box"}
    whole = read_image(FILES[name])
    assert len({tuple(seed) for seed in dice["box"].numpy()}) == 2
    row = {"box": dice["box"][1]}
    y, x, h, w = inception_box(tf.constant(whole.shape), row["box"]).numpy()
    part = tf.constant(whole[y : y + h, x : x + w])
    want = tf.cast(tf.image.resize(part, (16, 20), antialias=False), tf.uint8).numpy()
    # Two grey levels at the border of the box, and a dropped fraction.
    found = tf.function(lambda: rule.of_bytes(tf.constant(FILES[name]), row))().numpy()
    assert_near(found, want, 3)
    np.testing.assert_array_equal(rule.of_image(tf.constant(whole), row).numpy(), want)


def test_a_random_crop_is_a_box_of_the_resized_image():
    import tensorflow as tf

    from keras_vit.card import Preprocessing
    from keras_vit.data.rules import TrainingRule

    image = tf.constant(PICTURES["smooth"])
    for resize, target in ((None, (16, 24)), (30, (30, 30))):
        augment = Augment(crop="random", resize=resize)
        rule = TrainingRule((14, 21), 3, Preprocessing(), augment, True, 5)
        whole = tf.cast(tf.image.resize(image, target, antialias=False), tf.uint8).numpy()
        places = [have - want + 1 for have, want in zip(target, (14, 21), strict=True)]
        for dice in ((0.0, 0.0), (0.9999, 0.9999), (0.5, 0.0)):
            y, x = (int(d * n) for d, n in zip(dice, places, strict=True))
            found = rule.of_image(image, {"crop": tf.constant(dice, tf.float32)}).numpy()
            np.testing.assert_array_equal(found, whole[y : y + 14, x : x + 21])


# Flip, shift, erase


def test_flip_and_shift_move_pixels():
    import tensorflow as tf

    from keras_vit.data.distort import flip, shift

    image = PICTURES["noise"]
    np.testing.assert_array_equal(flip(tf.constant(image), 0.49), image[:, ::-1])
    np.testing.assert_array_equal(flip(tf.constant(image), 0.5), image)
    padded = np.pad(image, ((1, 1), (2, 2), (0, 0)))  # a fourteenth of 24x32
    for dice, (y, x) in {(0.0, 0.0): (0, 0), (0.999, 0.999): (2, 4), (0.5, 0.5): (1, 2)}.items():
        found = shift(tf.constant(image), tf.constant(dice)).numpy()
        np.testing.assert_array_equal(found, padded[y : y + 24, x : x + 32])


def test_erase_fills_a_rectangle_of_the_documented_size():
    import tensorflow as tf

    from keras_vit.data.distort import erase

    image = np.zeros((24, 32, 1), np.uint8)
    rng = np.random.default_rng(0)
    shares = []
    for i in range(60):
        dice = tf.constant(rng.random(5), tf.float32)
        found = erase(tf.constant(image), dice, tf.constant([5, i]), 0.5).numpy()
        rows, cols, _ = np.nonzero(found)
        if dice[0] >= 0.5:
            assert not found.any()
            continue
        box = (rows.max() - rows.min() + 1) * (cols.max() - cols.min() + 1)
        assert len(rows) > 0.8 * box  # noise is zero once in 256
        shares.append(box / (24 * 32))
    assert 15 < len(shares) < 45
    # Sides are rounded to pixels, the shortest has 3, which may add or take a sixth.
    assert 0.015 < min(shares) < 0.06 and 0.14 < max(shares) < 0.24


# Mixing


def test_mixup_is_that_of_the_official_code():
    import tensorflow as tf

    from keras_vit.data.mixing import mixup

    with np.load(ORACLE) as file:
        oracle = {k.partition("/")[2]: file[k] for k in file.files if k.startswith("mixup/")}
    batch = oracle["images"], oracle["labels"]
    partners = tuple(np.roll(part, 1, axis=0) for part in batch)
    # The larger of b and 1 - b stays with the example.
    for b in (oracle["lambda"], 1 - oracle["lambda"]):
        images, targets = mixup(
            tuple(map(tf.constant, batch)), tuple(map(tf.constant, partners)), tf.constant(b)
        )
        # 1 - b is rounded to float32.
        np.testing.assert_allclose(images, oracle["out_images"], atol=5e-7)
        np.testing.assert_allclose(targets, oracle["out_labels"], atol=2e-7)
        np.testing.assert_allclose(np.sum(targets, axis=1), 1.0, atol=2e-7)


@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_the_weight_is_from_the_beta_distribution(alpha):
    import tensorflow as tf

    from keras_vit.data.mixing import beta

    count = 1000
    found = over(count, lambda i: beta(alpha, tf.stack([3, i]))).astype(np.float64)
    assert 0.0 <= found.min() and found.max() <= 1.0
    spread = 1 / (4 * (2 * alpha + 1))  # variance
    # Four standard deviations of the mean; that of the variance is below its own over sqrt(n).
    assert abs(found.mean() - 0.5) < 4 * np.sqrt(spread / count)
    assert abs(found.var() / spread - 1) < 4 / np.sqrt(count)


@pytest.mark.parametrize("b", [0.0, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("place", [(0.5, 0.5), (0.0, 0.9), (0.3, 0.99)])
def test_cutmix_pastes_a_rectangle_and_weighs_by_its_area(b, place):
    import tensorflow as tf

    from keras_vit.data.mixing import cutmix

    rng = np.random.default_rng(0)
    images = rng.normal(size=(5, 24, 32, 3)).astype(np.float32)
    targets = np.eye(5, dtype=np.float32)
    batch = tf.constant(images), tf.constant(targets)
    partners = tuple(tf.roll(part, 1, axis=0) for part in batch)
    x, y = (part.numpy() for part in cutmix(batch, partners, tf.constant(b), tf.constant(place)))
    others = np.roll(images, 1, axis=0)
    pasted = (x == others).all(axis=-1)
    np.testing.assert_array_equal(x, np.where(pasted[..., None], others, images))
    assert (pasted == pasted[0]).all()
    rows, cols = np.nonzero(pasted[0].any(axis=1))[0], np.nonzero(pasted[0].any(axis=0))[0]
    assert pasted[0].sum() == len(rows) * len(cols)
    for at in (rows, cols):
        assert len(at) == 0 or len(at) == at[-1] - at[0] + 1
    share = pasted[0].mean()
    np.testing.assert_allclose(y, (1 - share) * targets + share * np.roll(targets, 1, 0), atol=1e-6)
    if place == (0.5, 0.5):
        assert abs(share - (1 - b)) < 0.06  # sides are rounded to pixels
    for side, at, length in ((24, rows, place[0]), (32, cols, place[1])):
        if len(at) and 0 < at[0] and at[-1] < side - 1:
            assert abs((at[0] + at[-1] + 1) / 2 - length * side) <= 0.5


def test_with_both_a_coin_decides_and_the_seed_alone():
    import tensorflow as tf

    from keras_vit.data.mixing import mix

    images = np.arange(4, dtype=np.float32)[:, None, None, None] * np.ones((1, 8, 8, 1), np.float32)
    batch = tf.constant(images), tf.constant(np.eye(4, dtype=np.float32))
    partners = tuple(tf.roll(part, 1, axis=0) for part in batch)
    augment = Augment(mixup=1.0, cutmix=1.0)
    mixed = tf.function(lambda seed: mix(augment, batch, partners, seed))
    pasted = 0
    for step in range(60):
        seed = tf.constant([11, step], tf.int64)
        x, y = (part.numpy() for part in mixed(seed))
        np.testing.assert_allclose(y.sum(axis=1), 1.0, atol=1e-6)
        np.testing.assert_allclose(x.mean(axis=(1, 2, 3)), y @ np.arange(4), atol=1e-5)
        pasted += bool(np.isin(x, images).all())
        np.testing.assert_array_equal(x, mixed(seed)[0])
    assert 15 <= pasted <= 45  # of 60; four standard deviations of a fair coin
