"""The handshake's socket wrapper, without TLS: the peer's last bytes are read even if our writes failed (W13)."""

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
    """Return the result of a call; repeat it if it first returns None ("would block")."""
    n = call(*arguments)
    return call(*arguments) if n is None else n


@pytest.mark.req("W13")
def test_tls_alert_is_read_after_a_failed_handshake_write():
    steps = Steps(Gone(ALERT))
    assert told(steps.write, b"our certificate") == 15
    assert told(steps.write, b"finished") == 8
    header = bytearray(5)
    alert = bytearray(2)
    assert told(steps.readinto, header) == 5 and steps.readinto(alert) == 2
    assert bytes(header + alert) == ALERT


@pytest.mark.req("W13")
def test_failed_handshake_write_is_reported_when_no_alert_follows():
    steps = Steps(Gone(b""))
    assert told(steps.write, b"finished") == 8
    assert told(steps.readinto, bytearray(5)) == -EPIPE


@pytest.mark.req("W13")
def test_failed_write_after_the_handshake_is_reported_at_once():
    steps = Steps(Gone(b""))
    steps.shaking = False
    assert steps.write(b"x") == -EPIPE
