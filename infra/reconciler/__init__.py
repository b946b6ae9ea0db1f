"""Keeps as many pods as the queue needs, within a budget, and none that nobody wants.

limits.py     what a person allows                     machine.py   an order, its pod and its worker as one
situation.py  all that one look has seen               memory.py    what outlives a look
wanted.py     how many pods                            health.py    which of them have to end, and why
orphans.py    pods that no order tells of              decisions.py what is done, with its reason
planner.py    plan(): a situation in, decisions out, and nothing else
orderer.py    one pod more, where there is one         queue.py     what the queue tells, and is told
reconciler.py looks, plans, acts                       keep.py      again and again, while it has the lease
lease.py      one at a time, with a fence              spend.py     what pods have cost
shared_ledger.py  orders in Redis, with a copy         notes.py     memory and spend, in Redis
bills.py      RunPod's account of that                 last_words.py  what a pod wrote that failed
kept_model.py the base of memory and spend
wish.py       that all pods are to go                  views.py     lines and JSON
"""
