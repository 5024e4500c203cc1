"""An agreement for people: the figures, how steady the grader is, where the two differ. Pure."""

from __future__ import annotations

from libmachine import console
from libmachine.canon import Record
from libmachine.console import fold
from libmachine.suite.report import number, percent

ROWS = 20
UNMEASURED = "unmeasured"


def report(found: Record, width: int) -> str:
    """The report."""
    row = next(row for row in found["sweep"] if row["threshold"] == 0.5)
    against = "people's marks" if found["against"] == "marks" else "the machine's grader"
    head = f"{found['machine']}, {found['criterion']}: {found['candidate']} against {against}"
    size = f"{console.count(found['usable'], 'run')} of {console.count(found['cases'], 'case')}"
    lines = fold(head, width)
    lines += fold(f"{size}: {row['good']} good, {row['bad']} bad by the reference; {_left_out(found)}", width)
    lines += ["", _figures(row, width), "", _sweep(found, width), ""]
    for line in (_unsure(found), _steady(found)):
        lines += fold(line, width) if line else []
    for note in found["warnings"]:
        lines += fold(f"note: {note.partition(': ')[2]}", width)
    return "\n".join([*lines, "", *_disagreements(found, width), _meaning(row)])


def _left_out(found: Record) -> str:
    names = {
        "failed": "failed",
        "no_reference": "without a reference grade",
        "not_applicable": "not concerned",
        "candidate_errors": "that the candidate could not grade",
    }
    told = [f"{found[name]} {words}" for name, words in names.items() if found[name]]
    return f"left out: {', '.join(told)}" if told else "none left out"


def _figures(row: Record, width: int) -> str:
    rows = [["at 0.5", "", "95 %"]]
    shares = (
        ("agreement", "agreement", "agreement_ci95"),
        ("false-pass rate", "false_pass_rate", "false_pass_ci95"),
        ("false-fail rate", "false_fail_rate", "false_fail_ci95"),
        ("precision", "precision", "precision_ci95"),
    )
    for label, name, interval in shares:
        rows.append(
            [label, percent(row[name]) if row[name] is not None else UNMEASURED, _range(row[interval])]
        )
    rows.append(["kappa", UNMEASURED if row["kappa"] is None else f"{row['kappa']:.2f}", ""])
    bits = UNMEASURED if row["bits"] is None else f"{row['bits']:.2f}"
    rows.append(["bits a label", bits, f"of {row['bits_max']:.2f}" if row["bits_max"] is not None else ""])
    for base, name in ((10, "kept_bad_at_10"), (50, "kept_bad_at_50")):
        kept = UNMEASURED if row[name] is None else percent(row[name])
        rows.append([f"bad share kept where {base} % are good", kept, ""])
    return console.table(rows, width, right=(1,)).rstrip("\n")


def _range(interval: list[float] | None) -> str:
    return "" if interval is None else f"{100 * interval[0]:.0f} to {100 * interval[1]:.0f} %"


def _sweep(found: Record, width: int) -> str:
    rows = [
        ["pass at", "agree", "kappa", "false pass", "false fail", "precision", "bits", "bad kept 10", "50"]
    ]
    for row in found["sweep"]:
        shares = ("false_pass_rate", "false_fail_rate", "precision")
        kept = (row["kept_bad_at_10"], row["kept_bad_at_50"])
        cells = [f"{row['threshold']:g}", percent(row["agreement"]), number(row["kappa"])]
        cells += [percent(row[name]) for name in shares]
        rows.append([*cells, number(row["bits"]), *(percent(share) for share in kept)])
    return console.table(rows, width, right=tuple(range(8))).rstrip("\n")


def _unsure(found: Record) -> str:
    low, high = found["unsure_band"]
    told = f"unsure ({low:g} to {high:g}): {found['unsure']} of {found['usable']} runs"
    if found["sure"]:
        told += f"; on the {found['sure']} sure ones they agree in {percent(found['agreement_sure'])}"
    saved = found["escalation"]
    if found["against"] == "marks" or found["with"] == "same" or saved["agreement"] is None:
        return told
    told += f". Asking the reference about the unsure alone: agreement {percent(saved['agreement'])}"
    told += f", {percent(saved['calls_saved'])} of its calls saved"
    return told + (f", {percent(saved['usd_saved'])} of the cost" if saved["usd_saved"] is not None else "")


def _steady(found: Record) -> str:
    steady = found["repeat"]
    if not steady["runs"]:
        return ""
    told = f"graded {'again' if found['with'] == 'same' else 'more than once'}: {steady['flips']} of "
    told += f"{console.count(steady['runs'], 'run')} flip across 0.5 ({percent(steady['flip_rate'])}, 95 % "
    told += f"{_range(steady['flip_ci95'])}); grades of a run lie {steady['spread_mean']:.3f} apart"
    return told + f" on average, {steady['spread_max']:.2f} at most"


def _disagreements(found: Record, width: int) -> list[str]:
    if not found["disagree"]:
        return ["They disagree on no run."]
    rows = [["run", "reference", "candidate", "case", "why"]]
    for line in found["disagreements"][:ROWS]:
        case = console.one_line(line["case"], max(8, width // 5))
        scores = (number(line["reference"]), number(line["candidate"]))
        rows.append([line["run"][:8], *scores, case, console.one_line(line["reason"] or "", width)])
    text = console.table(rows, width, right=(1, 2)).rstrip("\n")
    rest = found["disagree"] - len(rows) + 1
    return [text, *([f"({rest} further ones; --json lists them)"] if rest else []), ""]


def _meaning(row: Record) -> str:
    if row["false_pass_rate"] is None:
        return "Whether it would pass bad runs is unmeasured: the reference failed none of these."
    return (
        f"It passes {row['fp']} of {row['bad']} bad runs, and fails {row['fn']} of {row['good']} good ones."
    )
