# SPDX-License-Identifier: Apache-2.0
"""
Comments of the kernel language, put beside what they stand beside.

The parser ignores them. A line of comment belongs to the statement or definition after it, a comment at the end of a
line to what is on the line; one within a statement of several lines goes above it. At most one empty line stays
between two statements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from penstock.lowering.from_kernel.syntax import Block, Commented, If, Kernel, Loop, Source, walk

_CommentedT = TypeVar("_CommentedT", bound=Commented)


def with_comments(source: Source, text: str) -> Source:
    """A syntax tree with the comments of its text."""
    lines = text.split("\n")
    comments = _Comments(lines)
    definitions = comments.placed(source.definitions, 0)
    last = _last_line(source.definitions[-1]) if source.definitions else 0
    return replace(source, definitions=definitions, after=_trimmed(comments.between(last, len(lines) + 1)))


class _Comments:
    """The comments of a text, each handed out once."""

    def __init__(self, lines: Sequence[str]):
        self._text = {number: found for number, line in enumerate(lines, 1) if (found := _comment_of(line))}
        self._is_line = {number: line.lstrip().startswith("#") for number, line in enumerate(lines, 1)}
        self._empty = {number for number, line in enumerate(lines, 1) if not line.strip()}

    def between(self, after: int, before: int) -> list[str]:
        """The lines of comment between two lines, an empty one for lines without anything."""
        found: list[str] = []
        for number in range(after + 1, before):
            if number in self._text:
                found.append(self._text.pop(number))
            elif number in self._empty and (not found or found[-1]):
                found.append("")
        return found

    def placed(self, nodes: Sequence[_CommentedT], opened: int) -> tuple[_CommentedT, ...]:
        """The nodes of a block, whose text begins on line `opened`, with their comments."""
        placed: list[_CommentedT] = []
        end = opened
        for number, node in enumerate(nodes, 1):
            before = self.between(end, node.at.line)
            # Most statements have one line: the next begins on the line below.
            is_line = number < len(nodes) and nodes[number].at.line == node.at.line + 1
            end = node.at.line if is_line else _last_line(node)
            placed.append(self._placed(node, before if placed else _without_first(before), end))
        return tuple(placed)

    def _placed(self, node: _CommentedT, before: list[str], last: int) -> _CommentedT:
        beside = self._text.pop(node.at.line, "")
        match node:
            case Kernel():
                return replace(node, body=self._block(node.body, before), before=tuple(before), beside=beside)
            case Loop():
                return replace(node, body=self._block(node.body, before), before=tuple(before), beside=beside)
            case If():
                then = self._block(node.then, before)
                otherwise = None if node.otherwise is None else self._block(node.otherwise, before)
                return replace(node, then=then, otherwise=otherwise, before=tuple(before), beside=beside)
            case _:
                before += [each for each in self.between(node.at.line, last + 1) if each]
                return replace(node, before=tuple(before), beside=beside)

    def _block(self, block: Block, before: list[str]) -> Block:
        """A block with its comments; those on the lines of its head and its end go to `before`."""
        opened = block.at.line
        before += [self._text.pop(opened)] if opened in self._text else []
        statements = self.placed(block.statements, opened)
        end = _last_line(statements[-1]) if statements else opened
        after = _trimmed(self.between(end, block.last_line))
        before += [self._text.pop(block.last_line)] if block.last_line in self._text else []
        return replace(block, statements=statements, after=after)


def _comment_of(line: str) -> str:
    """The comment on a line: there are no strings that could hold its sign."""
    return line[line.index("#") :].rstrip() if "#" in line else ""


def _last_line(node: Commented) -> int:
    return node.last_line or max(each.at.line for each in walk(node))


def _without_first(comments: list[str]) -> list[str]:
    return comments[1:] if comments and not comments[0] else comments


def _trimmed(comments: list[str]) -> tuple[str, ...]:
    """Lines of comment without empty ones at the end."""
    return tuple(comments[:-1] if comments and not comments[-1] else comments)
