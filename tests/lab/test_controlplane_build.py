"""Finding and building the programs: sources, lock, repair, messages.

A stand-in for the program `go` plays the compiler: a real build takes minutes, and is what
every fresh machine's first start does anyway.
"""

import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.harness.waiting import wait_until
from workers.lab.address import Component
from workers.lab.controlplane.build import BuildProgress, BuildStage, ensure_built
from workers.lab.controlplane.errors import BuildFailed, ProgramsUnavailable
from workers.lab.controlplane.programs import CONTROL_PLANE, find_helm, find_programs
from workers.lab.controlplane.progress import BuildDisplay, line_of
from workers.lab.controlplane.recipe import lab_recipe

RECIPE = lab_recipe()
KEY = RECIPE.key

FAKE_GO = """\
#!/bin/sh
# Notes each call and plays `go version`, `go list` and `go build`.
echo "$1 GOFLAGS=$GOFLAGS GOTOOLCHAIN=$GOTOOLCHAIN GOOS=$GOOS GOPROXY=$GOPROXY" >> "$FAKE_GO_CALLS"
case "$1" in
version) echo "go version ${FAKE_GO_VERSION:-go1.26.8} linux/amd64" ;;
list)
    if [ "$2" = -m ]; then
        mkdir -p "$GOMODCACHE/m/pkg/apis/crds" "$GOMODCACHE/m/kwok/apis/crds"
        touch "$GOMODCACHE/m/pkg/apis/crds/karpenter.sh_nodepools.yaml"
        touch "$GOMODCACHE/m/kwok/apis/crds/kwok_classes.yaml"
        echo "$GOMODCACHE/m"
        exit
    fi
    echo "go: downloading k8s.io/api v0.36.3" >&2
    printf 'fmt\\nos\\nnet\\n' ;;
build)
    echo $$ > "$FAKE_GO_CALLS.pid"
    [ -n "$FAKE_GO_SLOW" ] && while [ -e "$FAKE_GO_SLOW" ]; do sleep 0.05; done
    if [ -e "$FAKE_GO_FAILS" ]; then echo "undefined: everything" >&2; exit 2; fi
    mkdir -p "$GOCACHE" "$GOMODCACHE/k8s.io"
    echo fmt >&2
    while [ "$1" != -o ]; do shift; done
    for name in server kube-apiserver kube-controller-manager kube-scheduler kwok helm; do
        echo program > "$2/$name"; chmod +x "$2/$name"
    done ;;
esac
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a PATH on which only the stand-in is Go; returns its notes."""
    folder = tmp_path / "go-bin"
    folder.mkdir()
    (folder / "go").write_text(FAKE_GO)
    (folder / "go").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("FLEETMEND_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setenv("FAKE_GO_FAILS", str(tmp_path / "fails"))
    monkeypatch.setenv("FAKE_GO_CALLS", str(tmp_path / "calls"))
    return tmp_path / "calls"


def _silent(progress: BuildProgress) -> None:
    del progress


def _builds(calls: Path) -> int:
    return sum(line.startswith("build ") for line in calls.read_text().splitlines())


def test_a_build_leaves_the_programs_and_none_of_its_scratch(calls: Path, tmp_path: Path) -> None:
    folder = ensure_built(RECIPE, _silent)
    assert folder == tmp_path / "cache" / f"bin-{KEY}"
    assert all((folder / component.value).exists() for component in CONTROL_PLANE)
    left = {path.name for path in (tmp_path / "cache").iterdir()}
    assert not (tmp_path / "cache" / f"build-{KEY}").exists(), left
    assert ensure_built(RECIPE, _silent) == folder
    assert _builds(calls) == 1


def test_progress_says_the_disk_need_first_and_counts_packages(calls: Path) -> None:
    told: list[BuildProgress] = []
    ensure_built(RECIPE, told.append)
    assert "GiB of disk" in told[0].note
    assert {p.stage for p in told} == {
        BuildStage.DOWNLOADING,
        BuildStage.COMPILING,
        BuildStage.DONE,
    }
    assert told[-1].total == 3


def test_the_users_go_settings_don_t_disturb_but_the_proxy_counts(
    calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOFLAGS", "-mod=vendor")
    monkeypatch.setenv("GOTOOLCHAIN", "local")
    monkeypatch.setenv("GOOS", "plan9")
    monkeypatch.setenv("GOPROXY", "https://proxy.example")
    ensure_built(RECIPE, _silent)
    built = next(line for line in calls.read_text().splitlines() if line.startswith("build "))
    assert built == (
        "build GOFLAGS=-mod=readonly -modcacherw GOTOOLCHAIN=auto GOOS=linux "
        "GOPROXY=https://proxy.example"
    )


@pytest.mark.parametrize("damage", ["missing", "truncated", "not executable", "no record"])
def test_a_damaged_cache_is_built_again(calls: Path, damage: str) -> None:
    folder = ensure_built(RECIPE, _silent)
    program = folder / "kube-scheduler"
    match damage:
        case "missing":
            program.unlink()
        case "truncated":
            program.write_text("")
        case "not executable":
            program.chmod(0o644)
        case _:
            (folder / "whole.json").unlink()
    assert ensure_built(RECIPE, _silent) == folder
    assert _builds(calls) == 2
    assert program.read_text() == "program\n"


def test_a_half_made_build_is_resumed_and_its_remains_are_cleared(
    calls: Path, tmp_path: Path
) -> None:
    scratch = tmp_path / "cache" / f"build-{KEY}"
    (scratch / "out").mkdir(parents=True)
    (scratch / "out" / "kube-apiserver").write_text("half a pro")
    (scratch / "gocache").mkdir()
    (scratch / "gocache" / "kept").write_text("compiled before")
    told: list[BuildProgress] = []
    folder = ensure_built(RECIPE, told.append)
    assert "resuming" in told[0].note
    assert (folder / "kube-apiserver").read_text() == "program\n"
    assert not scratch.exists()


def test_a_failed_build_shows_gos_words_and_goes_on_next_time(calls: Path, tmp_path: Path) -> None:
    (tmp_path / "fails").touch()
    with pytest.raises(BuildFailed, match="undefined: everything") as failure:
        ensure_built(RECIPE, _silent)
    assert ".log" in str(failure.value)
    assert not (tmp_path / "cache" / f"bin-{KEY}").exists()
    (tmp_path / "fails").unlink()
    assert (ensure_built(RECIPE, _silent) / "etcd").exists()


def test_two_starts_build_once(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "slow"
    slow.touch()
    monkeypatch.setenv("FAKE_GO_SLOW", str(slow))
    script = textwrap.dedent(
        """
        from workers.lab.controlplane.build import ensure_built
        from workers.lab.controlplane.recipe import lab_recipe
        tell = lambda progress: print(progress.stage.value, flush=True)
        print(ensure_built(lab_recipe(), tell))
        """
    )
    both = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    wait_until(lambda: calls.exists() and _builds(calls) == 1, 20.0, "one of them builds")
    slow.unlink()
    outputs = [process.communicate(timeout=30.0)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert _builds(calls) == 1
    folders = {output.splitlines()[-1] for output in outputs}
    assert folders == {str(tmp_path / "cache" / f"bin-{KEY}")}


def test_an_interrupted_build_ends_its_compiler(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "slow"
    slow.touch()
    monkeypatch.setenv("FAKE_GO_SLOW", str(slow))

    class Interrupted(Exception):
        pass

    def interrupt(progress: BuildProgress) -> None:
        if progress.stage is BuildStage.COMPILING and Path(f"{calls}.pid").exists():
            raise Interrupted

    with pytest.raises(Interrupted):
        ensure_built(RECIPE, interrupt)
    assert not psutil.pid_exists(int(Path(f"{calls}.pid").read_text()))
    slow.unlink()
    assert (ensure_built(RECIPE, _silent) / "etcd").exists()


def test_a_missing_go_is_told_in_words_with_the_remedy(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(ProgramsUnavailable) as refusal:
        ensure_built(RECIPE, _silent)
    message = str(refusal.value)
    assert message.startswith("go is missing")
    assert "https://go.dev/doc/install" in message
    assert "KUBEBUILDER_ASSETS" in message
    assert "\n" not in message


def test_a_go_that_is_too_old_is_told(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GO_VERSION", "go1.20.14")
    with pytest.raises(ProgramsUnavailable, match=r"go1\.20\.14.*Go 1\.21 or newer"):
        ensure_built(RECIPE, _silent)


def test_too_little_disk_is_told_before_anything_is_built(calls: Path) -> None:
    with pytest.raises(ProgramsUnavailable, match=r"GiB are free; set FLEETMEND_CACHE"):
        ensure_built(replace(RECIPE, disk_need_gib=1e9), _silent)
    assert _builds(calls) == 0


def _programs(folder: Path, **versions: str) -> Path:
    folder.mkdir()
    for component in CONTROL_PLANE:
        known = "etcd Version: 3.6.16" if component is Component.ETCD else "Kubernetes v1.36.3"
        text = versions.get(component.value.replace("-", "_"), known)
        if text:
            _script(folder / component.value, text)
    return folder


def _script(path: Path, says: str) -> Path:
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


def test_kubebuilder_assets_come_first(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assets = _programs(tmp_path / "assets")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    said: list[str] = []
    programs = find_programs(said.append, _silent)
    assert programs.source == "KUBEBUILDER_ASSETS"
    assert programs[Component.ETCD] == assets / "etcd"
    assert not said
    assert not calls.exists()


@pytest.mark.parametrize(
    ("versions", "reason"),
    [
        ({"kube_scheduler": ""}, "kube-scheduler is missing"),
        ({"kube_apiserver": "Kubernetes v1.29.4"}, "is 1.29.4, at least 1.34 is needed"),
        ({"etcd": "etcd Version: 3.5.9"}, "is 3.5.9, at least 3.5.21 is needed"),
        ({"kube_scheduler": "Kubernetes v1.35.0"}, "versions differ: 1.35, 1.36"),
        ({"etcd": "hello"}, "says nothing that is understood"),
    ],
    ids=["missing", "old Kubernetes", "old etcd", "mixed", "no version"],
)
def test_assets_that_don_t_do_are_named_and_passed_over(
    calls: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    versions: dict[str, str],
    reason: str,
) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(_programs(tmp_path / "assets", **versions)))
    on_path = _programs(tmp_path / "on-path")
    monkeypatch.setenv("PATH", f"{on_path}:/usr/bin:/bin")
    said: list[str] = []
    assert find_programs(said.append, _silent).source == "PATH"
    assert len(said) == 1
    assert reason in said[0]


def test_without_other_sources_the_cache_is_used(calls: Path) -> None:
    assert find_programs(lambda line: None, _silent).source == "cache"


def test_the_pinned_module_is_part_of_the_package() -> None:
    assert {path.name for path in RECIPE.module.iterdir()} == {"go.mod", "go.sum"}


def test_progress_without_a_terminal_is_a_plain_line_now_and_then(
    capsys: pytest.CaptureFixture[str],
) -> None:
    display = BuildDisplay()
    for done in range(100):
        display(BuildProgress(BuildStage.COMPILING, 65.0, done, 100))
    assert capsys.readouterr().err == "[01:05] compiling 0 of 100 packages (0%)\n"


def test_a_line_of_progress_names_the_linking() -> None:
    line = line_of(BuildProgress(BuildStage.COMPILING, 300.0, 99, 100))
    assert line == "[05:00] compiling 99 of 100 packages (99%), linking the programs"


def test_the_cache_folder_names_the_version_of_kubernetes() -> None:
    assert KEY.startswith(f"{RECIPE.version}-")


def test_one_build_makes_the_control_plane_karpenter_with_its_crds_and_helm(
    calls: Path, tmp_path: Path
) -> None:
    programs = find_programs(lambda line: None, _silent).with_karpenter(_silent)
    folder = tmp_path / "cache" / f"bin-{KEY}"
    assert dict(programs.paths) == {
        component: folder / component.value for component in (*CONTROL_PLANE, Component.KARPENTER)
    }
    crds = sorted(path.name for path in programs.karpenter_crds.iterdir())
    assert crds == ["karpenter.sh_nodepools.yaml", "kwok_classes.yaml"]
    assert find_helm(_silent) == folder / "helm"
    assert _builds(calls) == 1


def test_make_s_call_builds_all_of_them_once(calls: Path, tmp_path: Path) -> None:
    assets = _programs(tmp_path / "assets")
    command = [sys.executable, "-m", "workers.lab.controlplane"]
    environment = {**os.environ, "KUBEBUILDER_ASSETS": str(assets)}
    for _ in range(2):
        subprocess.run(command, check=True, env=environment, timeout=60.0)
    assert _builds(calls) == 1
    assert (tmp_path / "cache" / f"bin-{KEY}" / "karpenter").exists()


def test_karpenter_and_helm_are_taken_from_the_assets_or_from_path(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assets = _programs(tmp_path / "assets")
    on_path = tmp_path / "on-path"
    on_path.mkdir()
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    monkeypatch.setenv("PATH", f"{on_path}:/usr/bin:/bin")
    karpenter, helm = _script(on_path / "karpenter", ""), _script(on_path / "helm", "v4.2.4")
    (on_path / "crds").mkdir()
    programs = find_programs(lambda line: None, _silent)
    assert programs.with_karpenter(_silent)[Component.KARPENTER] == karpenter
    assert find_helm(_silent) == helm
    karpenter, helm = _script(assets / "karpenter", ""), _script(assets / "helm", "v4.0.0+gabcd")
    (assets / "crds").mkdir()
    assert programs.with_karpenter(_silent)[Component.KARPENTER] == karpenter
    assert find_helm(_silent) == helm
    assert not calls.exists()


def test_a_karpenter_without_crds_and_an_older_helm_are_passed_over(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assets = _programs(tmp_path / "assets")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets))
    _script(assets / "karpenter", "")
    _script(assets / "helm", "v3.19.0+g3d8990f")
    programs = find_programs(lambda line: None, _silent)
    assert programs.source == "KUBEBUILDER_ASSETS"
    built = tmp_path / "cache" / f"bin-{KEY}"
    assert programs.with_karpenter(_silent)[Component.KARPENTER] == built / "karpenter"
    assert find_helm(_silent) == built / "helm"
    assert _builds(calls) == 1


def test_a_crd_lost_from_the_cache_is_a_reason_to_build_again(calls: Path) -> None:
    folder = ensure_built(RECIPE, _silent)
    (folder / "crds" / "kwok_classes.yaml").unlink()
    assert ensure_built(RECIPE, _silent) == folder
    assert _builds(calls) == 2


def test_a_module_without_its_crds_fails_the_build(calls: Path) -> None:
    elsewhere = replace(RECIPE, files={"sigs.k8s.io/karpenter": ("none/*.yaml",)})
    with pytest.raises(BuildFailed, match=r"has no files none/\*\.yaml"):
        ensure_built(elsewhere, _silent)
