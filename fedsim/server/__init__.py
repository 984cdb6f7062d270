"""The server: a cohort of updates becomes one step of the global model."""

from fedsim.server.base import (
    Average,
    Blocks,
    Exchange,
    Exchanged,
    Gram,
    HistoryGram,
    Normalisation,
    Reduced,
    Reduction,
    Server,
    ServerOptimizer,
    blocks_of,
)
from fedsim.server.cohort import Cohort
from fedsim.server.gram import GramRule, Weights, shares

__all__ = [
    "Average",
    "Blocks",
    "Cohort",
    "Exchange",
    "Exchanged",
    "Gram",
    "GramRule",
    "HistoryGram",
    "Normalisation",
    "Reduced",
    "Reduction",
    "Server",
    "ServerOptimizer",
    "Weights",
    "blocks_of",
    "shares",
]
