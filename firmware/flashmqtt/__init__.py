"""flashmqtt: MQTT for small boards that loses no message when the power or the network fails."""

__version__ = "0.1.0"  # the only place: packages, images and the release take it from here
