"""`python -m tbexp` is `tbexp`."""

from __future__ import annotations

import sys

from tbexp.app import main

sys.exit(main())
