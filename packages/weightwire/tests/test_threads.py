import os
import threading

import pytest
from weightwire import threads
from weightwire.calls import Call
from weightwire.deadlines import Deadline
from weightwire.threads import Threads


class Seen:
    """Which threads did the work, and under which names."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.names: list[str] = []

    def run_on(self, pool: Threads, name: str = "weightwire: working") -> threading.Event:
        done = threading.Event()

        def work() -> None:
            self.threads.append(threading.current_thread())
            self.names.append(threading.current_thread().name)
            done.set()

        pool.run(work, name=name)
        return done


class Watched(Threads):
    """Threads that say when one of them has nothing more to do."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Semaphore(0)

    def enter(self, worker: threads._Worker) -> None:
        super().enter(worker)
        self.entered.release()


def test_work_is_done_on_a_daemon_thread_that_bears_its_name():
    seen = Seen()

    assert seen.run_on(Threads(), "weightwire: probing").wait(5)

    assert seen.names == ["weightwire: probing"]
    assert seen.threads[0].daemon
    assert seen.threads[0] is not threading.current_thread()


def test_a_thread_that_has_nothing_to_do_is_used_again():
    pool, seen = Watched(), Seen()
    seen.run_on(pool)
    assert pool.entered.acquire(timeout=5)

    seen.run_on(pool, "weightwire: again").wait(5)

    assert seen.threads[0] is seen.threads[1]
    assert seen.names[1] == "weightwire: again"


def test_work_never_waits_for_the_thread_of_other_work():
    pool, seen, release = Threads(), Seen(), threading.Event()
    for _ in range(3):
        pool.run(lambda: release.wait(10) and None, name="weightwire: hanging")

    assert seen.run_on(pool).wait(5)

    release.set()


def test_a_thread_ends_when_nothing_more_comes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(threads, "IDLE_SECONDS", 0.05)
    pool, seen = Threads(), Seen()
    seen.run_on(pool).wait(5)

    seen.threads[0].join(5)

    assert not seen.threads[0].is_alive()
    assert pool._idle == []


def test_a_thread_that_was_given_work_in_the_last_moment_does_it():
    pool, seen = Watched(), Seen()
    seen.run_on(pool)
    assert pool.entered.acquire(timeout=5)
    worker = pool._idle.pop()  # as run() does, just before the thread's time is over

    assert not pool.leave(worker)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_starts_threads_of_its_own():
    assert Call(lambda: 1, doing="working").result(Deadline.after(5)) == 1

    child = os.fork()
    if child == 0:
        os._exit(Call(lambda: 0, doing="working").result(Deadline.after(5)))

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
