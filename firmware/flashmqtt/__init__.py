"""flashmqtt: MQTT for small boards that loses nothing when the power or the network goes."""
