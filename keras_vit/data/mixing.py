"""Mixup and cutmix of whole batches inside tf.data."""

from typing import Any

from keras_vit.data.augment import Augment
from keras_vit.data.distort import inside


def mix(augment: Augment, batch, partners, seed) -> tuple[Any, Any]:
    """Mixup or cutmix as `augment` asks for; with both, a fair coin decides for the batch.

    Args:
        augment: with `mixup` or `cutmix` above 0.
        batch: (images (B, H, W, C), targets (B, classes)), float32.
        partners: what each example is mixed with, of the same shapes.
        seed: two integers; the result depends on nothing else.
    """
    import tensorflow as tf

    seeds = tf.random.split(seed, 4, alg="philox")

    def blended():
        return mixup(batch, partners, beta(augment.mixup, seeds[0]))

    def pasted():
        place = tf.random.stateless_uniform((2,), seeds[2], alg="philox")
        return cutmix(batch, partners, beta(augment.cutmix, seeds[1]), place)

    if not augment.cutmix:
        return blended()
    if not augment.mixup:
        return pasted()
    coin = tf.random.stateless_uniform((), seeds[3], alg="philox")
    return tf.cond(coin < 0.5, blended, pasted)


def beta(alpha: float, seed) -> Any:
    """One float32 number from Beta(alpha, alpha)."""
    import tensorflow as tf

    # In float64, because with small alphas both numbers are often tiny.
    a, b = tf.unstack(
        tf.random.stateless_gamma((2,), seed, tf.constant(alpha, tf.float64), dtype=tf.float64)
    )
    return tf.cast(a / (a + b), tf.float32)


def mixup(batch, partners, b) -> tuple[Any, Any]:
    """Each example times max(b, 1 - b) plus its partner times the rest, images and targets alike.

    Source: big_vision utils.py.
    """
    import tensorflow as tf

    weight = tf.maximum(b, 1.0 - b)
    images, targets = (
        weight * own + (1.0 - weight) * other for own, other in zip(batch, partners, strict=True)
    )
    return images, targets


def cutmix(batch, partners, b, place) -> tuple[Any, Any]:
    """The partner shows in a box of 1 - b of the area, as far as that lies in the image.

    Args:
        place: vertical and horizontal place of the box's centre, two numbers in [0, 1).

    Source: arXiv 1905.04899.
    """
    import tensorflow as tf

    (images, targets), (other_images, other_targets) = batch, partners
    pixels = tuple(images.shape[1:3])
    size = tf.constant(pixels, tf.float32)
    half = tf.sqrt(1.0 - b) * size / 2.0
    low, high = (
        tf.cast(tf.round(tf.clip_by_value(edge, 0.0, size)), tf.int32)
        for edge in (place * size - half, place * size + half)
    )
    y, x, h, w = tf.unstack(tf.concat([low, high - low], axis=0))
    images = tf.where(inside((y, x, h, w), pixels), other_images, images)
    share = tf.cast(h * w, tf.float32) / tf.reduce_prod(size)
    return images, (1.0 - share) * targets + share * other_targets
