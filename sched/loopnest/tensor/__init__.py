"""The math: tensors, their axes and definitions, and the fusion that holds them.

In come the calls by which a user writes math: `Fusion.input`, functions as `ln.sum`, operators; out
goes a `Fusion` that schedules change and lowering reads, and its `MathSnapshot`, the math alone,
which a kernel carries so that checkers can hold its nest against it.

The three types to know: `fusion.Fusion` (a kernel's tensors, its schedule, and the journal of every
change), `tensor_view.TensorView` (a tensor: its axes, its place in loops and in memory, and its
`Definition`, which says as data what an element is), `domain.IterDomain` (an axis: a root, or what
a `Transform` such as a split made of other axes).

The way of the data:

1. `domain` has axes, transforms, and the `TensorDomain` of a tensor, which names its root, rfactor,
   allocation and leaf axes. `layout_transforms` are the transforms of buffers alone (padding,
   swizzles), `overlapping_tiles` that of tiles with a halo. `axis_names` says how axes are named.
2. `schedule_methods` declares the methods that `ops` and `loopnest.schedule` fulfil when they are
   loaded. `tensor_view` has definitions and tensors. `fusion` holds them, in an order, and undoes
   changes; `schedule_trace` records the calls of a schedule, `intents` what each meant to achieve.
3. `ops` has the public functions. `operands` checks what they are given and finds the type in which
   it meets, `construction` makes the tensors and definitions of all of them. One file a family:
   - an element by itself: `pointwise`, `conversions`, `random_numbers`;
   - other places of elements: `data_movement`, `reshapes`, `slices`, and `gathers`, where data say
     which place;
   - folds: `reductions`; `tuple_reductions` (several values at once, and scans) with `recurrences`;
     they fold by `reducers`, and a user's are `own_reducers`;
   - made of others: `convolutions` (matrix products too), `sliding_windows`, `sorts`;
   - loops that carry state from step to step: `step_loops`.
4. What others ask of finished math: `index_forms` says which values are indices, `math_snapshot`
   takes the math out of a fusion, and `computed_ranges` bounds integer tensors by their math.
"""
