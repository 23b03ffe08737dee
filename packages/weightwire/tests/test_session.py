import multiprocessing
import threading

import pytest
from weightwire import hookimpl
from weightwire.errors import (
    ChannelError,
    ConfigurationError,
    DeadlineExceeded,
    EngineRefused,
    EngineUnreachable,
    ManifestError,
    PluginError,
    StateError,
    UpdateFailed,
)
from weightwire.messages import Manifest, TensorMeta
from weightwire.states import EngineState, SessionState

DIRECT_ROUND = [
    "read version",
    "pause",
    "mark updating",
    "begin",
    "update",
    "send",
    "gather 0",
    "gather 1",
    "gather 2",
    "finish",
    "read version",
    "resume",
]


def _as_a_child(session, world, answer):
    try:
        session.push(1)
    except StateError as error:
        session.close()
        answer.send((str(error), world.log))


def without_order(log: list[str], *free: str) -> list[str]:
    """The log with calls that run beside others taken out."""
    return [step for step in log if step not in free]


def test_opening_probes_prepares_and_joins_while_init_is_in_flight(world):
    world.session().open()

    assert without_order(world.log, "init") == ["probe", "prepare", "join"]
    assert world.log.count("init") == 1


def test_a_direct_round_runs_its_phases_in_order(world):
    session = world.open()

    receipt = session.push(7)

    assert without_order(world.log, "update") == without_order(DIRECT_ROUND, "update")
    assert world.log.index("begin") < world.log.index("update") < world.log.index("finish")
    assert (receipt.version, receipt.committed, receipt.engines) == ("7", True, ("http://e0",))
    assert list(receipt.phases) == ["preflight", "pause", "begin", "transfer", "commit", "verify", "resume"]
    assert session.state is SessionState.READY


def test_the_metrics_of_a_receipt_are_flat_floats(world):
    metrics = world.open().push(1).metrics()

    assert metrics["weightwire/bytes"] == 48.0
    assert all(isinstance(value, float) for value in metrics.values())
    assert metrics["weightwire/total_s"] == pytest.approx(
        sum(
            metrics[k]
            for k in metrics
            if k.endswith("_s") and k not in {"weightwire/total_s", "weightwire/bytes_per_s"}
        )
    )


def test_what_comes_before_the_pause_is_in_the_receipt(world):
    session = world.open()
    shown, spent = world.source.shown, threading.Event()

    def slowly():
        spent.wait(0.05)
        return shown

    world.source.manifest = slowly
    receipt = session.push(1)

    assert receipt.phases["preflight"] >= 0.05
    assert receipt.metrics()["weightwire/preflight_s"] == receipt.phases["preflight"]


def test_a_version_may_go_back(world):
    session = world.open()

    assert [session.push(version).version for version in (5, 3, "a")] == ["5", "3", "a"]


# Failures: what each leaves behind.

UNTOUCHED = ["pause"]
TOUCHED = ["mark updating", "begin", "update", "finish", "read version"]


@pytest.mark.parametrize("step", UNTOUCHED)
def test_a_failure_before_the_update_leaves_the_engine_whole_and_serving(world, step):
    session = world.open()
    world.control.fail[step] = EngineRefused("no", server_text="its words")

    with pytest.raises(UpdateFailed, match=r"failed in the phase 'pause'.*e0 is whole") as caught:
        session.push(1)

    assert caught.value.engine_states == {"http://e0": EngineState.WHOLE}
    assert caught.value.server_text == "its words"
    assert "flush" not in world.log
    assert world.log[-1] == "resume"


@pytest.mark.parametrize("step", [step for step in TOUCHED if step != "mark updating"])
def test_a_failure_from_begin_on_leaves_the_engine_torn_marked_and_paused(world, step):
    session = world.open()
    world.control.fail[step] = EngineRefused("no")

    with pytest.raises(UpdateFailed, match="e0 is torn"):
        session.push(1)

    assert "mark torn" in world.log
    assert "resume" not in world.log
    assert world.control.paused


def test_a_failing_mark_touches_nothing(world):
    session = world.open()
    world.control.fail["mark updating"] = EngineRefused("no")

    with pytest.raises(UpdateFailed, match="e0 is whole"):
        session.push(1)

    assert "begin" not in world.log
    assert not world.control.paused


def test_a_broken_stream_drops_the_channel_and_the_next_push_recovers_first(world):
    session = world.open()
    world.plane.fail["send"] = ChannelError("cut")
    with pytest.raises(UpdateFailed, match="phase 'transfer': cut"):
        session.push(1)
    assert session.state is SessionState.BROKEN
    assert "abort plane" in world.log
    world.log.clear()
    world.plane.fail.clear()
    world.control.found = EngineState.TORN

    session.push(2)

    steps = without_order(world.log, "init", "update")
    assert steps[:6] == ["probe", "pause", "flush", "close channel", "prepare", "join"]
    assert steps[-3:] == ["finish", "read version", "resume"]
    assert session.engine_states == {"http://e0": EngineState.WHOLE}


def test_a_source_that_raises_keeps_the_channel_and_tears_the_engine(world):
    session = world.open()
    world.source.fail_at = 1
    with pytest.raises(UpdateFailed, match="the source raised"):
        session.push(1)
    assert "abort plane" not in world.log
    assert session.state is SessionState.READY
    assert world.control.paused

    world.source.fail_at = None
    world.control.found = EngineState.TORN
    assert session.push(2).committed
    assert not world.control.paused


def test_every_group_is_gathered_also_after_an_error(world):
    session = world.open()
    world.plane.fail["send"] = ChannelError("cut")

    with pytest.raises(UpdateFailed):
        session.push(1)

    # This plane failed before it gathered anything; other ranks are inside these collectives all the same.
    assert [step for step in world.log if step.startswith("gather")] == ["gather 0", "gather 1", "gather 2"]


def test_an_engine_that_no_longer_answers_is_lost_and_said_to_need_a_restart(world):
    session = world.open()
    world.control.fail["finish"] = EngineUnreachable("gone")
    world.control.fail["is paused"] = EngineUnreachable("gone")

    with pytest.raises(UpdateFailed, match="e0 is lost") as caught:
        session.push(1)

    assert "restart" in caught.value.hint


def test_a_resume_that_fails_is_told_and_the_engine_is_whole(world):
    session = world.open()
    world.control.fail["resume"] = EngineRefused("no")

    with pytest.raises(UpdateFailed, match=r"phase 'resume'.*e0 is whole"):
        session.push(1)


def test_a_version_that_reads_back_wrong_is_torn(world, monkeypatch):
    session = world.open()
    monkeypatch.setattr(world.control, "weight_version", lambda deadline: "other")

    with pytest.raises(UpdateFailed, match=r"holds version 'other', not '1'.*is torn"):
        session.push(1)


def test_ctrl_c_settles_the_engine_and_stays_ctrl_c(world):
    session = world.open()
    world.plane.fail["send"] = KeyboardInterrupt()

    with pytest.raises(KeyboardInterrupt):
        session.push(1)

    assert session.engine_states == {"http://e0": EngineState.TORN}
    assert world.control.paused


def test_a_round_that_fails_ends_within_its_timeout(make_world):
    world = make_world(timeout=1.0)
    session = world.open()
    release = threading.Event()

    def hang(plan, deadline):
        release.wait(10)

    world.control.finish = hang
    with pytest.raises(UpdateFailed, match="deadline") as caught:
        session.push(1)

    assert isinstance(caught.value.__cause__, DeadlineExceeded)
    release.set()


# Several engines.


def test_every_engine_gets_every_call(make_world):
    world = make_world(urls=("http://e0", "http://e1"))
    session = world.open()

    receipt = session.push(1)

    assert receipt.engines == ("http://e0", "http://e1")
    for step in ("pause", "begin", "update", "finish", "resume"):
        assert world.log.count(step) == 2
    assert world.log.count("send") == 1


def test_the_ranks_of_the_engines_follow_each_other(make_world, monkeypatch):
    world = make_world(urls=("http://e0", "http://e1", "http://e2"))
    offsets = {}
    for control in world.controls:
        inner = control.init_channel

        def spy(request, deadline, url=control.url, inner=inner):
            offsets[url] = (request.rank_offset, request.rendezvous.world_size)
            return inner(request, deadline)

        monkeypatch.setattr(control, "init_channel", spy)

    world.open()

    assert [offsets[f"http://e{i}"][0] for i in range(3)] == [1, 2, 3]


def test_one_engine_that_refuses_to_pause_lets_the_other_serve_on(make_world):
    world = make_world(urls=("http://e0", "http://e1"))
    session = world.open()
    world.controls[1].fail["pause"] = EngineRefused("no")

    with pytest.raises(UpdateFailed) as caught:
        session.push(1)

    assert set(caught.value.engine_states.values()) == {EngineState.WHOLE}
    assert not world.controls[0].paused
    assert caught.value.where.engine == "http://e1"


# wait=False, close, observers, states.


def test_a_push_that_does_not_wait_returns_before_the_commit(world):
    release = threading.Event()
    inner = world.control.finish
    world.control.finish = lambda plan, deadline: (release.wait(5), inner(plan, deadline))
    session = world.open()

    early = session.push(1, wait=False)

    assert not early.committed
    assert "resume" not in world.log
    release.set()
    late = session.wait()
    assert late is not None
    assert late.committed
    assert session.state is SessionState.READY


def test_the_next_push_raises_what_the_unwaited_one_met(world):
    session = world.open()
    world.control.fail["finish"] = EngineRefused("no")
    session.push(1, wait=False)

    with pytest.raises(UpdateFailed, match="phase 'commit'"):
        session.push(2)


def test_closing_leaves_the_group_once_and_ends_the_session(world):
    session = world.open()

    session.close()
    session.close()

    assert world.log == ["read version", "close channel", "close plane", "close control"]
    with pytest.raises(StateError, match="closed"):
        session.push(1)
    with pytest.raises(StateError, match="closed"):
        session.recover()


def test_closing_leaves_the_channel_alone_that_another_client_has_opened_since(world):
    session = world.open()
    session.push(1)
    world.server.version = "another client's"
    world.log.clear()

    session.close()

    assert "close channel" not in world.log
    assert session.state is SessionState.CLOSED


def test_a_forked_child_can_neither_push_nor_disturb_the_parents_session_by_closing_it(world):
    session = world.open()
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_as_a_child, args=(session, world, there))
    child.start()
    assert here.poll(20)
    said, log = here.recv()
    child.join(20)
    assert child.exitcode == 0
    assert "was opened by process" in said
    assert log == []
    assert session.push(1).committed


def test_closing_never_raises_for_an_engine_that_is_gone(world):
    session = world.open()
    world.control.fail["close channel"] = EngineUnreachable("gone")

    session.close()

    assert session.state is SessionState.CLOSED


def test_a_with_block_closes(world):
    with world.open() as session:
        session.push(1)

    assert session.state is SessionState.CLOSED


def test_a_changed_manifest_reopens_the_channel(world):
    session = world.open()
    world.source.shown = Manifest((TensorMeta("model.norm.weight", "float32", (2,)),), ((0, 1),))

    session.push(1)

    assert without_order(world.log, "init")[1:5] == ["close channel", "close plane", "prepare", "join"]


def test_what_the_first_push_brought_is_what_later_ones_must_bring(world):
    session = world.open()
    session.push(1)
    world.source.shown = Manifest(world.source.shown.tensors[:2], ((0, 1), (1, 2)))
    world.log.clear()

    with pytest.raises(ManifestError, match=r"model\.layers\.2"):
        session.push(2)

    assert world.log == ["read version"]


def test_a_session_that_can_not_join_closes_its_side_and_names_the_phase(world):
    world.plane.fail["join"] = ChannelError("no peer")

    with pytest.raises(ChannelError, match="no peer") as caught:
        world.session().open()

    assert caught.value.where.phase == "open"
    assert world.log[-1] == "abort plane"


class Observer:
    def __init__(self) -> None:
        self.phases: list[str] = []
        self.states: list[str] = []

    @hookimpl
    def weightwire_state_changed(self, change):
        (self.phases if change.phase else self.states).append(change.phase or change.session)


class Grumbler:
    @hookimpl
    def weightwire_state_changed(self, change):
        raise ValueError("I always do")


def test_an_observer_is_told_of_every_phase_and_state(world):
    observer = Observer()
    world.plugins.append(observer)

    world.open().push(1)

    assert observer.phases == ["preflight", "pause", "begin", "transfer", "commit", "verify", "resume"]
    assert observer.states == ["connected", "ready", "updating", "ready"]


def test_an_observer_that_raises_is_logged_and_stops_nobody(world, caplog):
    observer = Observer()
    world.plugins += [Grumbler(), observer]

    world.open().push(1)

    assert "resume" in observer.phases
    assert "I always do" in caplog.text


def test_a_wrapper_sees_a_phase_from_both_sides(world):
    seen = []

    class Tracer:
        @hookimpl(wrapper=True)
        def weightwire_transfer(self, plan):
            seen.append("before")
            stats = yield
            seen.append(stats.nbytes)
            return stats

    world.plugins.append(Tracer())
    world.open().push(1)

    assert seen == ["before", 48]


def test_a_wrapper_can_inject_a_fault(world):
    class Fault:
        @hookimpl(wrapper=True)
        def weightwire_commit_update(self):
            yield
            raise RuntimeError("injected")

    world.plugins.append(Fault())
    session = world.open()

    with pytest.raises(UpdateFailed, match="RuntimeError: injected"):
        session.push(1)


class Misspelt:
    @hookimpl
    def weightwire_pauze(self):
        pass


class WrongArgument:
    @hookimpl
    def weightwire_pause(self, colour):
        pass


class Coroutine:
    @hookimpl
    async def weightwire_pause(self):
        pass


@pytest.mark.parametrize("plugin", [Misspelt, WrongArgument, Coroutine])
def test_a_plugin_that_does_not_fit_the_hooks_is_refused_when_it_is_given(world, plugin):
    world.plugins.append(plugin())

    with pytest.raises(PluginError):
        world.session()


@pytest.mark.parametrize(
    "refused", [{"version": ""}, {"version": "weightwire:x"}, {"version": 1, "pause": "x"}, {"version": 1, "cache": 0}]
)
def test_an_order_that_can_not_be_taken_is_refused_before_anything_is_touched(world, refused):
    session = world.open()
    with pytest.raises(ConfigurationError):
        session.push(**refused)
    assert world.log == []
    assert session.push(1).version == "1"
