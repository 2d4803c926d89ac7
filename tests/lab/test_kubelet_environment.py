"""The environment of a container's process: where values come from, and paths below mounts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from workers.lab.kubelet.container import BadContainer
from workers.lab.kubelet.environment import Mount, PodPlace, compose_environment, translate
from workers.lab.kubelet.launch_plan import plan_launch
from workers.lab.kubelet.sources import Source, SourceKind

SETTINGS = Source(SourceKind.CONFIG_MAP, "settings")
KEYS = Source(SourceKind.SECRET, "keys")


@pytest.fixture
def place(tmp_path: Path) -> PodPlace:
    return PodPlace(
        folder=tmp_path,
        log_folder=tmp_path / "logs",
        host_root=tmp_path / "root",
        programs=tmp_path / "bin",
        node_name="node-1",
        api_host="127.0.0.1",
        api_port="6443",
        service_account=None,
        kubeconfig=None,
        ip="127.9.1.2",
        contents={SETTINGS: {"A": b"1", "no name!": b"2", "B": b"3"}, KEYS: {"token": b"s3cret"}},
    )


def _pod(**container: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "p",
            "namespace": "fleetmend",
            "uid": "uid-1",
            "labels": {"app.kubernetes.io/name": "watch"},
        },
        "spec": {"containers": [{"name": "main", **container}]},
    }


def _environment(place: PodPlace, **container: Any) -> dict[str, str]:
    pod = _pod(**container)
    return compose_environment(pod, pod["spec"]["containers"][0], place)


def _from(kind: str, name: str, key: str, **more: Any) -> list[dict[str, Any]]:
    return [{"name": "V", "valueFrom": {kind: {"name": name, "key": key, **more}}}]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("status.podIP", "127.9.1.2"),
        ("status.hostIP", "127.0.0.1"),
        ("metadata.namespace", "fleetmend"),
        ("metadata.labels['app.kubernetes.io/name']", "watch"),
        ("metadata.annotations['none']", ""),
    ],
)
def test_a_pod_may_ask_for_its_own_fields(place: PodPlace, path: str, value: str) -> None:
    env = [{"name": "V", "valueFrom": {"fieldRef": {"fieldPath": path}}}]
    assert _environment(place, env=env)["V"] == value


def test_values_come_from_keys_of_config_maps_and_secrets(place: PodPlace) -> None:
    assert _environment(place, env=_from("configMapKeyRef", "settings", "B"))["V"] == "3"
    assert _environment(place, env=_from("secretKeyRef", "keys", "token"))["V"] == "s3cret"


@pytest.mark.parametrize(("name", "key"), [("none", "token"), ("keys", "none")])
def test_an_optional_source_that_is_missing_sets_nothing(
    place: PodPlace, name: str, key: str
) -> None:
    assert "V" not in _environment(place, env=_from("secretKeyRef", name, key, optional=True))


def test_a_missing_key_is_named(place: PodPlace) -> None:
    with pytest.raises(BadContainer, match="env V: secret 'keys' has no key 'none'"):
        _environment(place, env=_from("secretKeyRef", "keys", "none"))


def test_all_keys_of_an_object_come_first_and_are_overruled_by_name(place: PodPlace) -> None:
    origins = [
        {"configMapRef": {"name": "settings"}},
        {"prefix": "K_", "secretRef": {"name": "keys"}},
        {"secretRef": {"name": "none", "optional": True}},
    ]
    env = [{"name": "B", "value": "$(A)$(A)"}]
    found = _environment(place, envFrom=origins, env=env)
    assert (found["A"], found["B"], found["K_token"]) == ("1", "11", "s3cret")
    assert "no name!" not in found


MOUNTS = (
    Mount("/etc/fleetmend", Path("/here/a")),
    Mount("/etc/fleetmend/tls", Path("/here/b")),
    Mount("/tmp", Path("/here/tmp")),  # noqa: S108 - a path in a container
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("/etc/fleetmend/x.toml", "/here/a/x.toml"),
        ("/etc/fleetmend", "/here/a"),
        ("/etc/fleetmend/tls/key", "/here/b/key"),
        ("/etc/fleetmend/tls-old", "/here/a/tls-old"),
        ("/etc/fleetmended", "/etc/fleetmended"),
        ("/host/etc/fleetmend", "/host/etc/fleetmend"),
        ("--policy=/etc/fleetmend/p,/tmp/q", "--policy=/here/a/p,/here/tmp/q"),
        ("open('/tmp/x')", "open('/here/tmp/x')"),
        ("nothing", "nothing"),
    ],
)
def test_paths_below_a_mount_are_told_as_places_of_this_machine(text: str, told: str) -> None:
    assert translate(text, MOUNTS) == told


def test_paths_are_translated_in_values_commands_and_arguments(place: PodPlace) -> None:
    place = replace(place, mounts=MOUNTS, contents={SETTINGS: {"P": b"/etc/fleetmend/p"}})
    env = [
        {"name": "FILE", "value": "/tmp/f"},  # noqa: S108 - a path in a container
        *_from("configMapKeyRef", "settings", "P"),
    ]
    pod = _pod(command=["cat", "/etc/fleetmend/tls/key"], args=["$(FILE)", "$(V)"], env=env)
    plan = plan_launch(pod, pod["spec"]["containers"][0], place)
    assert plan.argv == ("cat", "/here/b/key", "/here/tmp/f", "/here/a/p")
    assert plan.environment["TMPDIR"] == "/here/tmp"


def test_another_release_stands_first_on_the_search_path(
    place: PodPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/checkout")
    found = _environment(replace(place, release=Path("/images/next")))
    assert found["PYTHONPATH"] == "/images/next:/checkout"
    assert _environment(place)["PYTHONPATH"] == "/checkout"


def test_without_a_command_the_images_entrypoint_runs(place: PodPlace) -> None:
    pod = _pod(args=["watch"])
    assert plan_launch(pod, pod["spec"]["containers"][0], place).argv[1:] == (
        "-m",
        "workers.cli",
        "watch",
    )
