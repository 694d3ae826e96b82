"""TPU slices by the names that they are rented under, `v3-8`, and what is known of their chips."""

import dataclasses
import re

GIB = 2**30
DOCS = "https://docs.cloud.google.com/tpu/docs"


@dataclasses.dataclass(frozen=True)
class Generation:
    """One kind of TPU. A device is what JAX and its compiler call so.

    Attributes:
        name: as in the names of slices.
        cores_per_chip: TensorCores.
        counts: what the number in a slice's name counts, `cores` or `chips`.
        devices_per_chip: 2 where the compiler takes every core for itself, else 1.
        hbm: bytes of memory of a device.
        flops: bfloat16 operations per second of a device, at most.
        dimensions: of the net of chips.
        chips_per_host: in a slice of several hosts.
        source: of these numbers.
    """

    name: str
    cores_per_chip: int
    counts: str
    devices_per_chip: int
    hbm: int
    flops: float
    dimensions: int
    chips_per_host: int
    source: str


# The compiler without a TPU plans v4 core by core, although there JAX joins the two of a chip.
GENERATIONS = {
    row.name: row
    for row in (
        Generation("v3", 2, "cores", 2, 16 * GIB, 61.5e12, 2, 4, f"{DOCS}/v3"),
        Generation("v4", 2, "cores", 2, 16 * GIB, 137.5e12, 3, 4, f"{DOCS}/v4"),
        Generation("v5e", 1, "chips", 1, 16 * 10**9, 197e12, 2, 4, f"{DOCS}/v5e"),
        Generation("v5p", 2, "cores", 1, 95 * 10**9, 459e12, 3, 4, f"{DOCS}/v5p"),
        Generation("v6e", 1, "chips", 1, 32 * 10**9, 918e12, 2, 4, f"{DOCS}/v6e"),
    )
}
ALIASES = {"v5litepod": "v5e", "v5lite": "v5e"}
MOST_CHIPS = 64  # v3-128


@dataclasses.dataclass(frozen=True)
class Slice:
    """Chips that work together.

    Attributes:
        name: `v3-8`.
        generation: of its chips.
        chips: how many.
    """

    name: str
    generation: Generation
    chips: int

    @property
    def devices(self) -> int:
        """Devices that share a batch."""
        return self.chips * self.generation.devices_per_chip

    @property
    def hosts(self) -> int:
        """Machines that feed it."""
        return max(1, self.chips // self.generation.chips_per_host)

    @property
    def layout(self) -> str:
        """The net of chips as the compiler names it, `v3:2x2`."""
        shape = [1] * self.generation.dimensions
        for i in range(self.chips.bit_length() - 1):
            # The last dimension doubles first, so that 2x4 and 2x2x4 come out; a single host of
            # a three-dimensional net is 2x2x1.
            shape[-1 - i % len(shape)] *= 2
        if self.chips == 4 and len(shape) == 3:
            shape = [2, 2, 1]
        return f"{self.generation.name}:{'x'.join(map(str, shape))}"


def parse(name: str) -> Slice:
    """The slice of a name such as `v3-8`, `v5litepod-16` or `v5p-8`.

    Raises:
        ValueError: no such kind, or no such size; the message gives those that there are.
    """
    match = re.fullmatch(r"(v\d+[a-z]*)-(\d+)", name.strip().lower())
    kind = ALIASES.get(match[1], match[1]) if match else ""
    if match is None or kind not in GENERATIONS:
        raise ValueError(
            f"no TPU topology {name!r}: give a kind and a size as in v3-8, v4-32, v5e-16, v5p-8 or "
            f"v6e-8."
        )
    generation, number = GENERATIONS[kind], int(match[2])
    per_chip = generation.cores_per_chip if generation.counts == "cores" else 1
    sizes = [per_chip * 2**i for i in range(MOST_CHIPS.bit_length())]
    if number not in sizes:
        raise ValueError(
            f"no slice {name!r}: {kind} counts {generation.counts}, and the sizes that can be planned "
            f"are {', '.join(map(str, sizes))}."
        )
    return Slice(f"{kind}-{number}", generation, number // per_chip)
