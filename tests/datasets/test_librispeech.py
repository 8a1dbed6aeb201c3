"""Tests for the dataset: what RETURNN reads of it is compared with the recordings themselves."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import soundfile
from returnn.datasets.basic import init_dataset
from returnn.datasets.util.vocabulary import Vocabulary
from returnn.tensor import Tensor, batch_dim

from returnn_common.datasets import CharacterVocab, EvalOptions, Librispeech, TrainOptions, WordVocab
from returnn_common.datasets.augment import Chain, Gain, SpeedPerturbation, utterance_rng
from returnn_common.datasets.features import log_mel, normalize, num_frames
from returnn_common.datasets.prepare import prepare_librispeech
from returnn_common.datasets.speech_dataset import SpeechDataset

from .reading import EVAL_DEFAULTS, SPLITS, Items, LaterPath, read, tiny_dataset

_DIGITS = "ZERO ONE TWO THREE FOUR FIVE SIX SEVEN EIGHT NINE".split()


@pytest.fixture(scope="module")
def digits(shared_data, tmp_path_factory) -> Path:
    dest = tmp_path_factory.mktemp("digits")
    prepare_librispeech(shared_data / "digits", dest)
    return dest


def _assert_same(items: Items, expected: Items):
    assert sorted(items) == sorted(expected)
    for name, (data, classes) in expected.items():
        np.testing.assert_array_equal(items[name][0], data)
        np.testing.assert_array_equal(items[name][1], classes)


@pytest.mark.parametrize("audio", ["raw", "log-mel"])
def test_digits_as_recorded(digits, shared_data, audio):
    dataset = Librispeech(path=digits, vocab=WordVocab(_DIGITS), audio=audio, **SPLITS)
    dataset.check()
    items = read(dataset.get_forward_dataset("dev"))
    references = dataset.get_references("dev")
    durations = dataset.get_durations("dev")
    assert sorted(items) == sorted(references) == sorted(durations) and len(items) == 75
    lengths = []
    for path in (shared_data / "digits" / "dev").rglob("*.flac"):
        samples, _ = soundfile.read(path, dtype="float32")
        data, classes = items[path.stem]
        assert data.dtype == np.float32 and classes.dtype == np.int32
        np.testing.assert_array_equal(data, samples if audio == "raw" else normalize(log_mel(samples)))
        transcript = next(path.parent.glob("*.trans.txt")).read_text()
        assert f"{path.stem} {references[path.stem]}\n" in transcript
        assert dataset.vocab.decode(classes) == references[path.stem]
        assert durations[path.stem] == len(samples) / 16_000
    lengths = [int(100 * durations[name]) for name in items]
    assert lengths == sorted(lengths)


def test_real_librispeech(shared_data, tmp_path):
    prepare_librispeech(shared_data / "LibriSpeech", tmp_path)
    dataset = Librispeech(
        path=tmp_path, train_splits=["train-clean-100"], dev_splits=["dev-clean"], train_epoch_split=1
    )
    dataset.check()
    assert list(dataset.get_eval_datasets()) == ["dev-clean", "test-clean", "test-other"]
    total = 0
    for split in ("train-clean-100", *dataset.get_eval_datasets()):
        items = read(dataset.get_forward_dataset(split))
        references = dataset.get_references(split)
        assert {name: dataset.vocab.decode(classes) for name, (_, classes) in items.items()} == references
        total += len(items)
    assert total == 21


def test_training_epochs_cover_all_once(tiny):
    dataset = tiny_dataset(tiny, train_epoch_split=3)
    parts = [list(read(dataset.get_train_dataset(), epoch=epoch)) for epoch in range(1, 7)]
    assert [len(part) for part in parts] == [4] * 6
    for first in (0, 3):
        assert sorted(sum(parts[first : first + 3], [])) == sorted(dataset.get_references("train"))
    assert sum(parts[:3], []) != sum(parts[3:], []), "another order in the second pass"
    assert parts[1] == list(read(dataset.get_train_dataset(), epoch=2)), "the same when it starts again"


def test_train_seq_ordering(tiny):
    dataset = tiny_dataset(tiny, training=TrainOptions(seq_ordering="sorted_reverse"))
    lengths = [len(data) for data, _ in read(dataset.get_train_dataset()).values()]
    assert lengths == sorted(lengths, reverse=True)


def test_several_training_splits(tiny):
    dataset = tiny_dataset(tiny, train_splits=["train", "dev"], dev_splits=["test"])
    # Utterances of the two have the same names here, so only their number counts.
    both = init_dataset(dataset.get_train_dataset(), default_kwargs=EVAL_DEFAULTS)
    both.init_seq_order(epoch=1)
    assert both.num_seqs == 12 + 4


def test_augmentation_depends_on_seed_epoch_and_utterance_only(tiny):
    augment = Chain(SpeedPerturbation(0.8, 1.25), Gain(-6, 6))
    plain = read(tiny_dataset(tiny).get_train_dataset())
    dataset = tiny_dataset(tiny, training=TrainOptions(augment=augment, random_seed=7))
    for epoch in (1, 2):
        items = read(dataset.get_train_dataset(), epoch=epoch)
        for name, (data, _) in items.items():
            rng = utterance_rng(seed=7, epoch=epoch, seq_tag=name)
            np.testing.assert_array_equal(data, augment(plain[name][0], rng=rng))
    other_order = tiny_dataset(tiny, training=TrainOptions(augment=augment, random_seed=7, seq_ordering="sorted"))
    _assert_same(read(other_order.get_train_dataset(), epoch=2), items)
    other_seed = read(
        tiny_dataset(tiny, training=TrainOptions(augment=augment, random_seed=8)).get_train_dataset(), epoch=2
    )
    assert all(len(other_seed[name][0]) != len(data) for name, (data, _) in items.items())
    _assert_same(read(dataset.get_forward_dataset("train")), plain)


def test_same_data_for_any_number_of_workers(tiny):
    augment = Chain(SpeedPerturbation(0.8, 1.25), Gain(-6, 6))

    def get_train_dataset(num_workers: int) -> dict:
        training = TrainOptions(augment=augment, num_workers=num_workers)
        return tiny_dataset(tiny, training=training).get_train_dataset()

    expected = read(get_train_dataset(0), epoch=3)
    for num_workers in (1, 3):
        items = read(get_train_dataset(num_workers), epoch=3)
        _assert_same(items, expected)
        assert list(items) == list(expected), "in the same order"
    opts = get_train_dataset(0)
    shards = [read(opts, epoch=3, shard=(index, 3)) for index in range(3)]  # as PyTorch's DataLoader does
    _assert_same({name: item for shard in shards for name, item in shard.items()}, expected)
    assert sum(map(len, shards)) == len(expected)
    other = read(opts, epoch=4)
    assert all(len(other[name][0]) != len(data) for name, (data, _) in expected.items())


def test_extern_data_fits_the_data(tiny):
    for audio in ("raw", "log-mel"):
        dataset = tiny_dataset(tiny, audio=audio)
        tensors = {key: Tensor(key, **opts) for key, opts in dataset.get_extern_data().items()}
        data, classes = next(iter(read(dataset.get_main_dataset()).values()))
        assert tensors["data"].batch_dim_axis == 0 and tensors["classes"].batch_dim_axis == 0
        assert tensors["data"].ndim == data.ndim and tensors["data"].dtype == str(data.dtype)
        assert tensors["classes"].ndim == classes.ndim and tensors["classes"].dtype == str(classes.dtype)
        assert tensors["classes"].sparse_dim.dimension == 2
        assert isinstance(tensors["classes"].vocab, Vocabulary)
        assert tensors["classes"].vocab.labels == ["OTHER", "WORD"]
        assert data.shape == ((1600,) if audio == "raw" else (num_frames(1600), 80))
        assert all(opts["dims"][0] is batch_dim for opts in dataset.get_extern_data().values())
        assert dataset.get_extern_data()["data"]["dims"][1] is dataset.get_extern_data()["data"]["dims"][1]


def test_config_opts(tiny):
    dataset = tiny_dataset(tiny, dev_splits=["dev", "test"], training=TrainOptions(random_seed=5))
    opts = dataset.get_config_opts()
    assert opts["default_input"] == "data" and opts["target"] == "classes"
    assert opts["extern_data"] is dataset.get_extern_data()
    assert opts["dataset_random_seed_offset"] == 5
    assert len(read(opts["train"])) == 12
    assert len(read(opts["dev"])) == len(read(opts["forward_data"])) == 4
    assert list(opts["eval_datasets"]) == ["test"] and len(read(opts["eval_datasets"]["test"])) == 2
    assert "eval_datasets" not in tiny_dataset(tiny).get_config_opts()


def test_datasets_can_be_pickled(tiny):
    dataset = tiny_dataset(tiny, training=TrainOptions(augment=Gain(0, 6)))
    expected = read(dataset.get_train_dataset())
    _assert_same(read(pickle.loads(pickle.dumps(dataset.get_train_dataset()))), expected)
    assert repr(pickle.loads(pickle.dumps(dataset))) == repr(dataset)
    loaded = pickle.loads(pickle.dumps(init_dataset(dataset.get_train_dataset())))  # as for the workers of a DataLoader
    loaded.init_seq_order(epoch=1)
    loaded.load_seqs(0, 2)
    np.testing.assert_array_equal(loaded.get_data(1, "data"), expected[loaded.get_tag(1)][0])


_PRINT_OPTIONS = """
import hashlib, pickle
from returnn_common.datasets import EvalOptions, Librispeech, SentencePieceVocab, TrainOptions
from returnn_common.datasets.augment import Chain, Equalizer, Gain, Noise, SpeedPerturbation

augment = Chain(SpeedPerturbation(0.9, 1.1), Gain(0, 6), Noise(10, 40), Equalizer(3.0))
training = TrainOptions(augment=augment, curriculum=((2, 4.0),), num_workers=2)
dataset = Librispeech(
    path="/a", train_splits=["train-960"], training=training, evaluation=EvalOptions(devtrain_subset=3)
)
options = dataset.get_train_dataset(), dataset.get_eval_datasets(), dataset.get_forward_dataset("dev-other")
for value in (dataset, options):
    print(hashlib.sha256(pickle.dumps(value)).hexdigest())
print(repr(options))
"""


def test_options_are_the_same_in_each_process():
    """as Sisyphus' hashes need it, and the caches of RETURNN"""
    outputs = [
        subprocess.run(
            [sys.executable, "-c", _PRINT_OPTIONS],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1] and " at 0x" not in outputs[0]


def _assert_plain(value):
    if isinstance(value, dict):
        for key, item in value.items():
            assert isinstance(key, str)
            _assert_plain(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _assert_plain(item)
    else:
        assert value is None or value is SpeechDataset or isinstance(value, (str, int, float, LaterPath)), value


def test_options_are_plain_data(tiny):
    later = LaterPath(str(tiny))
    dataset = tiny_dataset(tiny, path=later, evaluation=EvalOptions(dev_subset=1, devtrain_subset=3))
    for options in (dataset.get_train_dataset(), *dataset.get_eval_datasets().values()):
        _assert_plain(options)
        assert all(source["folder"] is later for source in options["sources"]), "not resolved yet"
    dataset.check()
    assert len(read(dataset.get_train_dataset())) == 12 and len(read(dataset.get_main_dataset())) == 1
    nowhere = Librispeech(path=LaterPath("/nowhere"))
    assert len(nowhere.get_train_dataset()["sources"]) == 3 and len(nowhere.get_eval_datasets()) == 4
    with pytest.raises(FileNotFoundError, match="in /nowhere; to make them"):
        nowhere.check()


def test_parts_of_the_official_training_data():
    def _splits(*names: str) -> tuple[str, ...]:
        return Librispeech(path="/nowhere", train_splits=names).train_splits

    hundred, more, other = "train-clean-100", "train-clean-360", "train-other-500"
    assert _splits("train-100") == (hundred,)
    assert _splits("train-460") == _splits("train-clean") == (hundred, more)
    assert _splits("train-960") == _splits("train-clean", "train-other") == (hundred, more, other)
    assert _splits("train-other", hundred) == (other, hundred)
    with pytest.raises(ValueError, match="train_splits: expected one or more different names"):
        _splits("train-460", hundred)


def test_default_splits_are_those_in_the_folder(tmp_path):
    dataset = Librispeech(path=tmp_path)
    assert len(dataset.train_splits) == 3 and len(dataset.dev_splits) == len(dataset.test_splits) == 2
    for split in ("train-clean-360", "dev-other", "test-clean", "test-other"):
        (tmp_path / f"{split}.zip").touch()
    assert dataset.train_splits == ("train-clean-360",) and dataset.dev_splits == ("dev-other",)
    assert dataset.get_main_name() == "dev-other" and len(dataset.test_splits) == 2
    with pytest.warns(
        UserWarning, match="train-clean-360 alone: no train-clean-100, train-other-500 in .*Name them as"
    ):
        assert len(dataset.get_train_dataset()["sources"]) == 1
    named = Librispeech(path=tmp_path, train_splits=["train-clean-360"], dev_splits=["dev-clean"])
    assert len(named.get_train_dataset()["sources"]) == 1 and named.get_main_name() == "dev-clean"


def test_subsets(tiny):
    dataset = tiny_dataset(tiny, dev_splits=["dev", "test"], evaluation=EvalOptions(dev_subset=1, devtrain_subset=5))
    opts = dataset.get_config_opts()
    assert len(read(opts["dev"])) == 1 and len(read(opts["forward_data"])) == 4
    assert {name: len(read(data)) for name, data in opts["eval_datasets"].items()} == {"test": 1, "devtrain": 5}
    assert list(dataset.get_eval_datasets()) == ["dev", "test", "devtrain"]
    assert list(read(opts["eval_datasets"]["devtrain"], epoch=1)) == list(
        read(opts["eval_datasets"]["devtrain"], epoch=2)
    )
    assert len(read(tiny_dataset(tiny, evaluation=EvalOptions(dev_subset=100)).get_main_dataset())) == 4


@pytest.mark.parametrize(
    ("kind", "options", "error", "message"),
    [
        (TrainOptions, {"augment": 3}, TypeError, "TrainOptions: augment: expected a function, got 3"),
        (TrainOptions, {"random_seed": -1}, ValueError, "random_seed: expected an integer of at least 0, got -1"),
        (TrainOptions, {"num_workers": -1}, ValueError, "num_workers: expected an integer of at least 0, got -1"),
        (TrainOptions, {"curriculum": ((2, 4.0), (1, 3.0))}, ValueError, "curriculum: expected pairs of an epoch and"),
        (TrainOptions, {"curriculum": ((2, 0.0),)}, ValueError, r"in rising order of epochs, got \(\(2, 0.0\),\)"),
        (TrainOptions, {"curriculum": ((2,),)}, ValueError, r"got \(\(2,\),\)"),
        (EvalOptions, {"dev_subset": 0}, ValueError, "EvalOptions: dev_subset: expected an integer of at least 1"),
        (EvalOptions, {"devtrain_subset": -1}, ValueError, "devtrain_subset: expected an integer of at least 0"),
    ],
)
def test_bad_further_options(kind, options, error, message):
    with pytest.raises(error, match=message):
        kind(**options)


def test_random_seed_changes_the_order(tiny):
    from returnn.config import Config, global_config_ctx

    orders = []
    for seed in (0, 0, 1):
        opts = tiny_dataset(tiny, training=TrainOptions(random_seed=seed)).get_config_opts()
        with global_config_ctx(Config({"dataset_random_seed_offset": opts["dataset_random_seed_offset"]})):
            orders.append(list(read(opts["train"])))
    assert orders[0] == orders[1] != orders[2]


def test_defaults(monkeypatch):
    monkeypatch.setenv("RETURNN_COMMON_DATA_PATH", "/nowhere")
    dataset = Librispeech()  # no look at the file system
    assert dataset.path == "/nowhere/librispeech" and dataset.get_main_name() == "dev-clean"
    assert repr(dataset).startswith("Librispeech(path='/nowhere/librispeech', vocab=CharacterVocab(")
    opts = dataset.get_config_opts()
    assert opts["train"]["partition_epoch"] == 20 and list(opts["eval_datasets"]) == ["dev-other"]
    assert list(dataset.get_eval_datasets()) == ["dev-clean", "dev-other", "test-clean", "test-other"]
    assert opts["extern_data"]["classes"]["sparse_dim"].dimension == CharacterVocab().get_num_classes()
    with pytest.raises(
        FileNotFoundError, match="no split train-clean-100, train-clean-360, .* in /nowhere/librispeech"
    ):
        dataset.check()


def test_missing_splits(tiny):
    dataset = tiny_dataset(tiny, dev_splits=["dev", "other"])
    message = "no split other in .*dest; to make them: returnn-common prepare librispeech SRC "
    with pytest.raises(FileNotFoundError, match=message):
        dataset.check()
    with pytest.raises(FileNotFoundError, match=message):
        dataset.get_references("other")
    for function in (dataset.get_references, dataset.get_durations, dataset.get_forward_dataset):
        with pytest.raises(ValueError, match="split: expected one of train, dev, other, test, got 'none'"):
            function("none")


def test_too_many_parts(tiny):
    tiny_dataset(tiny, train_epoch_split=12).check()
    dataset = tiny_dataset(tiny, train_epoch_split=13)
    with pytest.raises(ValueError, match="at most the number of training utterances, 12, got 13"):
        dataset.check()
    assert [len(read(dataset.get_train_dataset(), epoch=epoch)) for epoch in (1, 13, 14)] == [1, 1, 1], "none is empty"


@pytest.mark.parametrize("content", ["text", "zip"])
def test_file_of_another_kind(tmp_path, content):
    if content == "text":
        (tmp_path / "dev.zip").write_text("no zip")
    else:
        with zipfile.ZipFile(tmp_path / "dev.zip", "w") as file:
            file.writestr("other.txt", "[]")
    with pytest.raises(ValueError, match="dev.zip is not a prepared split"):
        tiny_dataset(tmp_path).get_references("dev")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"audio": "mfcc"}, ValueError, "audio: expected 'raw' or 'log-mel', got 'mfcc'"),
        ({"vocab": 3}, TypeError, "vocab: expected a VocabConfig or a name, got int 3"),
        ({"path": 3}, TypeError, "path: expected a path, got int 3"),
        ({"training": 3}, TypeError, "training: expected TrainOptions, got 3"),
        ({"evaluation": 3}, TypeError, "evaluation: expected EvalOptions, got 3"),
        ({"train_splits": "train"}, TypeError, "train_splits: expected a sequence of names, got 'train'"),
        ({"train_splits": []}, ValueError, r"train_splits: expected one or more different names, got \(\)"),
        ({"dev_splits": []}, ValueError, r"dev_splits: expected one or more different names, got \(\)"),
        ({"dev_splits": ["a", "a"]}, ValueError, r"dev_splits: expected one or more different names, got \('a', 'a'\)"),
        ({"test_splits": ["a/b"]}, ValueError, "test_splits: expected names of splits, got 'a/b'"),
        ({"test_splits": [""]}, ValueError, "test_splits: expected names of splits, got ''"),
        ({"train_epoch_split": 0}, ValueError, "train_epoch_split: expected an integer of at least 1, got 0"),
        ({"train_epoch_split": 1.5}, ValueError, "train_epoch_split: expected an integer of at least 1, got 1.5"),
    ],
)
def test_bad_options(options, error, message):
    with pytest.raises(error, match=f"Librispeech: {message}"):
        Librispeech(**options)


def test_no_test_splits(tiny):
    assert list(tiny_dataset(tiny, test_splits=[]).get_eval_datasets()) == ["dev"]
