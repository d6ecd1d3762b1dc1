"""Random fusions under random schedules: see `tools/fuzz.py`."""
