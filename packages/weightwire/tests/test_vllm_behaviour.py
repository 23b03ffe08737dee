from __future__ import annotations

import msgspec
import pytest
from weightwire.messages import ITEM_BYTES, EngineKind
from weightwire.vllm.behaviour import SINCE, STOCK_DTYPES, Behaviour, behaviour, limits


def test_every_line_of_the_table_is_a_field_and_the_other_way_round():
    assert set(SINCE) == {field.name for field in msgspec.structs.fields(Behaviour)}


@pytest.mark.parametrize("name", SINCE)
def test_a_behaviour_holds_from_its_release_on(name):
    major, minor = SINCE[name]
    assert not getattr(behaviour((major, minor - 1, 9)), name)
    assert getattr(behaviour((major, minor, 0)), name)
    assert getattr(behaviour((1, 0)), name)


def test_below_0_33_one_pack_at_a_time_since_two_race():
    assert limits((0, 32, 1), EngineKind.STOCK).num_buffers == 1
    assert limits((0, 33), EngineKind.STOCK).num_buffers == 2


def test_scalars_are_packed_from_0_32_on():
    assert not limits((0, 31), EngineKind.STOCK).packed_scalars
    assert limits((0, 32), EngineKind.STOCK).packed_scalars


def test_a_stock_receiver_takes_the_dtypes_that_nccl_can_name():
    assert limits((0, 33), EngineKind.STOCK).dtypes == STOCK_DTYPES
    assert set(ITEM_BYTES) - set(STOCK_DTYPES) == {"bool", "int16", "float8_e5m2"}


def test_our_receiver_takes_everything_everywhere():
    ours = limits((0, 22), EngineKind.OURS)
    assert (ours.num_buffers, ours.packed_scalars, ours.dtypes) == (2, True, ())


@pytest.mark.parametrize("kind", list(EngineKind))
def test_before_0_21_an_update_call_is_a_whole_update_and_holds_whole_modules(kind):
    assert limits((0, 20, 2), kind).whole_modules
    assert not limits((0, 21), kind).whole_modules


def test_packs_are_raced_for_before_0_18_by_the_stock_receiver_alone():
    assert not limits((0, 17, 1), EngineKind.STOCK).packed
    assert limits((0, 18), EngineKind.STOCK).packed
    assert limits((0, 17, 1), EngineKind.OURS).packed
