"""How many bad inputs are tried."""

from __future__ import annotations

from tests.fuzz import (
    test_bounds,
    test_changed_sources,
    test_commands,
    test_data_files,
    test_documents,
    test_names_and_images,
    test_own_code,
    test_settings,
)


def test_there_are_hundreds_of_each_kind() -> None:
    settings = [len(test_settings.yaml_cases(key)) for key in test_settings.KEYS]
    settings += [len(test_settings.set_cases(key)) for key in test_settings.KEYS]
    counts = {
        "settings": sum(settings),
        "documents": len(test_documents.CASES) + 200,
        "command lines": len(test_commands.USAGE),
        "own code": len(test_own_code.CASES),
        "changed sources": test_changed_sources.COUNT,
        "bounds": len(test_bounds.CASES) + len(test_bounds.TAMPERED),
        "data files": 40 * len(test_data_files.SETS) + len(test_data_files.WEIGHTS),
        "images": len(test_names_and_images.IMAGES) + len(test_names_and_images.EXIF),
        "names": len(test_names_and_images.ODD) + len(test_names_and_images.NUL),
    }
    print(counts)  # noqa: T201
    assert sum(counts.values()) > 2000, counts
    assert min(counts.values()) >= 100, counts
