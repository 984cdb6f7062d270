"""Sizes of a run before its data are read: of the model, and of what an actor needs on a GPU.

They are those in the catalogue of data sets or, for other data, three channels and ten classes, and
224 pixels for networks of libraries; nothing is read or downloaded.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING

from fedsim.config.run import RunConfig
from fedsim.config.validation import cohort_size
from fedsim.core.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

    from fedsim.core.types import ModelSpec


def model_bytes(config: RunConfig) -> tuple[int, int]:
    """Bytes of the model's vector and of its frozen tensors.

    0 for a model of text or of the user's, and where it cannot be built.
    """
    from fedsim.core.layout import float_tensors, frozen_names

    _, model = _likely(config)
    if model is None:
        return 0, 0
    sizes, out = float_tensors(model), frozen_names(model)
    frozen = sum(sizes[name].nbytes for name in out)
    return sum(t.nbytes for t in sizes.values()) - frozen, frozen


def gpu_need(config: RunConfig, room: float = math.inf) -> int | None:
    """Bytes of GPU memory that an actor needs, without the samples.

    None for a model of text or of the user's, and where it cannot be built or traced.
    """
    from fedsim.engine.footprint import need_of

    spec, model = _likely(config)
    if spec is None or model is None:
        return None
    cohort = cohort_size(config.data.num_clients, config.train.sample_rate)
    return need_of(
        model,
        spec,
        config.training,
        config.evaluation.batch_size,
        clients=min(_likely_block(config, spec), cohort),
        cohort=cohort,
        room=room,
    )


def _likely_block(config: RunConfig, spec: ModelSpec) -> int:
    """The clients of a block on a GPU, with full batches: what the data decide is not known yet."""
    import torch

    from fedsim import models
    from fedsim.client.block import obstacle
    from fedsim.core.layout import FlatModel
    from fedsim.training import assemble, stacking

    size = config.engine.client_batch
    if size != "auto":
        return int(size)
    flat = FlatModel(models.build(spec, config.seed), torch.device("cpu"))
    rules = assemble.algorithm_of(config)
    if obstacle(flat.model, rules.local, rules.criterion) is not None:
        return 1
    return stacking.automatic(spec, flat, config.train.batch_size, stacking.GPU)


def _likely(config: RunConfig) -> tuple[ModelSpec | None, nn.Module | None]:
    """The model and its shapes, without values unless it computes with them when it is built.

    None where the sizes cannot be guessed, or it cannot be built, for a reason that the run says.
    """
    import torch

    from fedsim import data, models
    from fedsim.models.libraries import library_of

    info = data.find(config.data.name)
    of_library = library_of(config.model_name) is not None
    image_size = info.image_size if info else 0
    pixels = config.data.image_size or image_size or (224 if of_library else 0)
    if not pixels or (":" in config.model_name and not of_library):
        return None, None
    spec = config.model_spec(
        num_classes=(info.num_classes if info else 0) or 10,
        in_channels=(info.channels if info else 0) or 3,
        image_size=pixels,
    ).without_weights
    with suppress(ConfigError), torch.device("meta"):
        return spec, models.build(spec, config.seed)
    with suppress(ConfigError):
        return spec, models.build(spec, config.seed)
    return spec, None
