"""Nights of a farm in simulated time, with all that goes wrong at RunPod: `python tools/simulate_nights --help`.

What is ours is real: the reconciler with its plan, its orders, its ends and its counting of money, and the loop that
calls it. What is played is RunPod, the queue with its workers, time, chance, and the crashes of the reconciler.

timeline.py       time, and what happens when         rates.py       how often what goes wrong
nights.py         what one night brings, by its seed  cloud.py       the pods as they truly are
farm.py           jobs and workers as they truly are  crashes.py     where a reconciler dies
played_runpod.py  the cloud as its API tells it       played_queue.py  the farm as a reconciler sees it
books.py          ledger, notebook and lease: they outlive a crash
reconciled.py     a night with the reconciler         fixed.py       the same night with a fixed fleet
facts.py          what a night has left               check.py       what must be true of every night
figures.py        costs and waits                     report.py, plot.py  JSON, a table, a picture
"""
