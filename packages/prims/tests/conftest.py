"""Lets the tests of this folder import their shared helpers (`rule_checks`)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
