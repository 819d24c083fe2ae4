"""Coverage-guided fuzzing of the decoder with atheris (libFuzzer); `python tools/proof/fuzz/guided.py -max_total_time=60`.

The first bytes of an input choose level, buffer size, streaming and cuts; the rest is the stream. The corpus begins with
the golden packets. New inputs are kept in build/fuzz, so that every run continues with the corpus of the last one.
"""

import sys

import atheris

from tools.bootstrap import ROOT

sys.path[:0] = [str(ROOT / "firmware"), str(ROOT)]

with atheris.instrument_imports(include=["flashmqtt"]):
    import flashmqtt.codec.level5  # noqa: F401  (imported late by the decoder, so here by name)
    from tools.proof.fuzz import cases


def one(data: bytes) -> None:
    """Run one input; every exception is a finding."""
    if len(data) < 4:
        return
    level = 3 + data[0] % 3
    size = (24, 48, 100, 400)[data[1] % 4]
    cases.attack(data[4:], level, size, bool(data[2] & 1), (1 + data[3] % 60, 1 + data[3] // 60))


def main() -> None:
    """Make the corpus, then run libFuzzer."""
    corpus = ROOT / "build" / "fuzz"
    corpus.mkdir(parents=True, exist_ok=True)
    if not any(corpus.iterdir()):
        for level, packets in cases.load(str(ROOT / "host_tests" / "vectors")).items():
            for i, packet in enumerate(packets):
                (corpus / f"golden-{level}-{i}").write_bytes(bytes([abs(level) - 3, 3, 0, 7]) + packet)
    atheris.Setup([sys.argv[0], str(corpus), "-max_len=300", f"-artifact_prefix={corpus.parent}/", *sys.argv[1:]], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
