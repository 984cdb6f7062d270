"""A model as one flat vector: order, flags, aliasing, and the way back to named tensors."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from fedsim.core.layout import FlatModel, as_tensor, layout_of, not_finite, subtract

CPU = torch.device("cpu")


class Net(nn.Module):
    """Tied weights, a norm, and every kind of buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 3)
        self.bn = nn.Linear(3, 3, bias=False)
        self.norm = nn.BatchNorm1d(3)
        self.head = nn.Linear(3, 2)
        self.tied = nn.Linear(3, 2, bias=False)
        self.tied.weight = self.head.weight
        self.register_buffer("scale", torch.tensor([1.0, 2.0]))
        self.register_buffer("count", torch.tensor(7))
        self.register_buffer("scratch", torch.tensor([5.0]), persistent=False)

    def forward(self, x):
        h = self.norm(self.bn(self.first(x)))
        return self.head(h) + self.tied(h)


@pytest.fixture
def flat():
    return FlatModel(Net(), CPU)


def test_slots_are_the_parameters_in_their_order_then_the_float_buffers():
    # first 6 + 3, bn 9, norm 3 + 3, head 6 + 2 (tied.weight is head.weight): P = 32.
    # scale 2, running mean 3 and variance 3: D = 40. count, num_batches_tracked and the buffer
    # that is not persistent are not federated.
    layout = layout_of(Net())
    assert [(s.name, s.shape, s.start, s.stop, s.role) for s in layout.slots] == [
        ("first.weight", (3, 2), 0, 6, "param"),
        ("first.bias", (3,), 6, 9, "param"),
        ("bn.weight", (3, 3), 9, 18, "param"),
        ("norm.weight", (3,), 18, 21, "param"),
        ("norm.bias", (3,), 21, 24, "param"),
        ("head.weight", (2, 3), 24, 30, "param"),
        ("head.bias", (2,), 30, 32, "param"),
        ("scale", (2,), 32, 34, "stat"),
        ("norm.running_mean", (3,), 34, 37, "stat"),
        ("norm.running_var", (3,), 37, 40, "stat"),
    ]
    assert (layout.num_params, layout.size) == (32, 40)


def test_batchnorm_and_head_go_by_module_never_by_name():
    layout = layout_of(Net())
    assert {s.name for s in layout.slots if s.batchnorm} == {
        *("norm.weight", "norm.bias", "norm.running_mean", "norm.running_var")
    }
    assert {s.name for s in layout.slots if s.head} == {"head.weight", "head.bias"}


def test_the_vector_holds_the_models_values():
    net = Net()
    state = {name: t.clone() for name, t in net.state_dict().items()}
    flat = FlatModel(net, CPU)
    expected = np.concatenate([state[s.name].flatten().numpy() for s in flat.layout.slots])
    np.testing.assert_array_equal(flat.vector(), expected)
    assert flat.vector().dtype == np.float32


def test_tensors_are_views_both_ways(flat):
    flat.load(torch.arange(40.0))
    named = dict(flat.model.named_parameters()) | dict(flat.model.named_buffers())
    for slot in flat.layout.slots:
        expected = torch.arange(40.0)[slot.where].view(slot.shape)
        assert torch.equal(named[slot.name], expected), slot.name
        assert named[slot.name].data_ptr() == flat.flat[slot.where].data_ptr(), slot.name
    with torch.no_grad():
        flat.model.head.bias += 100
    assert flat.flat[30:32].tolist() == [130.0, 131.0]
    assert flat.model.tied.weight is flat.model.head.weight
    with torch.no_grad():
        flat.flat[24] = -1.0
    assert flat.model.tied.weight[0, 0].item() == -1.0


def test_training_moves_the_vector_and_running_statistics_with_it(flat):
    before = flat.vector()
    x = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 0.0]])
    flat.model.train()
    flat.model(x).square().sum().backward()
    with torch.no_grad():
        for _, p in flat.params:
            p -= 0.1 * p.grad
    after = flat.vector()
    moved = {s.name for s in flat.layout.slots if (after[s.where] != before[s.where]).any()}
    assert moved >= {"first.weight", "head.weight", "norm.running_mean", "norm.running_var"}
    assert "scale" not in moved
    # the tied weight is one parameter, so its gradient is the sum of both uses and it moved once
    assert [slot.name for slot, _ in flat.params].count("head.weight") == 1


def test_load_copies_and_resets_what_is_not_federated(flat):
    source = torch.arange(40.0)
    flat.load(source)
    flat.model.train()
    flat.model(torch.randn(4, 2, generator=torch.Generator().manual_seed(0)))
    flat.model.count += 1
    flat.model.scratch.zero_()
    assert flat.model.norm.num_batches_tracked.item() == 1
    flat.load(source)
    assert torch.equal(source, torch.arange(40.0))
    assert flat.model.norm.num_batches_tracked.item() == 0
    assert flat.model.count.item() == 7
    assert flat.model.scratch.tolist() == [5.0]
    assert torch.equal(flat.flat, source)
    assert flat.flat.data_ptr() != source.data_ptr()


def test_mode_lets_a_model_decide_what_training_means():
    class Frozen(nn.Sequential):
        def train(self, mode=True):
            super().train(mode)
            self[1].eval()
            return self

    flat = FlatModel(Frozen(nn.Linear(2, 3), nn.BatchNorm1d(3)), CPU)
    assert [module.training for module in flat.model] == [True, False]
    for train in (True, False, True):
        flat.mode(train)
        assert [module.training for module in flat.model] == [train, False]


def test_subtract_writes_where_it_is_told():
    out = np.empty(3, np.float32)
    b = torch.tensor([1.0, 1.0, 5.0])
    subtract(torch.tensor([3.0, 1.0, 2.0]), b, torch.from_numpy(out))
    assert out.tolist() == [2.0, 0.0, -3.0]
    assert b.tolist() == [1.0, 1.0, 5.0]


def test_not_finite_names_the_tensors(flat):
    vector = flat.vector()
    assert not_finite(vector, flat.layout) == []
    vector[0] = 3e38  # its square overflows
    assert not_finite(vector, flat.layout) == []
    vector[[7, 38, 39]] = np.nan, np.inf, -np.inf
    assert not_finite(vector, flat.layout) == ["first.bias", "norm.running_var"]


def test_a_loaded_model_has_the_whole_state_dict_of_the_plain_one(flat):
    flat.load(torch.arange(flat.layout.size, dtype=torch.float32))
    state = flat.model.state_dict()
    slots = {slot.name: slot for slot in flat.layout.slots}
    assert set(state) - set(slots) == {"count", "norm.num_batches_tracked", "tied.weight"}
    other = Net()
    other.load_state_dict(state)
    for name, slot in slots.items():
        np.testing.assert_array_equal(
            other.state_dict()[name].flatten(), np.arange(slot.start, slot.stop)
        )
    assert torch.equal(other.tied.weight, other.head.weight)


def test_as_tensor_shares_even_read_only_memory_in_silence():
    array = np.arange(5, dtype=np.float32)
    shared = as_tensor(array)
    array[0] = 9.0
    assert shared[0].item() == 9.0
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_only = as_tensor(array)
    assert read_only.data_ptr() == shared.data_ptr()
    assert as_tensor(np.arange(10.0)[::2]).tolist() == [0.0, 2.0, 4.0, 6.0, 8.0]


class Remembers(nn.Module):
    """Replaces, deletes and adds what it holds beside its values."""

    def __init__(self):
        super().__init__()
        self.register_buffer("ema", torch.zeros(2))
        self.register_buffer("late", None)
        self.register_buffer("count", torch.tensor(7))
        self.w = nn.Parameter(torch.ones(2))
        self.calls, self.modes, self.seen = 0, [], {"first": torch.zeros(1)}

    def train(self, mode=True):
        self.modes = [*self.modes, mode]
        return super().train(mode)

    def forward(self, x):
        self.ema = self.ema + x
        self.late = x
        self.count = self.count + 1
        self.calls += 1
        self.seen["first"] += 1
        self.seen["second"] = x
        self.extra = x
        self.w.data = self.w * 2
        return x


def test_what_forward_replaces_is_taken_over_and_put_back():
    flat = FlatModel(Remembers(), CPU)
    start = flat.flat.clone()
    model, objects = flat.model, {id(flat.model.w), id(flat.model.ema)}
    for _ in range(2):
        model(torch.tensor([1.0, 2.0]))
        flat.settle()
    assert flat.vector().tolist() == [4.0, 4.0, 2.0, 4.0]  # w, ema
    assert {id(model.w), id(model.ema)} == objects
    flat.flat += 1
    assert model.ema.tolist() == [3.0, 5.0]
    assert model.w.tolist() == [5.0, 5.0]
    flat.load(start)
    assert torch.equal(flat.flat, start)
    assert (model.late, model.count.item(), model.calls) == (None, 7, 0)
    assert model.seen == {"first": torch.zeros(1)}
    assert not hasattr(model, "extra")


def test_a_module_hears_of_new_values_once():
    flat = FlatModel(Remembers(), CPU)
    start = flat.flat.clone()
    flat.mode(train=False)
    flat.mode(train=False)
    assert flat.model.modes == [True, False]
    flat.load(start)
    flat.mode(train=False)
    assert flat.model.modes == [False]


def test_all_layers_of_a_head_belong_to_it():
    model = nn.Module()
    model.features = nn.Linear(2, 3)
    model.head = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Sequential(nn.Linear(3, 2)))
    heads = {slot.name: slot.head for slot in layout_of(model).slots}
    assert [name for name, head in heads.items() if not head] == [
        "features.weight",
        "features.bias",
    ]
    assert heads["head.2.0.weight"]
    assert heads["head.1.running_var"]
