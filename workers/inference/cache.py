"""KV cache of an engine: blocks with prefix reuse, reference counts, and eviction of the least recently used."""

from __future__ import annotations


class Block:
    """A whole block of a prompt. Those without references are linked, the least recently used first."""

    def __init__(self, key: int, ring: Block | None) -> None:
        self.key = key
        self.references = 1
        self.before: Block = self if ring is None else ring
        self.after: Block = self if ring is None else ring


class BlockCache:
    """`total` blocks of `size` tokens. `used` ones belong to sequences, `idle` ones only remain for reuse.

    Only whole blocks of prompts are reused; a sequence's other blocks are only counted. `found` is the number of
    blocks that the last `take` found.
    """

    def __init__(self, total: int, size: int) -> None:
        self.total = total
        self.size = size
        self.used = 0
        self.idle = 0
        self.found = 0
        self._table: dict[int, Block] = {}
        self._ring = Block(0, None)

    def take(self, keys: list[int], prompt: int, length: int) -> list[Block] | None:
        """Take the blocks of `length` tokens, the first `prompt` of which have the hashes `keys`; None if there are not
        enough. Return the reusable ones, to be given back.
        """
        size, table, ring = self.size, self._table, self._ring
        whole = min(len(keys), prompt // size)
        most = min(whole, (length - 1) // size)  # the last token is always computed
        held: list[Block] = []
        idle = 0
        while len(held) < most:
            block = table.get(keys[len(held)])
            if block is None:
                break
            held.append(block)
            if block.references == 0:
                idle += 1
        found = len(held)
        needed = (length + size - 1) // size - found + idle
        if needed > self.total - self.used:
            return None
        for block in held:
            if block.references == 0:
                block.before.after = block.after
                block.after.before = block.before
                block.before = block.after = ring
            block.references += 1
        for i in range(found, whole):
            key = keys[i]
            if key in table:  # the last block of a prompt that is in the cache wholly
                break
            block = Block(key, ring)
            table[key] = block
            held.append(block)
        self.found = found
        self.idle -= idle
        self.grow(needed)
        return held

    def grow(self, blocks: int) -> None:
        """Take `blocks` more, which are free or idle."""
        self.used += blocks
        ring = self._ring
        while self.used + self.idle > self.total:
            block = ring.after
            ring.after = block.after
            block.after.before = ring
            del self._table[block.key]
            self.idle -= 1

    def give_back(self, held: list[Block], length: int, computed: int) -> None:
        """Give back the blocks of `length` tokens. Those `held` of the first `computed` tokens remain for reuse."""
        size, ring = self.size, self._ring
        self.used -= (length + size - 1) // size - len(held)
        whole = computed // size
        for i in range(len(held) - 1, -1, -1):  # so that the end of a prefix is evicted before its beginning
            block = held[i]
            block.references -= 1
            if block.references == 0:
                self.used -= 1
                if i >= whole:
                    del self._table[block.key]
                else:
                    self.idle += 1
                    block.before = ring.before
                    block.after = ring
                    ring.before.after = block
                    ring.before = block
