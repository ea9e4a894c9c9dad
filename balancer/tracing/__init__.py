"""Distributed tracing: W3C Trace Context and the export of OpenTelemetry spans by OTLP."""
