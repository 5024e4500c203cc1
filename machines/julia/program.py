"""What a Julia program defines: its methods, their arguments and its types, read from its text.

Nothing is run, so what a program builds while it runs (Meta.parse, include, Expr) is not seen; `built`
says that there is such a thing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .blocks import pairs
from .tokens import CLOSE, KEYWORD, MACRO, NAME, NEWLINE, OPEN, OPERATOR, SYMBOL, Token, tokens

LONG, SHORT, ARROW, DO = "function ... end", "f(x) = ...", "x -> ...", "do ... end"
_BUILDERS = ("include", "include_string", "parse", "parseall", "Expr")


class Argument(NamedTuple):
    """An argument of a method. type: its annotation, empty without one."""

    name: str
    type: tuple[Token, ...]


class Parameter(NamedTuple):
    """A type parameter that is declared: its name and what stands beside it (`<: Real`)."""

    name: str
    bounds: tuple[Token, ...]


class Method(NamedTuple):
    """A method or an anonymous function (no name). form: LONG, SHORT, ARROW or DO. parameters: of its
    `where`. macros: those before it, @inline also if it begins the body."""

    name: str
    form: str
    arguments: tuple[Argument, ...]
    parameters: tuple[Parameter, ...]
    macros: frozenset[str]
    line: int


class Type(NamedTuple):
    """A type that is declared. kind: struct, abstract, primitive or alias. rest: what follows its
    parameters: supertype, fields, or what an alias stands for."""

    name: str
    kind: str
    parameters: tuple[Parameter, ...]
    rest: tuple[Token, ...]
    line: int


class Program(NamedTuple):
    """A program as it was read. ends: index of an opening bracket or block -> of what closes it.
    built: the name of what makes code while the program runs, empty if nothing does."""

    tokens: tuple[Token, ...]
    ends: dict[int, int]
    methods: tuple[Method, ...]
    types: tuple[Type, ...]
    declared: frozenset[str]
    built: str

    def uses(self, name: str) -> int:
        """How often a name stands in the program."""
        return sum(token.kind == NAME and token.text == name for token in self.tokens)


def read(source: str) -> Program:
    """Raises SourceError for a text that is no program."""
    found = tuple(tokens(source))
    reader = _Reader(found, pairs(found))
    methods = tuple(method for at in range(len(found)) if (method := reader.method(at)))
    types = tuple(made for at in range(len(found)) if (made := reader.type(at)))
    clauses = [reader.where(at)[0] for at, token in enumerate(found) if reader.is_where(at)]
    declared = frozenset(parameter.name for clause in clauses for parameter in clause)
    built = next((reader.found[at].text for at in range(len(found)) if reader.builds(at)), "")
    return Program(found, reader.ends, methods, types, declared, built)


class _Reader:
    def __init__(self, found: Sequence[Token], ends: dict[int, int]) -> None:
        self.found, self.ends = found, ends
        self.starts = {end: start for start, end in ends.items()}

    def is_(self, at: int, kind: str, *texts: str) -> bool:
        return (
            0 <= at < len(self.found)
            and self.found[at].kind == kind
            and (not texts or self.found[at].text in texts)
        )

    def is_where(self, at: int) -> bool:
        return self.is_(at, NAME, "where") and not self.is_(at - 1, OPERATOR, ".") and at > 0

    def is_call(self, at: int) -> bool:
        """Does a bracket open here that belongs to the name before it?"""
        return self.is_(at, OPEN, "(") and self.found[at].tight

    def builds(self, at: int) -> bool:
        if not self.is_(at, NAME, *_BUILDERS) or not self.is_call(at + 1):
            return False
        if self.found[at].text in ("parse", "parseall"):
            return self.is_(at - 2, NAME, "Meta")
        return self.is_(at - 2, NAME, "Base") or not self.is_(at - 1, OPERATOR, ".")

    # methods

    def method(self, at: int) -> Method | None:
        """The method whose definition is known by the token here."""
        if self.is_(at, KEYWORD, "function"):
            return self.long(at)
        if self.is_(at, OPEN, "("):
            return self.short(at)
        if self.is_(at, OPERATOR, "->"):
            return self.arrow(at)
        if self.is_(at, KEYWORD, "do"):
            return self.block(at)
        return None

    def long(self, at: int) -> Method | None:
        start = at + 1
        if self.is_(start, OPEN, "(") and self.is_(start + 1, NAME) and self.is_call(start + 2):
            opening, name = start + 2, self.found[start + 1].text  # function (f(x) where T)
        elif self.is_(start, OPEN, "("):
            close = self.ends[start]
            name = "(callable)" if self.is_call(close + 1) else ""
            opening = close + 1 if name else start
        else:
            opening = start
            while not self.is_call(opening):
                if (
                    opening >= len(self.found)
                    or self.found[opening].kind == NEWLINE
                    or opening in self.starts
                ):
                    return None  # function f end
                opening = self.ends.get(opening, opening) + 1
            name = self.name(start, opening)
        close = self.ends[opening]
        at_where = self.after_type(close + 1)
        parameters, after = self.where(at_where)
        macros = self.macros(at)
        while self.is_(after, NEWLINE):
            after += 1
        if self.is_(after, MACRO, "@inline") and self.is_(after + 1, NEWLINE):
            macros |= {"@inline"}
        return Method(name, LONG, self.arguments(opening, close), parameters, macros, self.found[at].line)

    def short(self, at: int) -> Method | None:
        start = self.callee(at)
        if start is None:
            return None
        close = self.ends[at]
        parameters, after = self.where(self.after_type(close + 1))
        if not self.is_(after, OPERATOR, "="):
            return None
        name = self.name(start, at) or "(callable)"
        line = self.found[start].line
        return Method(name, SHORT, self.arguments(at, close), parameters, self.macros(start), line)

    def callee(self, at: int) -> int | None:
        """Where the name begins that a bracket belongs to; None if there is none that could be defined."""
        if not self.is_call(at):
            return None
        start = at - 1
        if self.is_(start, CLOSE, ")"):
            opening = self.starts[start]
            if self.is_(opening - 1, SYMBOL, ""):
                start = opening - 1  # Base.:(+)(x, y)
            elif self.is_call(opening) and self.callee(opening) is not None:
                return None
            elif start == opening + 2 and self.is_(opening + 1, OPERATOR):
                return opening  # (+)(x, y)
            else:
                typed = any(self.is_(inner, OPERATOR, "::") for inner in range(opening, start))
                return opening if typed else None
        elif self.is_(start, CLOSE, "}"):
            start = self.starts[start] - 1
        if not (self.is_(start, NAME) or self.is_(start, SYMBOL) or self.is_(start, OPERATOR)):
            return None
        if self.is_(start, OPERATOR, "$"):
            return None  # of :($(a) = b)
        while self.is_(start - 1, OPERATOR, ".", "$") and self.found[start].tight:
            step = 2 if self.is_(start - 1, OPERATOR, ".") else 1
            if step == 2 and not self.is_(start - 2, NAME):
                break
            start -= step
        return start

    def arrow(self, at: int) -> Method | None:
        line = self.found[at].line
        last = at - 1
        if self.is_(last, CLOSE, ")"):
            arguments = self.arguments(self.starts[last], last)
            return Method("", ARROW, arguments, (), frozenset(), line)
        place = last
        while place >= 0 and self.found[place].kind != NEWLINE:
            if self.is_(place, OPERATOR, "::"):
                argument = Argument(self.found[place - 1].text, tuple(self.found[place + 1 : at]))
                return Method("", ARROW, (argument,), (), frozenset(), line)
            if self.is_(place, CLOSE, "}", ")"):
                place = self.starts[place]
            elif not (self.is_(place, NAME) or self.is_(place, OPERATOR, ".")):
                break
            place -= 1
        return Method("", ARROW, (Argument(self.found[last].text, ()),), (), frozenset(), line)

    def block(self, at: int) -> Method:
        end = at + 1
        while not (end in self.starts or self.is_(end, NEWLINE) or self.is_(end, OPERATOR, ";")):
            end = self.ends.get(end, end) + 1
        return Method("", DO, self.arguments(at, end), (), frozenset(), self.found[at].line)

    def macros(self, at: int) -> frozenset[str]:
        """The macros right before a definition."""
        found = set()
        while self.is_(at - 1, MACRO):
            at -= 1
            found.add(self.found[at].text)
        return frozenset(found)

    def name(self, start: int, stop: int) -> str:
        found = self.found[start:stop]
        braces = next((at for at, token in enumerate(found) if token.text == "{"), len(found))
        if any(token.kind == OPERATOR and token.text == "::" for token in found[:braces]):
            return ""
        named = [token.text for token in found[:braces] if token.kind in (NAME, SYMBOL, OPERATOR)]
        return next((text for text in reversed(named) if text), "")

    def after_type(self, at: int) -> int:
        """Where a return type ends that begins here, if one does."""
        if not self.is_(at, OPERATOR, "::"):
            return at
        at += 1
        while self.is_(at, OPERATOR, ".", "$") or self.is_(at, OPEN) or self.is_(at, NAME):
            if self.is_where(at) or (not self.found[at].tight and not self.is_(at - 1, OPERATOR)):
                break
            at = self.ends.get(at, at) + 1
        return at

    def where(self, at: int) -> tuple[tuple[Parameter, ...], int]:
        """The parameters of the `where` clauses that begin here, and where they end."""
        found: list[Parameter] = []
        while self.is_where(at):
            at += 1
            if self.is_(at, OPEN, "{"):
                found += self.parameters(at)
                at = self.ends[at] + 1
                continue
            start = at
            while at < len(self.found) and (
                (self.is_(at, NAME) and not self.is_where(at))
                or self.is_(at, OPERATOR, "<:", ">:", ".", "$")
                or (self.is_(at, OPEN, "{") and at > start)
            ):
                at = self.ends.get(at, at) + 1
            found += _parameter(self.found[start:at])
        return tuple(found), at

    def parameters(self, opening: int) -> list[Parameter]:
        """Those between braces."""
        return [one for part in self.split(opening, self.ends[opening]) for one in _parameter(part)]

    def arguments(self, opening: int, closing: int) -> tuple[Argument, ...]:
        return tuple(argument for part in self.split(opening, closing) if (argument := self.argument(part)))

    def argument(self, part: Sequence[Token]) -> Argument | None:
        part = [token for token in part if token.kind not in (NEWLINE, MACRO)]
        while part and part[0].kind == OPEN and part[0].text == "(" and _closes(part, 0) == len(part) - 1:
            part = part[1:-1]  # @nospecialize(x::T)
        at, typed = 0, None
        while at < len(part) and not (part[at].kind == OPERATOR and part[at].text == "="):
            if typed is None and part[at].kind == OPERATOR and part[at].text == "::":
                typed = at
            at = _closes(part, at) + 1
        if not part:
            return None
        name = "" if typed == 0 else part[0].text
        return Argument(name, () if typed is None else tuple(part[typed + 1 : at]))

    def split(self, opening: int, closing: int) -> Iterator[Sequence[Token]]:
        """What stands between two places, by its commas and semicolons."""
        start = at = opening + 1
        while at < closing:
            if self.is_(at, OPERATOR, ",", ";"):
                yield self.found[start:at]
                start = at + 1
            at = min(self.ends.get(at, at), closing) + 1
        if start < closing:
            yield self.found[start:closing]

    # types

    def type(self, at: int) -> Type | None:
        """The type whose declaration begins here."""
        if self.is_(at, KEYWORD, "struct"):
            return self.declared("struct", at, at + 1)
        if self.is_(at, NAME, "abstract", "primitive") and at in self.ends:
            return self.declared(self.found[at].text, at, at + 2)
        if self.is_(at, NAME) and (
            at == 0 or self.is_(at - 1, NEWLINE) or self.is_(at - 1, KEYWORD, "const")
        ):
            braces = at + 1 if self.is_(at + 1, OPEN, "{") and self.found[at + 1].tight else None
            equals = at + 1 if braces is None else self.ends[braces] + 1
            if self.is_(equals, OPERATOR, "=") and (braces or self.is_(at - 1, KEYWORD, "const")):
                end = equals + 1
                while end < len(self.found) and not self.is_(end, NEWLINE):
                    end = self.ends.get(end, end) + 1
                rest = tuple(self.found[equals + 1 : end])
                parameters = tuple(self.parameters(braces)) if braces else ()
                return Type(self.found[at].text, "alias", parameters, rest, self.found[at].line)
        return None

    def declared(self, kind: str, at: int, place: int) -> Type | None:
        if not self.is_(place, NAME):
            return None
        braces = place + 1 if self.is_(place + 1, OPEN, "{") else None
        parameters = tuple(self.parameters(braces)) if braces else ()
        rest = self.found[(self.ends[braces] if braces else place) + 1 : self.ends[at]]
        return Type(self.found[place].text, kind, parameters, tuple(rest), self.found[at].line)


def _parameter(part: Sequence[Token]) -> list[Parameter]:
    """T, T <: Real, T >: Int or A <: T <: B as one parameter; none of <: Real, which has no name."""
    part = [token for token in part if token.kind != NEWLINE]
    at = [place for place, token in enumerate(part) if token.kind == OPERATOR and token.text in ("<:", ">:")]
    at = [place for place in at if not _inside(part, place)]
    place = at[0] + 1 if len(at) == 2 else 0
    if place >= len(part) or part[place].kind != NAME:
        return []
    return [Parameter(part[place].text, tuple(part[:place] + part[place + 1 :]))]


def _inside(part: Sequence[Token], place: int) -> bool:
    """Is a place of these tokens within brackets that open in them?"""
    return sum((token.kind == OPEN) - (token.kind == CLOSE) for token in part[:place]) > 0


def _closes(part: Sequence[Token], at: int) -> int:
    """Where a bracket that opens here is closed; the place itself if none opens."""
    if part[at].kind != OPEN:
        return at
    depth = 0
    for place in range(at, len(part)):
        depth += (part[place].kind == OPEN) - (part[place].kind == CLOSE)
        if depth == 0:
            return place
    return len(part) - 1


__all__ = ["ARROW", "DO", "LONG", "SHORT", "Argument", "Method", "Parameter", "Program", "Type", "read"]
