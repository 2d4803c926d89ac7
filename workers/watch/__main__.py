"""`python -m workers.watch`: the watch process, as `fleetmend watch` starts it."""

import sys

from workers.watch.process import main

sys.exit(main())
