"""Put statements on fewer lines: a `.mpy` has an entry of one to three bytes for each line with code.

    number = 1              number = 1; rest = 2
    rest = 2        ->
    if rest:                if rest: number += 1; rest = 0
        number += 1
        rest = 0

A simple statement follows the one before it on its line. A block of simple statements follows its `if`, `else`, `for` and so on.
Functions and classes keep their own lines. Each line keeps its number, so the number in a traceback is that of the first
statement on the line. Comments are removed, and so are docstrings and `pass`, which have entries, too, except in empty blocks.
"""

from __future__ import annotations

import io
import itertools
import tokenize
from dataclasses import dataclass

_ON_OWN_LINES = frozenset({"async", "def", "class", "@"})
_COMPOUND = _ON_OWN_LINES | {"if", "elif", "else", "for", "while", "try", "except", "finally", "with"}
_SPACE = (tokenize.COMMENT, tokenize.NL, tokenize.ENDMARKER)


@dataclass
class _Line:
    """A logical line: a statement, the head of a compound one, or simple statements with `;`.

    Attributes:
        depth: the number of blocks around it.
        number: the number of its first line.
        text: its text without comments; only strings have line breaks.
        word: its first token.
        idle: whether it is a docstring or `pass`.
        opens: whether a block follows.
    """

    depth: int
    number: int
    text: str
    word: str
    idle: bool
    opens: bool = False

    @property
    def simple(self) -> bool:
        """Whether it has simple statements only."""
        return self.word not in _COMPOUND

    @property
    def extends(self) -> bool:
        """Whether it may be made longer: after a line break in a string, a statement would get another number."""
        return "\n" not in self.text


def _logical_lines(text: str) -> list[_Line]:
    starts = [0, *itertools.accumulate(map(len, io.StringIO(text)))]
    found: list[_Line] = []
    tokens: list[tokenize.TokenInfo] = []
    depth = 0

    def between(start: tuple[int, int], end: tuple[int, int]) -> str:
        return text[starts[start[0] - 1] + start[1] : starts[end[0] - 1] + end[1]]

    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.INDENT:
            depth += 1
            found[-1].opens = True
        elif token.type == tokenize.DEDENT:
            depth -= 1
        elif token.type == tokenize.NEWLINE:
            first = tokens[0]
            line = between(first.start, first.end)
            for last, one in itertools.pairwise(tokens):
                space = between(last.end, one.start) if last.end[0] == one.start[0] else " "
                line += space + between(one.start, one.end)
            idle = line == "pass" or all(one.type == tokenize.STRING for one in tokens)
            found.append(_Line(depth, first.start[0], line, first.string, idle))
            tokens = []
        elif token.type not in _SPACE:
            tokens.append(token)
    return found


def joined(text: str) -> str:
    """Return a module's text with its statements on fewer lines."""
    lines = _logical_lines(text)
    kept: list[_Line] = []
    for line, after in itertools.zip_longest(lines, lines[1:]):
        if line.idle:
            alone = kept and kept[-1].opens and (not after or after.depth < line.depth)
            if not alone:
                continue
            line.text = "pass"
        last = kept[-1] if kept else None
        if last and last.depth == line.depth and last.simple and line.simple and last.extends:
            last.text += f"; {line.text}"
        else:
            kept.append(line)
    for head, body, after in zip(kept, kept[1:], [*kept[2:], None], strict=False):
        whole = body.simple and (not after or after.depth < body.depth)
        if head.opens and whole and head.extends and head.word not in _ON_OWN_LINES:
            head.text += f" {body.text}"
            body.text = ""
    result, number = [], 1
    for line in kept:
        if line.text:
            result.append("\n" * (line.number - number) + " " * line.depth + line.text + "\n")
            number = line.number + 1 + line.text.count("\n")
    return "".join(result)
