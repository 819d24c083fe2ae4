"""The message that the broker may not take: it is tried alone, and after so many failed trials it is refused (R3).

A broker may close the connection on a message (a QoS, a length or a topic that it does not take), or never answer it. Each new
connection would begin with that message, and nothing behind it would ever be sent.

**Suspicion.** The same message was the first unanswered one at the end of two connections in a row. Then this module is loaded,
and the messages that were in flight are sent one at a time, on the connections to come, until all of them are done. (Where a
connection ends before its trial has begun, the next one goes without: a link that is never up for long makes progress, too.)

**A trial** begins when a connection is accepted. For a second nothing is put that need not be: subscriptions and the program's
QoS 0 messages go first, and may be what the broker closes the connection for. Then comes a PINGREQ. Only when it is answered, and
so the broker has read all that came before, the message goes out, alone in flight, with another PINGREQ behind it.

**A trial has failed** if, before the message is acknowledged,

- the broker closes the connection (FIN, RST; 5: a DISCONNECT whose reason is not the server's own), some of the message has left,
  and nothing else was sent since: no QoS 0 message, and no SUBSCRIBE or UNSUBSCRIBE that is unanswered; or
- the broker answers it with the wrong packet; or
- the broker answers the PINGREQ behind it, and another one 5 s later (or a third of the time that an answer may take, where
  that is less), and the connection ends, for whatever reason.

Nothing else counts: no lost link (then no PINGRESP comes, and no FIN), no refused CONNECT, no shutdown that level 5 tells of,
nothing that this side ends earlier. A restart of the broker can count once; on the next connection the message is acknowledged,
which ends the suspicion. What is counted are trials of one message without an acknowledgement in between; the count is in the
session's note, so that a board that sleeps or resets between two trials gets on. A message past PUBREC, whose PUBREL is not
answered, is in doubt instead of refused: the broker has it.
"""

from errno import ECONNRESET

from flashmqtt.codec.encode import put_pingreq
from flashmqtt.compat import TYPE_CHECKING, const, ticks_diff
from flashmqtt.errors import CLOSED_BY_PEER, ConnectionLost

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

# What is reported: `connection.py`.
_IN_DOUBT = const(6)
_REFUSED = const(7)

# Codes of `on_refused` that are no reason codes of level 5.
UNKNOWN = 0x80  # it was found out before the last reset
CLOSED = 0x100  # the broker closes the connection on it
SILENT = 0x101  # the broker does not answer it
WRONG = 0x102  # the broker answers it with the wrong packet

# Reasons of a server's DISCONNECT that have nothing to do with a message (5, section 3.14.2.1).
_NOT_A_MESSAGE = b"\x00\x89\x8b\x8d\x8e\x96\x97\x98\x9c\x9d\x9f\xa0"
_EPIPE = const(32)
_TLS_ENDS = (-0x7280, -0x7880)  # Mbed TLS: the peer has closed, without and with a word

# Stages of a trial.
_IDLE = const(0)  # no connection is accepted
_SETTLING = const(1)  # what need not wait goes first
_ASKING = const(2)  # the broker is asked whether it has read that
_READY = const(3)  # it has: the next message may go
_PUT = const(4)  # the message is in the output, or its first pieces
_SENT = const(5)  # and a PINGREQ behind it
_HEARD = const(6)  # which is answered
_ASKED = const(7)  # another PINGREQ is out
_SHOWN = const(8)  # which is answered, too: the broker lives, and does not answer the message

_SETTLE_MS = const(1000)
_SILENT_MS = const(5000)
_NOBODY = const(0xFF)  # in the note
_PING_BYTES = const(8)  # room for one, with a margin


def remembered(session: "Any") -> None:
    """The session's note has a suspect: is it still the oldest message?"""
    seq = session.store.low
    if session.refuse_after and seq < session.store.next_seq and seq & 255 == session.note[3]:
        session.suspect = Suspect(session, seq, session.note[2])
    else:  # it is done
        _keep(session, _NOBODY, 0)


def found(session: "Any", seq: int, again: bool) -> None:
    """A connection has ended with this message as the first unanswered one; again: as the one before."""
    if again:
        session.suspect = Suspect(session, seq, 0)
    else:
        _keep(session, 0, seq)


def _keep(session: "Any", trials: "Any", seq: int) -> None:
    """Keep over power cuts how many trials of a message have failed; _NOBODY: no message is suspected."""
    note = session.note
    if note[0] != _NOBODY and (note[2] != trials or (note[3] != seq & 255 and trials != _NOBODY)):
        session.replace_note(bytes(note[:2]) + bytes((trials, seq & 255)) + bytes(note[4:]))


class Suspect:
    """Tries a session's messages one at a time.

    Args:
        session: whose quota this is from now on.
        seq: the message that is suspected.
        trials: how many trials of it have failed already.
    """

    def __init__(self, session: "Any", seq: int, trials: "Any") -> None:
        self._session = session
        self._seq = self._blamed = seq
        self._trials = trials
        self._end = max(session.cursor, seq + 1)  # the messages before this one are tried
        self._stage = _IDLE
        self._since_ms = 0
        self._begun = False  # is `_since_ms` set?
        self._silent_ms = min(_SILENT_MS, session.response_ms // 3 or _SILENT_MS)
        self._short = False  # did the last trial end before its message went out?
        self._quota = 0  # the session's
        self._marked = False  # is the message past PUBREC?
        self._disturbed = self._wrong = False
        self.pings = 0  # how many PINGREQ are unanswered
        if trials >= session.refuse_after:
            self._set_aside(UNKNOWN)

    # --- what the session and the connection tell ---

    def connected(self) -> None:
        """A connection is accepted: a trial begins.

        Not so where the last one ended before its message went out: a link that is never up for long gets as far without.
        """
        if self._short:
            self._short = False
            return
        session = self._session
        self._quota = session.quota
        session.quota = 0
        session.output.topic = None  # the program's QoS 0 messages are to come to the session
        self._stage = _SETTLING
        self._begun = False
        self.pings = 0

    def disturb(self) -> None:
        """The program has put a QoS 0 message: what the broker does next may be for that."""
        self._disturbed = True
        self._session.output.topic = None

    def answered_wrong(self, seq: int) -> None:
        """The broker's answer to a message has the wrong packet type."""
        self._wrong = seq == self._seq

    def pong(self, now_ms: int) -> None:
        """A PINGRESP has come."""
        self.pings -= 1
        if self.pings <= 0:
            stage = self._stage
            if stage == _ASKING:
                self._stage = _READY
            elif stage == _SENT:
                self._stage = _HEARD
                self._since_ms = now_ms
            elif stage == _ASKED:
                self._stage = _SHOWN
            self._go_on(now_ms)

    def tick(self, now_ms: int) -> "Any":
        """Do what is due; return how long the broker has been asked in vain whether it has read what went before a message."""
        if not self._begun:
            self._begun = True
            self._since_ms = now_ms
        stage = self._stage
        if stage == _IDLE:
            if self._session.store.low >= self._end:
                self._lift()
            return 0
        age = ticks_diff(now_ms, self._since_ms)
        if stage == _ASKING:
            return age
        if stage == _SETTLING:
            if age >= _SETTLE_MS and not self._session.request_id and self._ping():
                self._stage = _ASKING
                self._since_ms = now_ms
        elif stage == _HEARD and age >= self._silent_ms and self._session.flight and self._ping():
            self._stage = _ASKED
        self._go_on(now_ms)
        return 0

    def ended(self, error: "Any") -> None:
        """The connection ends, by this error, or (None) by us: was it the message's doing?"""
        if self._stage != _IDLE:
            code = self._verdict(error)
            self._short = self._stage < _PUT
            self._stage = _IDLE
            session = self._session
            session.quota = self._quota
            if code:
                if self._seq != self._blamed:
                    self._blamed = self._seq
                    self._trials = 0
                self._trials += 1
                _keep(session, self._trials, self._seq)
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
        """Put the next message when the one before is done, and a PINGREQ behind it."""
        session = self._session
        store = session.store
        if self._stage >= _PUT:
            if not session.flight:  # it is done
                self._acquit()
                if self.pings <= 0:  # and the broker has read all that came before: no need to ask again
                    self._stage = _READY
            elif not self._marked and store.is_marked(self._seq):  # its PUBREL is out: is that answered?
                self._acquit()
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
                self._lift()
        if self._stage == _PUT and not session.partial and self._ping():
            self._stage = _SENT

    def _acquit(self) -> None:
        """The broker has taken the message."""
        if self._trials and self._seq == self._blamed:
            self._trials = 0
            _keep(self._session, 0, self._seq + 1)

    def _lift(self) -> None:
        """All that was in flight is done: there is no suspect any more."""
        session = self._session
        if self._stage != _IDLE:
            session.quota = self._quota
        session.suspect = None
        _keep(session, _NOBODY, 0)

    def _verdict(self, error: "Any") -> "Any":
        """Return the code with which this trial has failed, 0: it has not."""
        session = self._session
        if self._stage < _PUT or not session.flight:
            return 0
        if self._wrong:
            return WRONG
        if self._stage == _SHOWN:
            return SILENT
        output = session.output
        # The message stands at the buffer's front: did anything of it leave?
        left = not output.end or output.start or session.partial_at > output.end
        return 0 if self._disturbed or session.request_id or not left else self._closing(error)

    def _closing(self, error: "Any") -> "Any":
        """Return the code with which the broker has closed the connection, 0: it has not, or for a reason of its own."""
        if isinstance(error, ConnectionLost):
            if error.args[:1] == (CLOSED_BY_PEER,):
                return CLOSED
            code = getattr(error, "code", 0)
            return 0 if code in _NOT_A_MESSAGE else code
        if isinstance(error, OSError) and (error.errno in (ECONNRESET, _EPIPE) or error.errno in _TLS_ENDS):
            return CLOSED
        return 0

    def _set_aside(self, code: int) -> None:
        """The broker does not take the message."""
        session = self._session
        event = _IN_DOUBT if session.store.is_marked(self._seq) else _REFUSED
        session.load_undelivered().set_aside(event, self._seq, code)
        session.proved = True  # the broker works: what is behind is not to wait longer for this one
