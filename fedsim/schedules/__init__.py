"""Who trains in a round, and what of it the server waits for."""

SELECTIONS = {
    "uniform": "m clients, all alike",
    "size": "m clients, with probability by their training samples",
    "power_of_choice": "Of candidates the m with the highest losses (Cho et al., AISTATS 2022)",
    "oort": "By losses and speed, with an exploration of new clients (Lai et al., OSDI 2021)",
    "round_robin": "The clients in turn, by id",
    "fixed": "Those of train.clients",
}
"""The values of ``train.selection``, and which clients take part in a round; or one of your own."""
