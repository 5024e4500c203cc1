"""libmachine.stats against published vectors, scipy, brute force, and properties that must always hold."""

from __future__ import annotations

import json
import random
from itertools import combinations, product
from math import atan, comb, inf, isclose, nan, pi, prod, sqrt
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import optimize, special
from scipy import stats as oracle

from libmachine import stats
from libmachine.stats import cases as stats_cases
from libmachine.stats import exact as stats_exact
from libmachine.stats.dist import beta_cdf, normal_quantile, normal_sf, t_isf, t_sf, wilson

DATA = Path(__file__).parent / "data"
GATE = json.loads((DATA / "vectors_gate.json").read_text())["vectors"]
AGREE = json.loads((DATA / "vectors_agree.json").read_text())
some = settings(max_examples=50, deadline=None)  # a shared machine: time says nothing
many = settings(max_examples=250, deadline=None)
ROWS = AGREE["tables"] + [row for sweep in AGREE["sweeps"] for row in sweep["sweep"]]


def assert_like(got: Any, want: Any, tolerance: float, where: str) -> None:
    if isinstance(want, list):
        assert isinstance(got, list) and len(got) == len(want), where
        for a, b in zip(got, want, strict=True):
            assert_like(a, b, tolerance, where)
    elif isinstance(want, float):
        assert got is not None and abs(got - want) <= tolerance, (where, got, want)
    else:
        assert got == want and type(got) is type(want), (where, got, want)


def named(vectors: list[dict[str, Any]]) -> Any:
    return pytest.mark.parametrize("vector", vectors, ids=lambda v: v.get("name") or f"at_{v['threshold']}")


# ---------------------------------------------------------------- vectors


@named(GATE)
def test_gate_vectors(vector: dict[str, Any]) -> None:
    got = stats.paired_gate(vector["live"], vector["cand"], vector["min_z"])
    for key, want in vector["expect"].items():
        assert_like(got[key], want, 1e-6, key)


@named(ROWS)
def test_agreement_vectors(vector: dict[str, Any]) -> None:
    got = stats.agreement(vector["tp"], vector["fp"], vector["fn"], vector["tn"])
    assert got.keys() == vector["expect"].keys()
    for key, want in vector["expect"].items():
        assert_like(got[key], want, 1e-9, key)


@named(AGREE["sweeps"])
def test_sweep_vectors(vector: dict[str, Any]) -> None:
    pairs = vector["pairs"]
    got = stats.threshold_sweep([p["reference"] for p in pairs], [p["candidate"] for p in pairs])
    for key in (
        "reference_threshold",
        "unsure_band",
        "unsure",
        "sure",
        "agreement_sure_at_05",
        "disagree_at_05",
    ):
        assert got[key] == vector[key], key
    assert [row["threshold"] for row in got["sweep"]] == [row["threshold"] for row in vector["sweep"]]
    for row, want in zip(got["sweep"], vector["sweep"], strict=True):
        assert [row[k] for k in ("tp", "fp", "fn", "tn")] == [want[k] for k in ("tp", "fp", "fn", "tn")]
        for key, value in want["expect"].items():
            assert_like(row[key], value, 1e-9, key)


# ---------------------------------------------------------------- distributions, scipy as the oracle


@some
@given(st.floats(-60, 60), st.one_of(st.integers(1, 5000), st.floats(0.5, 50)))
def test_t_tail(t: float, df: float) -> None:
    assume(t == 0 or abs(t) > 1e-3)  # nearer to 0 scipy 1.17 is the one that errs: 2e-9 at t = 9e-9, df = 1
    assert isclose(t_sf(t, df), oracle.t.sf(t, df), rel_tol=1e-9, abs_tol=1e-14)


@some
@given(st.floats(-60, 60))
def test_t_tail_in_closed_form(t: float) -> None:
    assert t_sf(t, 1) == pytest.approx(0.5 - atan(t) / pi, rel=1e-12, abs=1e-13)
    assert t_sf(t, 2) == pytest.approx(0.5 - t / 2 / sqrt(2 + t * t), rel=1e-12, abs=1e-13)


@some
@given(st.floats(1e-12, 0.999), st.integers(1, 500))
def test_t_quantile(p: float, df: int) -> None:
    assert isclose(t_isf(p, df), oracle.t.isf(p, df), rel_tol=1e-8, abs_tol=1e-8)


@some
@given(st.floats(0.01, 400), st.floats(0.01, 400), st.floats(0, 1, allow_subnormal=False))
def test_beta(a: float, b: float, x: float) -> None:
    assert isclose(beta_cdf(a, b, x), special.betainc(a, b, x), rel_tol=1e-8, abs_tol=1e-11)


def test_ends_of_the_distributions() -> None:
    assert (beta_cdf(2, 3, -1), beta_cdf(2, 3, 2)) == (0, 1)
    assert (t_sf(inf, 3), t_sf(-inf, 3), t_sf(0, 3), t_sf(1e200, 3)) == (0, 1, 0.5, 0)
    assert (t_isf(0, 3), t_isf(1, 3), t_isf(0.5, 3)) == (inf, -inf, pytest.approx(0, abs=1e-12))
    assert t_isf(5e-324, 1) > 1e100 and normal_sf(60) == 0
    assert normal_quantile(0.975) == pytest.approx(1.959963984540054)


@some
@given(st.integers(0, 60), st.integers(0, 60))
def test_wilson(k: int, rest: int) -> None:
    got = wilson(k, k + rest)
    if k + rest == 0:
        assert got is None
        return
    want = oracle.binomtest(k, k + rest).proportion_ci(method="wilson")
    assert got == pytest.approx((want.low, want.high), abs=1e-12)
    assert got is not None and 0 <= got[0] <= k / (k + rest) <= got[1] <= 1


def test_wilson_keeps_its_ends() -> None:
    for n in range(1, 60):
        assert wilson(0, n)[0] == 0.0 and wilson(n, n)[1] == 1.0  # type: ignore[index]


@pytest.mark.parametrize("k, n", [(-1, 3), (4, 3), (1, 0)])
def test_wilson_refuses(k: int, n: int) -> None:
    with pytest.raises(ValueError):
        wilson(k, n)


# ---------------------------------------------------------------- exact tests

thirds = st.sampled_from([0.0, 1 / 3, 0.5, 2 / 3, 0.1 + 0.2, 0.3, 1.0])
unit_scores = st.one_of(thirds, st.floats(0, 1))


def arms(score: st.SearchStrategy[Any], cases: tuple[int, int], trials: tuple[int, int]) -> Any:
    a_case = st.lists(score, min_size=trials[0], max_size=trials[1])
    return st.lists(st.tuples(a_case, a_case), min_size=cases[0], max_size=cases[1])


@some
@given(arms(thirds, (1, 8), (1, 4)))
def test_flip_is_brute_force(pairs: list[tuple[list[float], list[float]]]) -> None:
    got = stats.paired_gate([a for a, _ in pairs], [b for _, b in pairs])
    total = sum(got["diff"]) - 1e-9
    hits = sum(sum(s * d for s, d in zip(signs, got["diff"], strict=True)) >= total
               for signs in product((1, -1), repeat=len(pairs)))  # fmt: skip
    assert got["p_flip"] == pytest.approx(hits / 2 ** len(pairs), abs=1e-12)
    assert got["sampled"] == []


@some
@given(arms(unit_scores, (1, 3), (1, 3)), st.booleans())
def test_trial_swap_is_brute_force(pairs: list[tuple[list[float], list[float]]], grouped: bool) -> None:
    groups = ["a", "a", None][: len(pairs)] if grouped else None
    got = stats.paired_gate([a for a, _ in pairs], [b for _, b in pairs], groups=groups)
    sizes = {i: len(unit) for unit in got["units"] for i in unit}
    dealt = []
    for i, (a, b) in enumerate(pairs):
        pooled = a + b
        dealt.append([
            (sum(pooled[j] for j in chosen) / len(b)
             - sum(pooled[j] for j in range(len(pooled)) if j not in chosen) / len(a)) / sizes[i]
            for chosen in combinations(range(len(pooled)), len(b))
        ])  # fmt: skip
    total = sum(got["diff"]) - 1e-9
    hits = sum(sum(some) >= total for some in product(*dealt))
    assert got["p_trial"] == pytest.approx(hits / prod(map(len, dealt)), abs=1e-9)


@some
@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 5))
def test_flip_of_passes_is_the_sign_test(wins: int, losses: int, ties: int) -> None:
    live = [[0]] * wins + [[1]] * losses + [[1]] * ties
    cand = [[1]] * wins + [[0]] * losses + [[1]] * ties
    got = stats.paired_gate(live, cand)
    if live:
        want = oracle.binom.sf(wins - 1, wins + losses, 0.5)
        assert got["p_flip"] == pytest.approx(want, abs=1e-12)
        assert got["p_trial"] == pytest.approx(want, abs=1e-12)


def test_trial_swap_of_one_case_is_hypergeometric() -> None:
    got = stats.paired_gate([[0] * 6 + [1] * 2], [[1] * 7 + [0] * 3])
    assert got["p_trial"] == pytest.approx(oracle.hypergeom.sf(6, 18, 9, 10), abs=1e-12)


def test_sampled_p_values_are_near_the_exact_ones_and_never_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(5)
    gaps = [rng.randint(-1000, 1600) for _ in range(16)]
    cases = [
        stats_exact.Swap([rng.randint(0, 9) for _ in range(3)], [rng.randint(0, 12) for _ in range(3)], 1, 1)
        for _ in range(5)
    ]
    exact = stats_exact.flip_p(gaps), stats_exact.swap_p(cases)
    assert exact[0][1] and exact[1][1]
    for limit in (1, 30):
        monkeypatch.setattr(stats_exact, "_MAX_WORK", limit)
        monkeypatch.setattr(stats_exact, "_MAX_SUMS", limit)
        for (p, is_exact), (want, _) in zip(
            (stats_exact.flip_p(gaps), stats_exact.swap_p(cases)), exact, strict=True
        ):
            assert not is_exact and 0 < p < 1 and abs(p - want) < 5 * (want * (1 - want) / 19_000) ** 0.5
    monkeypatch.setattr(stats_exact, "_MAX_WORK", 1)
    some_tie = [3, 3, 3, -3]  # the sum seen, 6, is met by 4 of 16 choices and passed by one
    assert stats_exact.flip_p(some_tie)[0] == pytest.approx(5 / 16, abs=0.02)
    assert stats_exact.flip_p([1] * 60)[0] == pytest.approx(1 / 20_001)


def test_many_continuous_cases_are_sampled_alike_in_any_order() -> None:
    rng = random.Random(3)
    live = [[rng.random() for _ in range(3)] for _ in range(45)]
    cand = [[rng.random() for _ in range(3)] for _ in range(45)]
    order = rng.sample(range(45), 45)
    one = stats.paired_gate(live, cand)
    two = stats.paired_gate([live[i] for i in order], [cand[i] for i in order])
    assert one["sampled"] == ["p_flip", "p_trial"]
    assert (one["p_flip"], one["p_trial"]) == (two["p_flip"], two["p_trial"])


# ---------------------------------------------------------------- the gate: properties

anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    unit_scores,
    st.sampled_from([nan, inf, -inf, 1e308, 10**400, "x"]),
)
messy = st.lists(st.one_of(st.none(), st.lists(anything, max_size=5)), max_size=8)


group_names = st.one_of(st.none(), st.lists(st.sampled_from(["a", "b", "", None]), max_size=9))


@many
@given(messy, messy, st.floats(-1, 9), st.integers(1, 40), group_names, st.booleans())
def test_never_raises_and_stays_a_record(
    live: Any, cand: Any, min_z: float, tries: int, groups: Any, strict: bool
) -> None:
    got = stats.paired_gate(live, cand, min_z, tries, groups, strict)
    json.dumps(got, allow_nan=False)
    assert got["decision"] in ("promote", "refuse", "untestable")
    assert (got["decision"] == "promote") == (got["reasons"] == [])
    assert got["n"] == len(got["diff"]) == len(got["units"]) == got["wins"] + got["losses"] + got["ties"]
    assert sorted(sum(got["units"], got["dropped"])) == list(range(max(len(live), len(cand))))
    if got["n"] < 2:
        assert got["se"] is None and got["sd"] is None and got["z"] is None and got["decision"] != "promote"
    if got["n"] == 0:
        assert got["decision"] == "untestable" and got["mean_diff"] is None
    for p in ("p_flip", "p_trial", "p_t"):
        assert got[p] is None or 0 <= got[p] <= 1
    if got["decision"] == "promote":
        assert got["rule"] and got["mean_diff"] > 0


@some
@given(arms(unit_scores, (0, 6), (1, 3)), st.booleans())
def test_arms_swapped(pairs: list[tuple[list[float], list[float]]], strict: bool) -> None:
    live, cand = [a for a, _ in pairs], [b for _, b in pairs]
    one, two = stats.paired_gate(live, cand, strict=strict), stats.paired_gate(cand, live, strict=strict)
    assert one["diff"] == [-d for d in two["diff"]]
    assert (one["wins"], one["ties"], one["se"]) == (two["losses"], two["ties"], two["se"])
    assert (one["rule"], one["worse"]) == (two["worse"], two["rule"])
    assert {one["decision"], two["decision"]} != {"promote"} or not pairs
    if one["n"] and not one["sampled"]:
        assert one["p_flip"] + two["p_flip"] >= 1 - 1e-12
    if one["z"] is not None:
        assert one["z"] == pytest.approx(-two["z"]) and one["p_t"] == pytest.approx(1 - two["p_t"])


@some
@given(arms(unit_scores, (1, 6), (1, 3)), st.randoms(use_true_random=False))
def test_order_of_cases_and_trials_is_nothing(pairs: list[tuple[list[float], list[float]]], rng: Any) -> None:
    one = stats.paired_gate([a for a, _ in pairs], [b for _, b in pairs])
    mixed = [(rng.sample(a, len(a)), rng.sample(b, len(b))) for a, b in rng.sample(pairs, len(pairs))]
    two = stats.paired_gate([a for a, _ in mixed], [b for _, b in mixed])
    assert sorted(one.pop("diff")) == sorted(two.pop("diff"))
    assert one == two


@some
@given(arms(st.integers(0, 12).map(lambda k: k / 12), (1, 7), (1, 4)), st.integers(-24, 24))
def test_shift_of_both_arms_is_nothing(pairs: list[tuple[list[float], list[float]]], twelfths: int) -> None:
    by = twelfths / 12
    one = stats.paired_gate([a for a, _ in pairs], [b for _, b in pairs])
    two = stats.paired_gate([[x + by for x in a] for a, _ in pairs], [[x + by for x in b] for _, b in pairs])
    assert (one["decision"], one["warnings"]) == (two["decision"], two["warnings"])
    for key in ("diff", "mean_diff", "se", "z", "p_flip", "p_trial", "p_t", "mde80"):
        assert one[key] == pytest.approx(two[key], abs=1e-9), key


@some
@given(st.lists(st.lists(unit_scores, min_size=1, max_size=5), max_size=9), st.floats(0, 4))
def test_equal_arms_are_refused(live: list[list[float]], min_z: float) -> None:
    got = stats.paired_gate(live, [list(reversed(trials)) for trials in live], min_z)
    assert got["decision"] == ("refuse" if live else "untestable")
    assert got["mean_diff"] in (0.0, None) and got["ties"] == len(live) and not got["worse"]


@some
@given(arms(unit_scores, (2, 10), (2, 4)))
def test_student_is_scipys_paired_test(pairs: list[tuple[list[float], list[float]]]) -> None:
    got = stats.paired_gate([a for a, _ in pairs], [b for _, b in pairs])
    assume(got["z"] is not None and got["sd"] > 1e-6)
    a = [sum(x) / len(x) for x, _ in pairs]
    b = [sum(x) / len(x) for _, x in pairs]
    want = oracle.ttest_rel(b, a, alternative="greater")
    assert got["z"] == pytest.approx(want.statistic, rel=1e-5) and got["p_t"] == pytest.approx(
        want.pvalue, abs=1e-6
    )
    low, high = oracle.ttest_rel(b, a).confidence_interval(0.95)
    assert got["ci_t"] == pytest.approx([max(-1, min(1, low)), max(-1, min(1, high))], abs=1e-6)


# ---------------------------------------------------------------- the gate: decisions


def single(wins: int, ties: int, losses: int = 0) -> tuple[list[list[int]], list[list[int]]]:
    return [[0]] * wins + [[1]] * (ties + losses), [[1]] * (wins + ties) + [[0]] * losses


@pytest.mark.parametrize("min_z, decision", [(2.0, "promote"), (2.0 + 1e-12, "promote"), (2.001, "refuse")])
def test_exactly_two_standard_errors_pass(min_z: float, decision: str) -> None:
    assert stats.paired_gate(*single(2, 1), min_z)["decision"] == decision


@pytest.mark.parametrize("n, promotes", [(2, False), (3, False), (5, False), (6, True), (12, True)])
def test_zero_variance_needs_six_cases(n: int, promotes: bool) -> None:
    # 0.1 + 0.2 - 0.3 and the like: every difference is one tenth, but not to the last bit.
    live = [[i / 10] for i in range(n)]
    got = stats.paired_gate(live, [[x[0] + 0.1] for x in live])
    assert got["se"] == 0 and got["z"] is None and got["rule"]
    assert got["decision"] == ("promote" if promotes else "refuse")
    assert promotes or got["reasons"][0].startswith("zero_variance: ")


def test_dust_decides_nothing() -> None:
    live = [[0.1 + 0.2], [0.7], [1 / 3 * 3], [0.1 * 3], [0.6, 0.7]]
    got = stats.paired_gate(live, [[0.3], [0.7000000000000001], [1.0], [0.3], [0.65]])
    assert got["ties"] == 5 and got["mean_diff"] == 0 and got["reasons"] == ["not_higher"]
    assert stats.paired_gate([[0.5]] * 9, [[0.5 + 1e-12]] * 9)["decision"] == "refuse"


def test_noise_is_named_with_its_size() -> None:
    got = stats.paired_gate(*single(2, 3))
    assert got["reasons"] == ["within_noise: +0.4 is 1.63 standard errors, 2.00 are needed"]


def test_strict_asks_for_t_and_takes_no_warning() -> None:
    assert stats.paired_gate(*single(4, 8), strict=True)["reasons"] == [
        "strict: exact_p_above_alpha, few_cases, single_trial"
    ]
    assert stats.paired_gate(*single(3, 2), strict=True)["reasons"] == [
        "within_noise: +0.6 is 2.45 standard errors, 2.87 are needed"
    ]
    live, cand = [[0, 0]] * 9 + [[1, 1]] * 4, [[1, 1]] * 13
    assert stats.paired_gate(live, cand, strict=True)["decision"] == "promote"
    again = stats.paired_gate(live, cand, strict=True, tries=10_000)
    assert again["reasons"] == ["strict: holdout_reused"]


def test_weak_passes_ask_for_confirmation() -> None:
    strong = [[0, 0]] * 9 + [[1, 1]] * 4, [[1, 1]] * 13
    assert not stats.paired_gate(*strong)["weak"] and not stats.paired_gate(*strong, tries=3)["weak"]
    reused = stats.paired_gate(*strong, tries=10_000)
    assert reused["weak"] and reused["warnings"] == ["holdout_reused"] and reused["decision"] == "promote"
    assert stats.paired_gate(*single(8, 11, 1))["warnings"] == ["single_trial"]
    assert stats.paired_gate(*single(4, 8))["weak"]
    assert not stats.paired_gate(*single(1, 8))["weak"], "refused: nothing to confirm"


@pytest.mark.parametrize(
    "moved, ties, warned", [(6, 6, []), (6, 5, ["few_cases"]), (5, 7, ["exact_p_above_alpha", "few_cases"])]
)
def test_few_cases_or_few_that_moved(moved: int, ties: int, warned: list[str]) -> None:
    live, cand = [[0, 0]] * moved + [[1, 1]] * ties, [[1, 1]] * (moved + ties)
    assert stats.paired_gate(live, cand)["warnings"] == warned


def test_few_moved_counts_where_the_exact_p_does_not() -> None:
    live, cand = [[0, 0]] * 5 + [[1, 1]] * 15, [[1, 1]] * 20
    assert stats.paired_gate(live, cand, min_z=1.8)["warnings"] == ["few_cases"]


def test_the_second_candidate_already_counts() -> None:
    # p_t 0.0076: under alpha 0.0228, over its share of a second try, 0.0035.
    assert "holdout_reused" not in stats.paired_gate(*single(8, 11, 1))["warnings"]
    assert "holdout_reused" in stats.paired_gate(*single(8, 11, 1), tries=2)["warnings"]


def test_alpha_is_spent_by_the_count_of_candidates() -> None:
    alpha = NormalDist().cdf(-2)
    spent = 0.0
    for tries in range(1, 30):
        got = stats.paired_gate(*single(8, 4), tries=tries)
        spent += got["alpha_try"]
        assert got["alpha"] == pytest.approx(alpha) and got["alpha_left"] == pytest.approx(alpha - spent)
    # t needed at 12 cases, as published: 2.54 3.31 3.78 ... 5.24
    needed = [t_isf(alpha * stats.alpha_share(j), 11) for j in (1, 2, 3, 10)]
    assert needed == pytest.approx([2.54, 3.31, 3.78, 5.24], abs=0.005)


def test_low_power_is_no_room_above_live() -> None:
    ceiling = [[1]] * 11 + [[0]], [[1]] * 10 + [[0]] + [[1]]
    assert stats.paired_gate(*ceiling)["low_power"]
    assert not stats.paired_gate(*single(8, 11, 1))["low_power"]
    assert stats.paired_gate([[1]] * 5, [[1]] * 5)["low_power"] is None


@pytest.mark.parametrize("min_z, tries", [(nan, 1), (inf, 1), (2, 0)])
def test_bad_terms(min_z: float, tries: int) -> None:
    with pytest.raises(ValueError):
        stats.paired_gate([[1]], [[1]], min_z, tries)


@some
@given(st.integers(0, 20), st.one_of(st.none(), st.floats(-1, 1)), st.one_of(st.none(), st.floats(0, 1)))
def test_decide_agrees_with_the_bare_rule(n: int, mean: float | None, se: float | None) -> None:
    refused = stats.decide(n, mean, se)
    assert bool(refused) != stats.passes(n, mean, se) or (se == 0 and n < 6)


# ---------------------------------------------------------------- missing grades


def test_missing_grades_are_dropped_and_counted() -> None:
    live: list[list[float | None]] = [[0, None, 0], [0, 0, 0], [1, 1, 1]]
    live += [[0, 0, 0], [1, 1, 1], [0, 0, 0]] * 7
    got = stats.paired_gate(live, [[1, 1, 1]] * 24)
    assert (got["missing_live"], got["missing_cand"], got["n"], got["diff"][0]) == (1, 0, 24, 1.0)
    assert got["decision"] == "promote"


@pytest.mark.parametrize("arm", ["live", "candidate"])
def test_more_than_a_tenth_missing_is_refused(arm: str) -> None:
    for better in (0, 1):
        lists = {"live": [[0, 0]] * 10, "candidate": [[1, 1]] * 10}
        value = lists[arm][0][0]
        lists[arm] = [*([[value, None]] * (2 + better)), *lists[arm][2 + better :]]
        got = stats.paired_gate(lists["live"], lists["candidate"])
        assert (got["decision"] == "refuse") == bool(better), got["reasons"]
    assert got["reasons"] == [f"missing_grades: 3 of 20 grades of the {arm} arm, over 10%"]


def test_an_arm_without_a_case_misses_all_of_it() -> None:
    got = stats.paired_gate([[0, 0]] * 9 + [[]], [[1, 1]] * 10)
    assert (got["missing_live"], got["dropped"], got["n"]) == (2, [9], 9)
    assert stats.paired_gate([[0, 0]] * 5, [[1, 1]] * 10)["decision"] == "refuse"
    assert stats.paired_gate([[1, 1], [1]], [[1], []])["missing_cand"] == 1, "unequal trials miss nothing"
    assert stats.paired_gate([[], None], [[], []])["decision"] == "untestable"
    assert stats.paired_gate([[None]] * 3, [[1]] * 3)["reasons"][0].startswith("no_cases: ")


def test_missing_grades_that_would_turn_a_promotion() -> None:
    # 4 wins of 12 pass at 2.35; a loss in the thirteenth case takes it to 1.39, a tie to 2.31.
    live, cand = single(4, 8)
    assert stats.paired_gate(live, cand)["decision"] == "promote"
    assert stats.paired_gate([*live, [None]], [*cand, [1]])["decision"] == "promote"
    got = stats.paired_gate([*live, [1]], [*cand, [None]])
    assert got["decision"] == "untestable" and got["reasons"][0].endswith("would turn this promote")


def test_missing_grades_that_would_turn_a_refusal() -> None:
    live, cand = single(3, 9)
    assert stats.paired_gate(live, cand)["decision"] == "refuse"
    got = stats.paired_gate([*live, [0]], [*cand, [None]])
    assert got["decision"] == "untestable" and got["reasons"][1].startswith("within_noise")
    assert stats.paired_gate(*(arm[1:] for arm in ([*live, [0]], [*cand, [None]])))["decision"] == "refuse"


def test_a_fill_that_makes_all_cases_alike_turns_a_promotion() -> None:
    live, cand = [[0.0] * 4] * 5, [[0.25] * 4] * 4 + [[0.2, 0.2, 0.2]]
    assert stats.paired_gate(live, cand)["decision"] == "promote"
    holed: list[list[float | None]] = [*cand[:4], [0.2, 0.2, 0.2, None]]
    assert stats.paired_gate(live, holed)["decision"] == "untestable"
    assert stats.paired_gate(live, [*cand[:4], [0.2, 0.2, 0.2, 0.4]])["decision"] == "refuse"


def test_a_fill_that_makes_them_unlike_turns_a_refusal() -> None:
    # Neither end of the missing grade promotes, nor the value that makes all alike; 0.011 does.
    live, cand = [[0.0] * 10] * 5, [[0.01] * 10] * 4
    for value, decision in ((0, "promote"), (0.01, "refuse"), (0.011, "promote"), (1, "refuse")):
        assert stats.paired_gate(live, [*cand, [0.01] * 9 + [value]])["decision"] == decision, value
    got = stats.paired_gate(live, [*cand, [0.01] * 9 + [None]])
    assert got["decision"] == "untestable" and got["reasons"][1].startswith("zero_variance")
    # And where the grade can only have been worse for the candidate.
    got = stats.paired_gate([*live[:4], [0.0] * 9 + [None]], [*cand, [0.01] * 10])
    assert got["decision"] == "untestable" and got["reasons"][1].startswith("zero_variance")


def test_a_large_gain_can_turn_a_promotion_too() -> None:
    live, cand = [[0.0]] * 11, [[0.05]] * 5 + [[0.06]] * 5
    assert stats.paired_gate(live[:10], cand)["decision"] == "promote"
    got = stats.paired_gate(live, [*cand, [None]])
    worst = stats.paired_gate(live, [*cand, [1.0]])
    assert worst["decision"] == "refuse" and got["decision"] == "untestable"


@many
@given(arms(st.sampled_from([0, 1, 1, 0.5]), (10, 14), (3, 3)), st.data())
def test_no_fill_turns_what_is_decided(pairs: list[tuple[list[float], list[float]]], data: Any) -> None:
    live = [list(map(float, a)) for a, _ in pairs]
    cand = [[max(x, y) for x, y in zip(a, b, strict=True)] for a, b in pairs]
    holes = data.draw(
        st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 2)), min_size=1, max_size=3)
    )
    fills = data.draw(st.lists(st.floats(0, 1), min_size=3, max_size=3))
    holed: list[list[list[float | None]]] = [[list(t) for t in live], [list(t) for t in cand]]
    filled = [[list(t) for t in live], [list(t) for t in cand]]
    for (arm, i, j), value in zip(holes, fills, strict=False):
        holed[arm][i][j] = None
        filled[arm][i][j] = value
    got = stats.paired_gate(*holed)
    assume(not any("over 10%" in reason for reason in got["reasons"]))
    if got["decision"] != "untestable":
        assert stats.paired_gate(*filled)["decision"] == got["decision"]


def gain(diff: Any, z: float) -> float:
    mean, se = stats.mean_stderr(list(diff))
    assert mean is not None and se is not None
    return mean - z * se


@some
@given(st.integers(0, 10**6))
def test_fills_reach_the_ends(seed: int) -> None:
    rng = random.Random(seed)
    n, z = rng.randint(2, 14), rng.choice([0.5, 1, 2, 3, 4.5])
    low = [rng.uniform(-0.5, 1) for _ in range(n)]
    high = [a + rng.choice([0, 0, 1 / 3, rng.uniform(0, 1)]) for a in low]
    boxes = list(zip(low, high, strict=True))
    random_corner = [rng.choice(box) for box in boxes]
    assert min(gain(d, z) for d in stats_cases.worst_fills(low, high)) <= gain(random_corner, z) + 1e-9
    best = max(gain(d, z) for d in stats_cases.best_fills(low, high, z))
    inside = [rng.uniform(*box) for box in boxes]
    search = optimize.minimize(lambda d: -gain(d, z), inside, bounds=boxes, method="L-BFGS-B")
    assert best >= -search.fun - 1e-6 and best >= gain(inside, z) - 1e-9


# ---------------------------------------------------------------- groups


@some
@given(arms(unit_scores, (1, 6), (1, 3)))
def test_groups_of_one_are_no_groups(pairs: list[tuple[list[float], list[float]]]) -> None:
    live, cand = [a for a, _ in pairs], [b for _, b in pairs]
    plain = stats.paired_gate(live, cand)
    assert stats.paired_gate(live, cand, groups=[str(i) for i in range(len(pairs))]) == plain
    assert stats.paired_gate(live, cand, groups=[None] * len(pairs)) == plain
    assert stats.paired_gate(live, cand, groups=[]) == plain


def test_copies_of_a_case_are_no_evidence() -> None:
    live, cand = single(2, 3)
    groups = [f"g{i}" for i in range(5)]
    plain = stats.paired_gate(live, cand)
    copied = stats.paired_gate(live * 6, cand * 6, groups=groups * 6)
    for key in ("n", "diff", "mean_live", "mean_diff", "se", "z", "p_flip", "decision", "wins"):
        assert copied[key] == pytest.approx(plain[key]) if key != "decision" else copied[key] == plain[key], (
            key
        )
    assert copied["n_cases"] == 30 and copied["units"][1] == [1, 6, 11, 16, 21, 26]
    assert stats.paired_gate(live * 6, cand * 6)["decision"] == "promote", "what the copies would fake"
    assert stats.paired_gate(live, cand, groups=["one"] * 5)["reasons"][0].startswith("too_few_cases")


def test_a_unit_is_the_mean_of_its_cases() -> None:
    got = stats.paired_gate([[0], [0, 0], [1]], [[1], [1, 0], [1]], groups=["a", "a", None])
    assert got["diff"] == [0.75, 0.0] and got["units"] == [[0, 1], [2]] and got["mean_live"] == 0.5


# ---------------------------------------------------------------- means, pass@k, agreement


def test_mean_and_its_error() -> None:
    assert stats.mean_stderr([]) == (None, None) and stats.mean_stderr([None]) == (None, None)
    assert stats.mean_stderr([0.25, None]) == (0.25, None)
    assert stats.mean_stderr([0.1 + 0.2, 0.3]) == (pytest.approx(0.3), 0.0)
    assert stats.mean_stderr(iter([0, 1, 1])) == pytest.approx((2 / 3, oracle.sem([0, 1, 1])))


def test_pass_at_k_by_hand() -> None:
    cases = [[True, True, True], [True, False, False], [False, None, False], [None], []]
    assert stats.pass_at_k(cases, 1) == pytest.approx((1 + 1 / 3 + 0) / 3)
    assert stats.pass_at_k(cases, 2) == pytest.approx((1 + 2 / 3 + 0) / 3)
    assert stats.pass_at_k(cases) == pytest.approx(2 / 3) and stats.pass_hat_k(cases) == pytest.approx(1 / 3)
    assert stats.pass_hat_k(cases, 3) == pytest.approx(1 / 2), "the third case has two grades only"
    assert stats.pass_at_k(cases, 4) is None and stats.pass_hat_k([]) is None
    with pytest.raises(ValueError):
        stats.pass_at_k(cases, 0)


@some
@given(st.lists(st.booleans(), min_size=1, max_size=7), st.integers(1, 7))
def test_pass_at_k_counts_choices(trials: list[bool], k: int) -> None:
    assume(k <= len(trials))
    chosen = list(combinations(trials, k))
    assert len(chosen) == comb(len(trials), k)
    assert stats.pass_at_k([trials], k) == pytest.approx(sum(map(any, chosen)) / len(chosen))
    assert stats.pass_hat_k([trials], k) == pytest.approx(sum(map(all, chosen)) / len(chosen))


counts = st.integers(0, 40)


@some
@given(counts, counts, counts, counts)
def test_agreement_holds_together(tp: int, fp: int, fn: int, tn: int) -> None:
    got = stats.agreement(tp, fp, fn, tn)
    json.dumps(got, allow_nan=False)
    if tp + fp + fn + tn:
        assert 0 <= got["bits"] <= got["bits_max"] + 1e-12
    if got["kappa"] is not None:
        assert -1 <= got["kappa"] <= 1
    if got["kept_bad_at_10"] is not None:
        assert got["kept_bad_at_10"] >= got["kept_bad_at_50"]
        assert got["kept_bad_at_50"] == pytest.approx(
            got["false_pass_rate"] / (got["false_pass_rate"] + 1 - got["false_fail_rate"])
        )
    # Names of the classes turned round: what is symmetric stays.
    other = stats.agreement(tn, fn, fp, tp)
    assert (got["agreement"], got["kappa"]) == (other["agreement"], other["kappa"])


def test_agreement_refuses_negative_counts() -> None:
    with pytest.raises(ValueError):
        stats.agreement(1, -1, 0, 0)


def test_sweep_keeps_places_and_leaves_missing_scores_out() -> None:
    got = stats.threshold_sweep(
        [1, None, 0, 1, 0], [0.7 - 0.4, 0.9, nan, 0.2, 0.6999999999999999], (0.3, 0.7)
    )
    assert (got["n"], got["missing"], got["unsure"], got["sure"]) == (3, 2, 2, 1)
    assert got["disagree_at_05"] == [0, 3, 4] and got["agreement_sure_at_05"] == 0.0
    assert [(row["tp"], row["fp"], row["fn"], row["tn"]) for row in got["sweep"]] == [
        (1, 1, 1, 0),
        (0, 1, 2, 0),
    ]


def test_sweep_of_nothing_and_of_unequal_lists() -> None:
    got = stats.threshold_sweep([], [])
    assert got["n"] == 0 and got["agreement_sure_at_05"] is None and got["sweep"][0]["agreement"] is None
    with pytest.raises(ValueError, match="1 reference scores, 2 candidate scores"):
        stats.threshold_sweep([1], [1, 0])
