"""Which container a path is, by its content: names lie, and a refusal should say what to do."""

import os
import re
from pathlib import Path

from keras_vit.zoo.formats import archive
from keras_vit.zoo.formats.entry import quoted
from keras_vit.zoo.formats.safetensors_file import INDEX_SUFFIX, MAX_HEADER, parse_json

KNOWN = "an npz, safetensors, HDF5 (.weights.h5) or .keras file"
PICKLE = (
    "is a PyTorch or Python pickle, which can run code when it is read: refused. Take the "
    ".safetensors file of the same model, or write one where PyTorch is installed: "
    "safetensors.torch.save_file(torch.load(path, weights_only=True), 'model.safetensors')"
)
SAVED_MODEL = (
    "is a TensorFlow SavedModel, a compiled graph: give the weights it was made from, a "
    ".weights.h5, .keras or npz file"
)
USERBLOCKS = (0, *(2**n for n in range(9, 21)))  # where an HDF5 file may begin

# (regular expression on the first kilobyte, what to say), first match wins.
REFUSED = (
    (
        rb"version https://git-lfs",
        "is a pointer of git-lfs, not the file: fetch it by git lfs pull",
    ),
    (
        rb"(?i)(\xef\xbb\xbf)?\s*<(!doctype|html|head|\?xml|!--)",
        "is a web page, not a checkpoint: the download was answered by an error or a login page; "
        "fetch the file itself",
    ),
    (rb"\x80[\x02-\x05]", PICKLE),
    (rb"\x93NUMPY", "is one .npy array: a checkpoint is an .npz file of many"),
    (
        rb"....TFL[23]",
        "is a TensorFlow Lite file, made to be run: give the checkpoint it came from",
    ),
    (rb"\x08\x01\x12", SAVED_MODEL),
    # ONNX: the IR version, then the producer, the domain or the graph.
    (
        rb"\x08[\x03-\x20][\x12\x1a\x22\x28\x32\x3a\x42]",
        "is an ONNX file, a graph: give the checkpoint it was exported from",
    ),
    (rb"\x1f\x8b|BZh|\xfd7zXZ\x00|\x28\xb5\x2f\xfd", "is compressed: unpack it first"),
    (rb"(?s).{257}ustar", "is a tar archive: unpack it first"),
)
# Pickles of protocols 0 and 1 begin in text (a dict, a list, or the name of something to call) and
# all end in a dot.
TEXT_PICKLE = re.compile(rb"(?s)\(?[dl]p\d+\n|[\]}][pq(]|\(c?[\w.]+\n|c[\w.]+\n[\w.]+\n")


def what_is(path: str | os.PathLike) -> str:
    """The container of a path: a file's content decides, whatever its name.

    Returns:
        `npz`, `safetensors`, `safetensors_index`, `hdf5` or `keras` for files; for folders
        `keras_hub_preset`, `hf_folder` (a config beside safetensors), or `safetensors` and
        `safetensors_index` without a config.

    Raises:
        FileNotFoundError: nothing is there.
        ValueError: no container that is read here; one sentence says what it is and what to do.
    """
    path = Path(path)
    if path.is_dir():
        return _folder(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: give the path of a checkpoint.")
    size = path.stat().st_size
    if not size:
        raise ValueError(f"{path} is empty: fetch it again.")
    with path.open("rb") as file:
        head = file.read(1024)
        for start in USERBLOCKS:
            file.seek(start)
            if file.read(8) == b"\x89HDF\r\n\x1a\n":
                return "hdf5"
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
    if head[:2] == b"PK":
        return _archive(path)
    # Before the table: the length of a header may look like anything.
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 2**40:
        if int.from_bytes(head[:8], "little") > size - 8:
            raise ValueError(f"{path} is truncated: fetch it again.")
        return "safetensors"
    for pattern, sentence in REFUSED:
        if re.match(pattern, head):
            raise ValueError(f"{path} {sentence}.")
    if last == b"." and TEXT_PICKLE.match(head):
        raise ValueError(f"{path} {PICKLE}.")
    if head.lstrip()[:1] == b"{":
        return _json(path, size)
    if len(head) < 16:
        raise ValueError(f"{path} has only {size} bytes: it is truncated or not {KNOWN}.")
    raise ValueError(f"{path} is not {KNOWN}.")


def _archive(path: Path) -> str:
    names = archive.names(path, KNOWN)
    if any(name.endswith(".npy") for name in names):
        return "npz"
    if "config.json" in names and "model.weights.h5" in names:
        return "keras"
    if any(name.split("/")[-1] == "data.pkl" for name in names):
        raise ValueError(f"{path} {PICKLE}.")
    if any(name.split("/")[-1] == "saved_model.pb" for name in names):
        raise ValueError(f"{path} {SAVED_MODEL}.")
    holds = f"it holds {quoted(names[0])}" if names else "it is empty"
    raise ValueError(f"{path} is a zip archive but not an npz or .keras file ({holds}).")


def _json(path: Path, size: int) -> str:
    if size > MAX_HEADER:
        raise ValueError(f"{path} is a JSON file and not {KNOWN}.")
    shards = parse_json(path.read_bytes(), str(path)).get("weight_map")
    if not isinstance(shards, dict):
        raise ValueError(f"{path} is a JSON file and not {KNOWN}: give the weights beside it.")
    if any(str(shard).endswith((".bin", ".pt", ".pth")) for shard in shards.values()):
        raise ValueError(f"{path} lists files each of which {PICKLE}.")
    return "safetensors_index"


def _folder(path: Path) -> str:
    names = {p.name for p in path.iterdir()}
    if any(name.endswith(".safetensors") for name in names):
        if "config.json" in names:
            return "hf_folder"
        index = any(name.endswith(INDEX_SUFFIX) for name in names)
        return "safetensors_index" if index else "safetensors"
    if "config.json" in names and any(name.endswith(".weights.h5") for name in names):
        return "keras_hub_preset"
    if "saved_model.pb" in names:
        raise ValueError(f"{path} {SAVED_MODEL}.")
    if pickles := sorted(n for n in names if n.endswith((".bin", ".pt", ".pth", ".ckpt"))):
        raise ValueError(f"{path / pickles[0]} {PICKLE}.")
    raise ValueError(
        f"{path} holds no model: expected a folder with config.json beside .safetensors files or "
        f"beside a KerasHub model.weights.h5, or the path of {KNOWN}."
    )
