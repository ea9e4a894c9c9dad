"""gRPC: status codes, deadlines, errors and health messages. The data path's part is `exchange/call_rules.py`."""
