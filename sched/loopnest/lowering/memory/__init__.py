"""Where tensors lie: buffers, their aliases, flat addresses, circular buffers."""
