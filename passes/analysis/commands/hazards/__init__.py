"""Proof that a kernel is free of hazards: no timing of its units changes what it computes, or lets it stop."""

from penstock.passes.analysis.commands.hazards.check import MOST, check
from penstock.passes.analysis.commands.hazards.hazard import Fault, Hazard

__all__ = ["MOST", "Fault", "Hazard", "check"]
