"""Subscriptions of a session (3.1.1 and 5, sections 3.8 to 3.11).

One SUBSCRIBE or UNSUBSCRIBE is in flight at a time, with all filters to add or to remove at that moment. If the broker
loses the session, the client subscribes again. A refused subscription is asked for again with every new connection, and
after 10 s, 20 s and so on up to an hour: the broker may be busy, or may grant the right later. Some brokers close the connection
instead. So an unanswered filter is asked for alone, and after three such connections only at these times. This module calls no
handler.
"""

from flashmqtt.codec.subscribe import put_subscribe, put_unsubscribe
from flashmqtt.codec.topics import covers
from flashmqtt.compat import TYPE_CHECKING, const, ticks_add, ticks_diff
from flashmqtt.errors import BufferTooSmall, ProtocolError, Refused, UsageError
from flashmqtt.fast import raw_run

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

_SUBACK = const(9)
_LEVEL_5 = const(5)
_REFUSED = const(0x80)  # a SUBACK's code from here on is a refusal
_CLOSED = const(0x100)  # as in `suspect.py`
_MOST_UNANSWERED = const(3)
_SUBSCRIBED = const(5)  # an event
_AGAIN_MS = const(10000)  # delay before a refused subscription is asked for again, doubled every time
_LONGEST_MS = const(3600000)
_DOUBLINGS = const(9)

_len = len  # a board needs 5 us longer to find a builtin than to find a global

# States of a subscription.
_TO_SUBSCRIBE = const(0)
_SUBSCRIBE_SENT = const(1)
GRANTED = const(2)
DECLINED = const(3)
_TO_UNSUBSCRIBE = const(4)
_UNSUBSCRIBE_SENT = const(5)
ENDED = const(6)


class Subscription:
    """A topic filter, what was requested for it, and the broker's answer."""

    again_ms = 0  # when to ask again after a refusal; few objects set it

    def __init__(
        self,
        filter_: "bytes | bytearray | memoryview",
        options: "Any",
        handler: "Any",
        properties: "bytes | bytearray | memoryview | None" = None,
    ) -> None:
        self.filter = filter_
        self.options = options  # QoS; 5: with the other option bits
        self.handler = handler  # called by the client
        self.awaited = False  # the handler is an `async def` function
        self.properties = properties  # 5: SUBSCRIBE's, packed
        self.state = _TO_SUBSCRIBE
        self.code = 0  # the granted QoS, or the refusal; after UNSUBSCRIBE, UNSUBACK's reason code
        self.refusals = 0  # how often it was refused in a row
        self.unanswered = 0  # how many connections failed since a request for it, without an answer

    def takes(self, message: "Any") -> "Any":
        """Return the handler if there is one and the filter matches the message's topic."""
        # (Not more than four locals: see `Client._dispatch`.)
        start = message.topic_start
        n = message.topic_end - start
        if n == _len(self.filter) and raw_run(message.topic_buffer, self.filter, n, start, 0, 0):  # no wildcards
            return self.handler
        return self.handler and covers(self.filter, message.topic_buffer, start, start + n)

    def decline(self, code: int, now_ms: int) -> None:
        """The broker refused: ask again later. A refused UNSUBSCRIBE is not repeated."""
        self.state = ENDED if self.state > DECLINED else DECLINED
        self.code = code
        self.again_ms = ticks_add(now_ms, min(_AGAIN_MS << min(self.refusals, _DOUBLINGS), _LONGEST_MS))
        self.refusals += 1

    def result(self) -> "int | None":
        """Return the broker's answer: the granted QoS or a reason code (0x80 and above: refused); None: no answer yet."""
        return self.code if self.state == GRANTED or self.state == DECLINED or self.state == ENDED else None

    def granted(self) -> "int | None":
        """Return `result`.

        Raises:
            Refused: the broker refused.
        """
        code = self.result()
        if code is not None and code >= _REFUSED:
            raise Refused("filter " + str(self.filter, "utf-8"), code)
        return code


def want(session: "Any", filter_: "Any", options: "Any", handler: "Any", properties: "Any") -> "Any":
    """Check a program's arguments and ask for one or several subscriptions; return the object to wait for.

    Raises:
        InvalidTopic, UsageError, BufferTooSmall: no SUBSCRIBE can ask for it.
    """
    if handler and not callable(handler):
        raise UsageError("handler %r: a function is needed" % (handler,))
    if properties:
        from flashmqtt.codec.properties import pack

        if session.level != _LEVEL_5:
            raise UsageError("properties need level 5, not %d" % session.level)
        properties = pack(8, properties)
    if isinstance(filter_, (list, tuple)):
        from .several import want_all

        return want_all(session, filter_, options, handler, properties)
    return requests_of(session).want(filter_, options, handler, properties)


def requests_of(session: "Any") -> "Any":
    """Return a session's `Requests`; make it when it is first needed.

    Raises:
        UsageError: a timer's call interrupts another one, which may need the same buffer.
    """
    if session.busy:
        from flashmqtt.arguments import refuse_call

        refuse_call(None)
    if session.requests is None:
        session.requests = Requests(session)
    return session.requests


class Requests:
    """A session's SUBSCRIBE and UNSUBSCRIBE packets, and the broker's answers."""

    def __init__(self, session: "Any") -> None:
        self._session = session
        # Far from the ids of the messages, which follow next_seq.
        self._last_id = (session.store.next_seq + 32767) % 65535
        self._asked: "list[Any]" = []  # the entries of the request in flight, in the packet's order
        self._put: "Any" = put_subscribe
        self._put_ms = 0

    def want(self, filter_: "Any", options: "Any", handler: "Any" = None, properties: "Any" = None) -> "Any":
        """Ask for a subscription, now or with the next connection; return its entry, which has the result."""
        self.check(filter_, options, properties)
        entry = self.entry(filter_)
        entry.options = options
        entry.handler = handler
        entry.awaited = False
        entry.properties = properties
        if entry.unanswered < _MOST_UNANSWERED or entry.state > DECLINED:
            entry.state = _TO_SUBSCRIBE
            entry.refusals = 0
        self.changed()
        if options & 3 == 2:
            self._session.load_inbound()
        return entry

    def check(self, filter_: "Any", options: "Any", properties: "Any") -> None:
        """Check that a SUBSCRIBE can ask for this."""
        session = self._session
        n = put_subscribe(session.scratch, 0, 1, ((filter_, options),), session.level, False, properties)
        if n > len(session.output.buf):
            raise BufferTooSmall("SUBSCRIBE of %d bytes: buffer_bytes has %d" % (n, len(session.output.buf)))

    def entry(self, filter_: "bytes | bytearray | memoryview") -> "Any":
        """Return the subscription with this filter; make a new one if there is none."""
        session = self._session
        session.wants_request = True
        filter_ = bytes(filter_)  # the program may change a bytearray
        for entry in session.subscriptions:
            if entry.filter == filter_:
                return entry
        entry = Subscription(filter_, 0, None)
        session.subscriptions.append(entry)
        return entry

    def changed(self) -> None:
        """Handlers have changed: waiting messages may be claimed now."""
        if self._session.waiting:
            self._session.waiting.changed()

    def connected(self, restore: "Any") -> None:
        """The broker accepted a connection; restore: ask for granted ones again. mosquitto 2 forgets shared ones anyway."""
        session = self._session
        for entry in session.subscriptions:
            sent = entry.state == _SUBSCRIBE_SENT or entry.state == _UNSUBSCRIBE_SENT
            if entry.unanswered >= _MOST_UNANSWERED:
                if sent:
                    entry.decline(_CLOSED, self._put_ms)
            elif sent:
                entry.state -= _SUBSCRIBE_SENT - _TO_SUBSCRIBE
            elif entry.state == DECLINED or (entry.state == GRANTED and (restore or entry.filter[:7] == b"$share/")):
                entry.state = _TO_SUBSCRIBE
        session.wants_request = bool(session.subscriptions)

    def put(self, now_ms: int) -> None:
        """Put one SUBSCRIBE for all wanted filters, or one UNSUBSCRIBE for all unwanted ones; or repeat the last (3.1)."""
        session = self._session
        output = session.output
        dup = session.request_id != 0
        if not dup:
            self._put = put_subscribe
            if not self._collect(_TO_SUBSCRIBE, now_ms):
                self._put = put_unsubscribe
                asks = self._collect(_TO_UNSUBSCRIBE, now_ms)
                for entry in session.subscriptions[:]:
                    if entry.state == ENDED:  # the level 5 server would not accept its UNSUBSCRIBE
                        self._end(entry)
                if not asks:
                    session.wants_request = False
                    return
            low = session.store.low
            # An id that no message in flight has, or will have soon.
            while not session.request_id or (session.request_id - low) % 65535 < 64:
                self._last_id = session.request_id = self._last_id % 65535 + 1
        properties = self._asked[0].properties
        while True:
            what: "list[Any]" = []
            for entry in self._asked:
                what.append((entry.filter, entry.options) if self._put is put_subscribe else entry.filter)
            try:
                output.put(self._put, session.request_id, what, session.level, dup, properties)
                break
            except BufferTooSmall:
                if output.end:
                    if not dup:
                        session.request_id = 0
                    return  # try again when the output is empty
                # The rest goes into the next packet; each entry fits.
                self._asked = self._asked[: len(self._asked) // 2]
        self._put_ms = now_ms
        for entry in self._asked:
            if entry.state == _TO_SUBSCRIBE or entry.state == _TO_UNSUBSCRIBE:
                entry.state += _SUBSCRIBE_SENT - _TO_SUBSCRIBE

    def _collect(self, state: int, now_ms: int) -> "Any":
        """Set `_asked` to the entries in this state, as many as fit in one request; return them."""
        session = self._session
        asked = []
        for entry in session.subscriptions:
            if entry.state == state:
                asked.append(entry)
        if session.five:
            asked = session.five.together(asked, now_ms)
        for entry in asked:
            if entry.unanswered:
                asked = [entry]
                break
        self._asked = asked
        return asked

    def failed(self) -> None:
        """The connection failed before the request in flight was answered."""
        for entry in self._asked:
            entry.unanswered += 1

    def answered(self, packet: "Any") -> "Any":
        """Process a SUBACK or UNSUBACK: each filter has its own result, and a refusal does not end the connection."""
        session = self._session
        kind = packet.packet_type
        asked = self._asked
        count = packet.codes_end - packet.codes_start
        if (kind == _SUBACK) != (self._put is put_subscribe) or (
            count != len(asked) and (kind == _SUBACK or session.level == _LEVEL_5)
        ):
            raise ProtocolError("%d results for %d filters" % (count, len(asked)))  # [MQTT-3.8.4-5]
        session.request_id = 0
        session.wants_request = True
        if session.five:
            session.five.refused(packet)
        for i in range(len(asked)):
            entry = asked[i]
            # The state of an entry that was changed meanwhile is neither: its next request is still to be sent.
            code = packet.buffer[packet.codes_start + i] if count else 0
            entry.unanswered = 0
            if entry.state == _SUBSCRIBE_SENT:
                if code >= _REFUSED:
                    entry.decline(code, self._put_ms)
                else:
                    entry.code = code
                    entry.state = GRANTED
                    entry.refusals = 0
            elif entry.state == _UNSUBSCRIBE_SENT:
                entry.code = code
                entry.state = ENDED
                self._end(entry)
        return _SUBSCRIBED

    def _end(self, entry: "Any") -> None:
        self._session.subscriptions.remove(entry)
        self.changed()

    def overdue_ms(self, now_ms: int) -> "Any":
        """Return how long the request in flight has waited for its answer; at level 3, repeat it when that is due (Q5).

        If none is in flight, ask again for refused subscriptions when that is due.
        """
        session = self._session
        if not session.request_id:
            for entry in session.subscriptions:
                if entry.state == DECLINED and ticks_diff(now_ms, entry.again_ms) >= 0:
                    entry.state = _TO_SUBSCRIBE
                    session.wants_request = True
            return 0
        age = ticks_diff(now_ms, self._put_ms)
        if session.level == 3 and session.retry_ms and age >= session.retry_ms and session.output.room() > 0:
            self.put(now_ms)
            return 0
        return age
