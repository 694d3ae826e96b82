"""Fuzzes one reader in a process of its own: python tests/fuzz/harness.py TARGET --seconds 60.

Coverage-guided by atheris (libFuzzer). A file may be read or refused by a ValueError of one line
that names it, and nothing else: any other exception, a crash of native code, more than RSS_LIMIT of
memory or more than SLOWEST for one file ends the run with the file that did it.
"""

import argparse
import os
import random
import resource
import sys
import tempfile
from pathlib import Path

import atheris

RSS_LIMIT = 768  # MiB, of which about 150 are Python, NumPy, h5py and Pillow
ADDRESS_LIMIT = 8 * 2**30  # bytes of address space: one huge allocation is a MemoryError
SLOWEST = 10  # seconds for one file; a hundred times what the slowest takes
LONGEST = 2**16  # bytes of a file
MESSAGE_LIMIT = 3000  # characters
# What coverage is measured in. Pillow's plug-ins and the readers of Python are part of the way.
INSTRUMENTED = [
    "keras_vit.zoo.formats",
    "keras_vit.zoo.cards",
    "keras_vit.data.images",
    "keras_vit.card",
    "keras_vit.spec",
    "zipfile",
    "json",
    "tomllib",
    "PIL",
]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("target")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--found", type=Path, default=Path("."), help="where the file that fails is put"
    )
    parser.add_argument(
        "--replay", type=Path, nargs="*", help="read these files instead of fuzzing"
    )
    return parser.parse_args()


def main() -> None:
    options = arguments()
    with atheris.instrument_imports(include=INSTRUMENTED):
        from targets import SHARDS, TARGETS
    from safetensors.numpy import save_file

    target = TARGETS[options.target]
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_LIMIT, ADDRESS_LIMIT))
    # In memory where there is such a place: a run writes a hundred thousand files.
    root = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=root) as folder:
        for name, arrays in SHARDS.items():
            save_file(arrays, Path(folder) / name)
        path = Path(folder) / target.name

        def read(data: bytes) -> None:
            path.write_bytes(data)
            try:
                target.read(path)
            except (ValueError, FileNotFoundError) as error:
                check_message(error, Path(folder))

        if options.replay:
            for file in options.replay:
                read(file.read_bytes())
                print(f"{file}: fine")
            return
        seeds = Path(folder) / "seeds"
        seeds.mkdir()
        for i, data in enumerate(target.seeds()):
            target_only = Path(folder) / target.name
            target_only.write_bytes(data)
            target.read(target_only)  # a seed that is refused would test nothing
            (seeds / str(i)).write_bytes(data)

        def mutate(data: bytes, limit: int, seed: int) -> bytes:
            rng = random.Random(seed)
            if data and rng.random() < 0.6:
                try:
                    made = target.mutate(
                        data, rng, lambda part: atheris.Mutate(part, len(part) + 32)
                    )
                    if len(made) <= limit:
                        return made
                except Exception:
                    pass  # a file that is no longer of its format
            return atheris.Mutate(data, limit)

        flags = {
            "max_total_time": options.seconds,
            "seed": options.seed,
            "rss_limit_mb": RSS_LIMIT,
            "timeout": SLOWEST,
            "max_len": LONGEST,
            "artifact_prefix": f"{options.found}/{options.target}-",
            "print_final_stats": 1,
        }
        command = [sys.argv[0], *(f"-{k}={v}" for k, v in flags.items()), str(seeds)]
        atheris.Setup(command, read, custom_mutator=mutate)
        atheris.Fuzz()


def check_message(error: Exception, folder: Path) -> None:
    """A refusal is ours: a plain ValueError of one line that names the file."""
    text = str(error)
    kind = type(error).__name__
    if kind not in ("ValueError", "FileNotFoundError", "_Refused"):
        raise error
    if str(folder) not in text or "\n" in text or len(text) > MESSAGE_LIMIT:
        raise RuntimeError(f"a message that is no sentence: {text[:MESSAGE_LIMIT]!r}") from error


if __name__ == "__main__":
    main()
