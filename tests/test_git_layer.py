"""The git layer on real repositories: places, versions, candidates, promotions, notes, sync.

Plain git is run beside it where it fails, so that each test shows what it is there for.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libmachine import folder, githash, load
from libmachine.errors import MachineError, Untestable
from libmachine.git import history, notes, objects, refs, trees
from libmachine.git import place as places
from libmachine.git.repository import (
    Repository,
    check_name,
    head,
    is_name,
    list_refs,
    locked,
    move,
    open_repository,
    read_ref,
    resolve,
)
from libmachine.git.sync import sync

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A private HOME with an identity, and no GIT_* from outside."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    where = tmp_path / "home"
    where.mkdir()
    monkeypatch.setenv("HOME", str(where))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    config = "[user]\n\tname = tester\n\temail = tester@localhost\n[init]\n\tdefaultBranch = main\n"
    (where / ".gitconfig").write_text(config + '[protocol "file"]\n\tallow = always\n')
    return where


def git(directory: Path | str, *words: str, code: int | None = 0, stdin: str = "", **extra: str) -> str:
    """Plain git, as a user runs it. code: the exit code wanted, None for any."""
    done = subprocess.run(
        ["git", "-C", str(directory), *words],
        input=stdin,
        capture_output=True,
        text=True,
        env={**os.environ, **extra},
        check=False,
    )
    assert code is None or done.returncode == code, f"git {words}: {done.stderr}"
    return done.stdout.strip()


def write(project: Path, name: str, **files: str) -> None:
    """Files of a machine, machine.py included. instructions="..." is instructions.md."""
    names = {"instructions": "instructions.md", "model": "model.json", "rubric": "rubric.toml"}
    names |= {"holdout": "holdout.jsonl", "cases": "cases.jsonl", "code": "machine.py"}
    where = project / "machines" / name
    where.mkdir(parents=True, exist_ok=True)
    code = "from libmachine import Machine\n\nmachine = Machine(intent='Answer.')\n"
    if not (where / "machine.py").exists():
        (where / "machine.py").write_text(code)
    for file, text in files.items():
        (where / names[file]).write_text(text)


def commit(directory: Path, message: str = "change") -> str:
    """Everything, committed by plain git; the commit."""
    git(directory, "add", "-A")
    git(directory, "commit", "-q", "--no-verify", "-m", message)
    return git(directory, "rev-parse", "HEAD")


RUBRIC = '[a]\ndescription = "b"\n'
GRADED = """from libmachine import Machine, check

machine = Machine(intent="Answer.", graders={"a": check(bool)})
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with a machine, its child and its grandchild over a folder that is none."""
    where = tmp_path / "project"
    git(tmp_path, "init", "-q", str(where))
    write(where, "julia", instructions="Say yes.\n", model='{"model": "echo"}\n', holdout='"h"\n')
    write(
        where, "julia/fast", instructions="Say yes at once.\n", rubric='[a]\ndescription = "b"\n', code=GRADED
    )
    write(where, "julia/fast/group/deep", model='{"model": "echo"}\n')
    (where / "machines/julia/lib").mkdir()
    for path in ("helper.py", "lib/b.py", "lib/a.py", "fast/x.py", ".hidden.txt", "fast/group/y.py"):
        (where / "machines/julia" / path).write_text(f"# {path}\n")
    commit(where, "first")
    return where


@pytest.fixture
def repo(project: Path) -> Repository:
    return open_repository(str(project))


def record(repo: Repository, name: str, text: str) -> tuple[int, str]:
    """Record a version of other instructions; its number and tree."""
    base = trees.work_tree(repo.directory)
    place = trees.overlay(base, {f"machines/{name}/instructions.md": text.encode()})
    return refs.record_version(repo, name, place), place.version(name)


def spread(repo: Repository, count: int, body: str) -> None:
    """Run a body of Python in `count` processes at once; `repo` and the number `me` are there."""
    program = (
        "import sys; from libmachine.git import notes, refs, trees, objects\n"
        "from libmachine.git.repository import *\nfrom libmachine.githash import blob_id\n"
        "from libmachine.git.sync import sync\n"
        f"repo = open_repository({repo.directory!r}); me = int(sys.argv[1])\n{body}"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    running = [
        subprocess.Popen([sys.executable, "-c", program, str(me)], env=environment, stderr=subprocess.PIPE)
        for me in range(count)
    ]
    for process in running:
        assert process.wait() == 0, process.communicate()[1].decode()


# places ---------------------------------------------------------------------------------


def test_three_places_say_the_same(project: Path) -> None:
    names = ["julia", "julia/fast", "julia/fast/group/deep"]
    for place in (trees.work_tree(str(project)), trees.index(str(project)), trees.commit(str(project))):
        assert place.machines() == names
        for name in names:
            lying = folder.Folder(f"{project}/machines", name)
            assert place.version(name) == lying.version(), (place.label, name)
            assert place.others(name) == load.load(name, [f"{project}/machines"]).source, (place.label, name)
        assert place.family("julia/fast") == ["julia/fast", "julia"]
        assert place.parent("julia/fast/group/deep") is None
        assert place.holdout("julia") == b'"h"\n'
        assert place.cases("julia") is None
        assert place.read("machines/julia/lib/a.py") == b"# lib/a.py\n"
        assert place.read("machines/julia/lib") is place.read("nowhere") is None
        assert not place.has("julia/lib")
        assert place.foreign() == []
        with pytest.raises(MachineError, match=r"no machine 'other' in .*; there are: julia, julia/fast"):
            place.version("other")


def test_version_is_the_tree_git_would_make(project: Path, repo: Repository) -> None:
    refs.record_version(repo, "julia/fast", trees.commit(repo))
    tree = trees.commit(repo).version("julia/fast")
    listed = git(project, "ls-tree", "-r", "--name-only", tree).split()
    assert listed == ["instructions.md", "parent/instructions.md", "parent/model.json", "rubric.toml"]
    assert git(project, "cat-file", "blob", f"{tree}:parent/instructions.md") == "Say yes."


def test_version_is_what_behaves(project: Path) -> None:
    place = trees.work_tree(str(project))
    before = {name: place.version(name) for name in place.machines()}
    write(project, "julia", cases='"c"\n', holdout='"i"\n', code="# other\n")
    (project / "machines/julia/instructions.md").chmod(0o755)
    commit(project)
    assert trees.commit(str(project)).versions() == before
    write(project, "julia", model='{"model": "scripted"}\n')
    commit(project)
    after = trees.commit(str(project)).versions()
    assert [name for name in before if before[name] != after[name]] == ["julia", "julia/fast"]


def test_names_and_files_are_those_of_the_loader() -> None:
    assert places.VERSIONED == folder.VERSIONED


@given(st.text(alphabet="ab9.-_/vA@ ", max_size=8) | st.sampled_from(["v3", "a/v12", "a.lock", "vv", "-"]))
def test_grammar_of_names_is_that_of_the_loader(name: str) -> None:
    try:
        load.check_name(name)
        wanted = True
    except MachineError:
        wanted = False
    assert is_name(name) == wanted


MODEL = "machines/julia/model.json"
HOOK = f"""#!/bin/sh
PYTHONPATH={ROOT} exec {sys.executable} -c '
import os
from libmachine.git import trees
print(trees.index(".", os.environ["GIT_INDEX_FILE"]).version("julia"), trees.index(".").version("julia"))
' >"$OUT"
"""


@pytest.mark.parametrize(
    "words", [["-a"], ["machines/julia/model.json"], ["-i", "machines/julia/model.json"], []]
)
@pytest.mark.parametrize("linked", [False, True])
def test_index_is_the_one_a_hook_sees(project: Path, tmp_path: Path, words: list[str], linked: bool) -> None:
    hook = project / ".git/hooks/pre-commit"
    hook.write_text(HOOK)
    hook.chmod(0o755)
    where = project
    if linked:
        where = tmp_path / "linked"
        git(project, "worktree", "add", "-q", str(where))
    write(where, "julia", instructions="Staged.\n")
    git(where, "add", "-A")
    write(where, "julia", instructions="Not staged.\n", model='{"model": "scripted"}\n')
    git(where, "commit", "-qm", "x", *words, OUT=str(tmp_path / "out"))
    seen, default = (tmp_path / "out").read_text().split()
    assert seen == trees.commit(str(where)).version("julia")
    assert (default == seen) == (words == [])  # the index at its usual place is the wrong one


def test_index_without_surprises(project: Path) -> None:
    write(project, "new", instructions="", rubric="")
    git(project, "add", "-N", "machines/new/rubric.toml")
    git(project, "add", "machines/new/machine.py", "machines/new/instructions.md")
    seen = trees.index(str(project)).version("new")
    git(project, "commit", "-qm", "x")
    assert seen == trees.commit(str(project)).version("new")
    assert trees.work_tree(str(project)).version("new") != seen

    with pytest.raises(Untestable, match="no index"):
        trees.index(str(project), "gone")
    git(project, "checkout", "-qb", "side", "HEAD~1")
    write(project, "julia", instructions="Theirs.\n")
    commit(project)
    git(project, "checkout", "-q", "main")
    write(project, "julia", instructions="Ours.\n")
    commit(project)
    git(project, "merge", "-q", "side", code=1)
    with pytest.raises(Untestable, match=r"instructions.md' is unmerged in the index; resolve it"):
        trees.index(str(project)).version("julia")


def test_project_in_a_subdirectory(tmp_path: Path) -> None:
    top = tmp_path / "top"
    git(tmp_path, "init", "-q", str(top))
    write(top / "sub dir/é", "julia", instructions="Inner.\n")
    write(top, "julia", instructions="Outer.\n")
    commit(top)
    inner = str(top / "sub dir/é")
    for place in (trees.work_tree(inner), trees.index(inner), trees.commit(inner)):
        assert place.read("machines/julia/instructions.md") == b"Inner.\n"
    assert trees.projects(str(top), "HEAD") == ["", "sub dir/é"]
    bare = tmp_path / "bare.git"
    git(tmp_path, "clone", "-q", "--bare", str(top), str(bare))
    there = open_repository(str(bare), inside="sub dir/é")
    assert there.bare
    assert trees.commit(there, "main").read("machines/julia/instructions.md") == b"Inner.\n"
    assert refs.tree_of(there, "julia@main") == trees.commit(inner).version("julia")
    [past] = history.history(open_repository(inner), "julia")
    assert [past] == history.history(there, "julia", "main")
    with pytest.raises(MachineError, match="is bare and has no index"):
        trees.index(there)
    with pytest.raises(MachineError, match="is bare and has no work tree"):
        refs.tree_of(there, "julia@")


def test_worktree_and_submodule_share_what_they_should(project: Path, tmp_path: Path) -> None:
    linked, top = tmp_path / "linked", tmp_path / "top"
    git(project, "worktree", "add", "-q", "--detach", str(linked))
    write(linked, "julia", instructions="In the worktree.\n")
    there = open_repository(str(linked))
    assert refs.record_version(there, "julia", trees.work_tree(str(linked))) == 1
    assert refs.record_version(open_repository(str(project)), "julia", trees.commit(str(project))) == 2
    assert len(refs.versions(there, "julia")) == 2
    git(tmp_path, "init", "-q", str(top))
    git(top, "submodule", "--quiet", "add", str(project), "sub")
    inner = open_repository(str(top / "sub"))
    assert inner.common == str(top / ".git/modules/sub")
    assert trees.commit(inner).versions() == trees.commit(str(project)).versions()
    assert refs.record_version(inner, "julia", trees.commit(inner)) == 1
    assert git(top, "for-each-ref", "refs/machine") == ""
    assert notes.append(inner, refs.tree_of(inner, "julia@"), {"n": 1})


def test_heads_without_a_branch_or_a_commit(project: Path, tmp_path: Path) -> None:
    git(project, "checkout", "-q", "--detach")
    assert trees.commit(str(project)).has("julia")
    empty = tmp_path / "empty"
    git(tmp_path, "init", "-q", str(empty))
    write(empty, "julia", instructions="First.\n")
    repo = open_repository(str(empty))
    assert head(repo) is None
    with pytest.raises(MachineError, match="HEAD has no commit yet; git commit makes the first"):
        trees.commit(repo)
    assert trees.index(repo).machines() == []
    git(empty, "add", ".")
    assert trees.index(repo).versions() == trees.work_tree(str(empty)).versions()
    assert refs.record_version(repo, "julia", trees.index(repo)) == 1
    with pytest.raises(MachineError, match="no git repository at"):
        open_repository(str(tmp_path))
    assert trees.work_tree(str(tmp_path)).machines() == []


def test_commits_that_are_not_there(project: Path, repo: Repository, tmp_path: Path) -> None:
    first = git(project, "rev-parse", "HEAD")
    write(project, "julia", instructions="Second.\n")
    commit(project)
    for bad in ("nothing", "-h", "", "--all", "HEAD:machines", "HEAD^{tree}", "a\nb"):
        with pytest.raises(MachineError) as caught:
            resolve(repo, bad)
        assert not isinstance(caught.value, Untestable), bad
    with pytest.raises(Untestable, match="is not in this repository; git fetch origin 1234567"):
        trees.commit(repo, "1234567" + "0" * 33)

    clone = tmp_path / "shallow"
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{project}", str(clone))
    shallow = open_repository(str(clone))
    assert trees.commit(shallow).versions() == trees.commit(repo).versions()
    for missing in ("HEAD~1", first, first[:10]):
        with pytest.raises(Untestable, match="shallow clone; git fetch --unshallow"):
            trees.commit(shallow, missing)
    with pytest.raises(Untestable, match="git fetch --unshallow"):
        history.history(shallow, "julia")
    assert len(history.history(shallow, "julia", shallow_too=True)) == 1
    git(clone, "fetch", "-q", "--unshallow")
    assert len(history.history(open_repository(str(clone)), "julia")) == 2
    # a HEAD whose commit is gone is no unborn one
    (project / ".git/refs/heads/main").write_text("1234567" + "0" * 33 + "\n")
    with pytest.raises(Untestable):
        head(open_repository(str(project)))


def test_partial_clone_fails_closed(project: Path, tmp_path: Path) -> None:
    write(project, "julia", instructions="Second.\n")
    commit(project)
    git(project, "config", "uploadpack.allowFilter", "true")
    for filtered, code in (("blob:none", "blob"), ("tree:0", "tree")):
        clone = tmp_path / code
        git(tmp_path, "clone", "-q", f"--filter={filtered}", "--no-checkout", f"file://{project}", str(clone))
        with pytest.raises(Untestable, match="git fetch --refetch --no-filter"):
            place = trees.commit(str(clone), "HEAD~1")
            place.version("julia")
            place.read("machines/julia/instructions.md")
        git(clone, "fetch", "-q", "--refetch", "--no-filter", "origin")
        assert trees.commit(str(clone), "HEAD~1").read("machines/julia/instructions.md") == b"Say yes.\n"


def test_layouts_we_cannot_read(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "--object-format=sha256", str(tmp_path / "s"))
    with pytest.raises(MachineError, match="sha256 ids: not supported yet"):
        open_repository(str(tmp_path / "s"))
    for name, version in (("new", "1"), ("old", "0")):
        where = tmp_path / name
        git(tmp_path, "init", "-q", str(where))
        git(where, "config", "extensions.refStorage", "reftable")
        git(where, "config", "core.repositoryFormatVersion", version)
        (where / ".git/reftable").mkdir()
        with pytest.raises(MachineError, match="reftable: not supported yet"):
            open_repository(str(where))


def test_links_and_submodules_are_refused(project: Path) -> None:
    (project / "machines/julia/instructions.md").unlink()
    (project / "machines/julia/instructions.md").symlink_to("../../elsewhere.md")
    (project / "elsewhere.md").write_text("Say yes.\n")
    (project / "machines/outside").symlink_to("/tmp")
    commit(project)
    for place in (trees.work_tree(str(project)), trees.index(str(project)), trees.commit(str(project))):
        for name in ("julia", "julia/fast"):
            with pytest.raises(Untestable, match=r"instructions.md' is a symbolic link in .*put a copy"):
                place.version(name)
        assert place.foreign() == ["machines/julia/instructions.md", "machines/outside"]
        assert "outside" not in place.machines()
        assert place.others("julia")
    (project / "machines/julia/helper.py").unlink()
    (project / "machines/julia/helper.py").symlink_to("lib/a.py")
    with pytest.raises(Untestable, match="is a symbolic link"):
        trees.work_tree(str(project)).others("julia")
    head_ = git(project, "rev-parse", "HEAD")
    git(project, "update-index", "--add", "--cacheinfo", f"160000,{head_},machines/module")
    assert "machines/module" in trees.index(str(project)).foreign()


def test_old_versions_load_beside_todays(project: Path, repo: Repository, tmp_path: Path) -> None:
    code = GRADED.replace('"Answer."', "WORD").replace("\n\n", "\nfrom .helper import WORD\n\n", 1)
    write(project, "julia/fast", code=code)
    (project / "machines/julia/fast/helper.py").write_text("WORD = 'old'\n")
    (project / "machines/shared.txt").write_text("shared\n")
    old = commit(project)
    (project / "machines/julia/fast/helper.py").write_text("WORD = 'new'\n")
    write(project, "julia/fast", instructions="New.\n")
    (project / "machines/julia/run.sh").write_text("x")
    (project / "machines/julia/run.sh").chmod(0o755)
    commit(project)
    loaded = []
    for name, commitish in (("old", old), ("new", "HEAD")):
        place = trees.commit(repo, commitish)
        where = trees.materialise(place, "julia/fast", str(tmp_path / name))
        assert where == str(tmp_path / name / "machines")
        loaded.append(load.load("julia/fast", [where]))
        assert loaded[-1].version == place.version("julia/fast")
        assert loaded[-1].source == place.others("julia/fast")
    assert [machine.intent for machine in loaded] == ["old", "new"]
    assert loaded[0].version != loaded[1].version
    written = {str(p.relative_to(tmp_path / "new")) for p in (tmp_path / "new").rglob("*") if p.is_file()}
    assert {"machines/shared.txt", "machines/julia/lib/a.py", "machines/julia/run.sh"} <= written
    assert not any("deep" in path for path in written)
    assert os.access(tmp_path / "new/machines/julia/run.sh", os.X_OK)


@pytest.mark.parametrize("name", ["..", ".git", ".GIT", "d/..", "../d"])
def test_names_that_lead_outside_are_not_written(repo: Repository, tmp_path: Path, name: str) -> None:
    blob = objects.write_blob(repo, b"owned\n")
    folders, leaf = name.split("/")[:-1], name.split("/")[-1]
    inner = [("100644", leaf, blob)]
    for above in reversed(folders):
        inner = [("40000", above, _raw_tree(repo, inner))]
    machine = _raw_tree(repo, [("100644", "machine.py", blob), *inner])
    top = _raw_tree(repo, [("40000", "machines", _raw_tree(repo, [("40000", "m", machine)]))])
    place = trees.commit(repo, objects.write_commit(repo, top, [], "evil\n"))
    if folders != [".."]:  # a hidden folder is left out
        with pytest.raises(MachineError, match="is no path a file may have"):
            trees.materialise(place, "m", str(tmp_path / "out"))
    else:
        trees.materialise(place, "m", str(tmp_path / "out"))
    assert {path.name for path in (tmp_path / "out").rglob("*") if path.is_file()} <= {"machine.py"}
    assert not (tmp_path / "d").exists()


def _raw_tree(repo: Repository, entries: list[tuple[str, str, str]]) -> str:
    data = githash.tree_data(entries)
    words = ("hash-object", "-w", "-t", "tree", "--literally", "--stdin", "--no-filters")
    return repo.ask(*words, stdin=data).decode().strip()


def test_overlay_and_an_earlier_version_under_todays_code(project: Path, repo: Repository) -> None:
    base = trees.work_tree(str(project))
    changes = {"machines/julia/fast/instructions.md": b"Other.\n", "machines/julia/fast/rubric.toml": None}
    place = trees.overlay(base, changes)
    wanted = {name: base.version(name) for name in base.machines()}
    refs.record_version(repo, "julia/fast", base)
    files = refs.version_files(repo, base.version("julia/fast"))
    assert files["parent/instructions.md"] == b"Say yes.\n"
    write(project, "julia/fast", instructions="Other.\n")
    (project / "machines/julia/fast/rubric.toml").unlink()
    lying = trees.work_tree(str(project))
    assert place.version("julia/fast") == lying.version("julia/fast") != wanted["julia/fast"]
    assert place.read("machines/julia/fast/instructions.md") == b"Other.\n"
    assert place.read("machines/julia/fast/rubric.toml") is None
    assert place.read("machines/julia/instructions.md") == b"Say yes.\n"
    (project / "machines/julia/fast/x.py").write_text("# today\n")
    write(project, "julia", instructions="Parent of today.\n")
    back = trees.with_version(trees.work_tree(str(project)), "julia/fast", files)
    assert back.version("julia/fast") == wanted["julia/fast"]
    assert back.read("machines/julia/fast/x.py") == b"# today\n"
    with pytest.raises(MachineError, match="parent it no longer has"):
        trees.with_version(base, "julia", files)


def test_history_of_a_machine(project: Path, repo: Repository) -> None:
    wanted = [trees.commit(repo).version("julia/fast")]
    for text in ("2", "3"):
        write(project, "julia", instructions=text)
        commit(project)
        wanted.append(trees.commit(repo).version("julia/fast"))
    (project / "README").write_text("no version\n")
    commit(project)
    git(project, "checkout", "-qb", "side", "HEAD~2")
    write(project, "julia/fast", instructions="side")
    commit(project)
    side = trees.commit(repo).version("julia/fast")
    git(project, "checkout", "-q", "main")
    git(project, "merge", "-q", "-s", "ours", "side")
    found = history.history(repo, "julia/fast")
    assert {past.version for past in found} == {*wanted, side}
    assert [past.version for past in history.history(repo, "julia/fast", "HEAD^1")] == wanted[::-1]
    git(project, "rm", "-rq", "machines/julia/fast")
    commit(project)
    assert history.history(repo, "julia/fast")[0].version is None


def test_replaced_objects_do_not_lie(project: Path, repo: Repository) -> None:
    true = git(project, "rev-parse", "HEAD:machines/julia/instructions.md")
    other = objects.write_blob(repo, b"replaced\n")
    git(project, "replace", true, other)
    assert git(project, "cat-file", "blob", true) == "replaced"
    assert trees.commit(repo).read("machines/julia/instructions.md") == b"Say yes.\n"


def test_hostile_repository_runs_nothing(project: Path, tmp_path: Path) -> None:
    marker, evil = tmp_path / "marker", tmp_path / "evil"
    evil.write_text(f'#!/bin/sh\necho "$0 $*" >>{marker}\nexit 1\n')
    evil.chmod(0o755)
    origin = tmp_path / "origin.git"
    git(tmp_path, "clone", "-q", "--bare", str(project), str(origin))
    git(project, "remote", "add", "origin", str(origin))
    (project / ".gitattributes").write_text("* filter=evil diff=evil merge=evil\n")
    write(project, "julia", holdout='"i"\n')
    commit(project)
    for name in ("filter.evil.clean", "filter.evil.smudge", "filter.evil.process", "diff.evil.textconv"):
        git(project, "config", name, str(evil))
    for name in ("diff.external", "core.fsmonitor", "gpg.program", "core.pager", "core.editor"):
        git(project, "config", name, str(evil))
    for name in ("uploadpack", "receivepack"):
        git(project, "config", f"remote.origin.{name}", str(evil))
    for name in ("log.showSignature", "filter.evil.required", "commit.gpgSign", "push.gpgSign"):
        git(project, "config", name, "true")
    for name in ("pre-commit", "post-checkout", "reference-transaction", "pre-push", "post-index-change"):
        os.symlink(evil, project / ".git/hooks" / name)
    write(project, "julia", instructions="Say bad.\n")  # same size: git has to read it to know
    signed = git(project, "cat-file", "commit", "HEAD").replace(
        "\n\n", "\ngpgsig -----BEGIN PGP SIGNATURE-----\n x\n -----END PGP SIGNATURE-----\n\n", 1
    )
    tip = git(project, "hash-object", "-w", "-t", "commit", "--stdin", stdin=signed + "\n")
    (project / ".git/refs/heads/main").write_text(tip + "\n")
    for tempting in (["status"], ["diff"], ["log", "-1"], ["add", "."]):  # the traps work
        git(project, *tempting, code=None)
        assert marker.exists(), tempting
        marker.unlink()
    git(project, "reset", "-q", code=None)
    marker.unlink(missing_ok=True)

    repo = open_repository(str(project))
    for place in (trees.work_tree(str(project)), trees.index(repo), trees.commit(repo)):
        place.versions()
        place.others("julia/fast")
        place.holdout("julia")
        refs.record_version(repo, "julia/fast", place)
    trees.materialise(trees.commit(repo), "julia/fast", str(tmp_path / "out"))
    assert len(refs.versions(repo, "julia/fast")) == 2
    tree = refs.tree_of(repo, "julia/fast@v1")
    refs.named(repo, "julia@HEAD")
    refs.put_candidate(repo, "julia", {"version": tree}, {"instructions.md": b"x"})
    refs.read_candidate(repo, "julia", tree[:12])
    refs.drop_candidate(repo, "julia", tree[:12])
    refs.advance_live(repo, "julia", "promote\n", tree)
    refs.live_log(repo, "julia")
    history.history(repo, "julia")
    notes.append_all(repo, [(githash.blob_id(b"%d" % n), {"n": n}) for n in range(300)])
    notes.read_all(repo)
    sync(repo)
    from libmachine.git import plumb

    plumb.versions_of(f"{project}/machines/julia", "holdout.jsonl")
    plumb.files_at(f"{project}/machines/julia", "HEAD")
    assert not marker.exists(), marker.read_text()


def test_quarantine_of_a_push_is_read(project: Path, tmp_path: Path) -> None:
    server = tmp_path / "server.git"
    git(tmp_path, "clone", "-q", "--bare", str(project), str(server))
    hook = server / "hooks/pre-receive"
    hook.write_text(f"""#!/bin/sh
read old new ref
PYTHONPATH={ROOT} exec {sys.executable} -c '
import os, sys
from libmachine.errors import Untestable
from libmachine.git import trees
from libmachine.git.repository import open_repository
kept = {{name: value for name, value in os.environ.items() if name.startswith("GIT_")}}
print(trees.commit(open_repository(".", extra=kept), sys.argv[1]).version("julia"))
try:
    trees.commit(open_repository("."), sys.argv[1])
except Untestable as error:
    print(error)
' "$new" >{tmp_path}/out
""")
    hook.chmod(0o755)
    write(project, "julia", instructions="Pushed.\n")
    commit(project)
    git(project, "push", "-q", str(server), "main")
    seen, refused = (tmp_path / "out").read_text().splitlines()
    assert seen == trees.commit(str(project)).version("julia")
    assert "is not in this repository" in refused  # without GIT_* the pushed commit is not to be seen


# versions, candidates, promotions -------------------------------------------------------


def test_versions_are_numbered_by_content(project: Path, repo: Repository) -> None:
    assert refs.versions(repo, "julia") == []
    assert refs.record_version(repo, "julia", trees.commit(repo)) == 1
    assert refs.record_version(repo, "julia", trees.work_tree(str(project))) == 1
    assert record(repo, "julia", "2") == (2, refs.tree_of(repo, "julia@v2"))
    assert record(repo, "julia/fast", "x")[0] == 1  # nested names: both have refs
    assert record(repo, "julia", "Say yes.\n")[0] == 1
    git(project, "update-ref", "-d", "refs/machine/julia/-/v/1")
    assert record(repo, "julia", "3")[0] == 3  # a number is never given again
    found = refs.versions(repo, "julia")
    assert [version.number for version in found] == [2, 3]
    assert refs.number_of(repo, "julia", found[0].tree) == 2
    assert refs.number_of(repo, "julia", "0" * 40) is None
    assert found[0].when.endswith("Z") and found[0].when[:2] == "20"
    assert git(project, "rev-parse", f"{found[0].commit}^{{tree}}") == found[0].tree
    entries = trees.commit(repo).version_tree("julia")
    assert refs.record_version(repo, "julia", entries) == 4
    for n in range(4, 12):
        record(repo, "julia", str(n))
    assert [version.number for version in refs.versions(repo, "julia")] == [2, *range(3, 13)]
    with pytest.raises(MachineError, match="no machine name"):
        refs.versions(repo, "../heads/main")


def test_names_of_versions(project: Path, repo: Repository) -> None:
    first = git(project, "rev-parse", "HEAD")
    old = trees.commit(repo).version("julia")
    with pytest.raises(MachineError, match=r"has no version v1; none is recorded \(machine-versions julia\)"):
        refs.tree_of(repo, "julia@v1")
    refs.record_version(repo, "julia", trees.commit(repo))
    write(project, "julia", instructions="Second.\n")
    new = trees.work_tree(str(project)).version("julia")
    git(project, "tag", "v1")
    commit(project)
    for spec, tree in {
        "julia@v1": old,
        "julia@": new,
        "julia@HEAD": new,
        "julia@HEAD~1": old,
        f"julia@{first}": old,
        "julia@main@{0}": new,
        "julia@refs/tags/v1": old,
        f"julia@{old}": old,
        f"julia@{old[:12]}": old,
    }.items():
        assert refs.tree_of(repo, spec) == tree, spec
    with pytest.raises(MachineError, match="it has v1 to v1"):
        refs.tree_of(repo, "julia@v9")
    for bad in ("julia", "julia@nothing", "julia@-x", "Julia@v1", "other@HEAD"):
        with pytest.raises(MachineError):
            refs.tree_of(repo, bad)


def test_concurrent_recorders_share_no_number(repo: Repository) -> None:
    body = """
for n in range(8):
    text = b"%d" % (n if n % 2 else 100 * me + n)  # half of them are recorded by all
    place = trees.overlay(trees.work_tree(repo.directory), {"machines/julia/instructions.md": text})
    number = refs.record_version(repo, "julia", place)
    assert refs.number_of(repo, "julia", place.version("julia")) == number
refs.advance_live(repo, "julia", f"promote {me}", place.version("julia"))
"""
    spread(repo, 4, body)
    found = refs.versions(repo, "julia")
    assert [version.number for version in found] == list(range(1, 4 + 16 + 1))
    assert len({version.tree for version in found}) == 20
    assert len(refs.live_log(repo, "julia")) == 4


def test_a_moved_ref_is_not_overwritten(repo: Repository) -> None:
    one, two = (objects.write_commit(repo, objects.write_trees(repo, [[]])[0], [], text) for text in "ab")
    ref = "refs/machine/julia/-/live"
    assert move(repo, ref, one, None)
    assert not move(repo, ref, two, None)
    assert not move(repo, ref, one, two)
    assert read_ref(repo, ref) == one
    git(repo.directory, "symbolic-ref", "refs/machine/julia/-/candidate/aa", "refs/heads/main")
    before = git(repo.directory, "rev-parse", "main")
    with pytest.raises(MachineError):
        move(repo, "refs/machine/julia/-/candidate/aa", one, before)
        raise MachineError("moved, but not what it pointed to")
    assert git(repo.directory, "rev-parse", "main") == before
    (Path(repo.common) / f"{ref}.lock").write_text("")
    with pytest.raises(MachineError, match=r"cannot move refs/machine.*[Ff]ile exists"):
        move(repo, ref, two, one)
    git(repo.directory, "tag", "refs/notes/machine", one)  # a tag of that name is no note
    assert read_ref(repo, notes.REF) is None


def test_candidates(repo: Repository) -> None:
    trees_ = [record(repo, "julia", text)[1] for text in "abc"]
    put = []
    for tree in trees_:
        candidate = {"v": 1, "type": "candidate", "version": tree, "data": {"é": 0.5}}
        put.append(refs.put_candidate(repo, "julia", candidate, {"instructions.md": b"\xff\n", "d/x": b""}))
    assert put == [f"refs/machine/julia/-/candidate/{tree[:12]}" for tree in trees_]
    assert [stored.id for stored in refs.candidates(repo, "julia")] == [tree[:12] for tree in trees_]
    read, files = refs.read_candidate(repo, "julia", trees_[1][:6])
    assert read["version"] == trees_[1] and read["data"] == {"é": 0.5}
    assert files == {"instructions.md": b"\xff\n", "d/x": b""}
    refs.put_candidate(repo, "julia", {"version": trees_[0], "again": True}, {})
    assert refs.candidates(repo, "julia")[-1].id == trees_[0][:12]  # the newest is last
    assert refs.read_candidate(repo, "julia", trees_[0]) == ({"version": trees_[0], "again": True}, {})
    assert refs.candidates(repo, "julia/fast") == []
    refs.drop_candidate(repo, "julia", trees_[0][:12])
    assert [stored.id for stored in refs.candidates(repo, "julia")] == [trees_[1][:12], trees_[2][:12]]
    for bad in ("", "ffffffffffff", trees_[0][:12]):
        with pytest.raises(MachineError, match="is not one of those of 'julia'; there are: "):
            refs.drop_candidate(repo, "julia", bad)
    for files in ({"candidate.json": b""}, {"../x": b""}, {"a//b": b""}, {".git/config": b""}):
        with pytest.raises(MachineError):
            refs.put_candidate(repo, "julia", {"version": trees_[0]}, files)
    with pytest.raises(MachineError, match="it is the id of a version's tree"):
        refs.put_candidate(repo, "julia", {"version": "x"}, {})


def test_promotions(repo: Repository) -> None:
    assert refs.live_log(repo, "julia") == []
    message = "brief: promote v2\n\nMachine-Verdict: promote z=6.7 n=24x3\nBy: Zoë\n"
    made = [refs.advance_live(repo, "julia", message, record(repo, "julia", text)[1]) for text in "ab"]
    log = refs.live_log(repo, "julia")
    assert [promotion.commit for promotion in log] == made[::-1]
    assert [promotion.tree for promotion in log] == [refs.tree_of(repo, f"julia@v{n}") for n in (2, 1)]
    assert log[0].message == message.rstrip("\n")
    told = git(repo.directory, "log", "-1", "--format=%an|%(trailers:key=Machine-Verdict)", made[0])
    assert told.strip() == "tester|Machine-Verdict: promote z=6.7 n=24x3"
    assert refs.live_log(repo, "julia/fast") == []
    with pytest.raises(MachineError, match="cannot write to"):
        refs.advance_live(repo, "julia", message, "1" * 40)


def test_without_an_identity(repo: Repository, home: Path) -> None:
    (home / ".gitconfig").write_text("[user]\n\tuseConfigOnly = true\n")
    assert record(repo, "julia", "x")[0] == 1
    [version] = refs.versions(repo, "julia")
    assert (
        git(repo.directory, "log", "-1", "--format=%an <%ae>", version.commit)
        == "machine <machine@localhost>"
    )


def test_a_renamed_machine_keeps_its_notes(project: Path, repo: Repository) -> None:
    tree = refs.tree_of(repo, "julia@")
    refs.record_version(repo, "julia", trees.commit(repo))
    notes.append(repo, tree, {"n": 1})
    git(project, "mv", "machines/julia", "machines/jane")
    commit(project)
    assert trees.commit(repo).machines()[0] == "jane"
    assert refs.tree_of(repo, "jane@HEAD") == tree
    assert notes.read(repo, refs.tree_of(repo, "jane@")) == [{"n": 1}]


# notes ----------------------------------------------------------------------------------


def test_notes(repo: Repository) -> None:
    tree = refs.tree_of(repo, "julia@")
    assert notes.read(repo, tree) == [] and notes.read_all(repo) == {}
    assert notes.append(repo, tree, {"b": 1.0, "a": "é"})
    before = read_ref(repo, notes.REF)
    assert not notes.append(repo, tree, {"a": "é", "b": 1})  # the same line
    assert read_ref(repo, notes.REF) == before
    assert notes.append(repo, tree, {"a": 0})
    assert notes.read(repo, tree) == [{"a": "é", "b": 1}, {"a": 0}]  # in the order they came
    refs.record_version(repo, "julia", trees.commit(repo))
    git(repo.directory, "notes", "--ref=machine", "append", "-m", 'broken {\n\n[1]\n{"by": "git"}', tree)
    assert notes.read(repo, tree) == [{"a": "é", "b": 1}, {"a": 0}, {"by": "git"}]
    assert notes.append(repo, tree, {"c": 1})
    shown = git(repo.directory, "notes", "--ref=machine", "show", tree).splitlines()
    assert shown == ['{"a":"é","b":1}', '{"a":0}', "broken {", "[1]", '{"by": "git"}', '{"c":1}']
    assert notes.append_all(repo, [(tree, {"c": 1}), (tree, {"d": 1}), (tree, {"d": 1})]) == 1
    assert notes.read_all(repo)[tree] == notes.read(repo, tree)
    with pytest.raises(MachineError, match="is no version id"):
        notes.append(repo, tree[:12], {})


def test_400_notes_of_4_writers_are_kept(repo: Repository) -> None:
    body = """
for n in range(100):
    oid = blob_id(b"%d" % (n if n % 10 == 0 else 1000 * me + n))
    assert notes.append(repo, oid, {"me": me, "n": n})
"""
    spread(repo, 4, body)
    found = notes.read_all(repo)
    assert sum(len(records) for records in found.values()) == 400
    shared = notes.read(repo, githash.blob_id(b"0"))
    assert sorted(record["me"] for record in shared) == [0, 1, 2, 3]
    assert git(repo.directory, "notes", "--ref=machine", "list").count("\n") + 1 == len(found) == 370
    assert git(repo.directory, "fsck", "--no-dangling", code=0) == ""


def test_beside_a_writer_that_takes_no_lock(repo: Repository) -> None:
    tip = notes.REF
    notes.append(repo, githash.blob_id(b"0"), {"n": 0})
    # while we hold our lock, a plain git writes: what it wrote is kept, ours too
    blob = objects.write_blob(repo, b"x")
    program = "for n in range(20):\n    assert notes.append(repo, blob_id(b'%d' % n), {'me': me})\n"
    with locked(repo):
        running = subprocess.Popen(
            ["git", "-C", repo.directory, "notes", "--ref=machine", "add", "-m", '{"by": "git"}', blob]
        )
        assert running.wait() == 0
    spread(repo, 2, program)
    found = notes.read_all(repo)
    assert found[blob] == [{"by": "git"}]
    assert sum(len(records) for records in found.values()) == 42
    assert read_ref(repo, tip)


def test_fan_out_and_mixed_layouts(repo: Repository) -> None:
    oids = [githash.blob_id(b"%d" % n) for n in range(300)]
    assert notes.append_all(repo, [(oid, {"n": n}) for n, oid in enumerate(oids[:256])]) == 256
    assert "/" not in git(repo.directory, "ls-tree", "-r", "--name-only", notes.REF)
    for n in range(256, 260):
        assert notes.append(repo, oids[n], {"n": n})
    paths = git(repo.directory, "ls-tree", "-r", "--name-only", notes.REF).splitlines()
    assert len(paths) == 260 and all(path[2] == "/" and len(path) == 41 for path in paths)
    assert notes.append(repo, oids[0], {"again": 1})
    assert notes.read(repo, oids[0]) == [{"n": 0}, {"again": 1}]

    # what others may leave: the same note flat, under one and under two folders, and a file that is no note
    blobs = {
        text: objects.write_blob(repo, b'{"at": "%s"}\n' % text.encode()) for text in ("a", "b", "c", "d")
    }
    one = oids[0]
    paths_ = {one: "a", f"{one[:2]}/{one[2:]}": "b", f"{one[:2]}/{one[2:4]}/{one[4:]}": "c", "README": "d"}
    mixed = objects.write_nested(repo, {path: ("100644", blobs[text]) for path, text in paths_.items()})
    tip = read_ref(repo, notes.REF)
    made = objects.write_commit(repo, mixed, [str(tip)], "mixed\n")
    assert move(repo, notes.REF, made, tip)
    wanted = [{"at": "a"}, {"at": "b"}, {"at": "c"}]
    assert notes.read(repo, one) == notes.read_all(repo)[one] == wanted
    assert notes.append(repo, oids[1], {"n": 1})
    assert git(repo.directory, "ls-tree", "-r", "--name-only", notes.REF).split() == sorted(
        [one, oids[1], "README"]
    )
    assert notes.append(repo, one, {"at": "e"})
    assert notes.read(repo, one) == [*wanted, {"at": "e"}]


def test_notes_outlive_rebase_squash_cherry_pick_and_amend(project: Path, repo: Repository) -> None:
    write(project, "julia", instructions="Better.\n")
    git(project, "checkout", "-qb", "topic")
    noted = commit(project, "better")
    tree = refs.tree_of(repo, "julia@HEAD")
    refs.record_version(repo, "julia", trees.commit(repo))
    notes.append(repo, tree, {"decision": "promote"})
    git(project, "notes", "add", "-m", "promote", noted)  # the plain way: on the commit
    git(project, "config", "notes.rewriteRef", "refs/notes/commits")
    git(project, "checkout", "-q", "main")
    (project / "other").write_text("x\n")
    commit(project, "other")
    plain = []
    for words in (
        ["merge", "--squash", "topic"],
        ["cherry-pick", "topic"],
        ["rebase", "-q", "main", "topic"],
    ):
        git(project, "checkout", "-qB", "try", "main")
        git(project, *words)
        git(project, "commit", "-qm", "squashed", code=None)
        assert notes.read(repo, refs.tree_of(repo, "julia@HEAD")) == [{"decision": "promote"}], words
        plain.append(git(project, "notes", "show", "HEAD", code=None) == "promote")
    assert plain == [False, False, True]
    # an amend that changes the instructions takes the passing note along in plain git
    write(project, "julia", instructions="Worse.\n")
    git(project, "commit", "-qa", "--amend", "-m", "worse")
    assert git(project, "notes", "show", "HEAD") == "promote"
    assert notes.read(repo, refs.tree_of(repo, "julia@HEAD")) == []


def test_gc_keeps_noted_versions(project: Path, repo: Repository) -> None:
    number, tree = record(repo, "julia", "kept by its ref\n")
    notes.append(repo, tree, {"n": number})
    loose = objects.write_trees(repo, [[("100644", "x", objects.write_blob(repo, b"noted only\n"))]])[0]
    git(project, "notes", "add", "-m", "on it", loose)
    git(project, "gc", "-q", "--prune=now")
    git(project, "cat-file", "-e", loose, code=1)  # a note alone keeps nothing
    assert refs.version_files(repo, tree)["instructions.md"] == b"kept by its ref\n"
    assert notes.read(repo, tree) == [{"n": 1}]
    assert refs.versions(repo, "julia")[0].tree == tree  # packed refs read like loose ones
    assert record(repo, "julia", "next")[0] == 2


# sync -----------------------------------------------------------------------------------


@pytest.fixture(params=["path", "file"])
def clones(request: pytest.FixtureRequest, project: Path, tmp_path: Path) -> Iterator[list[Repository]]:
    """Two clones of a bare server, which is reached by path or by file://."""
    server = tmp_path / "server.git"
    git(tmp_path, "clone", "-q", "--bare", str(project), str(server))
    url = str(server) if request.param == "path" else f"file://{server}"
    for name in "ab":
        git(tmp_path, "clone", "-q", url, str(tmp_path / name))
    yield [open_repository(str(tmp_path / name)) for name in "ab"]


def state(repo: Repository) -> dict[str, str]:
    """Ref -> tree of everything that sync moves."""
    return {ref.name: ref.tree for ref in list_refs(repo, "refs/machine/", notes.REF)}


def test_two_clones_become_one(clones: list[Repository]) -> None:
    a, b = clones
    config = Path(a.common, "config").read_text()
    assert sync(a)["attempts"] == 1  # nothing anywhere
    for text in ("1", "both", "a"):
        notes.append(a, record(a, "julia", text)[1], {"by": "a", "of": text})
    for text in ("b", "both", "b2"):
        notes.append(b, record(b, "julia", text)[1], {"by": "b", "of": text})
    record(b, "julia/fast", "b")
    counts = sync(a)
    assert (counts["versions_out"], counts["notes_out"], counts["versions_in"]) == (3, 3, 0)
    counts = sync(b)
    assert (counts["versions_in"], counts["versions_out"], counts["renumbered"]) == (2, 3, 2)
    assert (counts["notes_in"], counts["notes_out"]) == (3, 3)
    assert sync(a)["versions_in"] == 3
    assert state(a) == state(b)
    found = refs.versions(b, "julia")
    assert [version.number for version in found] == [1, 2, 3, 4, 5]
    texts = [refs.version_files(a, version.tree)["instructions.md"] for version in found]
    assert texts == [b"1", b"both", b"a", b"b", b"b2"]  # the remote's numbers win
    both = next(version.tree for version in found if notes.read(b, version.tree)[1:])
    assert [note["by"] for note in notes.read(b, both)] == ["a", "b"]
    for repo in (a, b, a):
        counts = sync(repo)
        assert sum(counts.values()) == counts["attempts"] == 1, "nothing is left to move"
    assert Path(a.common, "config").read_text() == config
    assert git(a.directory, "rev-parse", "--verify", "-q", "FETCH_HEAD", code=None) == ""


def test_clones_that_take_turns_converge(clones: list[Repository]) -> None:
    for turn in range(3):
        for repo in clones:
            name = Path(repo.directory).name
            _, tree = record(repo, "julia", f"{turn} of {name}")
            notes.append(repo, tree, {"turn": turn, "by": name})
            notes.append(repo, "1" * 40, {"turn": turn, "by": name})
            refs.advance_live(repo, "julia", f"promote {turn} by {name}", tree)
            sync(repo)
    sync(clones[0])
    assert state(clones[0]) == state(clones[1])
    assert [version.number for version in refs.versions(clones[0], "julia")] == list(range(1, 7))
    assert len(notes.read(clones[1], "1" * 40)) == 6
    assert len(refs.live_log(clones[0], "julia")) == 6


def test_promotions_of_two_clones_make_one_line(clones: list[Repository]) -> None:
    a, b = clones
    trees_ = [record(a, "julia", text)[1] for text in "xyz"]
    refs.advance_live(a, "julia", "first", trees_[0])
    sync(a)
    sync(b)
    refs.advance_live(a, "julia", "by a", trees_[1])
    refs.advance_live(b, "julia", "by b", trees_[2])
    refs.advance_live(b, "julia", "by b again\n\nBy: b", trees_[0])
    sync(a)
    counts = sync(b)
    assert (counts["promotions_in"], counts["promotions_out"]) == (1, 2)
    sync(a)
    told = ["by b again\n\nBy: b", "by b", "by a", "first"]
    for repo in clones:
        assert [promotion.message for promotion in refs.live_log(repo, "julia")] == told
        assert [promotion.tree for promotion in refs.live_log(repo, "julia")][:2] == [trees_[0], trees_[2]]


def test_candidates_travel_and_stay_dropped(clones: list[Repository]) -> None:
    a, b = clones
    one, two = "1" * 40, "2" * 40
    refs.put_candidate(a, "julia", {"version": one}, {"instructions.md": b"x"})
    refs.put_candidate(b, "julia", {"version": two}, {})
    for repo in (a, b, a):
        sync(repo)
    assert [len(refs.candidates(repo, "julia")) for repo in clones] == [2, 2]
    refs.drop_candidate(b, "julia", one[:12])
    for repo in (b, a, b):
        sync(repo)
    assert [[s.id for s in refs.candidates(repo, "julia")] for repo in clones] == [[two[:12]]] * 2
    # one drops what the other writes anew: what was written stays
    refs.drop_candidate(a, "julia", two[:12])
    refs.put_candidate(b, "julia", {"version": two, "new": 1}, {})
    for repo in (a, b, a):
        sync(repo)
    assert [refs.read_candidate(repo, "julia", two)[0]["new"] for repo in clones] == [1, 1]
    # a server that forbids deleting is asked, and the rest goes through
    hook = Path(a.directory).parent / "server.git/hooks/update"
    hook.write_text('#!/bin/sh\n! expr "$3" : "^0*$" >/dev/null\n')
    hook.chmod(0o755)
    refs.drop_candidate(a, "julia", two[:12])
    record(a, "julia", "new")
    sync(a)
    assert refs.candidates(a, "julia") == [] and sync(b)["versions_in"] == 1
    sync(a)
    assert refs.candidates(a, "julia") == [] and len(refs.candidates(b, "julia")) == 1


def test_what_was_not_pushed_outlives_a_fetch(clones: list[Repository]) -> None:
    a, b = clones
    tree = record(a, "julia", "x")[1]
    notes.append(a, tree, {"by": "a"})
    sync(a)
    sync(b)
    notes.append(a, tree, {"by": "a", "pushed": False})
    notes.append(b, tree, {"by": "b"})
    sync(b)
    git(a.directory, "fetch", "-q")
    git(a.directory, "fetch", "-q", "--prune", "--all")
    assert {"by": "a", "pushed": False} in notes.read(a, tree)
    sync(a)
    assert len(notes.read(a, tree)) == 3
    # the refspec that every guide gives destroys it; sync keeps out of its way
    notes.append(a, tree, {"lost": True})
    git(a.directory, "config", "--add", "remote.origin.fetch", "+refs/notes/*:refs/notes/*")
    sync(a)
    assert len(notes.read(a, tree)) == 4
    notes.append(a, tree, {"lost": "now"})
    git(a.directory, "fetch", "-q", "origin", "+refs/notes/*:refs/notes/*")
    assert {"lost": "now"} not in notes.read(a, tree)


def test_sync_tries_again_when_the_remote_moves(clones: list[Repository]) -> None:
    a, b = clones
    body = """
for n in range(4):
    text = b"%d %d" % (me, n)
    place = trees.overlay(trees.work_tree(repo.directory), {"machines/julia/instructions.md": text})
    refs.record_version(repo, "julia", place)
    notes.append(repo, place.version("julia"), {"me": me, "n": n})
    sync(repo, attempts=50)
"""
    one = subprocess.Popen([sys.executable, "-c", _for(a, body, 1)], env=_env(), stderr=subprocess.PIPE)
    two = subprocess.Popen([sys.executable, "-c", _for(b, body, 2)], env=_env(), stderr=subprocess.PIPE)
    for process in (one, two):
        assert process.wait() == 0, process.communicate()[1].decode()
    for repo in (a, b):
        sync(repo)
    assert state(a) == state(b)
    assert [version.number for version in refs.versions(a, "julia")] == list(range(1, 9))
    assert len({version.tree for version in refs.versions(a, "julia")}) == 8
    assert sum(len(records) for records in notes.read_all(b).values()) == 8


def _for(repo: Repository, body: str, me: int) -> str:
    return (
        "from libmachine.git import notes, refs, trees\nfrom libmachine.git.sync import sync\n"
        f"from libmachine.git.repository import open_repository\n"
        f"repo = open_repository({repo.directory!r}); me = {me}\n{body}"
    )


def _env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def test_sync_says_what_is_wrong(clones: list[Repository], tmp_path: Path) -> None:
    a, _ = clones
    record(a, "julia", "x")
    for bad in ("nowhere", str(tmp_path / "gone"), "ext::touch x"):
        with pytest.raises(MachineError, match="cannot fetch from"):
            sync(a, bad)
    with pytest.raises(MachineError, match="is no remote; git remote -v"):
        sync(a, "--upload-pack=x")
    hook = tmp_path / "server.git/hooks/pre-receive"
    hook.write_text("#!/bin/sh\necho 'run machine-gate first' >&2\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(MachineError, match=r"refused: .*declined.*run machine-gate first"):
        sync(a)


def test_sync_by_path_with_a_clone_that_synced_itself(clones: list[Repository], tmp_path: Path) -> None:
    a, b = clones
    record(a, "julia", "x")
    notes.append(a, "1" * 40, {"n": 1})
    refs.advance_live(a, "julia", "of a", refs.tree_of(a, "julia@v1"))
    sync(a)
    sync(a)
    refs.advance_live(a, "julia", "not yet on the server", refs.tree_of(a, "julia@v1"))
    assert sync(b, a.directory)["versions_in"] == 1  # a peer, whose own tracking refs stay with it
    assert not any("machine-remotes/origin" in ref.name for ref in list_refs(b, "refs/"))
    assert notes.read(b, "1" * 40) == [{"n": 1}]
    # the same promotion that reaches the server by two ways, once written again, stays one
    git(tmp_path, "clone", "-q", str(tmp_path / "server.git"), str(tmp_path / "c"))
    c = open_repository(str(tmp_path / "c"))
    sync(c)
    refs.advance_live(c, "julia", "of c", refs.tree_of(c, "julia@v1"))
    for repo in (c, a, b, c):
        sync(repo)
    told = [promotion.message for promotion in refs.live_log(c, "julia")]
    assert told == ["not yet on the server", "of c", "of a"]


def test_check_name_says_which(repo: Repository) -> None:
    for bad in ("a/v3", "A", "a..b", "a.lock", "", "a/", "-", "a/-/b"):
        with pytest.raises(MachineError, match="is no machine name"):
            check_name(bad)
