"""What a board runs after its start: read the configuration, then be a sensor board."""

import board

from app.application import Application
from app.configuration import ConfigurationError, load


def main():
    """Run the application, or say on the console what is wrong with the configuration."""
    try:
        config = load("config.json")
    except ConfigurationError as error:
        board.led(True)
        print("configuration:", error)
        return
    Application(board, config).run()


main()
