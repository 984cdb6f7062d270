"""The networks of LEAF (Caldas et al. 2018), as its TensorFlow code builds and initialises them.

B samples, T tokens, C classes. Kernels and embeddings start as Glorot's uniform draw, biases at 0.
"""

import math

import torch
from torch import Tensor, nn

from fedsim.models.vision import SplitModel, cnn_mcmahan


class SigmoidLinear(nn.Linear):
    """A linear layer and a sigmoid after it: (B, d) -> (B, C) in 0..1."""

    def forward(self, input: Tensor) -> Tensor:
        """(B, d) -> (B, C)."""
        return torch.sigmoid(super().forward(input))

    def forward_clients(self, x: Tensor) -> Tensor:
        """(A, B, d) -> (A, B, C) for the stacked weights of A clients."""
        return torch.sigmoid(torch.baddbmm(self.bias[:, None], x, self.weight.mT))


class Recurrent(nn.Module):
    """Two LSTM layers that start from zero states: (B, T, d) -> (B, T, width), every output.

    torch's LSTM has two biases where TensorFlow's has one: their sum starts at ``forget_bias`` for
    the forget gates and at zero elsewhere, and moves by twice the gradient.
    """

    def __init__(self, d: int, width: int, forget_bias: float) -> None:
        super().__init__()
        self.lstm = nn.LSTM(d, width, num_layers=2, batch_first=True)
        self.forget_bias = forget_bias

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, d) -> (B, T, width)."""
        outputs: Tensor = self.lstm(x)[0]
        return outputs

    @torch.no_grad()
    def start(self, limit: float | None = None) -> None:
        """Weights uniform in -limit..limit, by default Glorot's of (d + width, 4 width)."""
        width = self.lstm.hidden_size
        for layer in range(self.lstm.num_layers):
            w_ih, w_hh, b_ih, b_hh = self.lstm.all_weights[layer]
            most = limit or math.sqrt(6 / (w_ih.shape[1] + width + 4 * width))
            for weight in (w_ih, w_hh):
                weight.uniform_(-most, most)
            for bias in (b_ih, b_hh):
                bias.zero_()
            b_ih[width : 2 * width] = self.forget_bias


class Last(nn.Module):
    """The last of T outputs."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, d) -> (B, d)."""
        return x[:, -1]


def leaf_femnist(num_classes: int, in_channels: int, image_size: int) -> SplitModel:
    """Two 5x5 convolutions (32, 64) and 2048 units; 6,603,710 parameters for 28x28x1 and 62."""
    return _glorot(cnn_mcmahan(num_classes, in_channels, image_size, units=2048))


def leaf_celeba(num_classes: int, in_channels: int, image_size: int) -> SplitModel:
    """Four 3x3 convolutions of 32 channels; 31,202 parameters for 84x84x3 and 2 classes.

    BatchNorm always takes the statistics of the batch at hand, in evaluation too, and has no
    running ones, as in LEAF. The halves are rounded up: 84, 42, 21, 11, 6.
    """
    layers: list[nn.Module] = []
    width, side = in_channels, image_size
    for _ in range(4):
        layers += [
            nn.Conv2d(width, 32, 3, padding=1),
            nn.BatchNorm2d(32, eps=1e-3, track_running_stats=False),  # TensorFlow's eps
            nn.MaxPool2d(2, ceil_mode=True),
            nn.ReLU(),
        ]
        width, side = 32, math.ceil(side / 2)
    features = nn.Sequential(*layers, nn.Flatten())
    return _glorot(SplitModel(features, nn.Linear(32 * side**2, num_classes)))


def leaf_synthetic(num_classes: int, in_channels: int, image_size: int) -> SplitModel:
    """A perceptron with a sigmoid before the softmax; 305 parameters for 60 numbers, 5 classes."""
    return _glorot(SplitModel(nn.Flatten(), SigmoidLinear(in_channels, num_classes)))


def leaf_synthetic_linear(num_classes: int, in_channels: int, image_size: int) -> SplitModel:
    """The perceptron without the sigmoid."""
    return _glorot(SplitModel(nn.Flatten(), nn.Linear(in_channels, num_classes)))


def leaf_sent140(num_classes: int, vocabulary: int, length: int) -> SplitModel:
    """Embedding of 100, two LSTM layers of 100, the last output, 128 linear units, a head.

    ``vocabulary`` counts the symbol of unknown words and padding too. (B, T) -> (B, C).
    """
    recurrent = Recurrent(100, 100, forget_bias=1.0)
    features = nn.Sequential(nn.Embedding(vocabulary, 100), recurrent, Last(), nn.Linear(100, 128))
    return _glorot(SplitModel(features, nn.Linear(128, num_classes)))


def leaf_shakespeare(num_classes: int, vocabulary: int, length: int) -> SplitModel:
    """Embedding of 8, two LSTM layers of 256, the last output, a head. (B, T) -> (B, C).

    819,920 parameters for 80 symbols; 817,872 in LEAF, whose LSTM has one bias.
    """
    recurrent = Recurrent(8, 256, forget_bias=1.0)
    features = nn.Sequential(nn.Embedding(vocabulary, 8), recurrent, Last())
    return _glorot(SplitModel(features, nn.Linear(256, num_classes)))


def leaf_reddit(num_classes: int, vocabulary: int, length: int) -> SplitModel:
    """Embedding of 256, two LSTM layers of 256, a head on every output. (B, T) -> (B, T, C).

    Weights start uniform in -0.1..0.1. Every sequence starts from zero states; LEAF carries those
    of the batch before over to the next one in training.
    """
    recurrent = Recurrent(256, 256, forget_bias=0.0)
    embedding, head = nn.Embedding(vocabulary, 256), nn.Linear(256, num_classes)
    for weight in (embedding.weight, head.weight, head.bias):
        nn.init.uniform_(weight, -0.1, 0.1)
    recurrent.start(0.1)
    return SplitModel(nn.Sequential(embedding, recurrent), head)


def _glorot(model: SplitModel) -> SplitModel:
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d, nn.Embedding)):
            nn.init.xavier_uniform_(module.weight)
        if isinstance(module, (nn.Linear, nn.Conv2d)) and module.bias is not None:
            nn.init.zeros_(module.bias)
        if isinstance(module, Recurrent):
            module.start()
    return model
