"""One wake of a board that sleeps between two samples: sample, send all stored messages, sleep. Loaded by such a board only."""

from time import sleep

from flashmqtt.compat import const

_SHORT_TURN_MS = const(50)
_LISTEN_MS = const(300)
_LATER_MS = const(1 << 29)  # than any wake ends
_CONVERSION_MS = const(800)  # of a DS18B20, the slowest sensor whose first read only starts a measurement


def wake(application):
    """Sample, send all stored messages, wait for acknowledgements until the deadline, sleep. It does not return."""
    config = application.config
    application.commands.resume()
    labels = application.beginning()
    # After a reset by the watchdog, a sensor may hang: this wake only sends.
    groups = application.groups if application.cause != "watchdog" else ()
    for group in groups:
        for sensor in group.sensors:
            application._records[id(sensor)] = application._read(sensor)
    if None in application._records.values():  # such a sensor has only started its first measurement
        sleep(_CONVERSION_MS / 1000)
    for group in groups:
        found = application.sample(group)
        if found and application.publish("readings", max(1, group.qos), found, labels):
            labels = None
    if labels:
        application._boot()
    application._health_ms = _LATER_MS
    if config["health_s"] and application.journal.boot % max(1, config["health_s"] // config["sleep_s"]) == 0:
        application._tell_health()
    deadline = application.uptime.ms() + config["awake_s"] * 1000
    quiet_ms = 0
    while application.uptime.ms() < deadline:
        application.turn(_SHORT_TURN_MS)
        # A command that is queued at the broker arrives soon after connecting: wait a moment after the last message.
        if (
            application.client.pending
            or not application.client.connected
            or application.time.waiting
            or application._greeting >= 0
        ):
            quiet_ms = application.uptime.ms() + _LISTEN_MS
        elif application.uptime.ms() >= quiet_ms:
            break
    application._finish()
    application.status()
    print("sleep", "%d s" % config["sleep_s"])
    application.board.sleep(config["sleep_s"] * 1000)
