"""The partial file of a download, and the note beside it from which another call goes on."""

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any, BinaryIO

from keras_vit.zoo.fetching import magic
from keras_vit.zoo.fetching.lock import write_json

CHUNK = 1 << 20  # bytes asked for at once
NOTE_EVERY = 64 << 20  # bytes between two points from which a killed download can go on
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class Partial:
    """The partial file of a target, and the note beside it."""

    def __init__(self, target: Path, key: str):
        self.target, self.key = target, key
        self.path = target.with_name(target.name + ".part")
        self.beside = target.with_name(target.name + ".part.json")
        self.restarted = False
        self.begin()

    def begin(self) -> None:
        """Forgets what is here; the next byte is the first."""
        self.size, self.noted = 0, 0
        self.total: int | None = None
        self.validator: str | None = None
        self.digest = hashlib.sha256()
        self.head = bytearray()

    def resume(self, can_trust_hash: bool) -> int:
        """How many bytes are here that the same source may continue; 0 to begin again.

        The bytes must still have the noted hash, and the server must be able to say whether its
        file is the same, or the whole file's hash be known.
        """
        self.begin()
        try:
            note = json.loads(self.beside.read_text("utf-8"))
            if note["key"] != self.key or not (note["validator"] or can_trust_hash):
                return 0
            with self.path.open("rb") as file:
                left = int(note["bytes"])
                while left > 0 and (data := file.read(min(CHUNK, left))):
                    self._count(data)
                    left -= len(data)
            if left or self.digest.hexdigest() != note["sha256"]:
                raise ValueError
            self.total, self.validator = note["total"], note["validator"]
        except (OSError, ValueError, LookupError, TypeError):
            self.begin()
        self.noted = self.size
        return self.size

    def is_usable(self, can_trust_hash: bool) -> bool:
        """Whether what is here can be gone on from, see `resume`."""
        return bool(self.noted and (self.validator or can_trust_hash))

    def opened(self) -> BinaryIO:
        """The partial file, cut to the bytes that count."""
        descriptor = os.open(self.path, _FLAGS, 0o666)
        file: Any = os.fdopen(descriptor, "r+b", buffering=0)
        file.truncate(self.size)
        file.seek(self.size)
        return file

    def write(self, file: BinaryIO, data: bytes) -> None:
        """Appends, whole or with an OSError."""
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]
        self._count(data)
        if self.size - self.noted >= NOTE_EVERY:
            self.note(file)

    def note(self, file: BinaryIO) -> None:
        """Writes down how far the file is, once that much is safely on disk."""
        if self.size == self.noted:
            return
        with contextlib.suppress(OSError):
            os.fsync(file.fileno())
            values = {
                "key": self.key,
                "bytes": self.size,
                "sha256": self.digest.hexdigest(),
                "total": self.total,
                "validator": self.validator,
            }
            write_json(self.beside, values)
            self.noted = self.size

    def finish(self) -> None:
        """Gives the file its name."""
        with self.path.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(self.path, self.target)
        self.beside.unlink(missing_ok=True)

    def drop(self) -> None:
        """Removes what is here."""
        for path in (self.path, self.beside):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def kept(self) -> str:
        """What an interruption leaves, for people."""
        if not self.noted or not self.path.exists():
            return f"nothing of {self.target.name} is kept; run it again"
        of = f" of {self.total / 1e6:,.1f}" if self.total else ""
        return (
            f"{self.noted / 1e6:,.1f}{of} MB are kept in {self.path}; run the same again to go on"
        )

    def _count(self, data: bytes) -> None:
        self.size += len(data)
        self.digest.update(data)
        if len(self.head) < magic.HEAD:
            self.head += data[: magic.HEAD - len(self.head)]
