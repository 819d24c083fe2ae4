"""TLS's socket in steps, without TLS: what a peer says last is read, whatever became of our writes (W13)."""

import pytest

from flashmqtt.handshake import Steps

ALERT = b"\x15\x03\x03\x00\x02\x02\x2e"  # fatal: certificate_unknown
EPIPE = 32


class Gone:
    """A socket whose peer has sent its last bytes and closed."""

    def __init__(self, last):
        self.last = last

    def write(self, buf):
        raise OSError(EPIPE, "broken pipe")

    def readinto(self, buf):
        n = min(len(buf), len(self.last))
        buf[:n] = self.last[:n]
        self.last = self.last[n:]
        return n


def told(call, *arguments):
    """Return what a call answers that may be put off once."""
    n = call(*arguments)
    return call(*arguments) if n is None else n


@pytest.mark.req("W13")
def test_a_write_that_fails_in_the_handshake_leaves_the_peers_reason_to_be_read():
    steps = Steps(Gone(ALERT))
    assert told(steps.write, b"our certificate") == 15
    assert told(steps.write, b"finished") == 8
    header = bytearray(5)
    alert = bytearray(2)
    assert told(steps.readinto, header) == 5 and steps.readinto(alert) == 2
    assert bytes(header + alert) == ALERT


@pytest.mark.req("W13")
def test_where_the_peer_gave_no_reason_the_failed_write_is_the_reason():
    steps = Steps(Gone(b""))
    assert told(steps.write, b"finished") == 8
    assert told(steps.readinto, bytearray(5)) == -EPIPE


@pytest.mark.req("W13")
def test_a_write_that_fails_after_the_handshake_fails():
    steps = Steps(Gone(b""))
    steps.shaking = False
    assert steps.write(b"x") == -EPIPE
