"""Passes that do nothing, and a record of which of them ran."""

import loopnest.graph as G

X = G.var("x", (3,), "float64")


def graph():
    return G.Graph([X], [G.exp(X) + 1.0])


class Recorder:
    """An instrument by its hooks alone: what ran, in order."""

    def __init__(self):
        self.events = []

    def run_before_pass(self, mod, info):
        self.events.append(f"before {info.name}")

    def run_after_pass(self, mod, info):
        self.events.append(f"after {info.name}")

    def run_failed_pass(self, mod, info):
        self.events.append(f"failed {info.name}")

    @property
    def names(self):
        return [event.split()[1] for event in self.events if event.startswith("before")]


def toy(name, **facts):
    """Return a pass that does nothing."""

    @G.function_pass(name=name, **facts)
    def nothing(func, mod, ctx):
        return func

    return nothing


def ran(passes, **context):
    """Return the names of the passes that a Sequential runs."""
    recorder = Recorder()
    with G.PassContext(instruments=[recorder], **context):
        G.Sequential(passes)(graph())
    return recorder.names
