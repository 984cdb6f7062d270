"""A run's model as files that need no fedsim: ``fedsim export``.

The folder holds the network (``model.pt2`` of ``torch.export``, or ``model.onnx``), and what it
takes and says (``preprocessing.json``); of tables also ``preprocess.py``, which makes features.
"""

from __future__ import annotations

import importlib.util
import io
import json
import warnings
from pathlib import Path
from typing import Literal

import torch

from fedsim.core import files
from fedsim.core.errors import ConfigError, one_line
from fedsim.data import table_features
from fedsim.predictions.models import FinalModel, final_model
from fedsim.predictions.new_samples import check_takes_images, preprocessing_of
from fedsim.storage.run_dir import check_free
from fedsim.version import DISTRIBUTION

Form = Literal["torch", "onnx"]
MODELS = {"torch": "model.pt2", "onnx": "model.onnx"}
"""The file of the network."""


def export(
    run: Path,
    form: Form,
    folder: Path,
    client: int | str | None = None,
    *,
    accept_changed_code: bool = False,
) -> list[Path]:
    """Writes the final model of a finished run on images or tables, or that of one client, to a new
    folder; returns the files. A ConfigError where the network cannot be exported."""
    if form == "onnx" and not all(map(importlib.util.find_spec, ("onnx", "onnxscript"))):
        install = f"pip install '{DISTRIBUTION}[export]'"
        raise ConfigError(f"--to onnx needs the packages onnx and onnxscript: {install}")
    check_free(folder)
    model, scripts = final_model(run, client, accept_changed_code=accept_changed_code), {}
    if model.spec.inputs == "features":
        steps = preprocessing_of(run, model)
        steps |= {"steps": "preprocess.py, features(rows, preprocessing, sites)"}
        scripts["preprocess.py"] = Path(table_features.__file__).read_bytes()
    else:
        check_takes_images(run, model)
        steps = _of_images(model)
    whole = {"classes": model.description.classes, **steps, "model": model.spec.name}
    whole |= {"algorithm": model.config.algorithm, "client": client}
    whole |= {} if model.task.cross_entropy else {"task": model.task.name}
    text = json.dumps(whole, indent=1, ensure_ascii=False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's notices
            network = _network(model, form)
    except Exception as error:  # of torch's many, where a network does what cannot be exported
        raise ConfigError(
            f"{run}: torch cannot export its network to {form} ({one_line(error)})"
        ) from error
    contents = {MODELS[form]: network, "preprocessing.json": f"{text}\n".encode()} | scripts
    with files.replacing_folder(folder) as unfinished:
        for name, content in contents.items():
            (unfinished / name).write_bytes(content)
    return [folder / name for name in contents]


def _network(model: FinalModel, form: Form) -> bytes:
    """The file of the network, made in memory: torch ends the process where it cannot write one."""
    size, channels, kind = model.spec.image_size, model.spec.in_channels, model.spec.inputs
    examples = torch.zeros((2, channels) if kind == "features" else (2, channels, size, size))
    batch = {0: torch.export.Dim("batch", min=1)}
    outputs = "logits" if model.task.cross_entropy else "outputs"
    with torch.no_grad():
        program = torch.export.export(model.network, (examples,), dynamic_shapes=(batch,))
        if form == "torch":
            file = io.BytesIO()
            torch.export.save(program, file)
            return file.getvalue()
        done = torch.onnx.export(program, input_names=[kind], output_names=[outputs], verbose=False)
    content: bytes = done.model_proto.SerializeToString()  # type: ignore[union-attr]
    return content


def _of_images(model: FinalModel) -> dict[str, object]:
    """What the network takes."""
    return {
        "channels": model.spec.in_channels,
        "size": model.spec.image_size,
        "mean": model.description.mean,
        "std": model.description.std,
        "steps": "upright by EXIF, RGB, shorter side to size (bilinear, antialiased), centre crop, "
        "rounded to 0..255; for one channel 0.299 R + 0.587 G + 0.114 B, rounded; divided by 255, "
        "less mean, divided by std",
    }
