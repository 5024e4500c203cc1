"""julia and its children: Julia source as the checks read it, verdicts, where Julia is, and the cases."""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from fractions import Fraction
from itertools import combinations
from math import comb, factorial, gcd, sqrt
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_machines import MACHINES, both, likeness, windows
from test_machines_judged import rubric

from libmachine.case import read_case
from libmachine.define import Run
from libmachine.errors import MachineError
from libmachine.folder import Folder
from libmachine.load import load

NAMES = ("julia", "julia/parametric", "julia/generic", "julia/fast", "julia/inline")
CHECKED = {
    "julia": "runs",
    "julia/parametric": "type_parameters",
    "julia/generic": "no_concrete_types",
    "julia/fast": "times_work",
    "julia/inline": "all_inline",
}
JUDGED = {
    "julia": ["does_task", "idiomatic"],
    "julia/generic": ["several_types"],
    "julia/fast": ["for_speed"],
}
MACHINE = {name: load(name, [str(MACHINES)]) for name in NAMES}
CHECK = {name: MACHINE[name].graders[criterion].function for name, criterion in CHECKED.items()}


def module(name: str) -> Any:
    """A file of the machine, as its machine.py imports it."""
    package = CHECK["julia"].__module__.rpartition(".")[0]
    return sys.modules[f"{package}.{name}"]


source, program = module("tokens"), module("program")
installation = module("installation")


# tokens ---------------------------------------------------------------------------------


def texts(code: str) -> list[str]:
    """Tokens as kind:text, ends of lines left out."""
    return [f"{t.kind[0]}:{t.text}" for t in source.tokens(code) if t.kind != "newline"]


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("x = 1 # function f", "n:x o:= n:1"),
        ("#= a #= b =# function =# y", "n:y"),
        ("#= #=# =# =# y", "n:y"),
        ('"# no comment"', "t:"),
        ('"a \\" b" c', "t: n:c"),
        ('"""a "b" " c""" d', "t: n:d"),
        ('"" x', "t: n:x"),
        ('"""""" x', "t: n:x"),
        ('"$x $(f("a", 1)) b"', "t: o:( n:f o:( t: o:, n:1 c:) c:)"),
        ('"$(g("$(h(1))"))"', "t: o:( n:g o:( t: o:( n:h o:( n:1 c:) c:) c:) c:)"),
        (r'"\$(f(1))"', "t:"),
        (r'raw"$(f(1)) \ " x', "t: n:x"),
        (r'r"\d\"$(x"i y', "t: n:y"),
        ("`ls $(f(x))`", "t: o:( n:f o:( n:x c:) c:)"),
        ('var"my name" = 1', "n:my name o:= n:1"),
        ("'a' '\\'' '\"' '\\u2200' '∀'", "t: t: t: t: t:"),
        ("A' * b'' + (c)' - d[1]'", "n:A o:' o:* n:b o:' o:' o:+ o:( n:c c:) o:' o:- n:d o:[ n:1 c:] o:'"),
        ("[1 'a']", "o:[ n:1 t: c:]"),
        ("x.end + y.if", "n:x o:. n:end o:+ n:y o:. n:if"),
        (":function, :end", "s:function o:, s:end"),
        ("a[begin:end]", "n:a o:[ k:begin o:: k:end c:]"),
        ("a ? b : c", "n:a o:? n:b o:: n:c"),
        ("1:n, (:), :(x), :+", "n:1 o:: n:n o:, o:( o:: c:) o:, s: o:( n:x c:) o:, s:+"),
        ("push!(v); x!=y; !z", "n:push! o:( n:v c:) n:x o:!= n:y o:! n:z"),
        ("x != y !== z === w", "n:x o:!= n:y o:!== n:z o:=== n:w"),
        ("a .= b .+ sin.(c) .== d", "n:a o:.= n:b o:.+ n:sin o:. o:( n:c c:) o:.== n:d"),
        ("f(xs...)", "n:f o:( n:xs o:... c:)"),
        ("1_000 0xff 1.5e-3 .5 1f0 2x 1.0:2", "n:1_000 n:0xff n:1.5e-3 n:.5 n:1f0 n:2 n:x n:1.0 o:: n:2"),
        ("@time Base.@inline @Base.assert @. x", "m:@time m:@inline m:@assert m:@ n:x"),
        ("α₁ = ∂f ÷ x̂ ≤ √2 ∈ S", "n:α₁ o:= n:∂f o:÷ n:x̂ o:≤ o:√ n:2 o:∈ n:S"),
        ("a::T<:S>:R->b=>c", "n:a o::: n:T o:<: n:S o:>: n:R o:-> n:b o:=> n:c"),
        ("true' false", "k:true o:' k:false"),
    ],
)
def test_tokens(code: str, wanted: str) -> None:
    assert texts(code) == re.split(r" (?=[a-z]:)", wanted)


def test_lines_are_counted() -> None:
    code = 'a\n#= \n\n =# b "x\n$(c\n)" """\n\n""" d\r\ne'
    assert [(t.text, t.line) for t in source.tokens(code) if t.kind == "name"] == [
        *(("a", 1), ("b", 4), ("c", 5), ("d", 8), ("e", 9)),
    ]


@pytest.mark.parametrize(
    "code",
    ['"a', '"""a"', "#= a", "#= #= =#", "(", "[)", ")", '"$(f("', "'ab", "`", "f(x\nend", "begin", "if x"],
)
def test_what_is_no_program_is_refused(code: str) -> None:
    with pytest.raises(source.SourceError):
        program.read(code)


JULIA = st.sampled_from(
    [
        *(
            "function",
            " f",
            "(x)",
            "::Int",
            " where ",
            "T",
            "{",
            "}",
            "end",
            "\n",
            ";",
            "=",
            "->",
            "do",
            '"',
            "#",
        ),
        *(
            "#=",
            "=#",
            "'",
            "$",
            "(",
            ")",
            "[",
            "]",
            ":",
            ".",
            "@",
            "@inline ",
            "struct ",
            "begin",
            " for ",
            "if",
        ),
        *("é", "1", "1.", "0x", '"""', "\\", "`", "abstract type ", "var", "!", "<:", "...", "const ", ","),
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(max_size=60), st.lists(JULIA, max_size=25).map("".join)))
def test_any_text_is_read_or_refused(code: str) -> None:
    try:
        found = program.read(code)
    except source.SourceError:
        return
    for name in ("parametric", "generic", "fast", "inline"):
        verdict, reason = sys.modules[CHECK[f"julia/{name}"].__module__].verdict(found)
        assert verdict in (True, False) and reason


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        JULIA.filter(lambda part: part not in ('"', '"""', "#", "#=", "=#", "\\", "$")), max_size=20
    ).map("".join)
)
def test_comments_and_texts_define_nothing(code: str) -> None:
    for wrapped in (f"#= {code} =#", f'x = raw"""{code} """', f'x = """{code} """'):
        found = program.read(wrapped)
        assert found.methods == found.types == ()


# what a program defines ------------------------------------------------------------------

LONG, SHORT, ARROW, DO = program.LONG, program.SHORT, program.ARROW, program.DO
# Shapes as they are found in packages; the third column is argument=type of each argument.
METHODS = [
    ("function f(x, y::Int = 1; z::T = 2, w...) where T\nend", [("f", LONG, "x y=Int z=T w")]),
    (
        'function Base.show(io::IO, ::MIME"text/plain", p::P{T}) where {T<:Real, N}\nend',
        [("show", LONG, "io=IO = p=P{T}")],
    ),
    ("function f end\nf(x) = x", [("f", SHORT, "x")]),
    ("function (p::Poly)(x) p end", [("(callable)", LONG, "x")]),
    ("(p::Poly{T})(x::S) where {T,S} = x", [("(callable)", SHORT, "x=S")]),
    ("g = function (x::Int, y)\n x end", [("", LONG, "x=Int y")]),
    ("function (f(x::Int) where T) end", [("f", LONG, "x=Int")]),
    ("function P{T}(x::T)::P where T end", [("P", LONG, "x=T")]),
    ("f(x)::Vector{Int} where T = [1]", [("f", SHORT, "x")]),
    ("f(x::Dict{String,Vector{T}}) where T<:Union{A.B,C} = x", [("f", SHORT, "x=Dict{String,Vector{T}}")]),
    ("Base.:+(a::P, b::P) = a", [("+", SHORT, "a=P b=P")]),
    ("Base.:(==)(a, b) = true", [("==", SHORT, "a b")]),
    ("(==)(a::P, b::P) = true", [("==", SHORT, "a=P b=P")]),
    ("-(a::P) = a\n∘(a, b) = a", [("-", SHORT, "a=P"), ("∘", SHORT, "a b")]),
    ("P{T,N}(x) where {T,N} = new{T,N}(x)", [("P", SHORT, "x")]),
    ("f(x) = begin\n g(y) = y\n g(x)\nend", [("f", SHORT, "x"), ("g", SHORT, "y")]),
    ("f() = 1; g(a,) =\n  2", [("f", SHORT, ""), ("g", SHORT, "a")]),
    ('"docs"\nf(x) = x', [("f", SHORT, "x")]),
    (
        "f((a, b)::Tuple{T,T}, @nospecialize(c::Any), d = e::Int) where T = a",
        [("f", SHORT, "(=Tuple{T,T} c=Any d")],
    ),
    ("map(x -> x + 1, v); h = (a::Int, b) -> a", [("", ARROW, "x"), ("", ARROW, "a=Int b")]),
    ("filter(x::Vector{Base.Int} -> true, v); () -> 1", [("", ARROW, "x=Vector{Base.Int}"), ("", ARROW, "")]),
    ("map(v) do x::Int, y\n x\nend", [("", DO, "x=Int y")]),
    ("open(f) do io; read(io); end", [("", DO, "io")]),
    ("@eval f(x::$T) = 1", [("f", SHORT, "x=$T")]),
    ("@eval function $name(x) end", [("name", LONG, "x")]),
    # none of these is a definition
    ("f(x) == 1; f(x).y = 2; f(x)[1] = 3; x = f(y); g(a, b = f(c))", []),
    ("(a, b) = f(x); a, b = g(y)\nlet (c, d) = h(1)\nend", []),
    ("for (i, x) in enumerate(v)\nend\nif f(x) end; @assert(x) == 1", []),
    ("y = f(x)::Int\nz = 1", []),
    ("@test f(x)::P ≈ g(x) rtol=1e-3", []),
    ("[:($(a) = b) for a in v]", []),
    (":(f)(x) == 1; x.f(y) + 1", []),
    ("A[1, end] = f(x)[end]; f (x) = 1", []),
]


def shown(method: Any) -> tuple[str, str, str]:
    arguments = [a.name + ("=" + "".join(t.text for t in a.type) if a.type else "") for a in method.arguments]
    return method.name, method.form, " ".join(arguments)


@pytest.mark.parametrize(
    ("code", "wanted"), METHODS, ids=lambda value: value[:30] if isinstance(value, str) else ""
)
def test_methods(code: str, wanted: list[tuple[str, str, str]]) -> None:
    assert [shown(method) for method in program.read(code).methods] == wanted


def test_methods_in_methods_in_blocks() -> None:
    code = """
module M
export area, Shape
abstract type Shape{T<:Real} end
Base.@kwdef mutable struct Box{T,
        N} <: Shape{T}
    side::NTuple{N,T} = ntuple(i -> zero(T), N)
    Box{T,N}(s) where {T,N} = new{T,N}(s)
end
primitive type Bits 8 end
const Plane{T} = Box{T,2}
const Num = Union{Int,
                  Float64}
@inline Base.@propagate_inbounds function area(b::Box{T,N})::T where {T<:Real,
                                                                      N}
    r = one(T)
    for i in 1:N, j = 1:1
        if b.side[end] > 0 && !any(x for x in b.side if x < 0)
            r *= b.side[i > end ? end : i]
        else if true r end end
    end
    s = [if x > 0 x else -x end for x in b.side
         if x != 0]
    while false; break end
    try error("function g(x) end") catch e; finally end
    "$(let q = 1; q end) function h() end"
    return r
end
end # module
"""
    found = program.read(code)
    assert [(m.name, m.form, sorted(m.macros)) for m in found.methods] == [
        ("", ARROW, []),
        ("Box", SHORT, []),
        ("area", LONG, ["@inline", "@propagate_inbounds"]),
    ]
    assert [(t.name, t.kind, [p.name for p in t.parameters]) for t in found.types] == [
        ("Shape", "abstract", ["T"]),
        ("Box", "struct", ["T", "N"]),
        ("Bits", "primitive", []),
        ("Plane", "alias", ["T"]),
        ("Num", "alias", []),
    ]
    assert [p.name for p in found.methods[2].parameters] == ["T", "N"]
    assert found.declared == {"T", "N"}


# verdicts ---------------------------------------------------------------------------------


def ran(*programs: str, code: int | None = 0, ok: bool = True, result: str | None = None) -> Run:
    """A run that ran these programs, one a turn, and ended so each time."""
    messages: list[dict[str, Any]] = []
    steps = []
    for number, text in enumerate(programs):
        function = {"name": "run_julia", "arguments": json.dumps({"code": text})}
        messages.append(
            {"role": "assistant", "content": "", "tool_calls": [{"id": f"{number}", "function": function}]}
        )
        steps.append({"message": len(messages) - 1, "tools": [{"id": f"{number}", "ok": ok}]})
        told = result or ("stopped: over the limit of time" if code is None else f"exit {code}\n\nexit 0")
        messages.append({"role": "tool", "tool_call_id": f"{number}", "content": told})
    return Run({"messages": messages, "steps": steps, "case": {"input": "x"}, "output": "exit 0"})


PARAMETRIC = [
    ("f(x::T) where T = x", True),
    ("f(x::Vector{T}) where {T<:Real} = x", True),
    ("function f(x::T, y::T)::Bool where {S, T}\nend", True),
    ("struct P{T}\n x::T\nend\nP(1)", True),
    ("mutable struct Q{K, V} <: AbstractDict{K, V}\n n::Int\nend\nQ{Int,Int}(1)", True),
    ("abstract type S{T} end\nstruct C <: S{Int} end", True),
    ("const Pairs{T} = Tuple{T,T}\nf(x::Pairs{Int}) = x", True),
    ("struct P{T}\n x::T\nend", False),  # never used
    ("struct P{T}\n x::Int\nend\nP{Int}(1)", False),  # T never used
    ("f(x) where T = x", False),
    ("f(x::Vector{Int}) = Dict{String,Int}()", False),
    ("f(x::AbstractVector{<:Real}) = x", False),  # no parameter with a name
    ("v = Vector{T} where T", False),
    ("# f(x::T) where T = x\nf(x) = 1", False),
    ('s = "struct P{T} x::T end; P(1)"', False),
    ("s = :where; f(x::T, where) = x", False),
    ("x.where T", False),
    ("#= struct P{T}\n x::T\nend\nP(1) =#", False),
    ("", False),
]
GENERIC = [
    ("f(x) = x", True),
    ("f(x::Real, y::AbstractVector{<:Number}, z::Function) = x", True),
    ("f(x::T, y::AbstractArray{T,2}) where {T<:Real} = x", True),
    ("function f(x::Union{Number,Nothing}; tol::Real = 1e-9)::Float64\n y::Int = 1\nend", True),
    ("f(::Type{T}, v::Val{:a}, t::NTuple{3,T}, c::Complex{S}) where {T,S<:AbstractFloat} = 1", True),
    ("abstract type A end\nf(x::A) = 1", True),
    ("struct P{T} x::T end\nf(p::P) = p; g(p::P{T}) where T = p", True),
    ("const N = Union{Real,Complex}\nf(x::N) = x", True),
    ("const V{T} = AbstractVector{T}\nf(x::V{S}) where S = x", True),
    ("f(x) = map(y -> y::Int, x)", True),  # an assertion, not an argument
    ("f(io::IO, x::Base.AbstractString, r::AbstractRange{<:Integer}...) = x", True),
    ('f(x) = "g(y::Int) = y" # h(x::Int)', True),
    ("f(x::Int) = x", False),
    ("f(x::Core.Int64) = x", False),
    ("f(x::Vector) = x", False),
    ("f(x::AbstractVector{Float64}) = x", False),
    ("f(x; n::Int = 1) = x", False),
    ("f(x::Union{Int,Float64}) = x", False),
    ("f(x::T) where {T<:Int} = x", False),
    ("f(x::T) where {T<:Union{Float32,Float64}} = x", False),
    ("f(x::Int) where Int = x", False),
    ("f(x) = map((y::Int) -> y, x)", False),
    ("f(x) = map(y::String -> y, x)", False),
    ("f(x) = map(x) do y::Char\n y\nend", False),
    ("const N = Int\nf(x::N) = x", False),
    ("const N = Union{M,Real}; const M = Bool\nf(x::N) = x", False),
    ("const N = N\nf(x::N) = x", False),
    ("struct P x end\nf(p::P) = p", False),
    ("f(x::P{Int}) = x; struct P{T} x::T end", False),
    ("f(::typeof(sin)) = 1", False),
    ("f(::Nothing) = 1", False),
    ("f(x::Union{Nothing,Missing}) = 1", False),
    ("f(x, y::Date) = 1", False),
    ("for T in (Int, Real) @eval f(x::$T) = 1 end", False),
    ("function (f(x::Int) where T) end", False),
    ("g = function (x::Bool) x end; f(x) = x", False),
    ("struct P\n x\n P(x::Int) = new(x)\nend\nf(x) = x", False),
    ("f() = 1; map(x -> x, 1:2)", False),  # none takes an argument
    ("println(1)", False),
    ('include_string(Main, "f(x::Int) = x"); f(x) = x', False),
    ('eval(Meta.parse("f(x::Int) = x")); f(x) = x', False),
    ("f(x) = parse(Int, x)", True),
    ("f(x) = Meta.parse(x)", False),
]
FAST = [
    ("@time f(x)", True),
    ("@time begin x = 1 end", True),
    ("println(@elapsed f(x))", True),
    ('println("$(@elapsed sum(v)) s")', True),
    ("t = Base.@timed M.f.(x)", True),
    ('@time "label" sort(v)', True),
    ("@elapsed(for i in 1:9 end)", True),
    ("t = time_ns()\nf(x)\nprintln((time_ns() - t) / 1e9)", True),
    ("t0 = time(); r = f(); t1 = time(); println(t1 - t0)", True),
    ("@time 1\nf(x)", False),
    ("@time nothing; f(x)", False),
    ("@time time()", False),
    ('println("@time f(x)")', False),
    ("# @time f(x)\nf(x)", False),
    ("f(x); t = time()", False),
    ("t = time(); t = time(); t - t", False),
    ("t = time(); f(x); time() + t", False),
    ("@allocated f(x)", False),
    (":(@timer f(x))", False),
    ("(@time 1; f(x))", True),  # in brackets the rest of the line is the macro's for all we read
    ("f(x)", False),
]
INLINE = [
    ("f(x) = x", True),
    ("@inline function f(x)\n x\nend", True),
    ("Base.@inline @fastmath function f(x) x end", True),
    ("@inbounds @inline f(x) = x", True),
    ("function f(x)\n @inline\n x\nend", True),
    ("f(x) = map(y -> y, x); map(v) do y\n y\nend", True),
    ("struct P\n x\n P(x) = new(x)\nend", True),
    ("Base.:+(a::P, b::P) = 1\n(p::P)(x) = 2", True),
    ("macro m(x) x end\nf(x) = x", True),
    ('f(x) = "function g(y) end"', True),
    ("f(x) = :function", True),
    ("function f(x) x end", False),
    ("f(x) = x; function g(x) x end", False),
    ("@noinline f(x) = x", False),
    ("@inline\nfunction f(x) x end", False),
    ("function f(x)\n @inline g(x)\nend", False),
    ("@inbounds function f(x) x end", False),
    ("f(x) = x; g = function (x) x end", False),
    ("#= @inline =# function f(x) x end", False),
    ("f(x) = (function g(y) y end; g(x))", False),
    ('f(x) = x; include_string(Main, "function g() end")', False),
    ("f(x) = x; eval(Expr(:function, :g))", False),
    ("x -> x", False),
    ("println(1)", False),
]
VERDICTS = [
    (f"julia/{name}", code, wanted)
    for name, table in {"parametric": PARAMETRIC, "generic": GENERIC, "fast": FAST, "inline": INLINE}.items()
    for code, wanted in table
]


@pytest.mark.parametrize(("name", "code", "wanted"), VERDICTS)
def test_verdicts(name: str, code: str, wanted: bool) -> None:
    verdict, reason = CHECK[name](ran("f(x::T) where T = @time g(x::Int)", code))
    assert verdict is wanted, reason
    assert reason


def test_the_last_program_that_ran_counts() -> None:
    check = CHECK["julia/inline"]
    assert check(ran("f() = 1", "function f() end"))[0] is False
    assert check(ran("function f() end", "f() = 1", code=1))[0] is True  # running is another criterion
    assert check(ran()) == CHECK["julia"](ran()) == (False, "no program was run")
    assert check(ran("f() = 1", ok=False, result="error: timeout_s is 1 or more")) == (
        False,
        "no program was run",
    )


def test_running() -> None:
    check = CHECK["julia"]
    assert check(ran("f() = 1", code=1)) == (False, "the last program ended with exit status 1")
    assert check(ran("f() = 1", code=None)) == (False, "the last program was stopped")
    assert check(ran("f() = 1"))[0] is check(ran('"unclosed'))[0] is True
    assert check(ran("#= 1 =#\n\n # 2"))[0] is False


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "why",
    [
        "no program was run: Julia is not installed",
        "commands are not run here, as",
        "the sandbox did not start: x",
    ],
)
def test_what_cannot_run_is_not_graded(name: str, why: str) -> None:
    with pytest.raises(MachineError, match=re.escape(why)):
        CHECK[name](ran("f() = 1", ok=False, result=f"error: {why}"))
    # what a program printed is not taken for it
    CHECK[name](ran("f() = 1", code=1, result=f"exit 1\n\nerror: {why}"))


def test_a_text_that_cannot_be_read() -> None:
    assert CHECK["julia/inline"](ran("f(x = 1", code=1))[0] is False
    with pytest.raises(MachineError, match="the program ran, but it cannot be read: a bracket"):
        CHECK["julia/inline"](ran("f(x = 1"))


# where Julia is -----------------------------------------------------------------------------


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation that is found on PATH through a link, in a home of its own."""
    made = tmp_path / "opt" / "julia"
    for part in ("bin", "lib/julia", "share/julia"):
        (made / part).mkdir(parents=True)
    (made / "bin/julia").write_text("#!/bin/sh\n")
    (made / "bin/julia").chmod(0o755)
    (tmp_path / "path").mkdir()
    (tmp_path / "path/julia").symlink_to(made / "bin/julia")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("JULIAUP_CHANNEL", "JULIAUP_DEPOT_PATH"):
        monkeypatch.delenv(name, raising=False)
    return made


def test_the_prefix_is_mounted_and_nothing_else(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.path.realpath(prefix)
    assert installation.find() == (f"{real}/bin/julia", (Path(real),))
    monkeypatch.setenv("PATH", "/nowhere")
    assert not installation.is_found()
    with pytest.raises(MachineError, match="Julia is not installed here"):
        installation.find()


@pytest.mark.parametrize("other", ["bin/python3", ".cache", ".julia"])
def test_a_shared_prefix_is_not_mounted(prefix: Path, other: str) -> None:
    (prefix / other).touch()
    with pytest.raises(MachineError, match="shares its directory"):
        installation.find()


@pytest.mark.parametrize("part", ["lib", "share/julia"])
def test_what_is_no_installation_is_not_mounted(prefix: Path, part: str) -> None:
    os.rename(prefix / part, prefix.parent / "gone")
    with pytest.raises(MachineError, match="is not in an installation"):
        installation.find()


@pytest.mark.parametrize("home", ["", "a/b"])
def test_no_home_is_mounted(prefix: Path, home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(prefix / home))
    with pytest.raises(MachineError, match="shares its directory"):
        installation.find()


def test_the_system_s_own_needs_no_mount(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (prefix.parent.parent / "path/julia").unlink()
    (prefix.parent.parent / "path/julia").symlink_to("/usr/bin/env")
    assert installation.find() == (os.path.realpath("/usr/bin/env"), ())


@pytest.mark.parametrize(
    ("channel", "wanted"),
    [
        ("", "one"),
        ("named", "one"),
        ("direct", "two"),
        ("linked", "julia"),
        ("none", None),
        ("loop", None),
        ("odd", None),
    ],
)
def test_juliaup(prefix: Path, channel: str, wanted: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    top = prefix.parent.parent
    depot = top / "home/.julia/juliaup"
    for name in ("one", "two"):
        for part in ("bin", "lib", "share/julia"):
            (depot / name / part).mkdir(parents=True)
        (depot / name / "bin/julia").touch()
    channels = {
        "release": {"Version": "1.12.4"},
        "named": {"Target": "release"},
        "direct": {"Path": "./two", "Url": "x", "Version": "none"},
        "linked": {"Command": str(prefix / "bin/julia"), "Args": None},
        "loop": {"Target": "loop"},
        "odd": [],
    }
    told = {
        "Default": "release",
        "InstalledVersions": {"1.12.4": {"Path": "./one"}},
        "InstalledChannels": channels,
    }
    (depot / "juliaup.json").write_text(json.dumps(told))
    (top / "launcher").mkdir()
    for name in ("julia", "juliaup"):
        (top / "launcher" / name).write_text("")
        (top / "launcher" / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(top / "launcher"))
    if channel:
        monkeypatch.setenv("JULIAUP_CHANNEL", channel)
    if wanted is None:
        with pytest.raises(MachineError, match=r"juliaup\.json' names no Julia"):
            installation.find()
        return
    (mount,) = installation.find().mounts
    assert mount.name == wanted and mount in (
        *(depot.resolve() / n for n in ("one", "two")),
        prefix.resolve(),
    )


# the files of each machine --------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_rubric_names_the_graders(name: str) -> None:
    own = rubric(name)
    wanted = [CHECKED[name], *JUDGED.get(name, [])]
    assert list(own) == wanted
    machine = MACHINE[name]
    inherited = [] if name == "julia" else ["runs", "does_task", "idiomatic"]
    assert list(machine.graders) == inherited + wanted
    assert machine.ungateable is None and machine.model == MACHINE["julia"].model
    for criterion, told in own.items():
        kind = machine.graders[criterion].kind
        assert kind == ("check" if criterion == CHECKED[name] else "judge")
        assert ("levels" in told) is (kind == "judge")
        assert told["description"].endswith(".") and told["weight"] > 0
        assert kind == "check" or list(told["levels"]) == ["0", "0.5", "1"]


CASES = [(name, file) for name in NAMES for file in ("cases.jsonl", "holdout.jsonl")]


@pytest.mark.parametrize(("name", "file"), CASES)
def test_case_files_are_enough_and_tidy(name: str, file: str) -> None:
    text = (MACHINES / name / file).read_text(encoding="utf-8")
    found = [json.loads(line) for line in text.splitlines()]
    assert len(found) >= {"cases.jsonl": 6, "holdout.jsonl": 4}[file] + (name == "julia") * 2
    assert text == "".join(
        json.dumps(case, ensure_ascii=False, separators=(",", ":")) + "\n" for case in found
    )
    for case in found:
        assert set(case) == {"id", "input", "target"} and read_case(case)["id"] == case["id"]
        assert re.fullmatch(r"[a-z0-9][a-z0-9-]*", case["id"])
        assert case["input"].strip() == case["input"] != "" != case["target"]


def test_no_two_cases_of_the_family_are_near_duplicates() -> None:
    found = [case for name in NAMES for case in both(name)]
    inputs = [case["input"] for case in found]
    assert len({case["input"].casefold() for case in found}) == len(found)
    assert [(a, b) for a, b in combinations(inputs, 2) if likeness(a, b) >= 0.5] == []
    for name in NAMES:
        assert len({case["id"] for case in both(name)}) == len(both(name))


@pytest.mark.parametrize("name", NAMES)
def test_instructions_hold_no_case(name: str) -> None:
    text = Folder(str(MACHINES), name).instructions()
    assert 20 < len(text) < 1200
    told = set(windows(text, 4))
    for case in both(name):
        assert not told & set(windows(case["input"], 4)), case["id"]


def primes_below(limit: int) -> int:
    sieve = bytearray([1]) * limit
    for number in range(2, int(sqrt(limit)) + 1):
        if sieve[number]:
            sieve[number * number :: number] = bytes(len(range(number * number, limit, number)))
    return sum(sieve) - 2


def ways(total: int, parts: list[int]) -> int:
    found = [1] + [0] * total
    for part in parts:
        for amount in range(part, total + 1):
            found[amount] += found[amount - part]
    return found[total]


def lengths() -> str:
    text = "the early bird catches the worm but the second mouse gets the cheese"
    words = text.split()
    counts = {n: sum(len(word) == n for word in words) for n in range(3, 8)}
    return ", ".join(f"{n}: {count}" for n, count in counts.items())


def product() -> int:
    size = range(1, 301)
    return sum(sum(i + k for i in size) * sum(k - j for j in size) for k in size)


# From the text of each case and not from its target, which begins with it.
ARITHMETIC: dict[str, dict[str, Any]] = {
    "julia": {
        "harmonic": str(sum(Fraction(1, k) for k in range(1, 21))).replace("/", "//"),
        "word-lengths": lengths(),
        "armstrong": " ".join(str(n) for n in range(1, 1000) if n == sum(int(d) ** 3 for d in str(n))),
        "powers": f"trace {1 + 2**2 + 3**3}, determinant {1 * 2 * 3 * (2 - 1) * (3 - 1) * (3 - 2)}",
        "shapes": f"{round(4 * 3.14159265, 2)} and {3 * 4.5}",
        "fahrenheit": " ".join(f"{c * 9 / 5 + 32:.1f}" for c in (-40, 0, 36.6, 100)),
        "missing": f"mean {(4 + 10 + 7) // 3}",
        "pascal": " / ".join(" ".join(str(comb(n, k)) for k in range(n + 1)) for n in range(6)),
        "leibniz": f"{sum(4 * (-1) ** k / (2 * k + 1) for k in range(1000)):.4f}",
        "callable": 2 * 27 - 3 + 5,
        "four-ones": comb(8, 4),
    },
    "julia/generic": {
        "sum-squares": f"{sum(k * k for k in range(11))}, 13//{4 * 9}, -12 + 4im",
        "horner": f"{1 + 4 + 12}, {1 + 1 + 0.75}, 2//1, 3 + 8im",
        "euclid": f"{gcd(48, 36)}, {gcd(2**80, 6**40)}, {gcd(200, 120)}",
        "median": f"3, {median((4, 1, 3, 2))}, {median(range(1, 11))}",
        "power": 3**13,
    },
    "julia/fast": {
        "primes": primes_below(2_000_000),
        "product": product(),
        "partitions": ways(1000, list(range(1, 1001))),
        "order": 2000 * 2000,
        "coins": ways(10_000, [1, 2, 5, 10, 20, 50, 100, 200]),
        "circle": sum(2 * int(sqrt(4_000_000 - x * x)) + 1 for x in range(-2000, 2001)),
    },
    "julia/inline": {
        "compose": f"{(2 * 3 + 1) ** 2} and {2 * (3**2 + 1)}",
        "binomial": f"{factorial(10)} and {comb(10, 3)}",
        "body-mass": f"{70 / 1.75**2:.1f} and {90 / 1.8**2:.1f}",
        "cross": f"{1 * 4 + 2 * 5 + 3 * 6} and ({2 * 6 - 3 * 5}, {3 * 4 - 1 * 6}, {1 * 5 - 2 * 4})",
    },
}


@pytest.mark.parametrize(("name", "id"), [(name, id) for name, told in ARITHMETIC.items() for id in told])
def test_targets_are_right(name: str, id: str) -> None:
    (case,) = (case for case in both(name) if case["id"] == id)
    assert re.match(re.escape(str(ARITHMETIC[name][id])) + r"(?!\d)", case["target"]), case["target"]


def test_rubrics_are_tables() -> None:
    for name in NAMES:
        assert tomllib.loads((MACHINES / name / "rubric.toml").read_text(encoding="utf-8"))
