"""The file for `spark-submit`: `spark-submit [its options] tools/pipeline/submit.py --landing ... --out ...`."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[2] / "firmware")]

from tools.command import exit_status  # noqa: E402
from tools.pipeline.run import STOPPED, main  # noqa: E402

if __name__ == "__main__":
    sys.exit(exit_status(main, stopped=STOPPED))
