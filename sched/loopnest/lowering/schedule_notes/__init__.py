"""Notes: what was asked of a schedule and cannot be found in the loop nest, for `Kernel.notes`.

Requires the schedule's intents (`Fusion.intents`) and the program after the last pass. For each
intent, a function of its kind (`findings.CHECKS`) looks for a witness in the nest: a wide access, a
loop of that type, statements inside the loops that they shall share. It returns the witness as
text, or a `Note`. Nothing here changes the program; all runs when somebody reads the notes.
"""
