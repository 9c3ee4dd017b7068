"""Choices for settings and arguments, on the command line, in a spec and in Python."""

from typing import Literal

DeviceName = Literal["auto", "cpu", "cuda"]
EngineName = Literal["auto", "batched", "looped"]
OnDivergence = Literal["freeze", "stop"]
TableFormat = Literal["text", "json", "csv", "markdown", "latex"]
FigureFormat = Literal["png", "svg", "pdf"]
FigureContent = Literal["errors", "terms", "stability", "confusion"]
Preset = Literal["paper", "calibrated"]
Tracker = Literal["tensorboard", "mlflow"]
Where = Literal["here", "ray"]
