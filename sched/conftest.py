"""What pytest leaves out of the doctests of the package: modules whose extra is not installed."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["loopnest/torch/*"]
