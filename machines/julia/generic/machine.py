"""julia/generic: programs whose functions take any type that can do what is needed."""

from __future__ import annotations

from collections.abc import Sequence

from libmachine import Machine, Run, check, judge

from ..answer import Verdict, judged
from ..program import Parameter, Program
from ..tokens import NAME, OPERATOR, Token

ABSTRACT = frozenset(
    (
        *("Any", "Number", "Real", "Integer", "Signed", "Unsigned", "Function", "Exception", "IO", "Enum"),
        *("DenseArray", "DenseVector", "DenseMatrix", "DenseVecOrMat", "OrdinalRange", "StridedArray"),
        *("StridedVector", "StridedMatrix", "StridedVecOrMat", "IndexStyle", "Factorization"),
        *("TimeType", "Period", "DatePeriod", "TimePeriod"),
    )
)
"""Of Base and the standard library, beside those that are called Abstract..."""
OPEN_TO_ALL = frozenset(
    (
        *("Union", "Type", "Tuple", "NTuple", "NamedTuple", "Vararg", "Pair", "Ref", "Val", "Complex"),
        *("Rational", "where"),
    )
)
"""As abstract as what stands in their braces; nothing more abstract takes their place."""
ABSENT = frozenset(("Nothing", "Missing"))
"""Allowed beside other types in a Union: there may be no value."""
CONCRETE = frozenset(
    (
        *("Int", "Int8", "Int16", "Int32", "Int64", "Int128", "UInt", "UInt8", "UInt16", "UInt32", "UInt64"),
        *(
            "UInt128",
            "Float16",
            "Float32",
            "Float64",
            "BigInt",
            "BigFloat",
            "Bool",
            "Char",
            "String",
            "Symbol",
        ),
        *("ComplexF16", "ComplexF32", "ComplexF64", "Array", "Vector", "Matrix", "Dict", "Set", "UnitRange"),
    )
)
"""No type parameter, whoever calls one so."""
_DEEPEST = 10


def takes_no_concrete_type(run: Run) -> Verdict:
    """The last program has a function with arguments, and none of its functions asks for a concrete type."""
    return judged(run, verdict)


def verdict(program: Program) -> Verdict:
    faults, arguments = [], 0
    for method in program.methods:
        for argument in method.arguments:
            arguments += bool(method.name)
            for name in pinned(argument.type, program):
                faults.append(f"line {method.line}: {argument.name}::{name}")
        for parameter in method.parameters:
            for name in pinned(parameter.bounds, program):
                faults.append(f"line {method.line}: {parameter.name} is bound by {name}")
    if faults:
        return False, "; ".join(dict.fromkeys(faults[:5]))
    return (
        arguments > 0,
        f"{arguments} arguments of any type" if arguments else "no function takes an argument",
    )


def pinned(annotation: Sequence[Token], program: Program, depth: int = 0) -> list[str]:
    """The types in an annotation that are not known to be abstract, in order."""
    names = [
        token.text
        for at, token in enumerate(annotation)
        if token.kind == NAME and not (at + 1 < len(annotation) and _is_dot(annotation[at + 1]))
    ]
    names += ["$..." for token in annotation if token.kind == OPERATOR and token.text == "$"]
    if "Union" in names and not ABSENT.issuperset(set(names) - {"Union"}):
        names = [name for name in names if name not in ABSENT]
    return [name for name in names if not is_abstract(name, program, depth)]


def is_abstract(name: str, program: Program, depth: int = 0) -> bool:
    """Is it an abstract type, a type parameter, a parametric type left open, or a name for one?"""
    for made in program.types:
        if made.name == name:
            if made.kind == "alias":
                return depth < _DEEPEST and not pinned(made.rest, _with(program, made.parameters), depth + 1)
            return made.kind == "abstract" or bool(made.parameters)
    if name in CONCRETE:
        return False
    return name.startswith("Abstract") or name in ABSTRACT | OPEN_TO_ALL | program.declared


def _with(program: Program, parameters: Sequence[Parameter]) -> Program:
    """The program with further type parameters declared."""
    return program._replace(declared=program.declared | {one.name for one in parameters})


def _is_dot(token: Token) -> bool:
    return token.kind == OPERATOR and token.text == "."


machine = Machine(
    intent="Write a small Julia program of generic functions, run it, and report what it printed.",
    graders={"no_concrete_types": check(takes_no_concrete_type), "several_types": judge()},
)
