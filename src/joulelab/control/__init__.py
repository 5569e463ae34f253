"""Set power caps, and restore the original ones even after a crash.

A program uses `client`. It talks (`protocol`, `link`) to a keeper, the only process that sets caps: one of its own
(`__main__`), or capd (`daemon`, with the rules of `policy`). Both serve each client with a `Keeper`, which holds one
`CapLease` per device; the former also pauses a job (`pauses`). Locks and journals are in `state`; `leftovers` finds the
journals of killed keepers.
"""
