"""The target "c": a compiler from threads to loops, the C text, the system's compiler."""
