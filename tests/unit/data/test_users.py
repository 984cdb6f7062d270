"""Data sets of users: LEAF's images, texts and features, and synthetic ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedsim import data
from fedsim.config.run import RunConfig
from fedsim.core.errors import ConfigError, DataError
from fedsim.core.types import Dataset
from fedsim.data import partitions
from fedsim.data.draws import KINDS
from fedsim.data.readers import leaf_text, synthetic
from fedsim.data.transforms import Transforms
from fedsim.testing import check_reader
from fedsim.training.loading import load
from tests.unit.data.conftest import write_users


def points(user: int, n: int, start: int = 0) -> tuple[list[list[float]], list[float]]:
    """Samples (100 user + i, -i) with the labels 0.0, 1.0, 0.0, ..., as FedProx writes them."""
    rows = range(start, start + n)
    return [[100.0 * user + i, -float(i)] for i in rows], [float(i % 2) for i in rows]


def natural(loaded: Dataset) -> list[tuple[str, list[float], list[float]]]:
    """By client the name and the first number of its training and test samples."""
    made = partitions.make(loaded, "natural", min_samples=1)
    rows = zip(made.names, made.train, made.test, strict=True)
    return [(name, *(loaded.x[own, 0].tolist() for own in parts)) for name, *parts in rows]


def test_files_are_merged_and_users_sorted_by_name(tmp_path: Path):
    write_users(tmp_path / "train", "a.json", {"u10": points(10, 3), "u2": points(2, 2)})
    write_users(tmp_path / "train", "b.json", {"u1": points(1, 2)})
    write_users(tmp_path / "test", "any.json", {"u2": points(2, 1, 5), "u10": points(10, 2, 5)})
    loaded = data.load("synthetic", tmp_path)
    assert (loaded.x.dtype, loaded.x.shape, loaded.y.dtype) == (np.float32, (10, 2), np.int64)
    assert (loaded.inputs, loaded.pipeline, loaded.class_names) == ("features", None, ("0", "1"))
    assert loaded.sites_are_users
    assert partitions.default_kind(loaded) == "natural"
    # text order: u1 < u10 < u2; u1 has no test samples and stays
    assert natural(loaded) == [
        ("u1", [100.0, 101.0], []),
        ("u10", [1000.0, 1001.0, 1002.0], [1005.0, 1006.0]),
        ("u2", [200.0, 201.0], [205.0]),
    ]
    assert loaded.y[loaded.train].tolist() == [0, 1, 0, 1, 0, 0, 1]
    check_reader("synthetic", tmp_path, cases=["options", "arrays and labels", "read again"])


@pytest.mark.parametrize("below", ["", "data", "synthetic", "synthetic/data", "data/synthetic"])
def test_the_folder_may_be_given_at_any_height(tmp_path: Path, below: str):
    write_users(tmp_path / below / "train", "a.json", {"u": points(0, 4)})
    write_users(tmp_path / below / "test", "a.json", {"u": points(0, 2, 4)})
    assert len(data.load("synthetic", tmp_path).y) == 6


def test_one_folder_alone_is_split_within_the_users(tmp_path: Path):
    write_users(
        tmp_path / "test", "a.json", {"a": points(0, 10), "b": points(1, 25), "c": points(2, 2)}
    )
    loaded = data.load("synthetic", tmp_path, val_fraction=0.25, test_fraction=0.2, seed=3)
    made = partitions.make(loaded, "natural")
    # 0.2 of 10, 25, 2 is 2, 5, 0; 0.25 of the rest 8, 20, 2 is 2, 5, 0 (0.5 to even)
    assert [len(own) for own in made.test] == [2, 5, 0]
    assert [len(own) for own in made.val] == [2, 5, 0]
    assert [len(own) for own in made.train] == [6, 15, 2]
    # each label gives its share: 5 and 5 of a
    assert loaded.y[made.test[0]].tolist() == [0, 1]
    again = data.load("synthetic", tmp_path, val_fraction=0.25, test_fraction=0.2, seed=3)
    other = data.load("synthetic", tmp_path, val_fraction=0.25, test_fraction=0.2, seed=4)
    assert np.array_equal(loaded.test, again.test)
    assert not np.array_equal(loaded.test, other.test)


def test_a_test_part_of_other_users_is_common(tmp_path: Path):
    write_users(tmp_path / "train", "a.json", {"a": points(0, 4), "b": points(1, 3)})
    write_users(tmp_path / "test", "a.json", {"c": points(2, 5)})
    loaded = data.load("synthetic", tmp_path)
    made = partitions.make(loaded, "natural")
    assert (made.names, made.test, len(loaded.test)) == (("a", "b"), (), 5)


@pytest.mark.parametrize(
    ("users", "message"),
    [
        ("{", r"a\.json: truncated or no json file"),
        ([1], r"a\.json: needed is the key user_data, an object"),
        ({"u": {"x": []}}, r"a\.json, user 'u': needed are the lists x and y"),
        ({"u": [1]}, r"a\.json, user 'u': needed are the lists"),
        ({"u": {"x": [[], []], "y": [0, 1]}}, "user 'u': x has to be lists of finite numbers"),
        ({"u": {"x": [[1], [2]], "y": [0]}}, "user 'u': x has 2 samples, y has 1"),
        ({"u": {"x": [[1], [2, 3]], "y": [0, 1]}}, "user 'u': x is no list of numbers"),
        ({"u": {"x": [[1e300]], "y": [0]}}, "x has to be lists of finite numbers"),
        ({"u": {"x": [[1], [2]], "y": [0, 0.5]}}, r"label 0\.5 of sample 1 is no class"),
        ({"u": {"x": [[1]], "y": ["a"]}}, "user 'u': y is no list of numbers"),
        ({"u": {"x": [], "y": []}}, "hold no samples"),
        (
            {"u": {"x": [[1]], "y": [0]}, "v": {"x": [[1, 2]], "y": [0]}},
            r"user 'v': x of shape \(2,\), before it was \(1,\)",
        ),
    ],
)
def test_damage_is_refused_with_file_and_user(tmp_path: Path, users, message: str):
    (tmp_path / "train").mkdir()
    text = users if users == "{" else json.dumps({"user_data": users})
    (tmp_path / "train" / "a.json").write_text(text)
    with pytest.raises(DataError, match=message):
        data.load("synthetic", tmp_path)


def test_femnist_pixels_are_rounded_bytes_that_the_model_sees_as_0_to_1(tmp_path: Path):
    paper, ink = [1.0] * 784, [0.0] * 783 + [0.3]
    write_users(tmp_path / "train", "a.json", {"f1": ([paper, ink], [0, 61]), "f0": ([ink], [10])})
    write_users(tmp_path / "test", "a.json", {"f1": ([paper], [36])})
    loaded = data.load("femnist", tmp_path / "train" / "..")
    assert (loaded.x.shape, loaded.x.dtype) == ((4, 1, 28, 28), np.uint8)
    # 0.3 x 255 = 76.5, to the even 76; the last of 784 is the lower right corner
    assert loaded.x[0, 0, 27, 27] == 76
    assert loaded.x[0].sum() == 76
    assert [loaded.class_names[label] for label in loaded.y] == ["A", "0", "z", "a"]
    seen = Transforms(loaded.pipeline, torch.device("cpu")).test(torch.from_numpy(loaded.x))
    assert seen[1].eq(1).all()
    assert seen[0].max().item() == pytest.approx(76 / 255)
    assert data.load("femnist", tmp_path, image_size=14).x.shape == (4, 1, 14, 14)


def celeba(folder: Path) -> None:
    images = folder / "data" / "raw" / "img_align_celeba"
    images.mkdir(parents=True)
    for i in range(4):
        pixels = np.zeros((218, 178, 3), np.uint8)
        pixels[:109] = 50 * i  # the upper half, also after squashing to a square
        Image.fromarray(pixels).save(images / f"{i}.png")
    write_users(folder / "data" / "train", "a.json", {"7": (["1.png", "3.png"], [0.0, 1.0])})
    write_users(folder / "data" / "test", "a.json", {"7": (["2.png"], [1.0])})


def test_celeba_reads_squashed_images_that_the_model_sees_as_0_to_255(tmp_path: Path):
    celeba(tmp_path / "celeba")
    loaded = data.load("celeba", tmp_path / "celeba")
    assert loaded.x.shape == (3, 3, 84, 84)
    assert loaded.y.tolist() == [0, 1, 1]
    assert loaded.class_names == ("not smiling", "smiling")
    seen = Transforms(loaded.pipeline, torch.device("cpu")).test(torch.tensor(loaded.x))
    assert seen[:, 0, 0, 0].tolist() == pytest.approx([50.0, 150.0, 100.0])
    assert seen[1, :, 40].eq(150).all()
    assert seen[1, :, 43].eq(0).all()
    assert data.load("celeba", tmp_path / "celeba", image_size=32).x.shape == (3, 3, 32, 32)


@pytest.mark.parametrize(
    ("which", "samples", "classes"),
    [
        ("synthetic_1_1", 1084, [82, 36, 23, 77, 68, 31, 30, 346, 354, 37]),
        ("synthetic_0_0", 897, [13, 266, 58, 71, 44, 225, 49, 88, 40, 43]),
    ],
)
def test_fedprox_synthetic(shared_data: Path, which, samples, classes):
    folder = shared_data / "leaf-synthetic" / which
    loaded = data.load("synthetic", folder)
    assert loaded.x.shape == (samples, 60)
    assert np.bincount(loaded.y).tolist() == classes
    assert loaded.site_names == tuple(f"f_{k:05d}" for k in range(30))
    content = json.loads((folder / "data" / "test" / "mytest.json").read_text())
    made = partitions.make(loaded, "natural")
    for name, train, test in zip(made.names, made.train, made.test, strict=True):
        own = np.sort(np.concatenate([train, test]))
        assert len(test) == round(0.2 * len(own))
        assert np.array_equal(loaded.x[own], np.float32(content["user_data"][name]["x"]))
        assert loaded.y[own].tolist() == content["user_data"][name]["y"]


def test_shakespeare_of_the_samples(shared_data: Path):
    loaded = data.load("shakespeare", shared_data / "leaf-shakespeare")
    assert (loaded.x.shape, loaded.x.dtype, loaded.vocabulary) == ((15384, 80), np.int32, 80)
    assert (loaded.num_classes, loaded.inputs, loaded.per_token) == (80, "tokens", False)
    made = partitions.make(loaded, partitions.default_kind(loaded))
    assert {len(own) for own in made.train} == {576}
    assert {len(own) for own in made.test} == {65}
    assert list(made.names) == sorted(made.names)
    file = next((shared_data / "leaf-shakespeare" / "data" / "train").iterdir())
    own = json.loads(file.read_text())["user_data"][made.names[5]]
    written = ["".join(leaf_text.LETTERS[i] for i in row) for row in loaded.x[made.train[5]]]
    assert written == own["x"]
    assert [leaf_text.LETTERS[label] for label in loaded.y[made.train[5]]] == own["y"]
    # windows of stride one: the label is the character that the next window ends with
    assert np.array_equal(loaded.y[made.train[0]][:-1], loaded.x[made.train[0]][1:, -1])


def test_shakespeare_turns_unknown_characters_into_the_last_symbol(tmp_path: Path):
    text = "aZ\n{é" + " " * 75
    write_users(tmp_path / "train", "a.json", {"u": ([text, "}" * 80], ["~", "b"])})
    write_users(tmp_path / "test", "a.json", {"u": ([" " * 80], ["!"])})
    loaded = data.load("shakespeare", tmp_path)
    # the alphabet is "\n !..." and ends "...xyz}": letters are 53 to 78, capitals 25 to 50
    assert loaded.x[0, :6].tolist() == [53, 50, 0, 79, 79, 1]
    assert set(loaded.x[1].tolist()) == {79}
    assert loaded.y.tolist() == [79, 54, 2]


def tweet(text: str) -> list[str]:
    return ["1", "Mon Apr 06", "NO_QUERY", "user", text, "training"]


def tweets(folder: Path) -> None:
    train = [tweet("It's good, good!"), tweet("bad bad bad... c"), tweet("good " * 30)]
    write_users(folder / "train", "a.json", {"u": (train, [1, 0, 1])})
    write_users(folder / "test", "a.json", {"u": ([tweet("good Bad new c ; d")], [0])})


def test_sent140_takes_the_most_frequent_training_words(tmp_path: Path):
    tweets(tmp_path)
    loaded = data.load("sent140", tmp_path)
    # counts of the first 25 words: good 2 + 25, bad 3, "." 3, and once "!" "," "It's" "c": ties in
    # the order of the alphabet; 7 words, the eighth token is unknown and fills up
    words = ["good", ".", "bad", "!", ",", "It's", "c"]
    assert loaded.vocabulary == 8
    assert loaded.x.shape == (4, 25)
    assert loaded.x[0, :6].tolist() == [
        words.index(w) for w in ("It's", "good", ",", "good", "!")
    ] + [7]
    assert loaded.x[1, :8].tolist() == [2, 2, 2, 1, 1, 1, 6, 7]
    assert loaded.x[2].tolist() == [0] * 25
    assert loaded.x[3, :8].tolist() == [0, 7, 7, 6, 7, 7, 7, 7]
    assert loaded.y.tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize("place", ["", ".."])
def test_sent140_takes_the_vocabulary_of_embs_json(tmp_path: Path, place: str):
    tweets(tmp_path / "data")
    (tmp_path / "data" / place / "embs.json").write_text('{"vocab": ["bad", "new"], "emba": []}')
    loaded = data.load("sent140", tmp_path)
    assert loaded.vocabulary == 3
    assert loaded.x[1, :5].tolist() == [0, 0, 0, 2, 2]
    assert loaded.x[3, :5].tolist() == [2, 2, 1, 2, 2]


def comment(text: str) -> tuple[list[list[str]], dict[str, object]]:
    """x and y as LEAF makes them of a comment: the last token that counts is <EOS>'s <PAD>."""
    tokens = ["<BOS>", *text.split(), "<EOS>"]
    length = -(-len(tokens) // 10) * 10
    rows = []
    for values, filling in (
        (tokens, "<PAD>"),
        ([*tokens[1:], "<PAD>"], "<PAD>"),
        ([1.0] * len(tokens), 0.0),
    ):
        full = [*values, *[filling] * (length - len(values))]
        rows.append([full[i : i + 10] for i in range(0, length, 10)])
    label = {"subreddit": "s", "score": 1, "target_tokens": rows[1], "count_tokens": rows[2]}
    return rows[0], label


def write_reddit(folder: Path) -> None:
    parts = {
        "train": {"2": ["b a b", "c " * 12], "1": ["b a"]},
        "val": {"1": ["a"]},
        "test": {"2": ["b new"], "1": ["a b"]},
    }
    for part, users in parts.items():
        made = {
            user: tuple(map(list, zip(*map(comment, texts), strict=True)))
            for user, texts in users.items()
        }
        write_users(folder / part, f"reddit_0_{part}.json", made)


def test_reddit_has_a_sample_per_sequence_and_a_label_per_token(tmp_path: Path):
    write_reddit(tmp_path)
    loaded = data.load("reddit", tmp_path)
    # in train: c 12, then <BOS> 3, <EOS> 3, b 3, then a 2
    assert loaded.class_names == ("<PAD>", "<UNK>", "c", "<BOS>", "<EOS>", "b", "a")
    assert (loaded.vocabulary, loaded.never_right, loaded.per_token) == (7, (0, 1), True)
    assert (len(loaded.train), len(loaded.val), len(loaded.test)) == (4, 1, 2)
    first = loaded.train[0]
    assert loaded.x[first].tolist() == [3, 5, 6, 4, 0, 0, 0, 0, 0, 0]
    assert loaded.y[first].tolist() == [5, 6, 4, 0, -1, -1, -1, -1, -1, -1]
    # <BOS>, twelve c, <EOS>: the second sequence is c c c <EOS>
    assert loaded.x[loaded.train[3]].tolist() == [2, 2, 2, 4] + [0] * 6
    assert loaded.y[loaded.train[3]].tolist() == [2, 2, 4, 0] + [-1] * 6
    # a word that training does not know is unknown as input and as label
    assert loaded.x[loaded.test[1], :4].tolist() == [3, 5, 1, 4]
    assert loaded.y[loaded.test[1], :4].tolist() == [5, 1, 4, 0]
    made = partitions.make(loaded, "natural", min_samples=1)
    assert made.names == ("1", "2")
    assert [len(own) for own in made.train] == [1, 3]
    assert [len(own) for own in made.val] == [1, 0]
    assert [len(own) for own in made.test] == [1, 1]


def test_reddit_leaves_out_sequences_in_which_nothing_counts(tmp_path: Path):
    x, y = comment("a b")
    silent = {"target_tokens": y["target_tokens"], "count_tokens": [[0] * 10]}
    write_users(tmp_path / "train", "a.json", {"u": ([x, x, x], [y, silent, y])})
    write_users(tmp_path / "test", "a.json", {"u": ([x], [y])})
    assert len(data.load("reddit", tmp_path).train) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target_tokens": None}, "needed are sequences of 10 tokens"),
        ({"count_tokens": [[1] * 9]}, "needed are sequences of 10 tokens"),
        ({"count_tokens": [["1"] * 10]}, "needed are sequences of 10 tokens"),
        ({"target_tokens": [[["a"]] * 10]}, "needed are sequences of 10 tokens"),
        ({"count_tokens": [[1] * 10] * 2}, "x, target_tokens and count_tokens differ in length"),
    ],
)
def test_reddit_refuses_other_sequences(tmp_path: Path, change, message):
    x, y = comment("a b")
    write_users(tmp_path / "train", "a.json", {"u": ([x, x], [y, {**y, **change}])})
    with pytest.raises(DataError, match=rf"a\.json, user 'u': sample 1: {message}"):
        data.load("reddit", tmp_path)


def test_labels_of_tokens_cannot_be_dealt_out_but_samples_can(tmp_path: Path):
    write_reddit(tmp_path)
    loaded = data.load("reddit", tmp_path)
    for kind in (name for name, kind in KINDS.items() if kind.by_label):
        with pytest.raises(
            ConfigError, match=f"'{kind}' depends .*: take natural, iid or quantity$"
        ):
            partitions.make(loaded, kind, num_clients=2)
    made = partitions.make(loaded, "iid", num_clients=2)
    assert [len(own) for own in made.train] == [2, 2]
    quantity = partitions.make(loaded, "quantity", num_clients=2, min_samples=1, alpha=5.0)
    assert sum(map(len, quantity.train)) == 4


def test_a_split_within_users_works_on_labels_of_tokens(tmp_path: Path):
    pairs = [comment("a " * n) for n in range(1, 9)]
    x, y = map(list, zip(*pairs, strict=True))
    write_users(tmp_path / "train", "a.json", {"u": (x, y)})
    loaded = data.load("reddit", tmp_path, test_fraction=0.25)
    assert (len(loaded.train), len(loaded.test)) == (6, 2)


ALL = {"sample_rate": 1.0}


def test_users_are_drawn_for_the_number_of_clients():
    made = data.load("synthetic", num_clients=12, seed=5)
    assert (made.x.dtype, made.x.shape[1], made.num_classes) == (np.float32, 60, 10)
    assert made.site_names == tuple(f"f_{k:05d}" for k in range(12))
    sizes = np.bincount(made.site)
    assert sizes.min() >= 50
    held = np.bincount(made.site[made.test])
    assert held.tolist() == [round(0.2 * n) for n in sizes.tolist()]


def test_the_draw_is_a_function_of_seed_and_user():
    first, again = (data.load("synthetic", num_clients=3, seed=1) for _ in range(2))
    more = data.load("synthetic", num_clients=5, seed=1)
    other = data.load("synthetic", num_clients=3, seed=2)
    assert np.array_equal(first.x, again.x)
    assert np.array_equal(first.y, again.y)
    assert np.array_equal(more.x[more.site < 3], first.x)
    assert first.x.shape != other.x.shape or not np.array_equal(first.x, other.x)


def test_features_have_variances_that_fall_with_their_number():
    # the first user with at least 3,000 samples: a variance is exact to sqrt(2 / 3000) = 2.6 %
    users = (synthetic.user(0, k, 0.0, 0.0)[0] for k in range(200))
    x = next(x for x in users if len(x) >= 3000)
    share = x.var(axis=0, dtype=np.float64) / np.arange(1, 61) ** -1.2
    assert np.abs(share - 1).max() < 0.12


def test_sizes_are_lognormal_above_fifty():
    sizes = [len(synthetic.user(0, k, 0, 0)[1]) for k in range(300)]
    logs = np.log(np.array(sizes) - 49.5)
    # floor moves a sample by less than one; 300 draws: 0.12 is a standard error of the mean
    assert abs(logs.mean() - 4) < 0.5
    assert abs(logs.std() - 2) < 0.35


def test_files_decide_the_number_of_clients(shared_data: Path):
    folder = str(shared_data / "leaf-synthetic" / "synthetic_1_1")
    config = RunConfig(data={"name": "synthetic", "dir": folder})
    assert not config.decides_num_clients
    assert load(config)[1].num_clients == 30
    config = RunConfig(train=ALL, data={"name": "synthetic", "dir": folder, "num_clients": 7})
    with pytest.raises(ConfigError, match=r"num_clients 7: partition 'natural' .* has 30 clients"):
        load(config)
