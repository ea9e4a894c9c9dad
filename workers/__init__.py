"""A regional worker: an aiohttp application behind an emulated wide-area link.

Workers wait and do not compute: service, queueing and distance are times worked out in advance and then waited for, so
that many workers fit on one core and the scheduler is not what gets measured. This package imports no other package of
the project.
"""
