"""The cellar of the house: what a run is, as pure data and pure functions. No I/O, no clock, no asyncio."""
