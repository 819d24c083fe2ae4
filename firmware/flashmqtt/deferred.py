"""The client's queue of waiting messages: hands them over, calls failed handlers again, and drops unclaimed messages.

Loaded with the first such message: a program whose handlers are set in time and do not fail never needs it. It knows the client's
handlers; `session/waiting.py` has the order of the messages and of their acknowledgements.
"""

from .compat import TYPE_CHECKING, const, ticks_ms
from .session.waiting import WaitingQueue

if TYPE_CHECKING:
    from typing import Any  # noqa: TID251

# Which messages to return, and states: `session/waiting.py`.
_CLAIMED = const(1)
_UNCLAIMED = const(2)
_BUSY = const(1)
_LEFT = const(2)

_ERRORS = const(8)  # how many errors of handlers are kept for `poll`


class Deferred(WaitingQueue):
    """The waiting messages of a client; the arguments are those of the client and of `WaitingQueue`."""

    def __init__(
        self,
        client: "Any",
        limit: int,
        limit_bytes: int,
        attempts: int,
        clean: bool,
        keeps_unclaimed: bool,
        unclaimed_ms: int,
    ) -> None:
        super().__init__(client.session, limit, limit_bytes, attempts, clean)
        self._client = client
        self._keeps_unclaimed = keeps_unclaimed
        self.unclaimed_ms = unclaimed_ms

    def serve(self, now_ms: int) -> "Any":
        """Hand over waiting messages that are claimed now, drop unclaimed ones; return how many were handed over.

        Calls by a timer are refused meanwhile, but those of handlers are not.
        """
        client = self._client
        try:
            client.session.busy = True
            return self._serve(now_ms)
        finally:
            client.link.handling = client.session.busy = False

    def _serve(self, now_ms: int) -> "Any":
        client = self._client
        session = client.session
        link = client.link
        on_message = client.on_message
        if not self.due(now_ms, on_message is not None):
            return 0
        for message in self.entries:
            if message.state == _BUSY:  # Ctrl-C came between a handler and the next line
                self.put_back(message)
        handled = 0
        failed = len(client.errors)
        while len(client.errors) == failed:
            message = self.next(now_ms, _CLAIMED | _UNCLAIMED if on_message else _CLAIMED)
            if not message:
                break
            if not self.begin(message):
                continue
            handled += 1
            try:
                for entry in self.claims(message) or (None,):
                    if entry not in message.finished:
                        before = message.finished
                        finished = before + (entry,)  # before the call: no memory may be left after it
                        handler = entry.handler if entry else on_message
                        session.busy = False
                        link.handling = True
                        result = handler(message)
                        message.finished = finished  # now: the next jump is where Ctrl-C or a timer may come
                        session.busy = True
                        link.handling = False
                        if result is not None:
                            message.finished = before
                            client.check(result)
                            message.finished = finished
            except BaseException as error:
                link.handling = False
                self.failed_with(message, error)
                session.busy = True
                if not isinstance(error, Exception):
                    raise
            else:
                self.finish(message)
        self.drop_unclaimed(now_ms)
        return handled

    def finish(self, entry: "Any") -> None:
        """A message was taken, or is discarded; a timer's publish is refused while it is acknowledged."""
        session = self._client.session
        busy = session.busy
        try:
            session.busy = True
            WaitingQueue.finish(self, entry)
        except KeyboardInterrupt:  # the acknowledgement may be missing
            self._client.link.interrupted()
            raise
        finally:
            session.busy = busy

    def drop_unclaimed(self, now_ms: int) -> None:
        """Report messages that are unclaimed for too long; acknowledge them if that is the policy."""
        client = self._client
        while True:
            message = self.expired(now_ms, self.unclaimed_ms)
            if not message:
                return
            self.unclaimed += 1
            message.reported = False  # before the call: no memory may be left after it
            left = message.state == _LEFT or message.in_pieces  # only its topic is in RAM
            if left or self.begin(message):
                busy = client.session.busy
                client.session.busy = False
                client.call(client.on_unclaimed, message)
                client.session.busy = busy
                message.reported = True  # last: after Ctrl-C it is reported again
                if not self._keeps_unclaimed:
                    self.finish(message)
                elif not left:
                    self.put_back(message)

    def failed_now(self, error: "Any", finished: "Any") -> None:
        """A handler raised for the message that has just arrived; `finished` handlers had finished with it before."""
        client = self._client
        if not (isinstance(error, Exception) or client.session.handed) and client.session.message.qos:
            client.link.interrupted()  # Ctrl-C ended `add`
        try:
            client.session.busy = True
            message = self.refuse(None, ticks_ms(), isinstance(error, Exception), finished)
        except BaseException as full:  # no memory, or Ctrl-C: the broker sends it again
            message = None
            client.session.handed = 0
            client.link.fail(full, ticks_ms())
            if not isinstance(full, MemoryError):
                raise
        finally:
            client.session.busy = False
        self.report_error(error, message or client.session.message)

    def failed_with(self, message: "Any", error: "Any") -> None:
        """A handler raised for a message that waited."""
        session = self._client.session
        try:
            session.busy = True
            self.refuse(message, ticks_ms(), isinstance(error, Exception))
        finally:
            session.busy = False
        self.report_error(error, message)

    def report_error(self, error: "Any", message: "Any") -> None:
        """Pass what a handler raised to `on_error`, or keep it for `poll`."""
        client = self._client
        if not isinstance(error, Exception):
            return
        if client.on_error:
            try:
                client.run(client.on_error, error, message)
                return
            except Exception as another:
                error = another
        if len(client.errors) < _ERRORS:
            client.errors.append(error)
