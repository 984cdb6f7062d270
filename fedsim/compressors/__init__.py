"""Compressors of clients' updates: one file each, found by its name, or a function of the user's.

``build(**settings)`` returns a :class:`~fedsim.compressors.base.Compressor`. Settings that are keys
of section ``compress`` (:class:`~fedsim.config.compress.CompressConfig`) are given there, all
others in the section of the function's name.
"""

from fedsim.core.registry import Registry

COMPRESSORS = Registry("compressor", "fedsim.compressors")
