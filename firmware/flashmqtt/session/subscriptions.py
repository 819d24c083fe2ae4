"""Subscriptions: what a session asks its broker to send (3.1.1 and 5, sections 3.8 to 3.11).

One SUBSCRIBE or UNSUBSCRIBE is in flight at a time, for all that is wanted or not wanted by then. Restored is what a lost session
takes with it. It knows the session that it belongs to, into whose output it writes, and keeps handlers without calling them.

A board that only publishes never imports this, nor what it imports: 2.4 KB of `.mpy`.
"""

from flashmqtt.codec.quick import same
from flashmqtt.codec.subscribe import put_subscribe, put_unsubscribe
from flashmqtt.codec.topics import covers
from flashmqtt.compat import const, ticks_diff
from flashmqtt.errors import BufferTooSmall, ProtocolViolation, SubscriptionRefused

_SUBACK = const(9)
_LEVEL_5 = const(5)
_REFUSED = const(0x80)  # from here on, a SUBACK's code is a refusal
_SUBSCRIBED = const(5)  # what the session reports

# States of a subscription.
_WANTED = const(0)
_ASKED = const(1)
GRANTED = const(2)
DECLINED = const(3)
_UNWANTED = const(4)
_UNASKED = const(5)


class Subscription:
    """A topic filter, what was asked for it and what the broker said."""

    def __init__(self, filter_, options, handler, properties=None):
        self.filter = filter_
        self.options = options  # QoS; 5: with the other option bits
        self.handler = handler  # belongs to the face
        self.properties = properties  # 5: SUBSCRIBE's, packed
        self.state = _WANTED
        self.code = 0  # the granted QoS, or the refusal

    def takes(self, message):
        """Return whether there is a handler and the filter covers the message's topic."""
        if not self.handler:
            return False
        start = message.topic_start
        n = message.topic_end - start
        filter_ = self.filter
        if n == len(filter_) and same(message.topic_buffer, start, filter_, n):  # a topic has no wildcards
            return True
        return covers(filter_, message.topic_buffer, start, start + n)

    def granted(self):
        """Return the QoS that was granted, None: there is no answer yet.

        Raises:
            SubscriptionRefused: by the broker.
        """
        if self.state == DECLINED:
            raise SubscriptionRefused(str(self.filter, "utf-8"), self.code)
        return self.code if self.state == GRANTED else None


class Requests:
    """A session's SUBSCRIBE and UNSUBSCRIBE packets, and what the broker answered."""

    def __init__(self, session):
        self._session = session
        # Far from the ids of the messages, which follow next_seq.
        self._last_id = (session.store.next_seq + 32767) % 65535
        self._asked = []  # the entries in the request that is in flight, in its order
        self._put = put_subscribe
        self._put_ms = 0

    def want(self, filter_, options, handler, properties):
        """Do what the session's `subscribe` does."""
        session = self._session
        n = put_subscribe(session.scratch, 0, 1, ((filter_, options),), session.level, False, properties)
        if n > len(session.out):
            raise BufferTooSmall(n)
        session.wants_request = session.ready = True
        for entry in session.subscriptions:
            if entry.filter == filter_:
                entry.options, entry.handler, entry.properties, entry.state = options, handler, properties, _WANTED
                return entry
        entry = Subscription(filter_, options, handler, properties)
        session.subscriptions.append(entry)
        return entry

    def unwant(self, filter_):
        """Do what the session's `unsubscribe` does."""
        session = self._session
        for entry in session.subscriptions:
            if entry.filter == filter_:
                session.wants_request = session.ready = True
                entry.state = _UNWANTED
                return entry
        return None

    def connected(self, restore):
        """The broker accepted a connection; restore: ask for what it had granted, too."""
        session = self._session
        for entry in session.subscriptions:
            if entry.state == _UNASKED:
                entry.state = _UNWANTED
            elif entry.state == _ASKED or (entry.state == GRANTED and restore):
                entry.state = _WANTED
        session.wants_request = bool(session.subscriptions)

    def put(self, now_ms):
        """Put one SUBSCRIBE for all that is wanted, or one UNSUBSCRIBE for all that is not; or repeat the last (3.1)."""
        session = self._session
        dup = session.request_id != 0
        if not dup:
            self._asked = [entry for entry in session.subscriptions if entry.state == _WANTED]
            if session.five:
                self._asked = session.five.together(self._asked)
            self._put = put_subscribe
            if not self._asked:
                self._asked = [entry for entry in session.subscriptions if entry.state == _UNWANTED]
                self._put = put_unsubscribe
                if not self._asked:
                    session.wants_request = False
                    return
            while not session.request_id or session.request_id in session.sending:
                self._last_id = session.request_id = self._last_id % 65535 + 1
        properties = None
        while True:
            what = [entry.filter for entry in self._asked]
            if self._put is put_subscribe:
                what = [(entry.filter, entry.options) for entry in self._asked]
                properties = self._asked[0].properties
            try:
                session.out_end = self._put(
                    session.out, session.out_end, session.request_id, what, session.level, dup, properties
                )
                break
            except BufferTooSmall:
                if session.out_end:
                    if not dup:
                        session.request_id = 0
                    return  # when the output is empty again
                self._asked = self._asked[: len(self._asked) // 2]  # the rest with the next packet: each one alone fits
        self._put_ms = now_ms
        for entry in self._asked:
            if entry.state == _WANTED or entry.state == _UNWANTED:
                entry.state += _ASKED - _WANTED

    def answered(self, packet):
        """A SUBACK or UNSUBACK: each filter has its own result, and a refusal is no reason to end the connection."""
        session = self._session
        kind = packet.packet_type
        asked = self._asked
        count = packet.codes_end - packet.codes_start
        if (kind == _SUBACK) != (self._put is put_subscribe) or (
            count != len(asked) and (kind == _SUBACK or session.level == _LEVEL_5)
        ):
            raise ProtocolViolation("%d results for %d filters" % (count, len(asked)))  # [MQTT-3.8.4-5]
        session.request_id = 0
        session.wants_request = session.ready = True
        for i in range(len(asked)):
            entry = asked[i]
            # One that was asked for otherwise meanwhile has its next request to come.
            if entry.state == _ASKED:
                entry.code = packet.buffer[packet.codes_start + i]
                entry.state = DECLINED if entry.code >= _REFUSED else GRANTED
            elif entry.state == _UNASKED:
                session.subscriptions.remove(entry)
        return _SUBSCRIBED

    def overdue_ms(self, now_ms):
        """Return how long the request has waited for its answer; or repeat it, where that is level 3's (Q5)."""
        session = self._session
        age = ticks_diff(now_ms, self._put_ms)
        if session.level == 3 and session.retry_ms and age >= session.retry_ms and session.has_room():
            self.put(now_ms)
            return 0
        return age
