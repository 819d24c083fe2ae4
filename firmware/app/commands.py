"""Remote commands, each executed exactly once, in spite of power cuts and duplicates.

A command is a JSON object on `flashmqtt-commands/<device>`: {"id": "7", "do": "interval", "ms": 5000}. It is sent at QoS 1, so
it may arrive twice, and the power may fail between its execution and its acknowledgement. So a command is first written as a
durable intent: the state file is replaced. The new one has the command, its id in the list of the last ids, and the sequence
number of the reply. The reply, a stored message, is the commit. After a power cut, an intent whose reply was not stored is
executed and answered; an intent whose reply was stored is done. A command whose id is in the list is ignored.

If the store has no room for a reply, the reply is `due`. Until it is stored, the application stores no other message, because
the reply must have the intent's number, and the client has to call `take` again for other commands.

Each command writes flash, so the rate is limited: a command above the limit is counted, but neither executed nor answered.

    do         with          effect
    interval   ms            sample at this interval in milliseconds, also after resets
    flush                    write and send all pending data, and publish the health message now
    identify                 blink the LED for a while
    reboot                   restart when the reply is delivered, or after a while
"""

from binascii import crc32
from json import loads

from flashmqtt.codec.utf8 import text_kind
from flashmqtt.errors import StoreFull

_BURST = 32
_REFILL_MS = 5000  # per additional command
# Only commands that the broker had in flight when a connection was lost can arrive again: fewer (mosquitto: 20).
_KEPT_IDS = 64
_MOST_BRACKETS = 41  # the object's, and an id of brackets; nested lists would take all memory
LEAST_MS, MOST_MS = 100, 86400000


class CommandRefused(Exception):
    """A command is invalid; the text is the reply."""


def parse(payload):
    """Return (id, name, ms) of a command's payload; ms is 0 except for "interval".

    Raises:
        CommandRefused: see the class; the second argument is the id, or "" if it can't be read.
    """
    if payload.count(b"{") + payload.count(b"[") > _MOST_BRACKETS:
        raise CommandRefused("nested too deeply", "")
    try:
        command = loads(payload)
    except ValueError:
        raise CommandRefused("not JSON", "")
    if not isinstance(command, dict):
        raise CommandRefused("not an object", "")
    ident = command.get("id", "")
    if isinstance(ident, int):
        ident = str(ident)
    try:
        known = ident.encode()
    except (AttributeError, ValueError):  # no text; a surrogate, on CPython
        known = b""
    # MicroPython's `loads` accepts surrogates and overlong characters.
    if not known or len(ident) > 40 or text_kind(known, 0, len(known)) < 0:
        raise CommandRefused("id has to be a text of 1 to 40 characters, valid in UTF-8", "")
    name = command.get("do")
    if name not in ("interval", "flush", "identify", "reboot"):
        raise CommandRefused("do has to be interval, flush, identify or reboot", ident)
    ms = command.get("ms", 0)
    if name == "interval" and (not isinstance(ms, int) or not LEAST_MS <= ms <= MOST_MS):
        raise CommandRefused("ms has to be a whole number from %d to %d" % (LEAST_MS, MOST_MS), ident)
    return ident, name, ms if name == "interval" else 0


class Commands:
    """Executes commands, each once, with one reply.

    Args:
        state: a `State`.
        stored: returns how many messages the device has stored in its life.
        act: called with (name, ms) to execute a command; repeating it after a power cut must be harmless.
        reply: called with (id, result) to publish the reply as one stored message; returns 0 if it is not stored.
        now_ms: returns the time since the start.

    Attributes:
        refused: how many commands since the start were neither executed nor answered, because they exceeded the rate limit.
        due: (id, result) of a reply that is not stored yet, or None.
    """

    def __init__(self, state, stored, act, reply, now_ms):
        self.refused = 0
        self.due = None
        self._now_ms = now_ms
        self._allowed = _BURST
        self._refilled_ms = now_ms()
        self._state = state
        self._stored = stored
        self._act = act
        self._reply = reply

    def resume(self):
        """After a start, finish the command that a power cut interrupted; return its name, or "" if there is none."""
        intent = self._state.get("intent")
        if not intent or self._stored() + 1 != intent["seq"]:  # its reply is stored; or it is of an older journal
            return ""
        if intent["do"] != "reboot":  # the board has just rebooted
            self._act(intent["do"], intent["ms"])
        self._answer(intent["id"], "done")
        return intent["do"]

    def _answer(self, ident, result):
        self.due = (ident, result)
        self.settle()

    def settle(self):
        """Store the reply that is due; return whether none is due any more."""
        if self.due and self._reply(*self.due):
            self.due = None
        return not self.due

    def _may_write(self):
        """Return whether another command may write flash now, and count it."""
        more = (self._now_ms() - self._refilled_ms) // _REFILL_MS
        if more > 0:
            self._refilled_ms += more * _REFILL_MS
            self._allowed = min(_BURST, self._allowed + more)
        if not self._allowed:
            self.refused += 1
            return False
        self._allowed -= 1
        return True

    def take(self, payload):
        """Execute a command, unless it is a duplicate or exceeds the rate limit.

        Raises:
            StoreFull: there is no room for an earlier reply; call this again later.
        """
        if not self.settle():
            raise StoreFull("no room for the reply to an earlier command")
        try:
            ident, name, ms = parse(payload)
        except CommandRefused as refused:
            if self._may_write():
                self._answer(refused.args[1], refused.args[0])
            return
        done = self._state.get("done", [])
        known = "%08x" % crc32(ident.encode())  # ids may be long, and each command writes all of them
        if known in done or not self._may_write():
            return
        changes: "dict" = {
            "done": (done + [known])[-_KEPT_IDS:],
            "intent": {"id": ident, "do": name, "ms": ms, "seq": self._stored() + 1},
        }
        if name == "interval":
            changes["interval_ms"] = ms
        try:
            self._state.save(**changes)
        except OSError as error:  # such as a full file system; a restart would not help
            self._answer(ident, "not stored: %s" % error)
            return
        self._act(name, ms)
        self._answer(ident, "done")
