"""Competing consumers on PostgreSQL with the extension eskit_lease: leaders, partitions, work items and run-once keys.

`Leases` is for asyncio; `eskit_lease.sync` has the same verbs for programs without it.
"""

from ._errors import Closed, LeaseError, Lost, Refused, Unsure
from ._group import Partition
from ._lead import Lead
from ._leases import Leases
from ._once import Execution, Outcome
from ._scope import Fenced, Scope
from ._work import Item

__all__ = ["Closed", "LeaseError", "Lost", "Refused", "Unsure"]
__all__ += ["Execution", "Fenced", "Item", "Lead", "Leases", "Outcome", "Partition", "Scope"]
