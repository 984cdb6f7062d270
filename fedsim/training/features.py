"""Features of a frozen network, computed once per data set and kept in the cache folder.

Where only what follows a frozen part of the network trains, and nothing before it draws, each
sample gives the same features in every pass. They are computed before the first round, on the
driver's CPU in batches of fixed size with one torch thread each, so that their bits do not depend
on the engine; workers then train the rest on them.
"""

import logging
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from fedsim import models
from fedsim.core.errors import WorkerError
from fedsim.core.files import cache_dir, sha256_of
from fedsim.core.imports import users_code
from fedsim.core.layout import FlatModel, float_tensors, frozen_names
from fedsim.core.rng import one_torch_thread, torch_scope
from fedsim.core.types import Array
from fedsim.data.cache import stored
from fedsim.data.transforms import transforms
from fedsim.engine.spec import WorkerSpec, array_sha256
from fedsim.models.vision import SplitModel

_VERSION, _BATCH, _PROBE = 1, 32, 8
"""Of the files; samples in a forward pass, part of the bits; samples to try a network on."""
_CPU = torch.device("cpu")

logger = logging.getLogger("fedsim")


def with_features(spec: WorkerSpec) -> WorkerSpec:
    """The spec with features (N, d) float32 in the place of the samples, where all ``features`` of
    a :class:`~fedsim.models.vision.SplitModel` but a projection head are frozen, and neither
    augmentation nor network draws in training; else the spec as it is."""
    if not spec.frozen or spec.dataset.per_token:
        return spec
    part = "features.backbone" if spec.model.projection else "features"
    features = _features(spec, part)
    if features is None:
        return spec
    rest = {name: a for name, a in spec.frozen.items() if not name.startswith(f"{part}.")}
    dataset = replace(spec.dataset, x=features, pipeline=None, vocabulary=0)
    return replace(spec, dataset=dataset, frozen=rest, local_images=None, cut=part)


def _features(spec: WorkerSpec, part: str) -> Array | None:
    """The features (N, d) of all samples; None where they are not the same in every pass."""
    model = models.build(spec.model.without_weights, spec.seed, spec.algorithm.adapt)
    flat = FlatModel(model, _CPU, frozen=spec.frozen)
    if type(model).forward is not SplitModel.forward or not _is_frozen(model, part):
        return None
    errors = users_code(f"model.name={spec.model.name}: features", WorkerError)
    with errors, one_torch_thread(), torch_scope(0):
        why, first = _try(spec, flat, part)
        if why is None:
            return _cached(spec, model.get_submodule(part), first)
    text = "model.trainable=%s: features are computed anew in every pass, since %s"
    logger.info(text, spec.model.trainable, why)
    return None


def _is_frozen(model: nn.Module, part: str) -> bool:
    """Whether a module of the model has tensors, and all of them are frozen."""
    frozen = {id(t) for name, t in float_tensors(model).items() if name in frozen_names(model)}
    tensors = {id(t) for t in float_tensors(model.get_submodule(part)).values()}
    return bool(tensors) and tensors <= frozen


def _try(spec: WorkerSpec, flat: FlatModel, part: str) -> tuple[str | None, Array]:
    """Why the features of a sample are not always the same, if so; those of the first samples.

    A pass as in training is compared with passes as in an evaluation, of other samples beside them.
    The model is left in evaluation mode.
    """
    name, none = spec.model.name, np.empty(0)
    if (draws := _draws(spec)) is not None:
        return draws, none
    compute = _passes(spec, flat.model.get_submodule(part))
    before = torch.get_rng_state()
    training = compute(0, _PROBE)
    drawn = not torch.equal(torch.get_rng_state(), before)
    flat.mode(train=False)
    if drawn:
        return f"{name} draws in training (dropout)", none
    if not isinstance(training, Tensor) or training.dtype != torch.float32 or training.ndim != 2:
        return f"{name} has no features (samples, d) of float32", none
    evaluated = torch.cat([compute(0, _PROBE // 2), compute(_PROBE // 2, _PROBE)])
    if not torch.allclose(training, evaluated, rtol=0, atol=1e-4 * float(evaluated.abs().max())):
        return f"{name} gives others in training, or beside other samples", none
    return None, evaluated.numpy()


def _draws(spec: WorkerSpec) -> str | None:
    """Why clients see other samples than those of the data set, if so."""
    pipeline, poison = spec.dataset.pipeline, spec.algorithm.poison
    if pipeline is not None and pipeline.augment != "none":
        return f"data.augment={pipeline.augment} draws"
    if poison is not None and poison.changes_x:
        return "malicious clients change images"
    return None


def _passes(spec: WorkerSpec, module: nn.Module) -> Callable[[int, int], Tensor]:
    """The function that computes the features of the samples from one index up to another."""
    samples, transform = spec.dataset.x, transforms(spec.dataset.pipeline, _CPU)

    def compute(start: int, stop: int) -> Tensor:
        with torch.no_grad():  # here, as each thread has its own setting
            x = torch.from_numpy(np.array(samples[start:stop]))
            features: Tensor = module(transform.test(x))
            return features

    return compute


def _cached(spec: WorkerSpec, module: nn.Module, first: Array) -> Array:
    """The features (N, d) of all samples, memory mapped; the first ones, in the file's digest, tell
    other code and another kind of processor."""
    size, compute = len(spec.dataset.x), _passes(spec, module)
    name = re.sub(r"[^\w.-]+", "-", f"{spec.dataset.name}-{spec.model.name}")[:80]
    path = cache_dir() / "features" / f"{name}-{sha256_of(_decisive(spec), first)[:24]}.npy"

    def write(store: Array, i: int) -> None:
        start = i * _BATCH
        store[start : start + _BATCH] = compute(start, start + _BATCH).numpy()

    if not path.exists():
        logger.info("computing the features of %s samples once; they are kept in %s", size, path)
    shape, batches = (size, first.shape[1]), -(-size // _BATCH)
    return stored(path, shape, np.float32, batches, write)


def _decisive(spec: WorkerSpec) -> str:
    """What decides the features: the samples, the pipeline, the network and its frozen tensors."""
    data, network = spec.dataset, spec.model.without_weights
    content = _VERSION, _BATCH, data.x.shape, data.x.dtype.str, data.pipeline, network
    frozen = [
        f"{name} {array.shape} {array_sha256(array)}" for name, array in sorted(spec.frozen.items())
    ]
    return "".join([f"{content} {array_sha256(data.x)}", *frozen])
