"""A local server that stands where https://api.runpod.io stands, and keeps the contract that RunPod published.

It shows that a client keeps that contract too; it does not show that RunPod does. `openapi.json` is RunPod's document,
`openapi-later.patch.json` what a later version of it added; each request and each answer is checked against them.

    with running_runpod(later=True) as runpod:
        runpod.script("POST", "/v2/pods", Fault.SERVER_ERROR_AFTER_EFFECT)  # 500, but the pod is there
        client = Client(runpod.url, runpod.key)  # or a child process, with `runpod.environment`
        ...
        runpod.advance(90)  # seconds; the clock stands still else
        assert len(runpod.alive()) == 1  # what costs money, whoever knows of it
        assert len(runpod.changes()) == 1  # requests other than GET
        assert runpod.outside() == []  # none that the document doesn't have

How the parts are cut:

    document.py   the OpenAPI document: finds operations, checks requests and answers
    rules.py      the rules between fields, which the schemas cannot say
    catalog.py    GPU types, data centers, machines        shelf.py     the catalog as it is shown
    pods.py       one pod, whose life is a Course          describe.py  a pod as it is shown
    world.py      the account: pods, volumes, stock        billing.py   what they cost     logs.py  what they wrote
    calls.py      a function for each operation            rates.py     how many are allowed
    faults.py     what goes wrong, as data                 service.py   a request's way to its answer
    machines.py   something real behind a pod              server.py    sockets, and `running_runpod`
    clock.py      time                                     answers.py   answers and refusals

For child processes give it the real clock and pods of short courses:

    running_runpod(clock=WallClock(), world=World(course=QUICK), start=start_a_worker)
"""
