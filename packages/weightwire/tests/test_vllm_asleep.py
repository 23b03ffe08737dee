from __future__ import annotations

import pytest
from weightwire.vllm.asleep import asleep

GAUGE = 'vllm:engine_sleep_state{engine="%s",model_name="m",sleep_state="%s"} %s\n'


def _metrics(*rows):
    return "# TYPE vllm:engine_sleep_state gauge\n" + "".join(GAUGE % row for row in rows) + "other_metric 0.0\n"


def test_an_awake_engine_is_awake():
    assert not asleep(_metrics(("0", "awake", "1.0"), ("0", "weights_offloaded", "0.0"), ("0", "discard_all", "0.0")))


@pytest.mark.parametrize("value", ["0.0", "0"])
def test_a_sleeping_engine_sleeps(value):
    assert asleep(_metrics(("0", "awake", value), ("0", "weights_offloaded", "1.0")))


def test_one_sleeping_replica_is_enough():
    assert asleep(_metrics(("0", "awake", "1.0"), ("1", "awake", "0.0")))


@pytest.mark.parametrize("metrics", ["", "other_metric 0.0\n", "<html>404</html>"])
def test_without_the_gauge_nothing_is_claimed(metrics):
    assert not asleep(metrics)
