"""What every room stands on: errors, pickles, helpers of classes and of Python itself."""
