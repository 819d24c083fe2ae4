"""Backoff: delays, jitter, cap and reset (requirement B4)."""

import pytest

from flashmqtt.backoff import Backoff
from heap import heap_lock, heap_unlock


def longest(n):
    return n - 1


@pytest.mark.req("B4")
def test_delay_doubles_up_to_the_cap():
    backoff = Backoff(base_ms=500, cap_ms=3000, random_below=longest)
    assert [backoff.next_delay_ms(0) for _ in range(6)] == [500, 1000, 2000, 3000, 3000, 3000]


@pytest.mark.req("B4")
def test_jitter_is_full_from_zero_to_the_limit():
    asked = []

    def note(n):
        asked.append(n)
        return 0

    backoff = Backoff(base_ms=100, cap_ms=400, random_below=note)
    assert [backoff.next_delay_ms(0) for _ in range(4)] == [0, 0, 0, 0]
    assert asked == [101, 201, 401, 401]


@pytest.mark.req("B4")
def test_backoff_is_reset_only_after_a_lasting_connection():
    backoff = Backoff(base_ms=500, cap_ms=8000, lasting_ms=5000, random_below=longest)
    for _ in range(3):
        backoff.next_delay_ms(0)
    assert backoff.next_delay_ms(4999) == 4000
    assert backoff.next_delay_ms(5000) == 500


@pytest.mark.req("B4")
def test_backoff_continues_with_its_step_after_a_reboot():
    before = Backoff(base_ms=500, random_below=longest)
    for _ in range(4):
        before.next_delay_ms(0)
    assert Backoff(base_ms=500, step=before.step, random_below=longest).next_delay_ms(0) == 8000


@pytest.mark.req("B4")
def test_step_stays_small_during_a_long_outage():
    backoff = Backoff(base_ms=500, cap_ms=120000)
    for _ in range(1000):
        assert 0 <= backoff.next_delay_ms(0) <= 120000
    assert backoff.step < 10


@pytest.mark.req("B4")
def test_delays_are_whole_also_if_the_arguments_are_not():
    backoff = Backoff(base_ms=500.0, cap_ms=3e3)
    for _ in range(5):
        assert type(backoff.next_delay_ms(0)) is int
    with pytest.raises(ValueError):
        Backoff(cap_ms="long")


@pytest.mark.req("R4", "B4")
def test_delay_is_found_although_no_memory_is_left():
    backoff = Backoff()
    heap_lock()
    try:
        delay = backoff.next_delay_ms(0)
    finally:
        heap_unlock()
    assert 0 <= delay <= 500
