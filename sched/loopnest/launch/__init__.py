"""What every launch needs, whatever the target: plan, outputs, timing, the disk cache."""
