"""flashmqtt: MQTT for small boards that loses nothing when the power or the network goes."""

__version__ = "0.1.0"  # the only place: packages, images and the release take it from here
