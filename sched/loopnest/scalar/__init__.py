"""Types, the one language of scalar expressions, and the arithmetic of indices and sizes.

In come element types, size symbols and what users assume of sizes; out come expressions, which all
rooms above share: values, indices and conditions of one interned family.

The three types to know: `expr.Expr` (a typed node; equality is identity), `simplify.Simplifier`
(canonical index arithmetic and proofs of comparisons), `facts.Facts` (what was assumed of sizes).

The way of the data:

- `dtypes`, `enums`, `op_table`: element types and their rules, kinds of axes and loops, the keys of
  all operations; `function_docs` says what docstrings of functions share.
- `expr`: the nodes, their table, walks and rewritings, operators of sizes, the text.
  `templates`: expressions in the coordinates of an element; `operators`: those of tensors.
- `size_text`, `facts`: the text of a size or an assumption, and what follows from it at once.
- `polynomials`, `simplify`: indices as sums of products; what divides and bounds them; proofs.
- `conditions`, `contradictions`, `data_ranges`: what is decided before a launch, and of data.
- `launch_bounds`, `access_bounds`: numbers of threads, and of the index of one access.
- `arguments`: the sizes and scalars that the arguments of a launch give.
- `expr_parser`, `record_text`: expressions and records as texts, read by Python's grammar.
- `fragments`, `origin`, `machine_facts`, `target_names`: matrices over lanes, places in the user's
  code, the processor, names of targets.
"""
