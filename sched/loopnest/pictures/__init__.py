"""Pictures of tensors and kernels: SVG text, drawn from index maps and nests, without a library.

In comes a tensor, a kernel or a profile, from a method of it that draws; out goes an `Svg`. The
types to know: `svg.Canvas` (shapes, on what grows with them), `svg.Svg` (a text that notebooks
show, and that `save` writes to a file), and `tile_picture.Touched` (the elements of a
buffer that one access touches). Each file is a picture:

- `domain_picture`: the axes of a TensorView from root to leaf, as a tree of transforms.
- `kernel_picture`: a kernel's nest as nested boxes, and where its buffers live; one of its buffers.
- `tile_picture`: which thread touches which element of a buffer, with its banks and conflicts, and
  in which of its stages a circular one is filled and read.
- `math_picture`: tensors below those that they are computed from.
- `roofline_picture`: a profile under the roofs of its GPU.

All draw on a `Canvas`, whose styles follow the reader's light or dark page.
"""
