"""What env.json says of a verified run, beside what data, settings and this machine give."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedsim.audit.rerun import Rerun
from fedsim.audit.tables import Difference
from fedsim.core.errors import ConfigError
from fedsim.core.machine import kind_of, other_kind
from fedsim.core.reading import parse_json
from fedsim.identity.environment import NUMERICAL
from fedsim.identity.provenance import SHOWN, Provenance
from fedsim.storage.run_dir import to_json
from fedsim.training.setup import describe

FACTS = (
    *("classes", "sites", "heldout_clients", "malicious_clients", "head_drawn_anew"),
    *("weights_sha256", "frozen_sha256", "trace_sha256", "clients_sha256"),
)
"""Keys of env.json that follow from data, settings and files."""


def described(rerun: Rerun) -> dict[str, Any]:
    """What env.json would say now, as values of JSON."""
    return parse_json(to_json(describe(rerun.setup) | dict(rerun.executor.environment)))


def others(run: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Processor, kind of device and versions that are not those that the run was done with."""
    differing: list[str] = []
    for part in (before, *before.get("resumed", [])):  # the beginning, each time that it went on
        if not isinstance(part, dict) or not isinstance(part.get("packages", {}), dict):
            raise ConfigError(f"{run / 'env.json'}: not what fedsim writes there")
        there, here = part.get("processor", now["processor"]), now["processor"]
        if there != here:
            differing.append(f"processor {_words(here)} instead of {_words(there)}")
        differing.append(other_kind(kind_of(part), kind_of(now)))
        differing += [
            f"{name} {now['packages'].get(name)} instead of {version}"
            for name, version in part.get("packages", {}).items()
            if name in NUMERICAL and now["packages"].get(name) != version
        ]
    return "; ".join(filter(None, dict.fromkeys(differing)))


def _words(value: object) -> str:
    return ", ".join(map(str, value.values())) if isinstance(value, Mapping) else str(value)


def compare_facts(run: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """What env.json says of classes, clients, files and code with what data and settings give."""
    for part in (before, *before.get("resumed", [])):
        for key in FACTS:
            if key in part and part[key] != now.get(key):
                words = [
                    "nothing" if v is None else reprlib.repr(v) for v in (part[key], now.get(key))
                ]
                raise Difference(f"env.json, {key}", *words)
    code = now.get("code", {})
    for role, each in Provenance.read(run).code.items():
        if role != "executor" and each.name != code.get(role, {}).get("name"):
            raise Difference(f"env.json, code of the {role}", each.name, "what config.yaml names")


def undeclared(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """What env.json does not say, and could be compared."""
    if not before:
        yield "env.json is missing: processor, versions, code and data"
        return
    for key in ("processor", "packages", "data", "code", *FACTS):
        if now.get(key) not in (None, {}) and key not in before:
            yield f"env.json does not say {key!r}"
    last = {**before, **(before.get("resumed") or [{}])[-1]}
    for key in ("fedsim", "git_commit"):
        if last.get(key) != now[key]:
            yield f"{key} {str(last.get(key))[:SHOWN]} in env.json, {str(now[key])[:SHOWN]} here"
