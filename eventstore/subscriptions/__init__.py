"""Which member of a group reads which partitions, and how far is it? Also: reading without a group (``tail``).

May import log, streams, and what is below them; not state or integrity.

with Store.open() as store:
    group = store.group("invoicing", topics=["shop.account"], start="earliest")
    with group.join(member="pod-1", effects=engine) as member:
        for batch in member:  # one partition, in order; sleeps until woken
            with Session(engine) as session, session.begin():
                for event in batch.events(Deposited):
                    session.add(Invoice(account=event.stream.id, amount=event.data.amount))
                batch.commit(session)  # effects and position: one transaction, fenced
"""
