"""The arguments of `training.train`: what is refused, in one line, and what MaxText is told."""

import itertools
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from beam_pipeline.errors import ProbelineError, UsageError
from tests.support.loader_helpers import refusal_of
from training.maxtext.curriculum import Stage, rope_base, stages_of
from training.tokens.tokenizer import FIRST_BYTE, RTT_START, VOCABULARY_SIZE

if TYPE_CHECKING:
    from training.maxtext import iterators, run_config

pytestmark = pytest.mark.slow  # each config takes MaxText a second

FILES = "network_train_files=rows/train"
PLACE = ("base_output_directory=runs", "run_name=test")


@pytest.fixture(scope="module", autouse=True)
def _maxtext() -> None:
    """Imports MaxText, which takes seconds, when the first test runs."""
    global iterators, run_config
    pytest.importorskip("maxtext", reason="needs MaxText: pip install '.[maxtext]'")
    from training.maxtext import iterators, run_config


@pytest.mark.parametrize("config", ["tiny", "95m", "680m"])
def test_each_model_is_a_config_of_maxtext(config: str):
    arguments = run_config.read([config, FILES, *PLACE, "hardware=cpu", "attention=dot_product"])
    built = run_config.build(arguments)
    iterators.check_config(built)
    assert built.dataset_type == "grain"
    assert built.network_train_files == built.grain_train_files == "rows/train"
    assert built.num_epoch is None
    assert built.emb_dim == built.num_query_heads * built.head_dim
    assert built.vocab_size >= 267


@pytest.mark.parametrize(
    ("config", "arguments", "num_devices", "steps"),
    [
        ("tiny", (), 1, 12_000),
        ("95m", (), 8, 2_000_000_000 // (8 * 32 * 1024)),
        ("680m", (), 8, 14_000_000_000 // (8 * 16 * 1024)),
        ("95m", ("network_train_tokens=2e6", "gradient_accumulation_steps=2"), 8, 3),
        ("tiny", ("network_train_tokens=99999", "per_device_batch_size=4"), 1, 24),
        ("tiny", ("network_curriculum=", "network_repeat_share=0.2"), 1, 12_000),
    ],
)
def test_steps_given_or_of_tokens(
    config: str, arguments: tuple[str, ...], num_devices: int, steps: int
):
    """`internal_compile` is MaxText's own way to plan for devices that are not here."""
    devices = ["internal_compile=true", f"internal_compile_num_devices={num_devices}"]
    place = [FILES, *PLACE, "hardware=cpu", "attention=dot_product", *devices]
    built = run_config.build(run_config.read([config, *place, *arguments]))
    assert built.steps == built.learning_rate_schedule_steps == steps
    iterators.check_config(built)


def test_tokens_or_steps(tmp_path: Path):
    both = ["95m", FILES, *PLACE, "steps=9", "network_train_tokens=1000000"]
    parts = ["steps=9", "network_train_tokens=1000000", "use one of them"]
    refusal_of(lambda: run_config.read(both), *parts, kind=UsageError)
    few = run_config.read(["tiny", FILES, *PLACE, "network_train_tokens=99"])
    parts = ["network_train_tokens=99", "1024 tokens of one step", "per_device_batch_size"]
    refusal_of(lambda: run_config.build(few), *parts, kind=UsageError)
    none = run_config.read(["tiny", FILES, *PLACE, "network_train_tokens=-5"])
    refusal_of(lambda: run_config.build(none), "network_train_tokens=-5", kind=UsageError)
    # A config's own steps replace the tokens of its base, and the reverse.
    file = tmp_path / "mine.yml"
    file.write_text('base_config: "95m.yml"\nsteps: 7\n')
    values = run_config.read([str(file), FILES]).values
    assert (values["steps"], values["network_train_tokens"]) == (7, 0)
    file.write_text('base_config: "tiny.yml"\nnetwork_train_tokens: 20_000\n')
    assert run_config.build(run_config.read([str(file), FILES, *PLACE])).steps == 19


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["tiny", "stepz=3"], ["no key stepz", "did you mean steps?"]),
        (["tiny", "network_batch_size=3"], ["network_batch_size", "per_device_batch_size"]),
        (["tiny", "crop_size=512"], ["crop_size", "max_target_length"]),
        (["tiny", "--steps=3"], ["'--steps=3'", "without dashes"]),
        (["tiny", "steps=2", "steps=3"], ["steps is given more than once"]),
        (["huge", FILES], ["config 'huge' does not exist", "680m, 95m", "tiny"]),
        (["tiny", "dataset_type=hf"], ["dataset_type=hf", "dataset_type=network"]),
        (["tiny", "network_mode_weights=[1,"], ["cannot be read"]),
        (["tiny", "network_repeat_share={a: 1}"], ["cannot be read"]),
        (["tiny", "grain_file_type=parquet"], ["grain_file_type=parquet has no effect"]),
    ],
)
def test_arguments_that_cannot_be_read(arguments: list[str], parts: list[str]):
    refusal_of(lambda: run_config.read(arguments), *parts, kind=UsageError)


def test_numbers_that_maxtext_fails_on_or_trains_on_nothing_with():
    """MaxText takes int(devices * per_device_batch_size) crops, on one device 0 of half a crop."""
    values = itertools.cycle(["0", "-2", "0.5", "1.5", "nan", "inf", "1e400"])
    for key, value in zip(run_config._LEAST, values):
        assert (key, value) != ("eval_per_device_batch_size", "0")
        given = ["tiny", FILES, *PLACE, f"{key}={value}"]
        refusal_of(lambda: run_config.read(given), key, "whole number", kind=UsageError)  # noqa: B023


def test_a_run_has_one_trainer(tmp_path: Path):
    config: Any = SimpleNamespace(base_output_directory=str(tmp_path), run_name="test")
    with run_config.only_trainer(config):
        second = run_config.only_trainer(config)
        refusal_of(second.__enter__, f"another process trains in {tmp_path / 'test'}", "run_name")
    with run_config.only_trainer(config):  # the file stays, its lock does not
        pass


def test_a_checkpoint_without_the_position_in_the_data_is_refused(tmp_path: Path):
    iterators.check_checkpoint(tmp_path, 0)
    (tmp_path / "19" / "iter").mkdir(parents=True)
    parts = [str(tmp_path / "19"), "(iter)", f"load_full_state_path={tmp_path / '19' / 'items'}"]
    refusal_of(lambda: iterators.check_checkpoint(tmp_path, 20), *parts)
    (tmp_path / "19" / "iter" / "process_0-of-1.json").touch()
    iterators.check_checkpoint(tmp_path, 20)


MIXTURE = "network_train_files=rows/a,0.7;rows/b,3"
UNSUITABLE = {
    f"{MIXTURE} num_epoch=2": "num_epoch=2, its own epochs, num_epoch=none",
    "": "network_train_files is empty",
    f"{FILES} vocab_size=266": "vocab_size=266, 267",
    f"{FILES} eval_interval=5": "network_eval_files",
    f"{FILES} enable_checkpointing=false": "enable_checkpointing=true",
    f"{FILES} network_repeat_share=[0.5,0.1]": "has 2 shares, 4 stages, one for each",
}


@pytest.mark.parametrize("arguments", UNSUITABLE)
def test_configs_that_do_not_suit_measurements(arguments: str):
    config = run_config.build(run_config.read(["tiny", *PLACE, *arguments.split()]))
    parts = UNSUITABLE[arguments].split(", ")
    refusal_of(lambda: iterators.check_config(config), *parts, kind=UsageError)


def test_a_mixture_reaches_the_batches():
    argument = 'network_train_files={"rows/a": 0.7, "rows/b": 3}'
    config = run_config.build(run_config.read(["tiny", *PLACE, argument, "hardware=cpu"]))
    iterators.check_config(config)
    files = iterators.data_config(config, [0], is_eval=False).files
    assert files == {"rows/a": 0.7, "rows/b": 3.0}


def test_weights_of_rows_reach_the_batches():
    weights = {"family": {"ipv6": 3.0}, "period": [["2024-01-01", "2024-07-01", 0.5]]}
    given = [f"network_row_weights={json.dumps(weights)}", FILES, *PLACE, "hardware=cpu"]
    config = run_config.build(run_config.read(["tiny", *given, "network_eval_files=rows/test"]))
    assert iterators.data_config(config, [0], is_eval=False).row_weights == weights
    assert iterators.data_config(config, [0], is_eval=True).row_weights == {}


def test_evaluation_is_on_contexts_as_they_come():
    """Repeats and random sources are for training; how fields are told is part of the model."""
    shares = ["network_repeat_share=0.5", "network_random_source_share=0.8"]
    told = ["network_fixed_order_share=1", "network_log_rtt=true"]
    given = [FILES, *PLACE, *shares, *told, "network_eval_files=rows/test"]
    config = run_config.build(run_config.read(["tiny", *given]))
    train, held_out = (
        iterators.data_config(config, [0], is_eval=is_eval) for is_eval in (False, True)
    )
    assert (train.repeat_share, train.random_source_share) == (0.5, 0.8)
    assert (held_out.repeat_share, held_out.random_source_share) == (0, 0)
    for of_split in (train, held_out):
        assert (of_split.fixed_order_share, of_split.log_rtt) == (1, True)


def test_a_run_is_recorded_and_read_again(tmp_path: Path):
    place = (f"base_output_directory={tmp_path}", "run_name=kept")
    given = ["tiny", FILES, *place, "steps=9", "ici_fsdp_parallelism=1", "network_mixed_rows=none"]
    arguments = run_config.read(given)
    config = run_config.build(arguments)
    run_config.record(arguments, config)
    again = run_config.build(run_config.recorded(str(tmp_path / "kept"), "steps=10"))
    assert again.steps == 10
    assert again.network_mixed_rows is None
    assert again.ici_fsdp_parallelism == -1  # of the machine that trained
    for key in ("base_emb_dim", "head_dim", "vocab_size", "run_name", "learning_rate"):
        assert getattr(again, key) == getattr(config, key)
    refusal_of(lambda: run_config.recorded(str(tmp_path)), "run_config.yml", kind=UsageError)


# --- curriculum -----------------------------------------------------------------------------------


def test_stages_of_a_curriculum():
    assert stages_of("", 1024, 9) == [Stage(0, 0, 9, 1024)]
    assert stages_of("128x3, 512x4", 1024, 9) == [
        Stage(0, 0, 3, 128),
        Stage(1, 3, 7, 512),
        Stage(2, 7, 9, 1024),
    ]
    assert stages_of("128x3,512x4", 256, 2) == [Stage(0, 0, 2, 128)]
    assert stages_of("128x3,512x4", 256, 9)[1:] == [Stage(1, 3, 7, 256), Stage(2, 7, 9, 256)]


@pytest.mark.parametrize(
    ("curriculum", "parts"),
    [
        ("128x3,x", ["'x' is not CROPxSTEPS"]),
        ("256x3,128x2", ["crops must not shrink"]),
        ("96x3", ["must divide max_target_length=1024"]),
    ],
)
def test_curricula_that_lead_nowhere(curriculum: str, parts: list[str]):
    refusal_of(lambda: stages_of(curriculum, 1024, 9), *parts, kind=UsageError)


@pytest.mark.parametrize("crop_size", [64, 1024])
def test_crops_of_any_stage_reach_the_same_angle(crop_size: int):
    """By the slowest rotation, which a longer crop would otherwise take to angles never seen."""
    config = SimpleNamespace(max_target_length=1024, rope_max_timescale=1_000_000, head_dim=48)
    base, exponent = rope_base(config, Stage(0, 0, 9, crop_size)), 46 / 48
    expected = pytest.approx(1024 / 1_000_000**exponent, rel=1e-3)
    assert crop_size / base**exponent == expected


@pytest.mark.slow
def test_the_config_of_a_stage_ends_with_it():
    given = ["tiny", FILES, *PLACE, "steps=9", "network_curriculum=128x3,128x2,512x2"]
    given += ["network_repeat_share=[1,0.25,0.5,0]", "network_fixed_order_share=0.25"]
    given += ["profiler=xplane", "skip_first_n_steps_for_profiler=2"]  # too long for two steps
    arguments = run_config.read(given)
    config = run_config.build(arguments)
    stages = stages_of(config.network_curriculum, config.max_target_length, config.steps)
    tokens, shares, bases, profilers = set(), [], [], []
    for stage in stages:
        overrides = run_config.overrides_of(config, stage, stage.begin)
        own = run_config._initialized(arguments.argv(*overrides))
        assert iterators.stage_of(own) == stage
        assert own.learning_rate_schedule_steps == 9
        tokens.add(own.max_target_length * own.per_device_batch_size)
        drawn = iterators.data_config(own, [0], is_eval=False)
        shares.append((drawn.repeat_share, drawn.fixed_order_share))
        bases.append(own.rope_max_timescale)
        profilers.append(own.profiler.value)
    assert tokens == {1024}
    assert bases[0] == bases[1] < bases[2] < bases[3] == config.rope_max_timescale == 10_000
    assert shares == [(1.0, 0.25), (0.25, 0.25), (0.5, 0.25), (0.0, 0.25)]
    assert profilers == ["xplane", "", "", ""]


# --- the loss -------------------------------------------------------------------------------------


def test_bytes_of_rtts_weigh_more_in_gradients_and_losses_stay():
    import jax
    from maxtext.utils import max_utils

    targets = np.full((2, 14), 20)
    targets[0, [1, 6]] = targets[1, [4, 13]] = RTT_START  # the last one's bytes are cut off
    is_rtt = np.zeros(targets.shape, bool)
    is_rtt[0, [2, 3, 7, 8]] = is_rtt[1, [5, 6]] = True
    expected = np.where(is_rtt, 5, 1) * is_rtt.size / (is_rtt.size + 4 * is_rtt.sum())
    logits = np.random.default_rng(0).normal(size=(*targets.shape, VOCABULARY_SIZE))
    plain, one_hot = max_utils.cross_entropy_with_logits, jax.nn.one_hot(targets, VOCABULARY_SIZE)
    weighted = iterators.weight_rtts(plain, 5.0)

    def gradient(loss, weights):
        return jax.grad(lambda x: (weights * loss(x, one_hot)[0]).sum())(logits)

    losses, plain_losses = (loss(logits, one_hot)[0] for loss in (weighted, plain))
    np.testing.assert_allclose(losses, plain_losses, rtol=1e-5)
    found = gradient(weighted, 1.0)
    np.testing.assert_allclose(found, gradient(plain, expected), rtol=1e-4, atol=1e-7)


def test_first_weights_of_near_bytes_are_alike():
    import jax

    width = 20_000
    weights = np.asarray(iterators.first_weights(jax.random.key(0), (384, width)))
    products = weights @ weights.T
    np.testing.assert_allclose(products[:FIRST_BYTE], np.eye(384)[:FIRST_BYTE], atol=0.05)
    of_bytes = products[FIRST_BYTE:VOCABULARY_SIZE, FIRST_BYTE:VOCABULARY_SIZE]
    np.testing.assert_allclose(of_bytes.diagonal(), 1, atol=0.05)
    for distance in (1, 3, 6, 12, 100):
        expected = math.exp(-((distance / 6) ** 2) / 2) / 2
        assert of_bytes.diagonal(distance).mean() == pytest.approx(expected, abs=0.02)


# --- MaxText itself -------------------------------------------------------------------------------


def test_this_maxtext_is_the_one(monkeypatch: pytest.MonkeyPatch):
    iterators.check_maxtext()
    monkeypatch.setattr(iterators.grain_utility, "for_restore", lambda manager, step: None)
    line = refusal_of(iterators.check_maxtext, "for_restore", kind=ProbelineError)
    assert "(manager, step)" in line
    assert f"pip install maxtext=={iterators.TESTED_VERSION}" in line
    monkeypatch.delattr(iterators.grain_utility, "for_restore")
    refusal_of(iterators.check_maxtext, "has no maxtext.common.grain_utility.for_restore")
