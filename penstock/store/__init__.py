"""Where bytes lie: payloads under keys, parts under names, on disk or in memory.

from penstock import store
payloads = store.open("disk:/var/tmp/payloads")
payloads.store("job/7", table)
payloads.get("job/7").data
"""

from penstock.store.open import open  # noqa: A004  # as in store.open(url)
from penstock.store.payloads import Store

__all__ = ["Store", "open"]
