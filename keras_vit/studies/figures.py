"""What the compiler of TPUs says of a program: memory and time, where its figures make sense."""

import dataclasses
import re
import time
from typing import Any

from keras_vit.studies.topology import Slice

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class Figures:
    """What the compiler says of a program, per device.

    Attributes:
        memory: bytes at its peak: arguments, results that are no arguments, temporaries, code.
        fits: whether that fits into the memory of a device.
        seconds: of one run as the compiler estimates it, a loop's body counted once; None where the
            figure makes no sense.
        flops: operations, a loop's body counted once.
        arguments, temporaries, code: parts of `memory`, 0 for a program that does not fit.
        compile_seconds: what lowering and compiling took.
    """

    memory: int
    fits: bool
    seconds: float | None = None
    flops: float = 0.0
    arguments: int = 0
    temporaries: int = 0
    code: int = 0
    compile_seconds: float = 0.0


def compiled(lowered: Any, where: Slice) -> Figures:
    """Compiles a lowered program and reads the compiler's figures."""
    start = time.perf_counter()
    try:
        program = lowered.compile()
    except Exception as error:
        needed = memory_needed(str(error), where.generation.hbm)
        if needed is None:
            raise
        return Figures(needed, False, compile_seconds=time.perf_counter() - start)
    return figures_of(program, where, time.perf_counter() - start)


def figures_of(program: Any, where: Slice, compile_seconds: float = 0.0) -> Figures:
    """The compiler's figures of a compiled program."""
    memory, cost = program.memory_analysis(), program.cost_analysis()
    fresh = memory.output_size_in_bytes - memory.alias_size_in_bytes
    parts = {
        "arguments": memory.argument_size_in_bytes,
        "temporaries": memory.temp_size_in_bytes,
        "code": memory.generated_code_size_in_bytes,
    }
    flops = float(cost.get("flops", 0.0))
    return Figures(
        memory=fresh + sum(parts.values()),
        fits=True,
        seconds=sane_seconds(cost.get("optimal_seconds"), flops, where.generation.flops),
        flops=flops,
        compile_seconds=compile_seconds,
        **parts,
    )


def sane_seconds(seconds: float | None, flops: float, peak: float) -> float | None:
    """The compiler's estimate, or None where it is impossible: it lacks the cost of some operations.

    It counts -1 s for an operation that it has no cost for.
    """
    return float(seconds) if seconds is not None and seconds >= flops / peak > 0.0 else None


def memory_needed(message: str, hbm: int) -> int | None:
    """Bytes that a program needs of `hbm`, from the compiler's refusal; None for another message."""
    for pattern in (
        r"\(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)",
        r"[Uu]sed ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm",
    ):
        if match := re.search(pattern, message):
            wanted, there = (float(match[i]) * _UNITS[match[i + 1]] for i in (1, 3))
            return int(hbm + wanted - there)
    return None
