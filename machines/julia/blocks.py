"""Which brackets and blocks of a Julia program belong together."""

from __future__ import annotations

from collections.abc import Sequence

from .tokens import CLOSE, KEYWORD, MACRO, NAME, NEWLINE, OPEN, OPERATOR, SourceError, Token

_BLOCKS = frozenset(
    (
        *("function", "macro", "if", "for", "while", "begin", "let", "try", "do", "quote", "struct"),
        *("module", "baremodule"),
    )
)


def pairs(found: Sequence[Token]) -> dict[int, int]:
    """Index of each opening bracket and block -> of its end. Raises SourceError where they do not match."""
    ends: dict[int, int] = {}
    stack: list[int] = []
    for at, token in enumerate(found):
        inner = found[stack[-1]] if stack else None
        if token.kind == OPEN:
            stack.append(at)
        elif token.kind == CLOSE:
            if inner is None or inner.kind != OPEN:
                raise SourceError(f"line {token.line}: '{token.text}' comes before the 'end' of a block")
            ends[stack.pop()] = at
        elif _opens(found, at, inner):
            stack.append(at)
        elif token.kind == KEYWORD and token.text == "end":
            if inner is not None and inner.kind != OPEN:
                ends[stack.pop()] = at
            elif inner is None or not any(found[place].text == "[" for place in stack):
                raise SourceError(f"line {token.line}: 'end' ends nothing")
    if stack:
        raise SourceError(f"line {found[stack[-1]].line}: '{found[stack[-1]].text}' has no end")
    return ends


def _opens(found: Sequence[Token], at: int, inner: Token | None) -> bool:
    """Does a block begin here? inner: the bracket or block around it."""
    token = found[at]
    if token.kind == NAME and token.text in ("abstract", "primitive"):
        following = found[at + 1 : at + 3]
        return len(following) == 2 and following[0].text == "type" and following[1].kind == NAME
    if token.kind != KEYWORD or token.text not in _BLOCKS:
        return False
    if inner is None or inner.kind != OPEN:
        return True
    if token.text == "begin":
        return inner.text != "["
    if token.text not in ("for", "if"):
        return True
    # in brackets, after an operand, it belongs to a generator: [x for x in xs if x > 0]
    before = next((one for one in reversed(found[:at]) if one.kind != NEWLINE), None)
    return before is None or not _ends_operand(before)


def _ends_operand(token: Token) -> bool:
    if token.kind in (OPEN, NEWLINE, MACRO):
        return False
    if token.kind == KEYWORD:
        return token.text in ("end", "true", "false", "begin")
    return token.kind != OPERATOR or token.text in ("'", "...", ":")
