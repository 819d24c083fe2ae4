"""What the application does once, at its start: group the sensors, make the client. It is unloaded afterwards.

Nothing that stays may be defined here: a function keeps its whole module.
"""

from flashmqtt.backoff import Backoff
from flashmqtt.client import Client
from flashmqtt.compat import const

from .senml import is_name

_LEVEL_5 = const(5)
_BLANK = const(0xFF)  # no session has noted its level
# No reading for so long after a reset by the watchdog: if a sensor hangs, stored messages are sent before the next reset.
_UNREAD_MS = const(30000)
_BUFFER_BYTES = const(640)  # longer messages are sent in pieces; no valid command is longer


def groups_of(application, group):
    """Return the application's sensors in objects of the class `group`, without those that do not fulfil the contract."""
    found = []
    try:
        found += application.board.sensors()
    except (Exception, SystemExit) as error:
        print("sensor:", error)
    for settings in application.config["sensors"]:
        from .sensors import make

        try:
            found += make(settings)
        except (Exception, SystemExit) as error:  # a driver may raise anything, which must not stop the other sensors
            print("sensor:", settings["kind"], type(error).__name__, error)
    due_ms = application.uptime.ms() + (_UNREAD_MS if application.cause == "watchdog" else 0)
    groups = {}
    for sensor in found:
        try:
            name, unit, _ = sensor.name, sensor.unit, sensor.read
            key = qos, interval_ms = getattr(sensor, "qos", 1), getattr(sensor, "interval_ms", 0)
            kinds = [type(one) for one in (name, unit or name, qos, interval_ms)]
            if kinds != [str, str, int, int] or not is_name(name) or not 0 <= qos <= 2 or interval_ms < 0:
                raise ValueError("%r: name, unit, qos %r or interval_ms %r is not allowed" % (name, qos, interval_ms))
        except Exception as error:
            print("sensor: left out:", error)
            continue
        if key not in groups:
            groups[key] = group(qos, interval_ms, due_ms)
        groups[key].sensors.append(sensor)
    return [groups[key] for key in sorted(groups)]


def client_of(application, attempts):
    """Return the application's client; a handler of messages may fail in so many attempts."""
    config = application.config
    sleeping = config["sleep_s"]
    tls = None
    if config["tls"]:
        from flashmqtt.tls import context

        tls = context(config["tls"], config["tls_cert"] or None, config["tls_key"] or None)
    level = config["level"]
    # The level of the stored messages, which can't be sent at another one (3 and 4 count as one).
    noted = application.journal.note[0]
    differs = (noted == _LEVEL_5) != (level == _LEVEL_5) and noted != _BLANK
    application._old_level = differs and application.journal.waiting
    if application._old_level:  # deliver them, then restart
        print("configuration: level %d is used after the stored messages of level %d" % (level, noted))
        level = noted
    return Client(
        config["broker"],
        config["port"],
        client_id=application.device,
        store=application.journal,
        level=level,
        user=config["user"] or None,
        password=config["broker_password"] or None,
        keep_alive_s=config["keep_alive_s"],
        # A board that sleeps is offline most of the time, so it has no will.
        will=None if sleeping else (application.live + "status", b"offline", 1, True),
        window=config["window"],
        buffer_bytes=_BUFFER_BYTES,
        tls=tls,
        backoff=Backoff(cap_ms=config["awake_s"] * 250 if sleeping else config["longest_pause_s"] * 1000),
        attempts=attempts,
        feed=application._feed,
        log=print if config["log"] else None,
    )
