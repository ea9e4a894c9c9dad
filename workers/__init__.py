"""A regional worker: an aiohttp application behind an emulated wide-area link.

Rule of this room: it waits, it never computes. Service, queueing and distance are instants worked out in
advance and then waited for, so that many workers fit on one core and the scheduler is not what gets measured.
The room imports none of its neighbours.
"""
