"""Cox's partial likelihood and Harrell's concordance index, term by term."""

from __future__ import annotations

import math

from tests.oracles.losses import logsumexp


def cox(scores, times, events, ties):
    """Minus the log partial likelihood of a batch, divided by its samples; ties: breslow, efron, or
    order, where of tied samples the later ones have left the risk set."""
    total = 0.0
    for i, t in enumerate(times):
        if not events[i]:
            continue
        longer = [j for j, other in enumerate(times) if other > t]
        tied = [j for j, other in enumerate(times) if other == t]
        if ties == "order":
            tied = [j for j in tied if j <= i]
        risk = [scores[j] for j in longer + tied]
        if ties == "efron":
            dead = [j for j in tied if events[j]]
            left_out = dead.index(i) / len(dead)
            # exp(s) of the dead with the weight that is left
            rest = [scores[j] for j in longer + tied if j not in dead]
            rest += [scores[j] + math.log(1 - left_out) for j in dead]
            risk = rest
        total += logsumexp(risk) - scores[i]
    return total / len(times)


def concordance(scores, times, events):
    """The share of concordant pairs among those that can be compared; None without any."""
    right, pairs = 0.0, 0
    for i, t in enumerate(times):
        for j, other in enumerate(times):
            if events[i] and (other > t or (other == t and not events[j])):
                pairs += 1
                right += 1.0 if scores[j] < scores[i] else 0.5 if scores[j] == scores[i] else 0.0
    return right / pairs if pairs else None
