"""What users run: kernel definitions, checks, the command line, the pytest plugin."""
