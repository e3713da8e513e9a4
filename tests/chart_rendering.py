"""The chart as Helm's own engine renders it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import helm_python
import yaml

CHART = Path(__file__).parents[1] / "helm" / "weft"
RELEASE = "demo"
NAMESPACE = "training"

Manifest = dict[str, Any]


def render(values: Manifest | None = None) -> list[Manifest]:
    """Every manifest of the release, in the templates' order. Raises helm_python.HelmError."""
    with helm_python.Chart.load(CHART) as chart:
        chart.validate_schema(chart.merge_values(values))
        texts = chart.render(values, name=RELEASE, namespace=NAMESPACE)
    manifests = (yaml.safe_load_all(text) for path, text in texts.items() if path.endswith(".yaml"))
    return [manifest for each in manifests for manifest in each if manifest]


def notes(values: Manifest | None = None) -> str:
    """What Helm prints after an install."""
    with helm_python.Chart.load(CHART) as chart:
        texts = chart.render(values, name=RELEASE, namespace=NAMESPACE)
    return next(text for path, text in texts.items() if path.endswith("NOTES.txt"))


def find(manifests: list[Manifest], kind: str, component: str) -> Manifest:
    """The one manifest of that kind and component."""
    (found,) = (
        each
        for each in manifests
        if each["kind"] == kind and each["metadata"]["labels"]["app.kubernetes.io/component"] == component
    )
    return found


def pods(manifests: list[Manifest]) -> dict[str, Manifest]:
    """The pod's spec of each component."""
    return {
        each["metadata"]["labels"]["app.kubernetes.io/component"]: each["spec"]["template"]["spec"]
        for each in manifests
        if each["kind"] in {"Deployment", "StatefulSet"}
    }
