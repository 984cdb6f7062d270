"""Where clients' work is done: one interface, the same bits in every executor."""
