"""The flow that docs/adapters/crewai.md shows, without a model: each method stands for what an agent would do."""

from crewai.flow.flow import Flow, listen, start
from crewai.flow.persistence import persist
from pydantic import BaseModel

from statecache.adapters.crewai import StateCacheFlowPersistence


class Order(BaseModel):
    id: str = ""
    steps: list[str] = []


@persist(StateCacheFlowPersistence())  # STATECACHE_REDIS_URL and STATECACHE_POSTGRES_URL say where
class Shipping(Flow[Order]):
    @start()
    def pay(self):
        if "paid" not in self.state.steps:
            self.state.steps.append("paid")

    @listen(pay)
    def pack(self):
        self.state.steps.append("packed")


Shipping().kickoff(inputs={"id": "order/9"})

flow = Shipping()  # another process, another day
flow.kickoff(inputs={"id": "order/9"})
print(flow.state.steps)
