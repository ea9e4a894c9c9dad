"""Exchange of load and latencies with other units, through Redis or Valkey."""
