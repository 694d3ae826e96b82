"""What a network predicts in training, as data: classes of images, or patches that it does not see."""

import dataclasses
import fractions
import math

TARGETS = ("labels", "mean_colour", "downsized", "pixels")
CELLS = {"mean_colour": 1, "downsized": 4}  # cells of a patch, down and across, that have a colour
MOST_CLASSES = 2**16


@dataclasses.dataclass(frozen=True)
class Counts:
    """Patches of an image by what happens to them; the others are seen and not predicted.

    Attributes:
        masked: become the learned [mask] embedding.
        replaced: become the embedding of another patch of the same image.
        kept: stay as they are, and are predicted like the others.
    """

    masked: int
    replaced: int
    kept: int

    @property
    def corrupted(self) -> int:
        """Patches that are predicted."""
        return self.masked + self.replaced + self.kept


@dataclasses.dataclass(frozen=True)
class Pretext:
    """What is predicted.

    Attributes:
        target: `labels` (no self-supervision), or of each corrupted patch its `mean_colour`, the
            colours of its 4x4 cells (`downsized`), or its `pixels` (least squares).
        share: of the patches of an image that are corrupted.
        mask: share of these that become the [mask] embedding.
        replace: share of these that become another patch's embedding; the rest stays.
        bits_per_channel: of a colour that is a class: 3 bits of 3 channels are 512 classes.

    Source: arXiv 2010.11929, appendix B.1.2.
    """

    target: str = "labels"
    share: float = 0.5
    mask: float = 0.8
    replace: float = 0.1
    bits_per_channel: int = 3

    def __post_init__(self):
        if self.target not in TARGETS:
            raise ValueError(f"target must be one of {list(TARGETS)}, got {self.target!r}.")
        if not 0.0 < self.share <= 1.0:
            raise ValueError(f"share must be in (0, 1], got {self.share}.")
        if min(self.mask, self.replace) < 0.0 or self.mask + self.replace > 1.0 + 1e-9:
            raise ValueError(
                f"mask and replace must be shares of which the sum is at most 1, got {self.mask} and "
                f"{self.replace}."
            )
        if not 1 <= self.bits_per_channel <= 8:
            raise ValueError(f"bits_per_channel must be 1 to 8, got {self.bits_per_channel}.")

    @property
    def self_supervised(self) -> bool:
        """Whether labels are ignored."""
        return self.target != "labels"

    def counts(self, patches: int) -> Counts:
        """How many patches of each image are masked, replaced and kept.

        Each product of a share and a count is rounded to the nearest whole number, a half upwards:
        of 49 patches 25 are corrupted, of these 20 masked, 3 (2.5) replaced and the other 2 kept.
        The paper does not say how it rounds. At least one patch is corrupted.

        Raises:
            ValueError: an image is a single patch, so that there is no other.
        """
        if patches < 2:
            raise ValueError(
                f"masked patch prediction needs at least 2 patches per image, got {patches}: use "
                f"smaller patches or larger images."
            )
        corrupted = max(1, _share_of(self.share, patches))
        masked = _share_of(self.mask, corrupted)
        replaced = min(_share_of(self.replace, corrupted), corrupted - masked)
        return Counts(masked, replaced, corrupted - masked - replaced)

    def classes(self, channels: int) -> int:
        """Colours that a cell can have.

        Raises:
            ValueError: they are too many for classes.
        """
        found = 2 ** (self.bits_per_channel * channels)
        if found > MOST_CLASSES:
            raise ValueError(
                f"{self.bits_per_channel} bits of {channels} channels are {found:,} colours, but at "
                f"most {MOST_CLASSES:,} can be classes: lower bits_per_channel."
            )
        return found

    def outputs(self, patch_size: tuple[int, int], channels: int) -> tuple[int, ...]:
        """Shape of what is predicted of one patch: (cells, classes), or (values,) of its pixels."""
        if self.target == "pixels":
            return (patch_size[0] * patch_size[1] * channels,)
        return CELLS[self.target] ** 2, self.classes(channels)


def _share_of(share: float, count: int) -> int:
    # Of the decimal number that was meant: 0.15 in binary is a little less, and so would be its halves.
    return math.floor(fractions.Fraction(repr(share)) * count + fractions.Fraction(1, 2))
