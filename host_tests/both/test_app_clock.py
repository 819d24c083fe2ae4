"""Network time: requests never block, and only a valid answer to our own request sets the clock."""

import socket
import time

import pytest

from app.clock import NetworkTime, Uptime, answer, question

NONCE = b"12345678"
UNIX_S = 1795000000


def _packet(nonce=NONCE, seconds=UNIX_S + 2208988800, fraction=0x80000000, first=0x24, stratum=2):
    head = bytes((first, stratum)) + bytes(22) + nonce + bytes(8)
    return head + (seconds % (1 << 32)).to_bytes(4, "big") + fraction.to_bytes(4, "big")


@pytest.mark.req("B4")
def test_answer_gives_the_time():
    assert answer(_packet(), NONCE) == UNIX_S * 1000 + 500
    assert len(question(NONCE)) == 48 and question(NONCE)[0] & 7 == 3


@pytest.mark.req("B4")
def test_time_after_february_2036_is_right():
    unix_s = 2300000000  # 2042
    assert answer(_packet(seconds=unix_s + 2208988800), NONCE) == unix_s * 1000 + 500


@pytest.mark.parametrize(
    "wrong",
    [
        {"nonce": b"87654321"},
        {"first": 0x23},
        {"first": 0xE4},
        {"stratum": 0},
        {"stratum": 16},
        {"seconds": 2208988800},  # 1970: a router whose clock is not set
        {"seconds": 0},  # unknown (RFC 5905, section 6)
        {"seconds": 2208988800 + 1735689599},
    ],
)
@pytest.mark.req("B4")
def test_invalid_answer_is_ignored(wrong):
    assert answer(_packet(**wrong), NONCE) is None
    assert answer(_packet()[:47], NONCE) is None


class _Server:
    """A network time server on loopback: a UDP socket from which a test answers."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for port in range(20123, 20999):
            try:
                self.socket.bind(socket.getaddrinfo("127.0.0.1", port)[0][-1])
                self.port = port
                break
            except OSError:
                pass
        self.socket.setblocking(False)

    def receive(self):
        for _ in range(200):
            try:
                return self.socket.recvfrom(64)
            except OSError:
                time.sleep(0.01)
        raise AssertionError("no request arrived")


def _started():
    """Return a server, the uptime, and a clock that uses both."""
    server = _Server()
    uptime = Uptime()
    return server, uptime, NetworkTime(uptime, "127.0.0.1", server.port)


def _turns(clock):
    for _ in range(100):
        if clock.turn():
            return True
        time.sleep(0.005)
    return False


@pytest.mark.req("B4")
def test_clock_is_set_without_blocking():
    server, _, clock = _started()
    assert clock.unix_ms() is None
    assert not clock.turn() and clock.waiting
    packet, address = server.receive()
    server.socket.sendto(_packet(nonce=b"forged!!"), address)
    server.socket.sendto(_packet(nonce=packet[40:48]), address)
    assert _turns(clock)
    assert abs(clock.unix_ms() - UNIX_S * 1000 - 500) < 1000
    assert not clock.turn() and not clock.waiting  # no further request for hours
    server.socket.close()


@pytest.mark.req("B4")
def test_silent_server_is_asked_again_later():
    server, uptime, clock = _started()
    clock.turn()
    uptime._ms += 2100
    assert not clock.turn() and not clock.waiting and clock.asked == 1
    uptime._ms += 4900
    clock.turn()
    assert clock.asked == 1
    uptime._ms += 200
    clock.turn()
    assert clock.asked == 2 and clock.waiting
    server.socket.close()


@pytest.mark.req("B4")
def test_answer_read_too_late_does_not_set_the_clock():
    server, uptime, clock = _started()
    clock.turn()
    packet, address = server.receive()
    server.socket.sendto(_packet(nonce=packet[40:48]), address)
    time.sleep(0.05)
    uptime._ms += 30000  # the program did something else meanwhile
    assert not _turns(clock) and clock.unix_ms() is None and not clock.waiting
    uptime._ms += 5000
    clock.turn()
    packet, address = server.receive()
    server.socket.sendto(_packet(nonce=packet[40:48]), address)
    assert _turns(clock)
    assert abs(clock.unix_ms() - UNIX_S * 1000 - 500) < 1000
    server.socket.close()


def _answered(server, clock, **fields):
    """Answer the next request; return whether the clock says that the time became known or has changed."""
    clock.turn()
    assert clock.waiting
    packet, address = server.receive()
    server.socket.sendto(_packet(nonce=packet[40:48], **fields), address)
    while clock.waiting:
        if clock.turn():
            return True
    return False


@pytest.mark.req("B4")
def test_time_of_an_answer_is_that_of_the_middle_between_request_and_answer():
    server, uptime, clock = _started()
    clock.turn()
    packet, address = server.receive()
    uptime._ms += 1500
    server.socket.sendto(_packet(nonce=packet[40:48]), address)
    assert _turns(clock)
    assert abs(clock.unix_ms() - UNIX_S * 1000 - 500 - 750) < 400
    server.socket.close()


@pytest.mark.req("B4")
def test_time_is_asked_every_six_hours_and_10_minutes_after_a_change_of_two_seconds():
    server, uptime, clock = _started()
    assert _answered(server, clock)
    since = UNIX_S + 2208988800
    five_years_s = 5 * 365 * 86400
    for wait_s, shift_s, changes in (
        (600, 0, False),
        (6 * 3600, 1, False),
        (6 * 3600, five_years_s, True),
        (600, -five_years_s, True),  # that server is wrong, or the last one was
        (600, 0, False),
        (6 * 3600, 0, False),
    ):
        uptime._ms += wait_s * 1000 - 60000
        assert not clock.turn() and not clock.waiting
        uptime._ms += 60000
        since += wait_s + shift_s
        assert _answered(server, clock, seconds=since) == changes
    server.socket.close()


@pytest.mark.req("B4")
def test_silent_server_is_asked_every_ten_minutes_at_least():
    server, uptime, clock = _started()
    for asked in range(1, 15):
        clock.turn()
        assert clock.asked == asked
        uptime._ms += 2100
        clock.turn()
        uptime._ms += 600000
    server.socket.close()


@pytest.mark.req("B4")
def test_without_a_host_no_server_is_asked():
    clock = NetworkTime(Uptime(), "")
    assert not clock.turn() and clock.asked == 0
    clock.set(UNIX_S * 1000)
    assert UNIX_S * 1000 <= clock.unix_ms() < UNIX_S * 1000 + 1000
