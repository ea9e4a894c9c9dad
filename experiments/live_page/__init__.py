"""The live page of an experiment: a process that forwards the stream of the balancer being measured."""
