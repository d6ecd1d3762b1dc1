"""The command line."""


def main() -> None:
    """Run the command line."""
    raise SystemExit("loopnest: the command line is not written yet")
