"""A message that the broker may not accept: it is tried alone, and refused after `refuse_after` failed trials (R3).

A broker may close the connection on a message (because of its QoS, length or topic), or never acknowledge it. Every new
connection would begin with that message and block all later ones.

**Suspicion.** A message is a suspect if it was the first unacknowledged one at the end of two connections in a row. Then this
module is loaded, and on the following connections the messages that were in flight are sent one at a time until all of them are
done. If a connection ends before its trial has begun, the next connection has no trial, so that short connections make progress,
too.

**A trial** begins when a connection is accepted. During the first second only subscriptions and the program's QoS 0 messages are
sent, because the broker may close the connection on these. Then a PINGREQ is sent. Its PINGRESP shows that the broker has read
all earlier packets. After that the message is sent, alone in flight, and another PINGREQ after it.

**A trial has failed** if, before the message is acknowledged,

- the broker closes the connection (FIN, RST; 5: a DISCONNECT whose reason is about a packet and not about the server), a part of
  the message was sent, and nothing else was sent since: no QoS 0 message, and no SUBSCRIBE or UNSUBSCRIBE that is unanswered; or
- the broker answers it with the wrong packet, or at level 5 with an invalid reason code; or
- the broker answers the PINGREQ after the message, and another PINGREQ 5 s later (or after a third of `response_s`, if that is
  shorter), and the connection ends for any reason.

Nothing else counts as a failure: not a lost link (it brings neither PINGRESP nor FIN), not a refused CONNECT, not a shutdown that
a level 5 server announces, and no earlier end by this side. A restart of the broker can count once; on the next connection the
message is acknowledged, which ends the suspicion. Failed trials of one message are counted until an acknowledgement comes. The
count is in the session's note, so it survives a sleep or a reset between two trials. A message past PUBREC, whose PUBREL is not
answered, is in doubt and not refused: the broker has it.
"""

from errno import ECONNRESET

from flashmqtt.codec.encode import put_pingreq
from flashmqtt.compat import TYPE_CHECKING, const, ticks_diff
from flashmqtt.errors import CLOSED_BY_PEER, ConnectionLost

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

# Events: `connection.py`.
_IN_DOUBT = const(6)
_REFUSED = const(7)

# Codes of `on_refused` that are not reason codes of level 5.
UNKNOWN = 0x80  # refused before the last reset
CLOSED = 0x100  # the broker closes the connection on it
SILENT = 0x101  # the broker does not acknowledge it
WRONG = 0x102  # the broker answers it with the wrong packet

# Reason codes of a server's DISCONNECT that are not about a message (5, section 3.14.2.1).
_NOT_A_MESSAGE = b"\x00\x89\x8b\x8d\x8e\x96\x97\x98\x9c\x9d\x9f\xa0"
_ANSWERS = (4, 5, 7)  # PUBACK, PUBREC, PUBCOMP
_EPIPE = const(32)
_TLS_ENDS = (-0x7280, -0x7880)  # Mbed TLS: the peer has closed without, or with, a close alert

# Stages of a trial.
_IDLE = const(0)  # no connection is accepted
_SETTLING = const(1)  # subscriptions and QoS 0 messages are sent first
_PING_1_SENT = const(2)  # a PINGREQ after these is sent
_READY = const(3)  # it is answered: the next message may be sent
_PUT = const(4)  # the message, or its first piece, is in the output
_PING_2_SENT = const(5)  # a PINGREQ after the message is sent
_PING_2_ANSWERED = const(6)  # that PINGREQ is answered
_PING_3_SENT = const(7)  # another PINGREQ is sent
_PING_3_ANSWERED = const(8)  # it is answered, too: the broker works, and does not acknowledge the message

_SETTLE_MS = const(1000)
_SILENT_MS = const(5000)
_NO_SUSPECT = const(0xFF)  # in the note, twice: no suspect
_PING_BYTES = const(8)  # room for a PINGREQ, with a margin


def remembered(session: "Any") -> None:
    """The session's note has a suspect: continue with it if it is still the oldest message."""
    seq = session.store.low
    if session.refuse_after and seq < session.store.next_seq and seq & 255 == session.note.octets[3]:
        session.suspect = Suspect(session, seq, session.note.octets[2])
    else:  # the suspect is done
        session.note.change(2, (_NO_SUSPECT, _NO_SUSPECT))


def found(session: "Any", seq: int, again: bool) -> None:
    """A connection has ended with this first unacknowledged message; again: the connection before had the same."""
    if again:
        session.suspect = Suspect(session, seq, 0)
    else:
        session.note.change(2, (0, seq & 255))


class Suspect:
    """Sends a session's messages one at a time.

    Args:
        session: from now on, this object sets the session's quota.
        seq: the suspect.
        trials: how many of its trials have failed so far.
    """

    def __init__(self, session: "Any", seq: int, trials: "Any") -> None:
        self._session = session
        self._seq = self._counted_seq = seq
        self._trials = trials
        self._end = max(session.cursor, seq + 1)  # the messages before this one are tried
        self._stage = _IDLE
        self._since_ms: "Any" = None  # since when the stage waits; None: set it at the next check
        self._silent_ms = min(_SILENT_MS, session.response_ms // 3 or _SILENT_MS)
        self._short = False  # did the last trial end before its message was sent?
        self._quota = 0  # the session's
        self._marked = False  # is the message past PUBREC?
        self._disturbed = self._wrong = False
        self.pings = 0  # how many PINGREQ are unanswered
        if trials >= session.refuse_after:
            self._set_aside(UNKNOWN)

    # --- called by the session and the connection ---

    def connected(self) -> None:
        """A connection is accepted: begin a trial, unless the last one ended before its message was sent.

        Without that exception, a link that is never up for long would not get any message through.
        """
        if self._short:
            self._short = False
            return
        session = self._session
        self._quota = session.quota
        session.quota = 0
        self._stage = _SETTLING
        self._since_ms = None
        self.pings = 0

    def disturb(self) -> None:
        """The program has put a QoS 0 message: the broker may close the connection because of that message."""
        self._disturbed = True

    def answered_wrong(self, seq: int) -> None:
        """The broker's answer to a message has the wrong packet type."""
        self._wrong = seq == self._seq

    def pong(self, now_ms: int) -> None:
        """Advance the trial: a PINGRESP has arrived."""
        self.pings -= 1
        if self.pings <= 0:
            stage = self._stage
            if stage == _PING_1_SENT:
                self._stage = _READY
            elif stage == _PING_2_SENT:
                self._stage = _PING_2_ANSWERED
                self._since_ms = now_ms
            elif stage == _PING_3_SENT:
                self._stage = _PING_3_ANSWERED
            self._go_on(now_ms)

    def tick(self, now_ms: int) -> "Any":
        """Do what is due; return how long the PINGREQ before a message has been unanswered."""
        if self._since_ms is None:
            self._since_ms = now_ms
        stage = self._stage
        if stage == _IDLE:
            if self._session.store.low >= self._end:
                self._end_suspicion()
            return 0
        age = ticks_diff(now_ms, self._since_ms)
        if stage == _PING_1_SENT:
            return age
        if stage == _SETTLING:
            if age >= _SETTLE_MS and not self._session.request_id and self._ping():
                self._stage = _PING_1_SENT
                self._since_ms = now_ms
        elif stage == _PING_2_ANSWERED and age >= self._silent_ms and self._session.flight and self._ping():
            self._stage = _PING_3_SENT
        self._go_on(now_ms)
        return 0

    def ended(self, error: "Any") -> None:
        """The connection ends because of this error, or (None) by us: decide whether the trial has failed."""
        if self._stage != _IDLE:
            code = self._trial_result(error)
            self._short = self._stage < _PUT
            self._stage = _IDLE
            session = self._session
            session.quota = self._quota
            if code:
                if self._seq != self._counted_seq:
                    self._counted_seq = self._seq
                    self._trials = 0
                self._trials += 1
                session.note.change(2, (self._trials, self._seq & 255))
                if self._trials >= session.refuse_after:
                    self._set_aside(code)

    # --- the trial ---

    def _ping(self) -> bool:
        output = self._session.output
        if output.room() < _PING_BYTES:
            return False
        output.put(put_pingreq)
        self.pings += 1
        return True

    def _go_on(self, now_ms: int) -> None:
        """Put the next message when the last one is done, and a PINGREQ after it."""
        session = self._session
        store = session.store
        if self._stage >= _PUT:
            if not session.flight:  # it is done
                self._reset_trials()
                if self.pings <= 0:  # all PINGREQ are answered: the next message needs no other one before it
                    self._stage = _READY
            elif not self._marked and store.is_marked(self._seq):  # past PUBREC: now its PUBREL is tried
                self._reset_trials()
                self._marked = True
                self._stage = _PUT
        if self._stage == _READY and not session.output.end:
            session.quota = 1
            if session.cursor < self._end:
                session.pump(now_ms)
            session.quota = 0
            if session.flight:
                self._seq = session.cursor - 1
                self._marked = store.is_marked(self._seq)
                self._disturbed = self._wrong = False
                self._stage = _PUT
            elif session.cursor >= min(self._end, store.next_seq):
                self._end_suspicion()
        if self._stage == _PUT and not session.partial and self._ping():
            self._stage = _PING_2_SENT

    def _reset_trials(self) -> None:
        """The broker has accepted the message: set its failed trials to 0."""
        if self._trials and self._seq == self._counted_seq:
            self._trials = 0
            self._session.note.change(2, (0, self._seq + 1 & 255))

    def _end_suspicion(self) -> None:
        """All messages that were in flight are done: end the suspicion."""
        session = self._session
        if self._stage != _IDLE:
            session.quota = self._quota
        session.suspect = None
        session.note.change(2, (_NO_SUSPECT, _NO_SUSPECT))

    def _trial_result(self, error: "Any") -> "Any":
        """Return the code with which this trial has failed, or 0 if it has not."""
        session = self._session
        if self._stage < _PUT or not session.flight:
            return 0
        if self._wrong or getattr(error, "packet_type", 0) in _ANSWERS:
            return WRONG
        if self._stage == _PING_3_ANSWERED:
            return SILENT
        output = session.output
        # The message is at the start of the buffer: was any byte of it sent?
        left = not output.end or output.start or session.partial_at > output.end
        return 0 if self._disturbed or session.request_id or not left else self._closing(error)

    def _closing(self, error: "Any") -> "Any":
        """Return the code for a connection closed by the broker; 0 if it was not, or for the server's own reason."""
        if isinstance(error, ConnectionLost):
            if error.args[:1] == (CLOSED_BY_PEER,):
                return CLOSED
            code = getattr(error, "code", 0)
            return 0 if code in _NOT_A_MESSAGE else code
        if isinstance(error, OSError) and (error.errno in (ECONNRESET, _EPIPE) or error.errno in _TLS_ENDS):
            return CLOSED
        return 0

    def _set_aside(self, code: int) -> None:
        """Refuse the message: the broker does not accept it."""
        session = self._session
        event = _IN_DOUBT if session.store.is_marked(self._seq) else _REFUSED
        session.load_undelivered().set_aside(event, self._seq, code)
        session.proved = True  # the broker works: reset the backoff, so that later messages do not wait longer
