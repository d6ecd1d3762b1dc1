"""From a schedule to a loop nest: one pass a module, in the order of `pipeline`."""
