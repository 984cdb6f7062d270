"""Tokens, features and labels for every token: by hand, and through whole runs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import fedsim
from fedsim.core.errors import ConfigError, ContractError, DivergedError
from fedsim.core.types import Pipeline
from fedsim.data.transforms import Transforms, Unchanged, transforms
from fedsim.metrics import outputs
from fedsim.metrics.outputs import concatenated, samples_of, scores_of, split, token_scores
from fedsim.metrics.scores import (
    SampleScores,
    group_score,
    joined,
    mean_scores,
    per_sample,
    score,
    score_tokens,
)
from fedsim.metrics.splits import clients_with, num_labels
from fedsim.training.setup import prepare
from tests import texts
from tests.decomposing import merged, rounds


def drawn(n=5, tokens=4, classes=6, seed=0):
    """Logits (n, T, C) and labels (n, T), the first token of each always counted."""
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy((rng.normal(size=(n, tokens, classes)) * 3).astype(np.float32))
    labels = rng.integers(-1, classes, size=(n, tokens))
    labels[:, 0] = rng.integers(0, classes, size=n)
    return logits, torch.from_numpy(labels)


# Scores of tokens


def test_tokens_by_hand():
    logits = torch.tensor([
        [[2.0, 0.0, 0.0], [0.0, 0.0, 1.0], [9.0, 0.0, 0.0]],
        [[0.0, 3.0, 0.0], [0.0, 9.0, 0.0], [0.0, 0.0, 0.0]],
    ])  # fmt: skip
    labels = torch.tensor([[0, 1, -1], [1, -1, -1]])
    got = token_scores(logits, labels)
    # first sample: 0 predicted and right, 2 predicted for 1; second sample: 1 predicted and right
    first = (math.log(math.e**2 + 2) - 2) + math.log(math.e + 2)
    second = math.log(math.e**3 + 2) - 3
    assert got.loss.tolist() == pytest.approx([first, second], rel=1e-14)
    assert (got.correct.tolist(), got.weight.tolist()) == ([1, 1], [2, 1])
    assert group_score("", got).loss == pytest.approx((first + second) / 3, rel=1e-14)
    whole = score_tokens(got, {"second": np.array([1])})
    assert (whole.num_samples, whole.accuracy) == (2, 2 / 3)
    assert (whole.balanced_accuracy, whole.macro_f1, whole.auc, whole.classes) == (None,) * 3 + (
        (),
    )
    (group,) = whole.groups
    assert (group.num_samples, group.accuracy) == (1, 1.0)
    assert group.loss == pytest.approx(second, rel=1e-14)
    assert token_scores(logits, labels, never_right=(1,)).correct.tolist() == [1, 0]
    assert token_scores(logits, labels, never_right=(0, 1)).correct.tolist() == [0, 0]
    assert token_scores(logits, labels, never_right=(1,)).loss.tolist() == got.loss.tolist()


def test_a_tie_goes_to_the_lowest_class():
    logits = torch.zeros(1, 2, 3)
    assert token_scores(logits, torch.tensor([[0, 1]])).correct.tolist() == [1]


def test_one_token_is_a_sample_with_one_label():
    logits, labels = drawn(n=40, tokens=1)
    got = token_scores(logits, labels, (2,))
    alone = per_sample(logits[:, 0].numpy(), labels[:, 0].numpy(), (2,))
    np.testing.assert_allclose(got.loss, alone.loss, rtol=1e-13)
    np.testing.assert_array_equal(got.correct, alone.correct)
    np.testing.assert_array_equal(got.weight, alone.weight)
    np.testing.assert_array_equal(alone.weight, np.ones(40))


@pytest.mark.parametrize("rows", [1, 3, 1024])
def test_the_means_are_over_the_labels_that_count(rows, monkeypatch):
    monkeypatch.setattr(outputs, "_ROWS", rows)
    logits, labels = drawn(n=30)
    counted = labels >= 0
    flat = score(logits[counted].numpy(), labels[counted].numpy())
    got = score_tokens(token_scores(logits, labels))
    assert got.num_samples == 30
    assert got.loss == pytest.approx(flat.loss, rel=1e-13)
    assert got.accuracy == flat.accuracy


@pytest.mark.parametrize("shape", [(2, 3), (2, 4, 5), (3, 3, 5)])
def test_logits_that_do_not_fit_the_tokens(shape):
    with pytest.raises(ContractError, match=r"labels \(n, T\), got .* and \(2, 3\)"):
        token_scores(torch.zeros(shape), torch.zeros(2, 3, dtype=torch.int64))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_logits_of_tokens_that_are_not_finite_are_refused(value):
    logits, labels = drawn()
    logits[3, 0, 1] = value
    with pytest.raises(DivergedError, match=r"the logits of 1 of 5 evaluated samples are NaN"):
        token_scores(logits, labels)


def test_classes_that_are_never_right():
    # predictions 0, 1, 1; labels 0, 1, 0: without class 1 only the first counts
    logits = np.array([[2, 0], [0, 1], [0, 1]], dtype=np.float32)
    labels = np.array([0, 1, 0])
    plain, got = score(logits, labels), score(logits, labels, {"all": np.arange(3)}, (1,))
    assert (plain.accuracy, got.accuracy, got.groups[0].accuracy) == (2 / 3, 1 / 3, 1 / 3)
    assert [c.recall for c in got.classes] == [0.5, 0.0]
    assert (got.loss, got.auc) == (plain.loss, plain.auc)
    assert per_sample(logits, labels, (1,)).correct.tolist() == [True, False, False]


def test_samples_count_as_much_as_their_labels():
    # 2 of 3 and 0 of 1 labels right: 2 of 4, not the mean of 2/3 and 0
    samples = SampleScores(np.array([3.0, 5.0]), np.array([2, 0]), np.array([3, 1]))
    got = group_score("both", samples)
    assert (got.num_samples, got.loss, got.accuracy) == (2, 2.0, 0.5)


def test_outputs_are_cut_and_joined_alike():
    logits, labels = drawn()
    scores, plain = token_scores(logits, labels), logits[:, 0].numpy()
    first, none, rest = split(scores, [2, 0, 3])
    assert (first.weight.tolist(), none.weight.tolist()) == (scores.weight[:2].tolist(), [])
    for name, column in vars(scores).items():
        np.testing.assert_array_equal(getattr(concatenated([first, none, rest]), name), column)
    parts = split(plain, [2, 0, 3])
    assert [len(part) for part in parts] == [2, 0, 3]
    np.testing.assert_array_equal(concatenated(parts), plain)


def test_the_mean_over_models_of_texts():
    a, b = (score_tokens(token_scores(drawn(seed=seed)[0], drawn()[1])) for seed in (1, 2))
    got = mean_scores([a, b])
    assert got.loss == (a.loss + b.loss) / 2
    assert got.accuracy == (a.accuracy + b.accuracy) / 2
    assert (got.balanced_accuracy, got.macro_f1, got.auc, got.classes) == (None, None, None, ())


# What a model sees


def test_features_and_tokens_are_seen_as_they_are():
    plain = transforms(None, torch.device("cpu"))
    assert isinstance(plain, Unchanged)
    tokens, features = torch.tensor([[3, 1]], dtype=torch.int32), torch.tensor([[0.25, -7.5]])
    for see in (plain.train, plain.test):
        assert see(tokens).tolist() == [[3, 1]]
        assert see(tokens).dtype == torch.int64
        assert see(features).tolist() == [[0.25, -7.5]]
        assert see(features).dtype == torch.float32
    assert isinstance(
        transforms(Pipeline(size=8, mean=(0.5,), std=(0.5,)), torch.device("cpu")), Transforms
    )


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("phrases", (texts.WORDS, texts.WORDS, texts.TOKENS, "tokens", True)),
        ("moods", (3, texts.WORDS, texts.TOKENS, "tokens", False)),
        ("numbers", (3, 4, 1, "features", False)),
    ],
)
def test_the_sizes_of_a_model_are_those_of_its_data(data, expected):
    m = prepare(texts.config(data)).model
    assert (m.num_classes, m.in_channels, m.image_size, m.inputs, m.per_token) == expected


def test_methods_that_need_features_want_one_label_a_sample():
    assert prepare(texts.config("moods", "fedpac")).personalised
    with pytest.raises(ConfigError, match=r"fedpac .* has a label for every token"):
        prepare(texts.config("phrases", "fedpac"))


# Runs


def test_users_without_test_samples():
    setup = prepare(texts.config())
    assert setup.partition.names == tuple(f"user {i}" for i in texts.USERS)
    assert setup.tests_are_owned
    assert clients_with(setup.partition, "test") == (0, 1, 3, 4)
    assert clients_with(setup.partition, "train") == texts.USERS
    assert clients_with(setup.partition, "val") == ()


@pytest.mark.integration
@pytest.mark.parametrize("method", ["fedavg", "fedbn"])
def test_a_run_on_labels_of_tokens(method):
    """Every number of the tables, label by label: means over tokens, and over users with any."""
    settings = texts.config(method=method, evaluation={"clients_every": 1})
    setup = prepare(settings)
    data, users = setup.dataset, clients_with(setup.partition, "test")
    for done in rounds(settings):
        models = {
            c: merged(setup, done.after.params, done.after.clients.get(c) or {})
            for c in texts.USERS
        }
        own = {c: texts.token_losses(setup, models[c], setup.partition.test[c]) for c in users}
        losses, right = (np.concatenate(values) for values in zip(*own.values(), strict=True))
        (row,) = done.tables["rounds"]
        assert row["test_loss"] == pytest.approx(losses.mean(), rel=1e-5)
        assert row["test_accuracy"] == right.mean()
        assert row["client_test_accuracy"] == pytest.approx(
            np.mean([hits.mean() for _, hits in own.values()]), rel=1e-14
        )
        empty = ("test_balanced_accuracy", "test_macro_f1", "test_auc")
        assert [row[name] for name in empty] == [None] * 3
        assert done.tables["classes"] == []  # the file has its columns and no rows
        table = done.tables["evaluations"]
        found = {r["client_id"]: r for r in table if r["split"] == "own_test"}
        assert tuple(found) == users
        for client, r in found.items():
            assert r["num_samples"] == len(setup.partition.test[client])
            assert r["loss"] == pytest.approx(own[client][0].mean(), rel=1e-5)
            assert r["accuracy"] == own[client][1].mean()
        assert [r["client_id"] for r in table if r["split"] == "own_train"] == list(texts.USERS)
        (group,) = [r for r in table if r.get("group")]
        order = np.concatenate([setup.partition.test[c] for c in users])
        inside = np.repeat(np.isin(order, data.groups["early"]), (data.y[order] >= 0).sum(axis=1))
        assert (group["num_samples"], group["accuracy"]) == (9, right[inside].mean())


@pytest.mark.integration
@pytest.mark.parametrize("scope", ["cohort", "population"])
def test_a_decomposition_weighs_owners_by_their_tokens(scope):
    evaluation = {"decompose_every": 1, "decompose_split": "test", "decompose_scope": scope}
    settings = texts.config(evaluation=evaluation | {"loss_matrix": True})
    setup = prepare(settings)
    users = clients_with(setup.partition, "test")
    seen = 0
    for done in rounds(settings):
        cohort = [c for c in done.cohort if c in users]
        owners = cohort if scope == "cohort" else users
        seen += len(done.cohort) - len(cohort)
        matrix = done.tables["loss_matrix"]
        assert [r["owner"] for r in matrix if r["model"] == "after"] == [str(c) for c in owners]
        assert sorted({r["model"] for r in matrix}) == sorted([*map(str, cohort), "after"])
        found = [
            texts.token_losses(setup, done.after.params, setup.partition.test[c]) for c in owners
        ]
        (row,) = done.tables["decomposition"]
        losses = np.concatenate([losses for losses, _ in found])
        assert row["global_loss"] == pytest.approx(losses.mean(), rel=1e-5)
        own = [
            texts.token_losses(setup, done.local[c], setup.partition.test[c])[0].mean()
            for c in cohort
        ]
        sizes = [len(setup.partition.train[c]) for c in cohort]
        assert row["local_loss"] == pytest.approx(np.average(own, weights=sizes), rel=1e-5)
    assert seen, "a cohort with somebody who counts in nothing"


def test_labels_of_a_part():
    setup = prepare(texts.config())
    data = setup.dataset
    assert num_labels(data, data.test) == sum(
        label >= 0 for i in data.test.tolist() for label in data.y[i].tolist()
    )
    assert num_labels(prepare(texts.config("moods")).dataset, np.arange(7)) == 7


@pytest.mark.integration
def test_a_cohort_of_whom_nobody_has_test_samples(tmp_path):
    """Their models have nothing to be tested on; the columns of that round are empty."""
    evaluation = {"personal": "cohort_after", "decompose_every": 1, "decompose_split": "test"}
    settings = texts.config("phrases", "fedbn", evaluation, sample_rate=0.2, rounds=8)
    store = fedsim.run(settings, tmp_path / "run")
    alone = store.read("clients").set_index("round")["client_id"]
    nobody = alone.isin(texts.WITHOUT_TEST)
    assert nobody.any()
    assert not nobody.all()
    for row in store.read("rounds").set_index("round").itertuples():
        assert np.isnan(row.test_accuracy) == nobody[row.Index]
        assert np.isnan(row.client_test_accuracy) == nobody[row.Index]
    assert set(store.read("decomposition")["round"]) == set(alone.index[~nobody])


@pytest.mark.integration
@pytest.mark.parametrize("data", ["moods", "numbers"])
def test_texts_and_features_with_one_label_have_all_scores(data, tmp_path):
    store = fedsim.run(texts.config(data, rounds=6), tmp_path / "run")
    table = store.read("rounds")
    assert table["test_balanced_accuracy"].notna().all()
    assert table["client_test_accuracy"].notna().all()
    assert store.read("classes")["label"].tolist() == [0, 1, 2] * 6
    assert table["train_loss"].iloc[-1] < table["train_loss"].iloc[0]


@pytest.mark.parametrize(("data", "classes"), [("phrases", ["text"]), ("numbers", ["0", "1", "2"])])
def test_a_picture_of_texts_and_features_has_no_images(data, classes, tmp_path, monkeypatch):
    from fedsim.cli.partition import save_picture
    from fedsim.cli.report import analysis

    drawn = []
    monkeypatch.setattr(
        analysis("figures.style"), "save", lambda figure, file: drawn.append(figure)
    )
    setup = prepare(texts.config(data))
    save_picture(setup.dataset, setup.partition, "title", "note", tmp_path / "x.png")
    ((_, cells, *_),) = [figure.axes for figure in drawn]
    assert [tick.get_text() for tick in cells.get_yticklabels()] == classes
    assert not cells.images


def test_the_bare_loop_of_the_benchmarks_takes_images_alone():
    from benchmarks.bare import job_of

    with pytest.raises(ContractError, match="small texts has tokens"):
        job_of(prepare(texts.config()), "fedavg", 1, 1)


def test_scores_of_samples_are_those_that_a_worker_gave():
    logits, labels = drawn()
    scores = token_scores(logits, labels)
    data = prepare(texts.config()).dataset
    assert samples_of(scores, data, data.test[:5]) is scores
    assert scores_of(scores, data, data.test[:5], {}) == score_tokens(scores)
    twice = joined([scores, scores])
    assert score_tokens(twice).accuracy == score_tokens(scores).accuracy
