"""What every room stands on: errors, pickles, helpers of classes and of Python itself.

Nothing of loopnest comes in. The three names to know: `errors.LoopnestError` (subject, reason and
hint in one sentence), `pickling.SCHEMA` (grows with every change of a pickled class),
`fast_init.fast_init` (the constructors of nodes). `recursion.deep` gives room to recursive
functions, `gc_pause.paused` keeps the collector out of what allocates much.
"""
