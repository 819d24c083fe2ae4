"""The blocking face: an MQTT client for a program with one thread, that never waits without a deadline.

`publish` stores and returns; the message leaves when there is a connection. `poll` reads, writes, answers, reconnects and calls
the handlers; call it often, or give it the time that the program has to spare. It knows the clock and how to wait for a socket;
everything else is in `link.py` and below.

What it needs: with a journal and a window of 8, all the cuts of `make faults` are survived in a heap of 128 KB on a 64-bit
machine, 84 KB of which are the code, where that is not frozen into the image; a 32-bit board needs about 0.7 times as much.
"""

from select import poll as _poll

from .backoff import Backoff
from .compat import const, ticks_add, ticks_diff, ticks_ms
from .connection import CONNECTED, DELIVERED, IN_DOUBT, MESSAGE, NOTHING, OPEN, REFUSED, Connection
from .errors import (
    CertificateRefused,
    ConnectionLost,
    ConnectRefused,
    DeadlineExpired,
    InvalidPacket,
    NotConnected,
    PublishRefused,
    UsageError,
)
from .link import Link
from .session.session import Session

try:
    from time import sleep_ms as _sleep_ms  # type: ignore[attr-defined]
except ImportError:  # CPython
    from time import sleep as _sleep

    def _sleep_ms(ms):
        _sleep(ms / 1000)


_IPOLL = hasattr(_poll(), "ipoll")
# The longest wait between two calls of `feed`, and the longest turn of a broker that never stops.
_SLICE_MS = const(200)
_PATIENCE_MS = const(5)  # how long `publish` puts off reading: what comes is answered in batches


class Client:
    """A client of one broker.

    Args:
        host, port: the broker, by name or address; the name is looked up afresh for every attempt.
        client_id: str or bytes; the broker keeps the session under this name. Level 3: 1 to 23 bytes.
        store: where messages wait: a `Journal`; None for a RamStore (nothing survives a reset).
        level: 3 (MQTT 3.1), 4 (3.1.1) or 5.
        user, password: str or bytes.
        keep_alive_s: a link that died silently is noticed within 1.5 times this. 0: only by `response_s`.
        will: (topic, payload, qos, retain): what the broker publishes where the connection is lost.
        window: how many messages may be in flight to the broker; the store needs more slots than that.
        buffer_bytes: size of each of the buffers; longer messages can be sent; received, see chunks.
        clean: start a new session at the broker with every connection.
        tls: an SSLContext (see `flashmqtt.tls`); server_name: the certificate's name where it is not `host`.
        timeout_s: deadline for TCP, for writes, and the default one for `connect`, `subscribe`, `disconnect`.
        response_s: how long an acknowledgement may take before the connection is made anew.
        retry_ms: resend on a live connection after this time: level 3's rule (20,000 where None), off at level 4, refused at 5.
        republish: what becomes of a message that was past PUBREC when the broker lost the session: True to publish it anew (it
            may arrive twice), False to drop it (it may be lost). `on_in_doubt` is called either way.
        backoff: see `Backoff`.
        five: a `Level5` with level 5's settings, where the defaults do not do.
        chunks: hand over a message that is longer than buffer_bytes in pieces (see `Message`). False: refuse it, which ends the
            connection (`error` is a PacketTooLarge). At QoS 2 it is refused in any case: it would have to be stored first.
        feed: called at least five times a second while this object waits: feed the watchdog here.

    Handlers:
        on_message(message): a `Message` that no subscription's own handler covers; acknowledged when the handler has returned.
        on_connect(session_present): the broker accepted a connection; True where it still knew the session.
        on_delivered(handle): the broker has acknowledged the message for good.
        on_in_doubt(handle): see republish.
        on_refused(handle, code): level 5: the broker refused the message; it is not sent again.

    Each handler may be None, and may publish and subscribe, but an answer can't be waited for in one (UsageError).

    Raises:
        UsageError: arguments that don't fit each other.
    """

    def __init__(
        self,
        host,
        port=1883,
        client_id=b"",
        store=None,
        level=4,
        user=None,
        password=None,
        keep_alive_s=60,
        will=None,
        window=8,
        buffer_bytes=1024,
        clean=False,
        tls=None,
        server_name=None,
        timeout_s=10,
        response_s=30,
        retry_ms=None,
        republish=True,
        backoff=None,
        feed=None,
        five=None,
        chunks=False,
    ):
        if store is None:
            from .session.ram import RamStore

            store = RamStore(window * 2 + 2)
        if level == 5:
            from .session.level5 import Level5

            five = five or Level5()
            if clean:
                five.expiry_s = 0
        if will:
            will = (octets(will[0]), octets(will[1]), will[2], will[3])
        self.session = Session(store, level, window, buffer_bytes, buffer_bytes, retry_ms, republish)
        self.connection = Connection(
            self.session,
            octets(client_id),
            keep_alive_s,
            None if user is None else octets(user),
            None if password is None else octets(password),
            will,
            buffer_bytes,
            response_s * 1000,
            clean,
            five,
            chunks,
        )
        self.link = Link(self.connection, host, port, backoff or Backoff(), tls, server_name, int(timeout_s * 1000))
        self.on_message = self.on_connect = self.on_delivered = self.on_in_doubt = self.on_refused = None
        self.timeout_s = timeout_s
        self._feed = feed
        self._poller = _poll()
        self._polled = None  # the socket that is registered there, and for what
        self._polled_events = 0
        self._topic = self._topic_bytes = b""  # of the last message, as it was given and as bytes
        self._refusals = {}

    # --- connecting ---

    @property
    def connected(self):
        """Whether there is a connection that the broker accepted."""
        return self.link.is_open()

    @property
    def error(self):
        """Why the last attempt or connection ended, None while there is a connection."""
        return self.link.error

    def start(self):
        """Connect as soon as that is possible, in the course of `poll` and `publish`; return at once."""
        self.link.start(ticks_ms())

    def connect(self, timeout_s=None):
        """Connect within timeout_s; return whether the broker still knew the session. From now on `poll` and `publish` reconnect.

        Raises:
            ConnectRefused: by the broker, with its reason; CertificateRefused: by us. `poll` goes on trying nevertheless.
            ConnectionLost: not connected in time (the last attempt's error is in `error`); `poll` goes on trying.
        """
        link = self.link
        link.start(ticks_ms())
        link.error = None
        deadline = self._deadline(timeout_s)
        while not link.is_open():
            if isinstance(link.error, (ConnectRefused, CertificateRefused)):
                raise link.error
            self._wait_step(deadline, link.error or "connect")
        return self.connection.session_present

    def disconnect(self, timeout_s=None):
        """End the connection in good order within timeout_s and stay disconnected. Stored messages wait for the next one."""
        link = self.link
        try:
            if link.is_open():
                deadline = self._deadline(timeout_s)
                self.connection.disconnect()
                while not link.write(ticks_ms()):
                    self._wait(self._left(deadline, "disconnect"))
        except (OSError, DeadlineExpired):
            pass
        finally:
            link.stop()
        self.session.store.flush()

    # --- sending ---

    def publish(self, topic, payload, qos=0, retain=False, properties=None):
        """Publish; return a handle for `delivered` (0 at QoS 0, and where the store's policy dropped the message).

        Args:
            topic: str or bytes, 1 to 65,535 bytes of UTF-8 without wildcards.
            payload: str or bytes, of any length, also none.
            qos: 0, 1 or 2.
            retain: the broker keeps it as the topic's last value; an empty payload clears that.
            properties: level 5's, as a dict (see `codec.properties`).

        At QoS 1 and 2 the message is stored when this returns, connected or not. At QoS 0 it is sent now or, without a
        connection, not at all; nor where the broker said at level 5 that it takes no retained messages, or none so long.

        Raises:
            InvalidTopic: not a topic's name. InvalidPacket: a QoS, or a property, that there is not.
            StoreFull: no room, and the store's policy is to refuse.
        """
        if topic is not self._topic:  # a str is made bytes once, not for every message
            self._topic = topic
            self._topic_bytes = octets(topic)
        if isinstance(payload, str):
            payload = payload.encode()
        session = self.session
        handle = 0
        if qos or properties or not session.put_again(self._topic_bytes, payload, retain):
            handle = self.put(self._topic_bytes, payload, qos, retain, properties)
        link = self.link
        if not link.handling:  # or else the poll that called the handler sends it
            now_ms = ticks_ms()
            if ticks_diff(now_ms, link.stepped_ms) >= _PATIENCE_MS or (
                handle and len(session.sending) >= session.quota
            ):
                self._work()
            elif session.ready:
                link.flush(now_ms)
            else:
                try:
                    link.write(now_ms)
                except (OSError, ConnectionLost) as error:
                    link.fail(error, now_ms)
        return handle

    def put(self, topic, payload, qos, retain, properties):
        """Store a message, or put it into the output; return its handle."""
        if properties:
            from .codec.properties import SUBSCRIPTION_IDENTIFIER, pack

            block = pack(3, properties)
            if SUBSCRIPTION_IDENTIFIER in dict(properties):  # only a server's PUBLISH may [MQTT-3.3.4-6]
                raise InvalidPacket("property", SUBSCRIPTION_IDENTIFIER)
            properties = block
        session = self.session
        if qos:
            return session.publish(topic, payload, qos, retain, properties)
        if self.connection.state == OPEN and not session.put_unstored(topic, payload, retain, properties):
            self._put_long(topic, payload, retain, properties)
        return 0

    def _put_long(self, topic, payload, retain, properties):
        """Send a QoS 0 message that does not fit behind what is in the output, or never would, in pieces."""
        session = self.session
        link = self.link
        deadline = self._deadline(None)
        at = -1
        try:
            while at < len(payload):
                while not link.write(ticks_ms()):
                    self._wait(self._left(deadline, "write"))
                if at >= 0:
                    at = session.put_piece(payload, at)
                elif session.put_unstored_head(topic, len(payload), retain, properties):
                    at = 0
                else:  # a stored message is half-way out
                    session.pump(ticks_ms())
        except (OSError, ConnectionLost) as error:
            link.fail(error, ticks_ms())  # half a packet must not be followed by another

    def delivered(self, handle):
        """Return whether the broker has acknowledged the message with this handle for good: PUBACK, or PUBCOMP.

        Raises:
            PublishRefused: the broker refused it (level 5).
        """
        if handle in self._refusals:
            raise PublishRefused(handle, self._refusals.pop(handle))
        return self.session.delivered(handle)

    def drain(self, timeout_s):
        """Wait, up to timeout_s, until every stored message is delivered; return whether that is so."""
        deadline = self._deadline(timeout_s)
        while self.session.pending():
            if ticks_diff(deadline, ticks_ms()) <= 0:
                return False
            self._wait_step(deadline, None)
        return True

    @property
    def pending(self):
        """How many messages are stored and not acknowledged."""
        return self.session.pending()

    # --- receiving ---

    def subscribe(self, filter_, qos=0, handler=None, timeout_s=None, properties=None):
        """Subscribe; return the QoS granted. The subscription is restored whenever the broker loses the session.

        Without a connection it is remembered, and None is returned.

        Args:
            filter_: str or bytes; `+` stands for one level, `#`, at the end, for all that follow (§4.7).
            qos: at most this is asked for; at level 5 with the other option bits (5, §3.8.3.1).
            handler: handler(message) for what the filter covers; None leaves it to `on_message`.
            timeout_s: for the broker's answer; None for the client's own.
            properties: level 5's, as a dict: a subscription identifier, say, which the messages then carry in theirs.

        Raises:
            InvalidTopic: not a topic filter; BufferTooSmall: a longer one than the buffer.
            InvalidPacket: a QoS, an option or a property that there is not.
            SubscriptionRefused: by the broker; the connection goes on.
            DeadlineExpired: no answer in time.
        """
        return self._ask(self.want(filter_, qos, handler, properties), timeout_s)

    def want(self, filter_, qos, handler, properties):
        """Ask for a subscription as soon as there is a connection; return its entry."""
        if properties:
            from .codec.properties import pack

            properties = pack(8, properties)
        return self.session.subscribe(octets(filter_), qos, handler, properties)

    def unsubscribe(self, filter_, timeout_s=None):
        """End the subscription of filter_; without a connection that is remembered, and asked for at the next one.

        Raises:
            DeadlineExpired: no answer within timeout_s.
        """
        entry = self.session.unsubscribe(octets(filter_))
        if entry:
            self._ask(entry, timeout_s)

    def _ask(self, entry, timeout_s):
        session = self.session
        deadline = self._deadline(timeout_s)
        if not self.link.handling:
            self._work()
        while self.link.is_open() and not self.link.handling and entry in session.subscriptions:
            granted = entry.granted()
            if granted is not None:
                return granted
            self._wait_step(deadline, "no answer to SUBSCRIBE or UNSUBSCRIBE")
        return None

    def poll(self, timeout_ms=0):
        """Do what is to be done, waiting up to timeout_ms for the first message; return how many messages were handled.

        What a handler raises comes out here. Its message is then not acknowledged: the connection is made anew, and the broker
        sends it again.
        """
        deadline = ticks_add(ticks_ms(), timeout_ms)
        while True:
            handled = self._work()
            left = ticks_diff(deadline, ticks_ms())
            if handled or left <= 0:
                return handled
            self._wait(left)

    def _work(self):
        """Handle the events there are, without waiting, and not for ever; return how many of them were messages."""
        link = self.link
        if link.handling:
            raise UsageError("a handler can't wait for what comes behind its message")
        handled = 0
        begin_ms = ticks_ms()
        while True:
            now_ms = ticks_ms()
            event = link.step(now_ms)
            if event == NOTHING:
                if link.wait_ms <= 0 and link.sock and ticks_diff(now_ms, begin_ms) < _SLICE_MS:
                    continue
                return handled
            if event == MESSAGE:
                handled += 1
                self._dispatch(self.connection.message)
            elif event == DELIVERED:
                if self.on_delivered:
                    self._call(self.on_delivered, self.session.handle)
            elif event == CONNECTED:
                if self.on_connect:
                    self._call(self.on_connect, self.connection.session_present)
            elif event == IN_DOUBT:
                if self.on_in_doubt:
                    self._call(self.on_in_doubt, self.session.handle)
            elif event == REFUSED:
                self._refuse()

    def note_refusal(self):
        """Keep what the broker refused, for `delivered`: a few, as there may be nobody who asks."""
        if len(self._refusals) > 15:
            self._refusals.clear()
        self._refusals[self.session.handle] = self.session.code

    def _refuse(self):
        session = self.session
        self.note_refusal()
        if self.on_refused:
            self.link.handling = True
            try:
                self.on_refused(session.handle, session.code)
            finally:
                self.link.handling = False

    def _dispatch(self, message):
        session = self.session
        kind = session.untaken
        found = False
        for entry in session.subscriptions:
            if entry.takes(message):
                found = True
                self._call(entry.handler, message)
        if not found and self.on_message:
            self._call(self.on_message, message)
        if session.untaken != kind:  # a handler disconnected
            session.took(kind)

    def _call(self, handler, argument):
        link = self.link
        link.handling = True
        try:
            handler(argument)
        except Exception as error:
            link.fail(error, ticks_ms())  # not taken: not acknowledged [MQTT-4.8.0-2]
            raise
        finally:
            link.handling = False

    # --- waiting ---

    def _deadline(self, timeout_s):
        return ticks_add(ticks_ms(), int((self.timeout_s if timeout_s is None else timeout_s) * 1000))

    def _left(self, deadline, what):
        left = ticks_diff(deadline, ticks_ms())
        if left <= 0:
            if isinstance(what, Exception):
                raise NotConnected(what)
            raise DeadlineExpired(what)
        return left

    def _wait_step(self, deadline, what):
        """Wait for something to happen and handle it; raise when the deadline has passed."""
        left = ticks_diff(deadline, ticks_ms())
        if left > 0:
            self._wait(left)
        elif what:
            self._left(deadline, what)
        self._work()

    def _wait(self, left_ms):
        """Wait until the socket is ready, the link has something to do, or the time is over."""
        link = self.link
        wait = link.wait_ms if link.wait_ms < left_ms else left_ms
        feed = self._feed
        if feed:
            feed()
            wait = min(wait, _SLICE_MS)
        if wait <= 0:
            return
        sock = link.sock
        if sock is not self._polled and self._polled is not None:
            # That socket is closed, and on some ports a poller can't be told to forget it: it would keep it for ever.
            self._poller = _poll()
            self._polled = None
        if not sock:
            _sleep_ms(wait)
            return
        if sock is not self._polled or link.events != self._polled_events:
            self._poller.register(sock, link.events)
            self._polled = sock
            self._polled_events = link.events
        if _IPOLL:
            for _ in self._poller.ipoll(wait):  # type: ignore[attr-defined]  # allocates nothing
                pass
        else:
            self._poller.poll(wait)


def octets(text):
    """Return bytes: a str encoded, anything else as it is."""
    return text.encode() if isinstance(text, str) else text
