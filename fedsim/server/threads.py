"""The cores of this process: a pool of threads, and BLAS held to one thread in each."""

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache

from threadpoolctl import ThreadpoolController

from fedsim.core.machine import cores


@cache
def pool() -> ThreadPoolExecutor:
    """Threads for pieces of work that hold no lock, as many as cores."""
    return ThreadPoolExecutor(cores(), thread_name_prefix="fedsim-columns")


@cache
def _blas(scipy: bool) -> ThreadpoolController:
    """The BLAS libraries of this process; ``scipy`` is imported only by some methods, and has one
    of its own."""
    return ThreadpoolController()


def single_threaded_blas() -> AbstractContextManager[object]:
    """Keeps BLAS and LAPACK at one thread, whose number would otherwise change the last bits."""
    return _blas("scipy.linalg" in sys.modules).limit(limits=1, user_api="blas")
