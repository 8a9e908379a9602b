from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

# importlib import mode does not put the folder on the path; the settings are shared by the tests of this room.
_spec = importlib.util.spec_from_file_location("selection_settings", Path(__file__).with_name("settings.py"))
assert _spec and _spec.loader
sys.modules["selection_settings"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sys.modules["selection_settings"])
