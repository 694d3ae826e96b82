"""Labels and preprocessing inside a .tflite file, as TensorFlow Lite Metadata and MediaPipe have them.

The metadata is a flatbuffer of its own (identifier M001) in a buffer that the model names
`TFLITE_METADATA`; the labels are a file `labels.txt` in a ZIP archive appended to the model. What
the convention has no place for (how images are resized, what the output is) is a second file there,
`keras_vit.json`. It is written with `flatbuffers` alone: the official writers cannot be imported on
a current Python.

Source: metadata_schema.fbs of TensorFlow Lite Support, schema.fbs of LiteRT.
"""

import dataclasses
import io
import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.card import Preprocessing

ENTRY, IDENTIFIER = "TFLITE_METADATA", b"M001"
LABELS, DETAILS = "labels.txt", "keras_vit.json"
LARGEST = 16_000_000  # bytes of one appended file that are read
COLOR_SPACES = {3: 1, 1: 2}  # channels -> RGB, GRAYSCALE; others are UNKNOWN, 0
IMAGE_PROPERTIES, NORMALIZATION, AXIS_LABELS = 2, 1, 2  # members of the schema's unions and enum
ALIGNMENT = 16  # of constants; flatbuffers' Python packer forgets it
ROOM = 2**20  # bytes that a file may grow by when it is packed again


@dataclasses.dataclass(frozen=True)
class Metadata:
    """What a .tflite file says of itself.

    Attributes:
        name: of the model.
        image_size: (H, W) of the input.
        channels: of the input.
        input_type: `float32`, normalised, or `uint8`, with the normalisation inside the file.
        preprocessing: from an 8-bit image of any size to the input; mean 0 and std 1 for uint8.
        output: `probabilities`, `logits` or `features`; None in a file of another tool.
        class_names: of the outputs in order, empty where unknown.
        sigmoid: whether an image can have several classes.
        model: the name of the checkpoint in the zoo, None where there is none.
        license: of the weights, None where unknown.
    """

    name: str
    image_size: tuple[int, int]
    channels: int
    input_type: str = "float32"
    preprocessing: Preprocessing = dataclasses.field(default_factory=Preprocessing)
    output: str | None = None
    class_names: tuple[str, ...] = ()
    sigmoid: bool = False
    model: str | None = None
    license: str | None = None


def pixels_rule(how: Preprocessing) -> Preprocessing:
    """The rule without its normalisation: to pixels of 0..255."""
    return dataclasses.replace(how, mean=(0.0,), std=(1.0,))


def metadata_of(model: Any, output: str, input_type: str) -> Metadata:
    """What an export of a VisionModel says of itself.

    Args:
        model: the model.
        output: `probabilities`, `logits` or `features`.
        input_type: `float32` or `uint8`.
    """
    how, card = model.preprocessing, model.card
    return Metadata(
        name=card.name if card else model.name,
        image_size=tuple(model.spec.image_size),
        channels=model.spec.in_channels,
        input_type=input_type,
        preprocessing=pixels_rule(how) if input_type == "uint8" else how,
        output=output,
        class_names=() if output == "features" else tuple(model.class_names),
        sigmoid=model.spec.classifier_activation == "sigmoid",
        model=card.name if card else None,
        license=(card.license or None) if card else None,
    )


def mediapipe_note(model: Any, input_type: str) -> str | None:
    """A sentence where MediaPipe's tasks cannot take a file."""
    how = model.preprocessing
    if model.spec.in_channels != 3:
        return f"MediaPipe's tasks feed RGB images only, and this model takes {model.spec.in_channels} channels."
    if input_type == "float32" and (len(set(how.mean)) > 1 or len(set(how.std)) > 1):
        return (
            "MediaPipe's tasks refuse a float file with a mean and std for each channel: export with "
            "input='uint8', which normalises inside the file."
        )
    return None


def with_metadata(content: bytes, metadata: Metadata) -> bytes:
    """A .tflite file with metadata and, where there are classes, labels; what it computes is the same.

    Constants that stand after the flatbuffer, as ai-edge-quantizer leaves them, move into it: their
    offsets count from the start of the file.
    """
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema
    from ai_edge_litert.tools import flatbuffer_utils

    class AlignedBuffer(schema.BufferT):
        def Pack(self, builder):
            # The class packs bytes one by one and to an alignment of 1.
            vector = None
            if self.data is not None:
                data = np.frombuffer(self.data, np.uint8).tobytes()
                builder.StartVector(1, len(data), ALIGNMENT)
                builder.head -= len(data)
                builder.Bytes[builder.head : builder.head + len(data)] = data
                vector = builder.EndVector()
            schema.BufferStart(builder)
            if vector is not None:
                schema.BufferAddData(builder, vector)
            return schema.BufferEnd(builder)

    model: Any = flatbuffer_utils.read_model_from_bytearray(content)
    kept = [m for m in model.metadata or [] if m.name != ENTRY.encode()]
    buffers = [*model.buffers, schema.BufferT(data=_described(metadata))]
    entry = schema.MetadataT(name=ENTRY, buffer=len(buffers) - 1)
    model.metadata = [*kept, entry]
    model.buffers = [AlignedBuffer(data=buffer.data) for buffer in buffers]
    # Of the final size from the start: growing would hold the constants three times.
    builder = flatbuffers.Builder(len(content) + ROOM)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    file = io.BytesIO()
    file.write(memoryview(builder.Bytes)[builder.Head() :])
    del builder, model, buffers
    with zipfile.ZipFile(file, "a") as archive:  # stored, not compressed, as readers expect
        # A ZipInfo has a fixed date, so that the same model gives the same file.
        if metadata.class_names:
            archive.writestr(zipfile.ZipInfo(LABELS), _label_lines(metadata.class_names))
        archive.writestr(zipfile.ZipInfo(DETAILS), json.dumps(_details(metadata), indent=1))
    return file.getvalue()


def read_metadata(path: str | Path) -> Metadata | None:
    """What a .tflite file says of itself; None when it says nothing.

    Files of other tools are read as well: their labels, image size, mean and standard deviation.

    Raises:
        ValueError: the metadata is damaged.
    """
    try:
        content: Any = np.memmap(path, np.uint8, "r")  # weights are not read
        found = _metadata_of(content)
        return None if found is None else _completed(found, _appended(Path(path)))
    except (struct.error, IndexError, KeyError, TypeError, UnicodeDecodeError, ValueError) as error:
        raise ValueError(
            f"the metadata of {path} is damaged ({' '.join(str(error).split())}): export it again."
        ) from None


def metadata_to_dict(metadata: Metadata) -> dict[str, Any]:
    """Plain values of all fields, for formats whose metadata is text."""
    return dataclasses.asdict(metadata)


def metadata_from_dict(values: dict[str, Any]) -> Metadata:
    """The inverse of `metadata_to_dict`.

    Raises:
        ValueError, TypeError, KeyError: the values are not those of metadata.
    """
    values = dict(values)
    height, width = values["image_size"]
    values["image_size"], values["class_names"] = (height, width), tuple(values["class_names"])
    values["preprocessing"] = Preprocessing(**values["preprocessing"])
    return Metadata(**values)


def _label_lines(names: tuple[str, ...]) -> str:
    return "".join(" ".join(name.split()) + "\n" for name in names)


def _details(metadata: Metadata) -> dict[str, Any]:
    """What the convention has no place for."""
    return {
        "preprocessing": dataclasses.asdict(metadata.preprocessing),
        "output": metadata.output,
        "sigmoid": metadata.sigmoid,
        "model": metadata.model,
    }


def _described(metadata: Metadata) -> bytes:
    """The flatbuffer of the metadata."""
    import flatbuffers

    builder = flatbuffers.Builder(1024)
    height, width = metadata.image_size
    how, integer = metadata.preprocessing, metadata.input_type == "uint8"
    low, high = (0.0, 255.0) if integer else how.value_range
    size = _table(builder, ("Uint32", width), ("Uint32", height))
    image = _table(builder, ("Int8", COLOR_SPACES.get(metadata.channels, 0)), size)
    normalization = _table(builder, _floats(builder, how.mean), _floats(builder, how.std))
    unit = _table(builder, ("Uint8", NORMALIZATION), normalization)
    takes = "8-bit pixels, normalised inside" if integer else "pixels, less mean, over std"
    images = _tensor(
        builder, "images", f"An image of {height}x{width}: {takes}.",
        content=_table(builder, ("Uint8", IMAGE_PROPERTIES), image),
        units=_tables(builder, [unit]), stats=(low, high),
    )  # fmt: skip
    files, output = None, metadata.output or "output"
    if metadata.class_names:
        names = builder.CreateString(LABELS), builder.CreateString("Names of the classes in order.")
        files = _tables(builder, [_table(builder, *names, ("Int8", AXIS_LABELS))])
    stats = (0.0, 1.0) if output == "probabilities" else None
    result = _tensor(builder, output, f"The {output} of the image.", files=files, stats=stats)
    graph = _table(
        builder, None, None, _tables(builder, [images]), _tables(builder, [result])
    )  # fmt: skip
    texts = builder.CreateString(metadata.name), builder.CreateString("An image classifier.")
    licence = builder.CreateString(metadata.license) if metadata.license else None
    subgraphs, parser = _tables(builder, [graph]), builder.CreateString("1.0.0")
    root = _table(builder, *texts, None, subgraphs, None, licence, None, parser)
    builder.Finish(root, IDENTIFIER)
    return bytes(builder.Output())


def _tensor(builder, name, text, content=None, units=None, stats=None, files=None):
    name, text = builder.CreateString(name), builder.CreateString(text)
    if stats:
        low, high = stats
        stats = _table(builder, _floats(builder, (high,)), _floats(builder, (low,)))
    return _table(builder, name, text, None, content, units, stats, files)


def _table(builder, *fields):
    """A table whose fields are None, the offset of something written before, or (type, number)."""
    builder.StartObject(len(fields))
    for slot, field in enumerate(fields):
        if isinstance(field, tuple):
            kind, value = field
            getattr(builder, f"Prepend{kind}Slot")(slot, value, 0)
        elif field is not None:
            builder.PrependUOffsetTRelativeSlot(slot, field, 0)
    return builder.EndObject()


def _tables(builder, offsets):
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return builder.EndVector()


def _floats(builder, values):
    return builder.CreateNumpyVector(np.asarray(values, np.float32))


class _Reader:
    """One table of a flatbuffer, its fields by number."""

    def __init__(self, content: bytes, position: int | None = None):
        import flatbuffers.table

        if position is None:
            (position,) = struct.unpack_from("<I", content)
        self.content = content
        self.table = flatbuffers.table.Table(content, position)

    def _at(self, slot: int) -> int | None:
        offset = self.table.Offset(4 + 2 * slot)
        return self.table.Pos + offset if offset else None

    def _span(self, slot: int) -> tuple[int, int]:
        """(start, items) of a vector."""
        at = self._at(slot)
        if at is None:
            return 0, 0
        start = at + struct.unpack_from("<I", self.content, at)[0]
        return start + 4, struct.unpack_from("<I", self.content, start)[0]

    def number(self, slot: int, kind: str) -> int:
        at = self._at(slot)
        return 0 if at is None else struct.unpack_from(f"<{kind}", self.content, at)[0]

    def bytes(self, slot: int) -> bytes:
        start, count = self._span(slot)
        return bytes(self.content[start : start + count])

    def text(self, slot: int) -> str:
        return self.bytes(slot).decode("utf-8")

    def floats(self, slot: int) -> tuple[float, ...]:
        start, count = self._span(slot)
        return tuple(map(float, np.frombuffer(self.content, "<f4", count, start)))

    def one(self, slot: int) -> "_Reader | None":
        at = self._at(slot)
        if at is None:
            return None
        return _Reader(self.content, at + struct.unpack_from("<I", self.content, at)[0])

    def many(self, slot: int) -> "list[_Reader]":
        start, count = self._span(slot)
        places = range(start, start + 4 * min(count, len(self.content) // 4), 4)
        return [
            _Reader(self.content, p + struct.unpack_from("<I", self.content, p)[0]) for p in places
        ]


def _metadata_of(content: bytes) -> Metadata | None:
    """The metadata without what is appended, and with placeholders for what it does not say."""
    model = _Reader(content)
    buffers = model.many(4)
    described = None
    for entry in model.many(6):
        if entry.text(0) == ENTRY:
            buffer = buffers[entry.number(1, "I")]
            start, size = buffer.number(1, "Q"), buffer.number(2, "Q")
            described = buffer.bytes(0) or bytes(content[start : start + size])
    if not described:
        return None
    root = _Reader(described)
    images = root.many(3)[0].many(2)[0]
    tensor = _input_tensor(model)
    mean, std = (0.0,), (1.0,)
    for unit in images.many(4):
        if unit.number(0, "B") == NORMALIZATION and (options := unit.one(1)):
            mean, std = options.floats(0), options.floats(1)
    height, width, channels = tensor[0][1:]
    return Metadata(
        name=root.text(0) or "model",
        image_size=(height, width),
        channels=channels,
        input_type=tensor[1],
        preprocessing=Preprocessing(mean=mean, std=std),
        license=root.text(5) or None,
    )


def _input_tensor(model: _Reader) -> tuple[list[int], str]:
    """(shape, type) of the first input."""
    graph = model.many(2)[0]
    start, _ = graph._span(1)
    tensor = graph.many(0)[struct.unpack_from("<i", graph.content, start)[0]]
    start, count = tensor._span(0)
    shape = struct.unpack_from(f"<{count}i", tensor.content, start)
    if count != 4:
        raise ValueError(f"its input of shape {shape} is no batch of images")
    names = {0: "float32", 3: "uint8", 9: "int8"}
    return list(shape), names.get(tensor.number(1, "b"), "unknown")


def _appended(path: Path) -> dict[str, bytes]:
    """The files appended to a model by name."""
    if not zipfile.is_zipfile(path):
        return {}
    with zipfile.ZipFile(path) as archive:
        found = archive.infolist()
        if any(info.file_size > LARGEST for info in found[:8]):
            raise ValueError(f"it has a file of more than {LARGEST:,} bytes")
        return {info.filename: archive.read(info) for info in found[:8]}


def _completed(metadata: Metadata, files: dict[str, bytes]) -> Metadata:
    """Metadata with what stands in the appended files."""
    labels = next((n for n in files if n == LABELS), None) or next(
        (n for n in files if n.endswith(".txt")), None
    )
    if labels:
        names = files[labels].decode("utf-8").splitlines()
        metadata = dataclasses.replace(metadata, class_names=tuple(names))
    if DETAILS in files:
        more = json.loads(files[DETAILS])
        metadata = dataclasses.replace(
            metadata,
            preprocessing=Preprocessing(**more["preprocessing"]),
            **{name: more[name] for name in ("output", "sigmoid", "model")},
        )
    return metadata
