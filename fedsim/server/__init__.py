"""The server: a cohort of updates becomes one step of the global model."""

from fedsim.server.base import (
    Average,
    Blocks,
    CohortTransform,
    Exchange,
    Exchanged,
    Gram,
    HistoryGram,
    Received,
    Reduced,
    Reduction,
    Server,
    ServerOptimizer,
    blocks_of,
)
from fedsim.server.cohort import Cohort
from fedsim.server.gram import GramRule, Weights, shares
from fedsim.server.robust import ByCoordinate, Faulty, Span
from fedsim.server.transforms import Bucketing, ClipNorms, NearestNeighbourMixing

__all__ = [
    "Average",
    "Blocks",
    "Bucketing",
    "ByCoordinate",
    "ClipNorms",
    "Cohort",
    "CohortTransform",
    "Exchange",
    "Exchanged",
    "Faulty",
    "Gram",
    "GramRule",
    "HistoryGram",
    "NearestNeighbourMixing",
    "Received",
    "Reduced",
    "Reduction",
    "Server",
    "ServerOptimizer",
    "Span",
    "Weights",
    "blocks_of",
    "shares",
]
