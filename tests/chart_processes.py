"""Runs a chart's pods as processes of this machine: what a kubelet would do, as far as weft depends on it."""

from __future__ import annotations

import base64
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from chart_rendering import NAMESPACE, Manifest, find

STOP_S = 60.0


@dataclass(frozen=True)
class Pod:
    """One pod as a process. `paths` maps what is mounted to folders of this machine."""

    name: str
    container: Manifest
    environment: Mapping[str, str]
    paths: Mapping[str, Path]
    process: subprocess.Popen[bytes]

    def probe(self, which: str) -> bool:
        """Whether the probe would pass now."""
        probe = self.container[which]
        if "exec" in probe:
            command = [_mapped(part, self.paths) for part in probe["exec"]["command"]]
            return subprocess.run(command, check=False, capture_output=True).returncode == 0
        names = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        if "tcpSocket" in probe:
            try:
                socket.create_connection(("127.0.0.1", names[probe["tcpSocket"]["port"]]), 1).close()
            except OSError:
                return False
            return True
        port, path = names[probe["httpGet"]["port"]], probe["httpGet"]["path"]
        try:
            return httpx.get(f"http://127.0.0.1:{port}{path}", timeout=5).is_success
        except httpx.HTTPError:
            return False


class Kubelet:
    """Starts pods with the commands, arguments and environment of the manifests.

    Names of services become this machine's address, and mounts folders below `folder`: `data` for the claim with the
    data, one folder of its own for each other mount of each pod.
    """

    def __init__(self, manifests: list[Manifest], folder: Path) -> None:
        self._manifests = manifests
        self._folder = folder
        self._pods: list[Pod] = []
        self._secrets = {
            each["metadata"]["name"]: {key: base64.b64decode(value).decode() for key, value in each["data"].items()}
            for each in manifests
            if each["kind"] == "Secret"
        }
        services = [each["metadata"]["name"] for each in manifests if each["kind"] == "Service"]
        names = "|".join(map(re.escape, services))
        self._service = re.compile(rf"(?:[a-z0-9-]+\.)?(?:{names})(?:\.{NAMESPACE}\.svc)?(?=:\d|$)")

    @property
    def pods(self) -> list[Pod]:
        return list(self._pods)

    def start(self, kind: str, component: str) -> None:
        """Starts every replica."""
        manifest = find(self._manifests, kind, component)
        for number in range(manifest["spec"]["replicas"]):
            self._start(f"{manifest['metadata']['name']}-{number}", manifest["spec"]["template"]["spec"])

    def stop(self) -> list[int]:
        """Ends all as Kubernetes does, the last started first. Returns the exit codes."""
        codes = []
        for pod in reversed(self._pods):
            pod.process.terminate()
            codes.append(pod.process.wait(STOP_S))
        return codes

    def kill(self) -> None:
        for pod in self._pods:
            pod.process.kill()
            pod.process.wait()

    def _start(self, name: str, spec: Manifest) -> None:
        (container,) = spec["containers"]
        paths = {mount["mountPath"]: self._mounted(name, mount["name"]) for mount in container["volumeMounts"]}
        own = self._environment(name, container, paths)
        command = [sys.executable if part == "python" else part for part in container["command"]]
        arguments = [_mapped(part, paths) for part in container.get("args", [])]
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, *arguments],
                env={"PATH": os.environ["PATH"], **own},
                stdin=subprocess.DEVNULL,
                stderr=log,
                cwd=self._folder,
            )
        self._pods.append(Pod(name, container, own, paths, process))

    def _mounted(self, pod: str, volume: str) -> Path:
        folder = self._folder / ("data" if volume == "data" else f"{pod}-{volume}")
        folder.mkdir(exist_ok=True)
        return folder

    def _environment(self, pod: str, container: Manifest, paths: Mapping[str, Path]) -> dict[str, str]:
        own: dict[str, str] = {}
        for variable in container["env"]:
            value = self._value(variable, pod)
            value = re.sub(r"\$\((\w+)\)", lambda found: own[found[1]], value)
            own[variable["name"]] = _mapped(self._service.sub("127.0.0.1", value), paths)
        return own

    def _value(self, variable: Manifest, pod: str) -> str:
        if "value" in variable:
            return str(variable["value"])
        source = variable["valueFrom"]
        if "secretKeyRef" in source:
            return self._secrets[source["secretKeyRef"]["name"]][source["secretKeyRef"]["key"]]
        assert source == {"fieldRef": {"fieldPath": "metadata.name"}}
        return pod


@contextmanager
def kubelet(manifests: list[Manifest], folder: Path) -> Iterator[Kubelet]:
    """A kubelet that leaves no process behind."""
    started = Kubelet(manifests, folder)
    try:
        yield started
    finally:
        started.kill()


def _mapped(text: str, paths: Mapping[str, Path]) -> str:
    """The text with the paths of mounts as they are on this machine."""
    for mounted, folder in sorted(paths.items(), reverse=True):
        text = re.sub(rf"(?<![\w/]){re.escape(mounted)}(?![\w-])", str(folder), text)
    return text
