"""The ops: functions that make nodes, by family. Importing this registers all of them.

The names of a family stand in its module.
"""

from loopnest.graph.operators.convolution import *  # noqa: F403
from loopnest.graph.operators.creation import *  # noqa: F403
from loopnest.graph.operators.indexing_ops import *  # noqa: F403
from loopnest.graph.operators.movement_ops import *  # noqa: F403
from loopnest.graph.operators.nn_ops import *  # noqa: F403
from loopnest.graph.operators.pointwise_ops import *  # noqa: F403
from loopnest.graph.operators.pooling import *  # noqa: F403
from loopnest.graph.operators.reduction_ops import *  # noqa: F403
