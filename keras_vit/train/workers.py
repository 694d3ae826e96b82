"""Runs of several processes: what the environment says of them, and how they end together."""

import atexit
import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Iterator

ADDRESSES = "KERAS_DISTRIBUTION_JOB_ADDRESSES"
COUNT = "KERAS_DISTRIBUTION_NUM_PROCESSES"
INDEX = "KERAS_DISTRIBUTION_PROCESS_ID"
HEARTBEAT_SECONDS = 20  # silence after which JAX counts a worker as lost; TensorFlow's are 10
ADVICE = "start all workers again with the same command, and they go on from the last checkpoint"
# What the libraries beneath say when another process is gone.
LOST = ("unavailable", "aborted", "connection", "heartbeat", "unhealthy", "deadline")

_failed = False


class WorkerLost(ConnectionError):
    """Another process of this run ended, or cannot be reached any more."""


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The processes of one run.

    Attributes:
        addresses: `host:port` of each; for JAX the first is enough.
        count: how many there are.
        index: which of them this is; 0 coordinates.
    """

    addresses: tuple[str, ...]
    count: int
    index: int

    @property
    def tf_config(self) -> str:
        """The TF_CONFIG of this process.

        Raises:
            ValueError: not every process has an address.
        """
        if len(self.addresses) != self.count:
            raise ValueError(
                f"TensorFlow needs the address of each of the {self.count} processes, and "
                f"{ADDRESSES} names {len(self.addresses)}."
            )
        task = {"type": "worker", "index": self.index}
        return json.dumps({"cluster": {"worker": list(self.addresses)}, "task": task})


def cluster_from_environment() -> Cluster | None:
    """The cluster that KERAS_DISTRIBUTION_* or else TF_CONFIG describes, None when neither is set.

    Raises:
        ValueError: what is set is incomplete or contradicts itself.
    """
    if any(name in os.environ for name in (ADDRESSES, COUNT, INDEX)):
        return _from_keras()
    text = os.environ.get("TF_CONFIG")
    return _from_tf_config(text) if text else None


def _from_keras() -> Cluster:
    text = os.environ.get(ADDRESSES, "")
    addresses = tuple(address.strip() for address in text.split(",") if address.strip())
    if not addresses or not all(_is_address(address) for address in addresses):
        raise ValueError(
            f"{ADDRESSES} must be host:port of every process, separated by commas, got {text!r}."
        )
    try:
        count, index = int(os.environ.get(COUNT, len(addresses))), int(os.environ[INDEX])
    except (KeyError, ValueError):
        raise ValueError(
            f"{INDEX} must be the number of this process, from 0, and {COUNT} how many there are, "
            f"got {os.environ.get(INDEX)!r} and {os.environ.get(COUNT)!r}."
        ) from None
    if not 0 <= index < count or len(addresses) not in (1, count):
        raise ValueError(
            f"{ADDRESSES} names {len(addresses)} processes, {COUNT} says {count} and {INDEX} says "
            f"{index}: give as many addresses as processes, which count from 0."
        )
    return Cluster(addresses, count, index)


def _from_tf_config(text: str) -> Cluster:
    try:
        config = json.loads(text)
        jobs, task = config["cluster"], config["task"]
        order = [job for job in ("chief", "worker") if job in jobs]
        addresses = tuple(address for job in order for address in jobs[job])
        here = order.index(task["type"])
        index = sum(len(jobs[job]) for job in order[:here]) + int(task["index"])
        if not 0 <= int(task["index"]) < len(jobs[order[here]]):
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            'TF_CONFIG must be {"cluster": {"worker": ["host:port", ...]}, "task": {"type": '
            f'"worker", "index": 0}}}} or the like with a chief, got {text!r}.'
        ) from None
    return Cluster(addresses, len(addresses), index)


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdigit()


@contextlib.contextmanager
def ending_together() -> Iterator[None]:
    """After an error in the block, this process exits without waiting for the others.

    They notice, and end too. An orderly exit would first wait for them to say goodbye, while they
    wait in a sum over all.

    Raises:
        WorkerLost: in place of an error that says that another process is gone.
    """
    global _failed
    try:
        yield
    except BaseException as error:
        _failed = not (isinstance(error, SystemExit) and error.code in (None, 0))
        if isinstance(error, Exception) and _tells_of_a_loss(error):
            raise WorkerLost(
                f"another worker of this run ended or cannot be reached any more: {ADVICE}."
            ) from error
        raise


def _tells_of_a_loss(error: Exception) -> bool:
    text = f"{type(error).__name__}: {error}".lower()
    return not isinstance(error, OSError) and any(word in text for word in LOST)


def exit_at_once_when_failed() -> None:
    """Arranges that the interpreter's exit skips the goodbyes after an error in `ending_together`.

    To be called when the backend has registered its own, since the last registered runs first.
    """
    atexit.register(_leave)


def _leave() -> None:
    if _failed:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def greet(index: int, count: int) -> None:
    """Says that this process has joined the others, and what a loss means."""
    # Now, because JAX ends a process that has lost the first one with a message of its own.
    print(
        f"worker {index} of {count} has joined; when one ends, all end: {ADVICE}.",
        file=sys.stderr,
        flush=True,
    )
