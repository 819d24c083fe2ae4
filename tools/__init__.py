"""What runs on the host: set-up, virtual board, flash simulator, broker, pipeline, measurements, deployment."""
