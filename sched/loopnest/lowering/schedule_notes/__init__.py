"""Notes: what was asked of a schedule and cannot be found in the loop nest, for `Kernel.notes`.

Requires the schedule's intents (`Fusion.intents`) and the program after the last pass. For each
intent, a function of its kind (`findings.CHECKS`) looks for a witness in the nest: a wide access, a
loop of that type, statements inside the loops that they shall share. It returns the witness as
text, or a `Note`. Nothing here changes the program; all runs when somebody reads the notes.

`lowered_schedule` keeps what was lowered, `removals` says what would make a test superfluous,
`nest_costs` makes the notes that concern no single call, `findings` those of intents, and
`explanations` says of each tensor why it came out so, whether as asked for or not.
"""
