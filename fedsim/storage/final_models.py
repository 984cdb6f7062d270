"""The models of a finished run: ``model.safetensors``, and in ``clients.safetensors`` what clients
have of their own.

A client's tensors are called ``CLIENT/NAME``, such as ``3/head.weight``, where ``NAME`` is what the
network calls it. The client's model has these, and all others from ``model.safetensors``; a client
without any (it never trained) has the model of ``model.safetensors``. Both files are the same,
byte for byte, wherever a run was done.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError

from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError, StoreError
from fedsim.core.files import CLIENTS, MODEL
from fedsim.core.reading import parse_json
from fedsim.core.types import Array, Layout, ModelSpec, Slot, Vector, Vectors
from fedsim.storage import tensors

START_WEIGHTS = {"pretrained": False, "weights": None}
"""What of a model's description concerns its start weights, as if there were none."""


def save_model(run: Path, state_dict: Vectors, metadata: Mapping[str, str]) -> None:
    """Writes ``model.safetensors``: every tensor of the network's state dict."""
    # the largest elements first, so that each array begins at a multiple of its element's size
    names = sorted(state_dict, key=lambda name: -state_dict[name].dtype.itemsize)
    shapes = {name: (state_dict[name].dtype, state_dict[name].shape) for name in names}
    head = tensors.header(shapes, {"format": "pt", **metadata})
    tensors.stream(run / MODEL, head, (state_dict[name] for name in names))


def save_clients(
    run: Path,
    params: Vector,
    personal: Sequence[Slot],
    states: Mapping[int, Vectors],
    metadata: Mapping[str, str],
) -> None:
    """Writes ``clients.safetensors``, from the state of one client at a time.

    ``personal`` are the slots that stay on the clients, in the order of the vector; a state without
    them stands for the values of ``params`` (D,).
    """
    clients = sorted(states)
    float32 = np.dtype(np.float32)
    shapes = {f"{client}/{s.name}": (float32, s.shape) for client in clients for s in personal}
    head = tensors.header(shapes, {"format": "pt", **metadata})
    shared = np.concatenate([params[slot.where] for slot in personal])

    def arrays() -> Iterator[Array]:
        for client in clients:
            yield np.asarray(states[client].get("personal", shared), dtype=np.float32)

    tensors.stream(run / CLIENTS, head, arrays())


def metadata_of(run: Path) -> Mapping[str, str]:
    """What ``model.safetensors`` says of itself."""
    with tensors.opened(_there(run / MODEL)) as file:
        metadata: Mapping[str, str] | None = file.metadata()
        return metadata or {}


@dataclass(frozen=True)
class Description:
    """What ``model.safetensors`` says of the network, its inputs and the run's method."""

    model: ModelSpec
    classes: tuple[str, ...]
    mean: tuple[float, ...] = ()  # of images, per channel, of values in 0..1; empty of other inputs
    std: tuple[float, ...] = ()
    algorithm: str | None = None
    task: str | None = None  # None: classes

    @classmethod
    def read(cls, run: Path) -> Description:
        """That of a run's file; a StoreError where it does not say it."""
        metadata = metadata_of(run)
        try:
            model = ModelSpec(**parse_json(metadata["model"]))
            lists = {name: tuple(parse_json(metadata[name])) for name in ("classes", "mean", "std")}
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(
                f"{run / MODEL}: does not say what network it belongs to ({error})"
            ) from error
        names = {name: metadata.get(name) for name in ("algorithm", "task")}
        return cls(model, **names, **lists)  # type: ignore[arg-type]

    def check(self, run: Path, config: RunConfig) -> None:
        """Refuses a config.yaml that was edited since and names another network or method, by a
        ConfigError."""
        wanted = {"algorithm": (config.algorithm, self.algorithm or config.algorithm)}
        wanted["model.name"] = config.model_name, self.model.name
        for leaf in ("norm", "projection", "trainable"):
            wanted[f"model.{leaf}"] = getattr(config.model, leaf), getattr(self.model, leaf)
        for key, (value, trained) in wanted.items():
            if value != trained:
                raise ConfigError(
                    f"{run / 'config.yaml'} ({key}): {value!r} given, but the model of the run is "
                    f"of {trained!r}, as {MODEL} says; put that back"
                )

    def metadata(self) -> dict[str, str]:
        """As texts of JSON."""
        network: dict[str, Any] = asdict(self)["model"]
        model = {key: value for key, value in network.items() if key not in START_WEIGHTS}
        if model["trainable"] == "all":  # as earlier versions wrote it
            del model["trainable"]
        if not model["per_pixel"]:
            del model["per_pixel"]
        lists = {"classes": self.classes, "mean": self.mean, "std": self.std}
        texts = {name: json.dumps(value) for name, value in {"model": model, **lists}.items()}
        return texts if self.task is None else texts | {"task": self.task}


def load_vector(run: Path, layout: Layout) -> Vector:
    """The vector (D,) of ``model.safetensors``; a StoreError where it does not fit the network."""
    path = run / MODEL
    with tensors.opened(_there(path)) as file:
        return _vector(file, path, layout.slots, "")


def load_tensors(run: Path, names: Iterable[str]) -> dict[str, Array]:
    """Some tensors of ``model.safetensors``, by name; a StoreError where one is not there."""
    path = run / MODEL
    with tensors.opened(_there(path)) as file:
        return {name: _tensor(file, path, name) for name in names}


def own_tensors(run: Path, client: int) -> dict[str, Array]:
    """A client's tensors in ``clients.safetensors``, by name; none if it never trained."""
    return tensors.load(_there(run / CLIENTS), f"{client}/")


class ClientTensors(Mapping[int, Vectors]):
    """The states of the clients in ``clients.safetensors``, as far as their model needs them: the
    slots ``personal``, in the order of the vector, read when they are asked for."""

    def __init__(self, run: Path, personal: Sequence[Slot]) -> None:
        self._path, self._personal = run / CLIENTS, personal
        self._file = tensors.opened(_there(self._path))
        owners = {name.partition("/")[0] for name in self._file.keys()}  # noqa: SIM118
        if not all(map(str.isdecimal, owners)):
            raise StoreError(f"{self._path}: holds tensors that are no client's")
        self._clients = dict.fromkeys(sorted(map(int, owners)))

    def __getitem__(self, client: int) -> Vectors:
        if client not in self._clients:
            raise KeyError(client)
        return {"personal": _vector(self._file, self._path, self._personal, f"{client}/")}

    def __contains__(self, client: object) -> bool:
        return client in self._clients

    def __iter__(self) -> Iterator[int]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)


def _there(path: Path) -> Path:
    """The path, of which a StoreError says if there is no file."""
    if not path.is_file():
        raise StoreError(
            f"{path}: there is no such file (a run with engine.save_model=false leaves none)"
        )
    return path


def _vector(file: Any, path: Path, slots: Sequence[Slot], prefix: str) -> Vector:
    """The values of some slots one after the other, from an open file."""
    parts = [np.empty(0, np.float32)]
    for slot in slots:
        name = prefix + slot.name
        array = _tensor(file, path, name)
        if array.shape != slot.shape or array.dtype != np.float32:
            raise StoreError(
                f"{path}: {name} is {array.dtype} {array.shape}, in the network float32 "
                f"{slot.shape}"
            )
        parts.append(array.ravel())
    return np.concatenate(parts)


def _tensor(file: Any, path: Path, name: str) -> Array:
    try:
        array: Array = file.get_tensor(name)
    except SafetensorError:
        raise StoreError(f"{path}: has no tensor {name}, which the network has") from None
    return array
