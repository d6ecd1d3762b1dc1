"""Costs: what a lowered kernel does at given sizes, counted from its nest without running it.

In comes a `Kernel` and the value of each size; out comes a `Profile`: bytes and sectors of GLOBAL
memory beside those that must move, wavefronts of SHARED memory and conflicts of banks, barriers,
arithmetic, registers, how many blocks a multiprocessor holds, and bounds of the time on a GPU.

The three types to know: `kernel_profile.Profile`, `launch_counts.LaunchCounts` (what one launch
does) and `devices.GpuModel` (what a GPU can do).

The way of the data: `iteration_classes` finds which iterations of a loop cost the same;
`launch_counts` walks through a launch with one of each, and counts; `devices` has what GPUs can
do; `kernel_profile` puts these together and shows them; `cost_limits` pins them as a test. Nothing
here knows how a nest came about.
"""

from loopnest.costs.cost_limits import assert_cost
from loopnest.costs.devices import DEVICES, GpuModel, Occupancy
from loopnest.costs.kernel_profile import Profile, TensorCost, profile
from loopnest.costs.launch_counts import AccessCount, LaunchCounts

__all__ = [
    "DEVICES",
    "AccessCount",
    "GpuModel",
    "LaunchCounts",
    "Occupancy",
    "Profile",
    "TensorCost",
    "assert_cost",
    "profile",
]
