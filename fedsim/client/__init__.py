"""The clients: local training, what a client's rule may look at, the classification loss."""
