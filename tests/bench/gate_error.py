"""How often the gate errs: false promotion and power of the shipped rule, by simulation.

    python tests/bench/gate_error.py [--fast] [--seed N]

Cases have pass rates sigmoid(N(mu, 1.5^2)) with mean p; trials pass or fail. Both arms are equal
(false promotion) or the candidate has a higher mean (power). The decision is libmachine.stats.decide
on mean and standard error, or paired_gate on the trials themselves where more than that decides;
a sample of both is compared first. Each cell is printed as measured/published, in per cent; the
published figures are those of the design study (tables B2a, B2e, B2f and B2h). A false promotion
that is over the published one by more than four standard errors is marked `!` and ends with 1.
"""

from __future__ import annotations

import argparse
import sys
import time
from math import sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from libmachine.stats import alpha_share, decide, mean_stderr, paired_gate
from libmachine.stats.dist import normal_sf, t_sf

Array = NDArray[np.float64]

SIZES = (3, 5, 8, 12, 20, 50)
SPREAD = 1.5
TRIES = 10
STUDY_REPEATS = {"error": 4000, "reuse": 2000}

# (p, trials) -> per cent for each of SIZES; rule z >= 2, SE 0 promotes if the mean is above 0
B2A = {
    (0.5, 1): (6.2, 2.9, 5.3, 3.2, 3.1, 2.5),
    (0.5, 3): (9.3, 4.9, 4.2, 3.2, 3.5, 2.7),
    (0.5, 5): (9.2, 6.3, 3.6, 3.7, 2.6, 3.0),
    (0.8, 1): (3.4, 1.2, 2.8, 2.1, 2.8, 2.4),
    (0.8, 3): (6.3, 3.4, 4.3, 3.5, 3.1, 2.6),
    (0.8, 5): (8.2, 5.1, 4.4, 4.1, 2.4, 2.6),
    (0.95, 1): (0.5, 0.1, 0.3, 0.1, 0.6, 1.9),
    (0.95, 3): (1.7, 0.5, 1.3, 0.9, 2.3, 2.1),
    (0.95, 5): (2.5, 0.9, 2.5, 1.9, 2.3, 2.5),
}
# (trials, p live, p candidate) -> (z >= 2, Student's t) for each of SIZES
B2E = {
    (1, 0.8, 0.9): ((5.9, 0.0), (2.0, 0.1), (8.4, 1.2), (6.3, 6.2), (15.7, 14.0), (32.2, 32.2)),
    (1, 0.5, 0.75): ((19.9, 0.0), (13.6, 2.6), (32.2, 16.2), (30.9, 27.1), (54.2, 44.2), (86.0, 84.8)),
    (1, 0.5, 0.9): ((37.7, 0.0), (34.1, 8.4), (63.7, 40.2), (69.8, 66.2), (91.8, 88.2), (99.9, 99.9)),
    (3, 0.8, 0.9): ((13.0, 0.4), (13.2, 2.8), (20.0, 8.2), (23.9, 15.3), (39.9, 31.4), (77.3, 75.4)),
    (3, 0.5, 0.75): ((34.3, 4.2), (45.0, 19.4), (54.9, 40.2), (73.0, 63.0), (91.0, 87.9), (100.0, 100.0)),
    (3, 0.5, 0.9): ((51.5, 10.8), (75.9, 44.0), (91.0, 79.8), (99.0, 97.4), (100.0, 100.0), (100.0, 100.0)),
}
# p -> per cent of ten tries (live runs reused, live run anew), for each of SIZES; at p 0.5: t with spending
B2F = {
    0.5: ((41.3, 61.0), (29.0, 43.6), (23.2, 35.8), (19.8, 29.8), (20.6, 26.9), (14.6, 24.6)),
    0.8: ((25.0, 47.9), (16.1, 31.5), (22.1, 33.7), (18.9, 28.0), (19.1, 28.5), (16.0, 21.2)),
    0.95: ((5.1, 13.2), (1.8, 5.5), (5.5, 12.2), (4.0, 7.7), (11.4, 18.6), (14.4, 20.7)),
}
B2F_T_SPEND = (0.0, 0.8, 1.2, 2.4, 1.8, 2.4)
# p -> (once, 10 tries, 10 tries + confirm, power once, power + confirm) for each of SIZES; 3 trials
B2H = {
    0.5: (
        (7.6, 39.0, 5.7, 30.4, 8.9),
        (5.4, 27.3, 2.8, 44.2, 20.2),
        (4.2, 24.0, 1.6, 55.0, 31.4),
        (3.5, 19.4, 1.2, 73.4, 54.4),
        (2.8, 17.0, 0.9, 90.8, 82.6),
        (2.4, 14.4, 0.7, 100.0, 100.0),
    ),
    0.8: (
        (6.5, 25.2, 3.4, 11.3, 1.6),
        (3.9, 16.2, 1.4, 13.6, 2.2),
        (4.6, 23.8, 1.6, 18.0, 3.4),
        (3.1, 17.5, 0.9, 24.9, 6.1),
        (2.9, 19.2, 1.2, 41.2, 16.5),
        (3.2, 16.2, 0.7, 76.1, 58.2),
    ),
}
BETTER = {0.5: 0.75, 0.8: 0.9}


class Table:
    """Prints cells of measured against published per cents and remembers what is over."""

    def __init__(self) -> None:
        self.over: list[str] = []

    def cell(self, label: str, hits: int, repeats: int, published: float, study: int | None) -> str:
        """study: repeats behind the published figure, for a false promotion; None: power, never over."""
        rate = hits / repeats
        mark = " "
        if study is not None:
            base = max(published / 100, 0.001)
            if rate - published / 100 > 4 * sqrt(base * (1 - base) * (1 / repeats + 1 / study)):
                mark = "!"
                self.over.append(label)
        return f"{100 * rate:5.1f}/{published:5.1f}{mark}"


def case_effect(p: float) -> float:
    """The mu for which sigmoid(N(mu, SPREAD^2)) has mean p."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    low, high = -20.0, 20.0
    for _ in range(80):
        mu = (low + high) / 2
        mean = float(np.sum(weights / (1 + np.exp(-mu - SPREAD * nodes))) / np.sum(weights))
        low, high = (mu, high) if mean < p else (low, mu)
    return low


class Cases:
    """The same `repeats` draws of n cases for all arms that are run on them."""

    def __init__(self, rng: np.random.Generator, repeats: int, n: int) -> None:
        self.rng = rng
        self.effect = SPREAD * rng.standard_normal((repeats, n))

    def run(self, p: float, trials: int, only: NDArray[np.intp] | None = None) -> Array:
        """Scores of fresh trials, shape (repeats, n, trials); only: of these repeats."""
        effect = self.effect if only is None else self.effect[only]
        rate = 1 / (1 + np.exp(-case_effect(p) - effect))
        return (self.rng.random((*effect.shape, trials)) < rate[..., None]).astype(float)


def decisions(live: Array, cand: Array, strict: bool = False) -> NDArray[np.bool_]:
    """Whether each repeat promotes, by the shipped decision on sufficient statistics."""
    diff = np.round(cand.mean(axis=2) - live.mean(axis=2), 12)
    n = diff.shape[1]
    mean = diff.mean(axis=1)
    alike = np.ptp(diff, axis=1) <= 1e-9
    se = np.where(alike, 0.0, diff.std(axis=1, ddof=1) / sqrt(n))
    return np.array(
        [not decide(n, m, e, strict=strict) for m, e in zip(mean.tolist(), se.tolist(), strict=True)]
    )


def spends(live: Array, cand: Array, attempt: int) -> bool:
    """Whether Student's t is within the alpha that this attempt may spend."""
    mean, se = mean_stderr((cand.mean(axis=1) - live.mean(axis=1)).tolist())
    alpha = normal_sf(2.0) * alpha_share(attempt)
    return bool(mean and se and t_sf(mean / se, len(live) - 1) <= alpha)


def check_fast_path(rng: np.random.Generator) -> None:
    """The decision on mean and error is the one of paired_gate on the trials."""
    for n in SIZES:
        cases = Cases(rng, 60, n)
        live, cand = cases.run(0.5, 3), cases.run(0.75, 3)
        for strict in (False, True):
            fast = decisions(live, cand, strict)
            for i in range(len(live)):
                whole = paired_gate(live[i].tolist(), cand[i].tolist(), strict=strict)
                refused = [reason for reason in whole["reasons"] if not reason.startswith("strict:")]
                assert fast[i] == (not refused), (live[i], cand[i])


def one_try(rng: np.random.Generator, repeats: int, table: Table) -> None:
    print(f"\nB2a  false promotion, one try (%), {repeats} repeats; in the study SE 0 promotes")
    print("   n " + "".join(f"  p={p:<4} T={t}  " for p, t in B2A))
    for row, n in enumerate(SIZES):
        cells = []
        for (p, trials), published in B2A.items():
            cases = Cases(rng, repeats, n)
            hits = int(decisions(cases.run(p, trials), cases.run(p, trials)).sum())
            cells.append(
                table.cell(f"B2a {n} {p} {trials}", hits, repeats, published[row], STUDY_REPEATS["error"])
            )
        print(f"{n:4} " + "  ".join(cells))


def power(rng: np.random.Generator, repeats: int, table: Table) -> None:
    print(f"\nB2e  power (%), {repeats} repeats: rule, then Student's t (the rule of --strict)")
    print("   n " + "".join(f"  {f'{p:.2f}->{q:.2f} T={t}':<24}" for t, p, q in B2E))
    for row, n in enumerate(SIZES):
        cells = []
        for (trials, p, q), published in B2E.items():
            cases = Cases(rng, repeats, n)
            live, cand = cases.run(p, trials), cases.run(q, trials)
            for strict in (False, True):
                hits = int(decisions(live, cand, strict).sum())
                cells.append(table.cell("", hits, repeats, published[row][strict], None))
        print(f"{n:4} " + " ".join(cells))


def ten_tries(rng: np.random.Generator, repeats: int, table: Table) -> None:
    print(
        f"\nB2f  at least one false promotion in {TRIES} equal candidates (%), 3 trials, {repeats} repeats:"
    )
    print(
        "     live runs reused, live run anew (the shipped way); last: t with alpha spending, p=0.5, reused"
    )
    print("   n " + "".join(f"  p={p:<22}" for p in B2F) + "  t spend")
    for row, n in enumerate(SIZES):
        cells = []
        spent = 0
        for p, published in B2F.items():
            cases = Cases(rng, repeats, n)
            live = cases.run(p, 3)
            reused = np.zeros(repeats, dtype=bool)
            anew = np.zeros(repeats, dtype=bool)
            within = np.zeros(repeats, dtype=bool)
            for attempt in range(1, TRIES + 1):
                cand = cases.run(p, 3)
                hit = decisions(live, cand)
                reused |= hit
                anew |= decisions(cases.run(p, 3), cases.run(p, 3))
                if p == 0.5:
                    within[[i for i in np.flatnonzero(hit) if spends(live[i], cand[i], attempt)]] = True
            spent = spent or int(within.sum())
            for hits, rate in zip((reused, anew), published[row], strict=True):
                label = f"B2f {n} {p}"
                cells.append(table.cell(label, int(hits.sum()), repeats, rate, STUDY_REPEATS["reuse"]))
        cells.append(table.cell(f"B2f spend {n}", spent, repeats, B2F_T_SPEND[row], STUDY_REPEATS["reuse"]))
        print(f"{n:4} " + " ".join(cells))


def confirmed(rng: np.random.Generator, repeats: int, table: Table) -> None:
    print(f"\nB2h  confirm on fresh trials of both arms (%), 3 trials, {repeats} repeats; live reused as")
    print("     in the study; `shipped`: live run anew, and only a weak pass confirms (no published figure)")
    names = ("once", f"{TRIES} tries", "+ confirm", "power once", "+ confirm")
    for p, published in B2H.items():
        print(f"  p={p}, power for {p} -> {BETTER[p]}")
        print("   n   " + "".join(f"{name:<13}" for name in names) + f"shipped {TRIES} tries  shipped power")
        for row, n in enumerate(SIZES):
            cases = Cases(rng, repeats, n)
            live = cases.run(p, 3)
            ever, sure, ours = (np.zeros(repeats, dtype=bool) for _ in range(3))
            once = 0
            for attempt in range(1, TRIES + 1):
                cand = cases.run(p, 3)
                hit = decisions(live, cand)
                once = once or int(hit.sum())
                ever |= hit
                sure |= hit & decisions(cases.run(p, 3), cases.run(p, 3))
                ours |= shipped(cases.run(p, 3), cand, cases, p, p, attempt)
            better = BETTER[p]
            cand = cases.run(better, 3)
            seen = decisions(live, cand)
            again = seen & decisions(cases.run(p, 3), cases.run(better, 3))
            power_ours = shipped(live, cand, cases, p, better, 1)
            counts = (once, int(ever.sum()), int(sure.sum()), int(seen.sum()), int(again.sum()))
            cells = [
                table.cell(
                    f"B2h {n} {p} {name}", count, repeats, rate, STUDY_REPEATS["reuse"] if i < 3 else None
                )
                for i, (name, count, rate) in enumerate(zip(names, counts, published[row], strict=True))
            ]
            ends = f"{100 * ours.mean():8.1f}  {100 * power_ours.mean():15.1f}"
            print(f"{n:4} " + " ".join(cells) + ends)


def shipped(live: Array, cand: Array, cases: Cases, p: float, q: float, attempt: int) -> NDArray[np.bool_]:
    """Promotions of machine-gate as it comes: a weak pass must hold again on trials neither arm has used."""
    hit = decisions(live, cand)
    weak = np.array(
        [
            i
            for i in np.flatnonzero(hit)
            if paired_gate(live[i].tolist(), cand[i].tolist(), tries=attempt)["weak"]
        ],
        dtype=np.intp,
    )
    if len(weak):
        hit[weak] = decisions(cases.run(p, 3, weak), cases.run(q, 3, weak))
    return hit


def main() -> int:
    parser = argparse.ArgumentParser(
        description="False promotion and power of the gate's rule, by simulation."
    )
    parser.add_argument("--fast", action="store_true", help="fewer repeats: within a minute")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    start = time.monotonic()
    table = Table()
    check_fast_path(rng)
    one_try(rng, 2000 if options.fast else 20_000, table)
    power(rng, 2000 if options.fast else 10_000, table)
    ten_tries(rng, 2000 if options.fast else 5000, table)
    confirmed(rng, 800 if options.fast else 3000, table)
    print(f"\n{time.monotonic() - start:.0f} s. Over the published rate: {', '.join(table.over) or 'none'}")
    return 1 if table.over else 0


if __name__ == "__main__":
    sys.exit(main())
