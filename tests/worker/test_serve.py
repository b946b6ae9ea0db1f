"""What a worker sets its runner up with, and what it then offers; no rank is started."""

from dataclasses import replace

import pytest

from jobs.request import Attention, Mode, Precision
from tests.worker.runners import Light
from worker.errors import StartRefused
from worker.items import Abilities
from worker.mgpu import MGPURunner, RunnerError
from worker.serve import choose_runner, read_offer
from worker.settings import WorkerSettings


class Sharing(Light):
    """Its ranks can share a render in two ways."""

    def setup(self, *, checkpoint, mode="ulysses"):
        pass

    @classmethod
    def preflight(cls, world_size, *, checkpoint, mode="ulysses"):
        if mode == "tensor" and world_size > 4:
            raise RunnerError(f"no tensor mode on {world_size} ranks")

    @classmethod
    def abilities(cls, world_size, *, checkpoint, mode="ulysses"):
        return Abilities("digest", modes=(mode,), precisions=("bf16",))


class TellsAttention(Sharing):
    @classmethod
    def abilities(cls, world_size, *, checkpoint, mode="ulysses"):
        return replace(super().abilities(world_size, checkpoint=checkpoint, mode=mode), attentions=("sdpa",))


class TakesAttention(Sharing):
    """Offers what it has, whichever of these it prefers."""

    def setup(self, *, checkpoint, mode="ulysses", attention="auto"):
        pass

    @classmethod
    def preflight(cls, world_size, *, checkpoint, mode="ulysses", attention="auto"):
        if attention == "fa3":
            raise RunnerError("fa3 is not installed")

    @classmethod
    def abilities(cls, world_size, *, checkpoint, mode="ulysses", attention="auto"):
        return Abilities("digest", modes=(mode,), precisions=("bf16",), attentions=("sdpa", "flash"))


class HandsOn(Sharing):
    def setup(self, **setup):
        super().setup(**setup)


class ChecksOneWay(Sharing):
    @classmethod
    def preflight(cls, world_size, *, checkpoint):
        pass


class SaysNothing(Light):
    """Takes a mode, and does not say what it is able to do."""

    def setup(self, *, checkpoint, mode="ulysses"):
        pass


class WithoutSetup(MGPURunner):
    """The setup that it inherits takes whatever it gets, and does nothing."""

    def __call__(self, **job):
        yield


class TakesPrecision(Light):
    """As its files have it, or as it is told."""

    def setup(self, *, checkpoint, precision=None):
        pass

    @classmethod
    def abilities(cls, world_size, *, checkpoint, precision=None):
        return Abilities("digest", modes=("ulysses",), precisions=(precision or "bf16",))


def choose(runner, mode, world_size=2, precision="auto", attention="auto"):
    runner_name = f"{__name__}:{runner.__name__}"
    settings = WorkerSettings(
        model_path="model", runner=runner_name, mode=mode, precision=precision, attention=attention
    )
    return choose_runner(settings, world_size)


@pytest.mark.parametrize("runner", [Sharing, HandsOn])
@pytest.mark.parametrize(
    ("mode", "told", "offered"),
    [
        ("auto", {}, Mode.ULYSSES),
        ("ulysses", {"mode": "ulysses"}, Mode.ULYSSES),
        ("tensor", {"mode": "tensor"}, Mode.TENSOR),
    ],
)
def test_a_worker_offers_the_mode_that_it_sets_its_runner_up_with(runner, mode, told, offered):
    chosen, setup = choose(runner, mode)
    assert (chosen, setup) == (runner, {"checkpoint": "model", **told})
    assert read_offer(chosen, 2, setup, "gloo").modes == (offered,)


@pytest.mark.parametrize(("mode", "offered"), [("auto", tuple(Mode)), ("tensor", (Mode.TENSOR,))])
def test_a_runner_that_says_nothing_is_offered_with_the_mode_that_it_was_given(mode, offered):
    chosen, setup = choose(SaysNothing, mode)
    assert read_offer(chosen, 2, setup, "gloo").modes == offered


@pytest.mark.parametrize(
    ("runner", "offered"), [(TellsAttention, (Attention.SDPA,)), (Sharing, ()), (Light, tuple(Attention))]
)
def test_a_worker_offers_the_attention_that_its_runner_tells(runner, offered):
    chosen, setup = choose(runner, "auto")
    assert read_offer(chosen, 2, setup, "gloo").attentions == offered


def test_a_worker_that_prefers_an_attention_offers_the_others_too():
    chosen, setup = choose(TakesAttention, "auto", attention="flash")
    assert setup == {"checkpoint": "model", "attention": "flash"}
    assert read_offer(chosen, 2, setup, "gloo").attentions == (Attention.SDPA, Attention.FLASH)
    with pytest.raises(StartRefused, match="fa3 is not installed"):
        choose(TakesAttention, "auto", attention="fa3")


@pytest.mark.parametrize(
    ("precision", "told", "offered"),
    [("auto", {}, Precision.BF16), ("fp8", {"precision": "fp8"}, Precision.FP8)],
)
def test_a_worker_offers_the_precision_that_it_sets_its_runner_up_with(precision, told, offered):
    chosen, setup = choose(TakesPrecision, "auto", precision=precision)
    assert setup == {"checkpoint": "model", **told}
    assert read_offer(chosen, 2, setup, "gloo").precisions == (offered,)


def test_a_precision_is_refused_for_a_runner_that_cannot_be_told():
    told = r"H3_PRECISION fp8: `setup` of \S+:Sharing takes no precision: leave H3_PRECISION and --precision out, or"
    with pytest.raises(StartRefused, match=told):
        choose(Sharing, "auto", precision="fp8")


def test_an_attention_is_refused_for_a_runner_that_cannot_be_told():
    assert choose(HandsOn, "auto") == (HandsOn, {"checkpoint": "model"})
    told = r"H3_ATTENTION sdpa: `setup` of \S+:Sharing takes no attention: leave H3_ATTENTION and --attention out, or"
    with pytest.raises(StartRefused, match=told):
        choose(Sharing, "auto", attention="sdpa")


def test_a_runner_may_refuse_a_mode():
    choose(Sharing, "ulysses", world_size=5)
    with pytest.raises(StartRefused, match="no tensor mode on 5 ranks"):
        choose(Sharing, "tensor", world_size=5)


@pytest.mark.parametrize(("runner", "method"), [(Light, "setup"), (WithoutSetup, "setup"), (ChecksOneWay, "preflight")])
def test_a_mode_is_refused_for_a_runner_that_cannot_be_told(runner, method):
    assert choose(runner, "auto") == (runner, {"checkpoint": "model"})
    told = rf"H3_MODE tensor: `{method}` of \S+:{runner.__name__} takes no mode: leave H3_MODE and --mode out, or name"
    with pytest.raises(StartRefused, match=told):
        choose(runner, "tensor")
