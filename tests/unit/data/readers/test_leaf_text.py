"""LEAF's texts: characters, words, sequences with a label for each token."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedsim import data
from fedsim.core.errors import ConfigError, DataError
from fedsim.data import partitions
from fedsim.data.draws import KINDS
from fedsim.data.readers import leaf_text
from tests.unit.data.leaf_files import write


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
    write(tmp_path / "train", "a.json", {"u": ([text, "}" * 80], ["~", "b"])})
    write(tmp_path / "test", "a.json", {"u": ([" " * 80], ["!"])})
    loaded = data.load("shakespeare", tmp_path)
    # the alphabet is "\n !..." and ends "...xyz}": letters are 53 to 78, capitals 25 to 50
    assert loaded.x[0, :6].tolist() == [53, 50, 0, 79, 79, 1]
    assert set(loaded.x[1].tolist()) == {79}
    assert loaded.y.tolist() == [79, 54, 2]


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ("a" * 79, "b", "x of sample 1 is no text of 80"),
        (3, "b", "x of sample 1 is no text of 80"),
        ("a" * 80, "bc", "y of sample 1 is no text of 1"),
        ("a" * 80, 2, "y of sample 1 is no text of 1"),
    ],
)
def test_shakespeare_refuses_other_lengths(tmp_path: Path, x, y, message):
    write(tmp_path / "train", "a.json", {"HAMLET": (["a" * 80, x], ["a", y])})
    with pytest.raises(DataError, match=rf"a\.json, user 'HAMLET': {message}"):
        data.load("shakespeare", tmp_path)


def tweet(text: str) -> list[str]:
    return ["1", "Mon Apr 06", "NO_QUERY", "user", text, "training"]


def tweets(folder: Path) -> None:
    train = [tweet("It's good, good!"), tweet("bad bad bad... c"), tweet("good " * 30)]
    write(folder / "train", "a.json", {"u": (train, [1, 0, 1])})
    write(folder / "test", "a.json", {"u": ([tweet("good Bad new c ; d")], [0])})


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


def test_sent140_keeps_the_most_frequent_words_up_to_the_limit(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(leaf_text, "VOCABULARY", 2)
    tweets(tmp_path)
    loaded = data.load("sent140", tmp_path)
    assert loaded.vocabulary == 3
    assert loaded.x[1, :8].tolist() == [2, 2, 2, 1, 1, 1, 2, 2]


@pytest.mark.parametrize("place", ["", ".."])
def test_sent140_takes_the_vocabulary_of_embs_json(tmp_path: Path, place: str):
    tweets(tmp_path / "data")
    (tmp_path / "data" / place / "embs.json").write_text('{"vocab": ["bad", "new"], "emba": []}')
    loaded = data.load("sent140", tmp_path)
    assert loaded.vocabulary == 3
    assert loaded.x[1, :5].tolist() == [0, 0, 0, 2, 2]
    assert loaded.x[3, :5].tolist() == [2, 2, 1, 2, 2]


def test_sent140_refuses_other_samples_and_words(tmp_path: Path):
    tweets(tmp_path)
    (tmp_path / "embs.json").write_text('{"vocab": [1]}')
    with pytest.raises(DataError, match=r"embs\.json: vocab is no list of words"):
        data.load("sent140", tmp_path)
    write(tmp_path / "train", "a.json", {"u": ([["1", "2"]], [1])})
    with pytest.raises(DataError, match=r"a\.json, user 'u': x of sample 0 is no list with a text"):
        data.load("sent140", tmp_path)
    write(tmp_path / "train", "a.json", {"u": ([tweet("a")], [4])})
    with pytest.raises(DataError, match=r"user 'u': label 4 of sample 0 is no class of 0\.\.1"):
        data.load("sent140", tmp_path)


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
        write(folder / part, f"reddit_0_{part}.json", made)


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
    write(tmp_path / "train", "a.json", {"u": ([x, x, x], [y, silent, y])})
    write(tmp_path / "test", "a.json", {"u": ([x], [y])})
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
    write(tmp_path / "train", "a.json", {"u": ([x, x], [y, {**y, **change}])})
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


def test_partition_csv_of_text_has_one_row_per_client(tmp_path: Path):
    write_reddit(tmp_path)
    loaded = data.load("reddit", tmp_path)
    made = partitions.make(loaded, "natural", min_samples=1)
    assert pd.DataFrame(partitions.table(loaded, made)).to_dict("records") == [
        {"client_id": 0, "label": -1, "train_samples": 1, "test_samples": 1, "name": "1"},
        {"client_id": 1, "label": -1, "train_samples": 3, "test_samples": 1, "name": "2"},
    ]


def test_a_split_within_users_works_on_labels_of_tokens(tmp_path: Path):
    pairs = [comment("a " * n) for n in range(1, 9)]
    x, y = map(list, zip(*pairs, strict=True))
    write(tmp_path / "train", "a.json", {"u": (x, y)})
    loaded = data.load("reddit", tmp_path, test_fraction=0.25)
    assert (len(loaded.train), len(loaded.test)) == (6, 2)
