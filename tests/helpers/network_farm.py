"""A farm whose two workers have networks of their own, and what happens to it while it works.

It is started inside of a network of its own (``unshare --net``), which holds the scheduler and who
asks; each worker has another, with one cable to the first. The cable of one is pulled, or scheduler
and workers end and others begin. What was found is printed as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from loopnest.devtools.work_farm import cluster, finished

ITEMS, BEFORE = 16, 4
SCHEDULER = "tcp://127.0.0.1:8786"


def squared(folder, number):
    """Note which worker has a number, and take a while for it."""
    (Path(folder) / f"{number}.{os.getpid()}").touch()
    time.sleep(0.3)
    return number * number


def steadily(folder, number):
    """Compute for 0.05 s of the processor, and leave a mark."""
    began = time.process_time()
    while time.process_time() - began < 0.05:
        pass
    (Path(folder) / f"{number}.{os.getpid()}").touch()
    return number * number


def started(stack, *command):
    """Start a program that ends with the stack."""
    process = subprocess.Popen(command, stdout=sys.stderr)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def done(*command):
    subprocess.run(command, check=True)


def plugged_in(stack, number):
    """Return a network of its own, with a cable to this one: the process that keeps it."""
    own = os.stat("/proc/self/ns/net").st_ino
    keeper = started(stack, "unshare", "--net", "sleep", "600")
    while os.stat(f"/proc/{keeper.pid}/ns/net").st_ino == own:
        time.sleep(0.01)
    inside = ("nsenter", "--net", "--target", str(keeper.pid))
    cable = f"cable{number}"
    done("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", inside[-1])
    for place, end, device in (((), 1, cable), (inside, 2, "eth0")):
        done(*place, "ip", "addr", "add", f"10.77.{number}.{end}/24", "dev", device)
        done(*place, "ip", "link", "set", device, "up")
    done(*inside, "ip", "link", "set", "lo", "up")
    return inside


def farm(folder, numbers):
    """Start a scheduler and workers of these numbers; return what ends them all."""
    import distributed

    python = (sys.executable, "-m")
    with ExitStack() as stack:
        started(stack, *python, "distributed.cli.dask_scheduler", "--no-dashboard")
        for number in numbers:
            inside = plugged_in(stack, number)
            started(stack, *inside, *python, "distributed.cli.dask_worker",
                    f"tcp://10.77.{number}.1:8786", "--no-nanny", "--nthreads", "1",
                    "--no-dashboard", "--local-directory", folder)  # fmt: skip
        with distributed.Client(SCHEDULER, timeout="60s") as client:
            client.wait_for_workers(len(numbers), timeout=60)
        return stack.pop_all()


def main(folder, event):
    from helpers import network_farm  # by its name: workers know no `__main__`

    done("ip", "link", "set", "lo", "up")
    with ExitStack() as stack:
        own = stack.enter_context(farm(folder, (0, 1)))
        found = []
        work = partial(network_farm.squared, folder)
        for item, result in finished(cluster(SCHEDULER, 2), work, range(ITEMS)):
            found.append((item, result))
            if len(found) == BEFORE and event == "cable":
                done("ip", "link", "del", "cable0")
            elif len(found) == BEFORE:
                own.close()
                stack.enter_context(farm(folder, (2, 3)))
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
