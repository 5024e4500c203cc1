"""julia/parametric: programs whose types and methods have type parameters."""

from __future__ import annotations

from libmachine import Machine, Run, check

from ..answer import Verdict, judged
from ..program import Argument, Method, Program, Type
from ..tokens import NAME


def has_type_parameters(run: Run) -> Verdict:
    """The last program declares a type parameter and uses it."""
    return judged(run, verdict)


def verdict(program: Program) -> Verdict:
    """Which type parameters are used: those of a type that is used itself, and of methods' arguments."""
    used = [f"{made.name}{{{name}}}" for made in program.types for name in of_type(made, program)]
    used += [f"{method.name} where {name}" for method in program.methods for name in of_method(method)]
    if used:
        return True, ", ".join(used[:5])
    declared = [one.name for made in program.types for one in made.parameters]
    declared += [one.name for method in program.methods for one in method.parameters]
    if declared:
        return False, f"declared and not used: {', '.join(declared[:5])}"
    return False, "no type parameter is declared"


def of_type(made: Type, program: Program) -> list[str]:
    """Its parameters that its fields or its supertype name; of an abstract type all. None if nothing else
    in the program names the type."""
    if program.uses(made.name) < 2:
        return []
    named = {token.text for token in made.rest if token.kind == NAME}
    return [one.name for one in made.parameters if one.name in named or made.kind == "abstract"]


def of_method(method: Method) -> list[str]:
    """Its parameters that the type of an argument names."""
    return [one.name for one in method.parameters if any(_names(a, one.name) for a in method.arguments)]


def _names(argument: Argument, name: str) -> bool:
    return any(token.kind == NAME and token.text == name for token in argument.type)


machine = Machine(
    intent="Write a small Julia program with type parameters, run it, and report what it printed.",
    graders={"type_parameters": check(has_type_parameters)},
)
