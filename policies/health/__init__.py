"""Health of endpoints: active checks, outlier detection, panic mode and slow start."""
