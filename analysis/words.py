"""What methods, terms and settings are, in a line each, for readers who have not run anything."""

from __future__ import annotations

from collections.abc import Mapping

METHODS: Mapping[str, str] = {
    "fedavg": "federated averaging: the mean of the clients' models, weighted by samples",
    "fedprox": "FedAvg whose clients are held near the global model by a quadratic penalty",
    "fedbn": "FedAvg whose clients keep their own batch normalisation",
    "fedpac": "shared, aligned features; each client combines the heads of similar clients",
    "fednova": "weighted mean of the updates, each divided by the client's number of steps",
    "feddecorr": "FedAvg with a penalty on correlated features of a client's batch",
    "fedgh": "harmonised gradients: conflicting pairs of updates are projected off each other",
    "fedgh_released": "what the released FedLD code calls FedGH: pairwise merging per tensor",
    "fedld": "margin control on the clients and principal-gradient aggregation on the server",
    "fedld_released": "FedLD as its released code computes it",
    "simagg": "weighted mean of the updates; nearness to their plain mean adds to a weight",
    "regagg": "weighted mean of the updates; nearness to their plain mean multiplies a weight",
    "robfedavg": "FedAvg that leaves out the clients whose value of a parameter is an outlier",
    "fedsr": "random features, held small and, given the label, near a common distribution",
    "scaffold": "control variates that take each client's gradients towards those of all clients",
    "fedcm": "clients' steps mixed with the direction in which the global model last moved",
    "feddyn": "a regulariser of each client's own, so that local and global optima agree",
    "moon": "features drawn towards the global model's and away from the client's previous ones",
    "fedadam": "FedAvg whose server takes an Adam step along the mean update",
    "fedyogi": "FedAvg whose server takes a Yogi step along the mean update",
    "fedadagrad": "FedAvg whose server takes an Adagrad step along the mean update",
    "fedavgm": "FedAvg with heavy-ball momentum on the server",
    "slowmo": "FedAvg with momentum on the server, in units of the clients' learning rate",
    "fedsam": "FedAvg whose clients seek flat minima by sharpness-aware steps",
    "pcgrad": "conflicting pairs of updates are projected off each other, all with the same weight",
    "fediir": "clients' gradients of the classifier's head are held near those of all clients",
    "pfedla": "a model per client: a mix of all clients' models with learnt weights for each layer",
    "matched_mean": "the neurons of the clients' models are matched before they are averaged",
    "fedld, margin=none": "FedLD's aggregation of clients that train with cross-entropy alone",
    "fedld, server=fedavg": "FedLD's margin control with FedAvg's weighted mean",
}
"""By label of a group."""

TERMS: Mapping[str, str] = {
    "Client, cohort, round": "A client holds data of its own and trains on it alone. In each "
    "communication round a cohort of clients gets the global model, trains it and returns it; the "
    "server aggregates their updates to the next global model.",
    "Seed": "The number that the random choices of training derive from: first weights, cohorts, "
    "order of samples. Split and partition derive from data.seed. Runs that differ in the seed "
    "alone are repetitions of one experiment on one partition, and the same seed means the same "
    "choices for every method, so that methods are compared seed by seed.",
    "Final, best, last 10": "Test accuracy after the last round; at the best round (chosen on the "
    "validation part where there is one, else on the test part, which is optimistic); mean over "
    "the evaluated rounds among the last ten.",
    "95 % t interval": "Mean ± t · s / √n with the standard deviation s of n seeds and Student's t "
    "for n minus 1 degrees of freedom: the interval that covers the true mean in 95 of 100 "
    "repetitions of the experiment.",
    "p, Holm": "Probability of a difference at least as large if the methods were equal, from a "
    "paired test over common seeds; Holm's correction accounts for the number of comparisons.",
    "Alpha (\N{GREEK SMALL LETTER ALPHA})": "Concentration of the Dirichlet distribution that "
    "deals samples to clients: small values give each client few classes, large values all "
    "clients the same mix.",
    "Loss (nats)": "Mean cross-entropy with natural logarithms; 0 is best, ln C is guessing among "
    "C classes.",
    "Local, shift, aggregation loss": "With local models after training: their loss on their own "
    "data; what they lose on everyone's data instead; what the global model loses against their "
    "mean. The three add up to the global model's loss.",
    "Gram matrix, cosine, conflict": "The inner products of all pairs of the clients' updates; "
    "each divided by the two lengths; a pair with a negative one is in conflict.",
    "Gradient diversity": "Weighted mean of the squared lengths of the updates over the squared "
    "length of their weighted mean; 1 where all are equal.",
    "Principal axis": "An eigenvector of the Gram matrix: a direction that the updates share. Its "
    "eigenvalue's share of the trace says how much of them lies along it.",
    "Recall": "Share of a class's test samples that the model recognises.",
    "Aligned, conflicting": "Test samples in which a shortcut (a mark that has nothing to do with "
    "the disease) agrees with the label, or contradicts it.",
}
"""The report's glossary."""

SETTINGS: Mapping[str, str] = {
    "dataset": "data set",
    "model": "network",
    "num_clients": "number of clients",
    "sample_rate": "share of the clients that train in a round",
    "alpha": "Dirichlet concentration of the clients' label mixes; small is heterogeneous",
    "rounds": "communication rounds",
    "best_by": "part on which the best round is chosen",
    "data.partition": "how samples are dealt to clients",
    "data.shards_per_client": "shards that a client gets, in the partition of that name",
    "data.prior": "how classes count in the partition `dirichlet_per_client`",
    "data.order": "order in which clients draw in that partition",
    "shortcut.samples_per_client": "training samples of a client, in generated data",
    "data.shift_test": "whether the common test part has the clients' looks too",
    "data.min_samples": "fewest training samples of a client",
    "data.val_fraction": "share of the data in the common validation part",
    "data.test_fraction": "share of the data in the common test part, where the data bring none",
    "data.client_test_fraction": "share of a client's samples in its own test part",
    "data.client_val_fraction": "share of a client's samples in its own validation part",
    "data.seed": "seed of split and partition",
    "data.feature_shift": "how clients' images differ in looks",
    "data.feature_strength": "how strongly",
    "shortcut.correlation": "correlation of shortcut and label in training",
    "data.augment": "augmentation of training images",
    "data.image_size": "side of the images in pixels; unset: as stored",
    "model.norm": "normalisation layers",
    "model.pretrained": "whether training starts from pretrained weights",
    "train.local_epochs": "passes over its data that a client makes in a round",
    "train.batch_size": "samples in a step of training",
    "train.lr": "learning rate",
    "train.lr_schedule": "how the learning rate changes over the rounds",
    "train.momentum": "momentum of the clients' SGD",
    "train.weight_decay": "weight decay of the clients' SGD",
    "train.frozen_bn": "whether batch statistics stay as pretrained",
    "train.clip_norm": "largest norm of a step's gradient",
    "evaluation.every": "rounds between evaluations",
    "evaluation.personal": "whose models stand for a method that keeps a model per client",
    "fedprox.mu": "weight of FedProx's penalty",
    "feddecorr.beta": "weight of FedDecorr's penalty",
    "fedld.margin": "margin control on the clients",
    "fedld.margin_weight": "weight λ of margin control",
    "fedld.keep": "share of the principal axes that FedLD keeps",
    "margin": "margin control put in place of the method's own",
    "margin_weight": "weight λ of margin control",
    "server": "server rule put in place of the method's own",
}
"""Settings by column of summary.csv; others are shown by their name alone."""
