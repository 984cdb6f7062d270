"""A pool of threads, one per core, and a limit of one BLAS thread in each of them."""

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache

from threadpoolctl import ThreadpoolController

from fedsim.core.machine import cores


@cache
def pool() -> ThreadPoolExecutor:
    """A thread per core, for work that releases the GIL."""
    return ThreadPoolExecutor(cores(), thread_name_prefix="fedsim-columns")


@cache
def _blas(scipy: bool) -> ThreadpoolController:
    """The BLAS libraries of this process. SciPy has its own, and only some methods import it."""
    return ThreadpoolController()


def single_threaded_blas() -> AbstractContextManager[object]:
    """Keeps BLAS and LAPACK at one thread, whose number would otherwise change the last bits."""
    return _blas("scipy.linalg" in sys.modules).limit(limits=1, user_api="blas")
